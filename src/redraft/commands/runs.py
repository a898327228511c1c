"""`redraft run`, `redraft compare` and `redraft prompts`: single runs, and two cells side by side."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from redraft.commands.arguments import DEFAULT_PRESET, AsJson, Cell, Preset, Seed, Wide
from redraft.errors import UserError
from redraft.terminal import document, filled, table


def run(
    cell: Cell,
    seed: Annotated[list[int], typer.Option(help="Seed of the run; may be given several times.")] = [0],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    cores: Annotated[int, typer.Option(help="Processor cores.")] = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Run one cell: make its model, train, evaluate, and print the main quantities."""
    from redraft.config import Experiments
    from redraft.layout import Layout

    experiments, layout = Experiments(), Layout(preset)
    if twice := [s for s in seed if seed.count(s) > 1]:
        raise UserError("this seed is given twice", key="--seed", value=twice[0])
    for s in seed:
        experiments.run(cell, s, preset).check_supported()
    folders = [layout.run(cell, s) for s in seed]
    targets = [str(folder / name) for folder in folders for name in ("scores.json", "diversity.parquet")]
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--config", f"preset={preset}", "--", *targets]
    if code := subprocess.run(command, stdout=sys.stderr if as_json else None, check=False).returncode:
        raise typer.Exit(code)
    _print_runs(cell, dict(zip(seed, folders, strict=True)), preset, as_json)


def _print_runs(cell: str, folders: dict[int, Path], preset: str, as_json: bool) -> None:
    """Print the main quantities of finished runs, by seed, and how they come into the tables."""
    from redraft.summary import number, summary

    found = {seed: summary(folder, cell, seed) for seed, folder in folders.items()}
    config = "" if preset == DEFAULT_PRESET else f"--config preset={preset} "
    note = f"`snakemake {config}--forcerun collect` takes it into the tables."
    if as_json:
        rows = [
            {"seed": seed, "folder": folders[seed], "quantity": name, "value": value}
            for seed, values in found.items()
            for name, value in values.items()
        ]
        typer.echo(document("run", {"cell": cell, "preset": preset, "seeds": list(folders)}, rows, [note]))
        return
    for seed, values in found.items():
        typer.echo(f"\n{cell} seed {seed}: {folders[seed]}")
        typer.echo(table(["quantity", "value"], [[name, number(value)] for name, value in values.items()]))
    typer.echo(f"\n{note}")


def compare(
    first: Cell, second: Cell, preset: Preset = DEFAULT_PRESET, wide: Wide = False, as_json: AsJson = False
) -> None:
    """Compare two cells over the seeds that both have finished: means, and paired intervals."""
    from redraft.config import Experiments
    from redraft.layout import Layout
    from redraft.summary import compare as compare_cells

    experiments, layout = Experiments(), Layout(preset)
    rows = compare_cells(first, second, experiments.preset(preset), experiments, layout)
    if as_json:
        asked = {"first": first, "second": second, "preset": preset}
        typer.echo(document("compare", asked, [row.record() for row in rows]))
        return
    if wide:
        header = ["quantity", first, second, "second against first", "95 % interval", "seeds"]
        typer.echo(table(header, [row.texts() for row in rows], wide=True))
        return
    typer.echo(f"first:  {first}\nsecond: {second}\nmeans; second against first with its 95 % interval\n")
    texts = [[name, a, b, f"{against} {interval}", n] for name, a, b, against, interval, n in (r.texts() for r in rows)]
    header = ["quantity", "first", "second", "second against first", "seeds"]
    typer.echo(table(header, texts, wraps=["quantity", "second against first"]))


def prompts(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    file: Annotated[Path | None, typer.Option(help="CSV file; printed if empty.")] = None,
    as_json: AsJson = False,
) -> None:
    """Log of every prompt of a run, as CSV: responses made, correct ones, and what memory gave."""
    from analysis.prompt_log import prompt_log
    from redraft.config import Experiments
    from redraft.layout import Layout

    log = prompt_log(Experiments().run(cell, seed, preset), Layout(preset).run(cell, seed))
    if file:
        log.to_csv(file, index=False)
        typer.echo(filled(f"{len(log)} prompts: {file}"))
    elif as_json:
        asked = {"cell": cell, "preset": preset, "seed": seed}
        typer.echo(document("prompts", asked, log.astype(object).where(log.notna(), None).to_dict("records")))
    else:
        typer.echo(log.to_csv(index=False), nl=False)
