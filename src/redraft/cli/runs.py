"""`redraft run`, `redraft compare` and `redraft prompts`: single runs, and a comparison of two cells."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Cell, Cells, Changes, Preset, Seed, Wide
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.config import Experiments, Run
    from redraft.layout import Layout


def run(
    cell: Cell,
    seed: Annotated[list[str], typer.Option("--seed", "--seeds", help="0, 0-2 or 0,2,5; may be repeated.")] = ["0"],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    cores: Annotated[int, typer.Option(help="Processor cores.")] = os.cpu_count() or 1,
    settings: Changes = [],  # noqa: B006
    name: Annotated[str, typer.Option(help="Name of the variant; if empty, derived from its settings.")] = "",
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Run one cell: make its model, train, evaluate, and print the main quantities. --set makes a variant of it."""
    from redraft.cli.extras import require_module
    from redraft.config import Experiments, own, variants
    from redraft.layout import Layout, require, require_writable
    from redraft.ops.workflow import pace

    # All that can be wrong is checked before snakemake starts, which takes seconds to say it and less clearly.
    require("Snakefile")
    require_module("snakemake")
    require_writable(Path("results"))
    pace.take_precision(Experiments().preset(preset))
    experiments, layout, seeds = Experiments(), Layout(preset), variants.seeds_of(seed)
    if name and not settings:
        raise UserError("only a variant can have a name", key="--name", value=name, hint="add --set")
    if settings:
        cell = variants.keep(experiments, cell, settings, name, [(s, preset) for s in seeds])
        # The instance above was made before the variant was in the file.
        experiments = Experiments()
        echo(f"{cell}: {experiments.cells_of(own.OWN)}", err=as_json)
    for s in seeds:
        experiments.run(cell, s, preset).check_supported()
    experiments.check_sources(cell, preset)
    # Seeds do not change the size of a step.
    _check_memory(experiments.run(cell, seeds[0], preset))
    folders = [layout.run(cell, s) for s in seeds]
    targets = [str(folder / name) for folder in folders for name in ("scores.json", "diversity.parquet")]
    # `--` ends the values of `--config`, which takes several.
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--config", f"preset={preset}", "--", *targets]
    from redraft.ops.workflow.call import call

    # Snakemake's output does not mix with the JSON document on standard output.
    if code := call(command, layout.root, sys.stderr if as_json else None):
        raise typer.Exit(code)
    from redraft.cli.summary import summaries

    quantities = dict(zip(seeds, summaries([experiments.run(cell, s, preset) for s in seeds], layout), strict=True))
    _print_runs(cell, quantities, layout, _table_command(cell, experiments, preset), as_json)


def _check_memory(run: "Run") -> None:
    """Raise a UserError if the rollouts of a step exceed the memory of this machine. Training checks the rest."""
    import psutil

    total = psutil.virtual_memory().total
    if run.least_bytes > total:
        raise UserError(
            "the rollouts of a step do not fit into this machine's memory",
            key="trainer.prompts_per_step × trainer.group_size",
            value=f"{run.trainer.prompts_per_step} × {run.trainer.group_size}: {run.least_bytes / 2**30:,.0f} GiB",
            allowed=f"at most {total / 2**30:,.0f} GiB",
        )


def _table_command(cell: str, experiments: "Experiments", preset: str) -> str:
    """A sentence with the command that adds a finished run to the tables."""
    config = [] if preset == DEFAULT_PRESET else [f"preset={preset}"]
    if (base := experiments.cell(cell).base) is None:
        return f"`snakemake {f'--config {config[0]} ' if config else ''}--forcerun collect` adds it to the tables."
    options = " ".join([*config, f"papers={cell.partition('/')[0]}"])
    return f"`snakemake --config {options}` makes a table of it next to {base}, for all seeds of the preset."


def _print_runs(cell: str, quantities: dict[int, dict[str, float]], layout: "Layout", note: str, as_json: bool) -> None:
    """Print the main quantities of finished runs by seed, and then a note."""
    from redraft.cli.summary import number

    preset, folders = layout.preset, {seed: layout.run(cell, seed) for seed in quantities}
    if as_json:
        rows = [
            {"seed": seed, "folder": folders[seed], "quantity": name, "value": value}
            for seed, values in quantities.items()
            for name, value in values.items()
        ]
        echo(document("run", {"cell": cell, "preset": preset, "seeds": list(folders)}, rows, [note]))
        return
    for seed, values in quantities.items():
        echo(f"\n{cell} seed {seed}: {folders[seed]}")
        echo(table(["quantity", "value"], [[name, number(value)] for name, value in values.items()]))
    echo(f"\n{note}")


def compare(
    first: Cell,
    second: Cell,
    preset: Preset = DEFAULT_PRESET,
    wide: Wide = False,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Compare two cells over the seeds that both have finished: means and paired intervals."""
    from redraft.cli.summary import compare as compare_cells
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    require("results")
    experiments, layout = Experiments(), Layout(preset)
    rows = compare_cells(first, second, experiments.preset(preset), experiments, layout)
    if as_json:
        request = {"first": first, "second": second, "preset": preset}
        echo(document("compare", request, map(asdict, rows)))
        return
    if wide:
        header = ["quantity", first, second, "second vs first", "95 % interval", "seeds"]
        echo(table(header, [row.texts() for row in rows], wide=True))
        return
    echo(f"first:  {first}\nsecond: {second}\nmeans; second relative to first with its 95 % interval\n")
    texts = [[name, a, b, f"{against} {interval}", n] for name, a, b, against, interval, n in (r.texts() for r in rows)]
    header = ["quantity", "first", "second", "second vs first", "seeds"]
    echo(table(header, texts, wraps=["quantity", "second vs first"]))


def prompts(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    file: Annotated[Path | None, typer.Option(help="CSV file; if empty, print to standard output.")] = None,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Print a log of a run's prompts as CSV: sampled and correct responses, and responses reused from memory."""
    from redraft.analysis.data.prompt_frames import prompt_log
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    require("results")
    log = prompt_log(Experiments().run(cell, seed, preset), Layout(preset).run(cell, seed))
    if file:
        log.to_csv(file, index=False)
        echo(filled(f"{len(log)} prompts: {file}"), err=as_json)
    if as_json:
        request = {"cell": cell, "preset": preset, "seed": seed}
        echo(document("prompts", request, log.astype(object).where(log.notna(), None).to_dict("records")))
    elif not file:
        echo(log.to_csv(index=False), nl=False)
