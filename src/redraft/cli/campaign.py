"""`redraft status`, `redraft cost` and `redraft recover`: what a campaign is at, costs, and has left behind."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Cells, Changes, Preset, Wide
from redraft.cli.terminal import document

if TYPE_CHECKING:
    from redraft.config import Preset as PresetModel

PAPER_SCALE = "paper"
"""Preset of the papers' own scale."""


def status(
    paper: Annotated[str, typer.Argument(help="A folder under experiments/; empty for all of the preset's.")] = "",
    grid: Annotated[list[str], typer.Option(help="Only this grid; may be given several times.")] = [],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    every: Annotated[bool, typer.Option("--all", help="Also list the runs that wait or are done.")] = False,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Print the state of every run of a campaign, and the end of each failed one.

    Without a paper and a grid it is what `snakemake` runs.
    """
    from redraft.config import Experiments
    from redraft.layout import Layout
    from redraft.ops.workflow.status import elsewhere, heading, look, others_text, target, text

    experiments, layout = Experiments(), Layout(preset)
    asked = target(layout, experiments, [paper] if paper else [], grid)
    runs = look(layout, experiments, asked)
    others = elsewhere(layout, runs)
    if as_json:
        notes = [others_text(others)] if others else []
        typer.echo(document("status", {"preset": preset, "grids": asked}, map(asdict, runs), notes))
    else:
        typer.echo(f"{heading(layout, asked)}\n{text(runs, others, every=every)}")


def cost(
    targets: Annotated[
        list[str] | None, typer.Argument(help="reproduction, extras, a paper, a grid or paper/cell; else reproduction.")
    ] = None,
    preset: Preset = DEFAULT_PRESET,
    gpus: Annotated[int, typer.Option(help="GPUs (or cores) at hand; 0 for what one run takes.")] = 0,
    extras: Annotated[bool, typer.Option(help="With what goes beyond the paper.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write all lines to this file too.")] = None,
    wide: Wide = False,
    as_json: AsJson = False,
    changes: Changes = [],  # noqa: B006
    cells: Cells = None,
) -> None:
    """Print the cost of a campaign before its launch: hours and storage by cell, and the addition of each table.

    `--preset paper` is the papers' scale. --set costs variants of the cells, which are kept nowhere.
    """
    from redraft.analysis.cost import campaign_cost as costs
    from redraft.analysis.cost import cost_text
    from redraft.config import Experiments, variants
    from redraft.files import atomic
    from redraft.layout import Layout

    experiments, layout = Experiments(), Layout(preset)
    settings, texts, notes = experiments.preset(preset), [], [_scale(preset)]
    rows: list[dict[str, Any]] = []
    timed = _timed(settings)
    asked = [*(targets or ["reproduction"]), *(["extras"] if extras else [])]
    for name, wanted in costs.wanted(experiments, settings, asked).items():
        tried = [variants.tried(experiments, cell.id, changes, 0, preset)[0] for cell in wanted] if changes else wanted
        lines = costs.costs_of(tried, experiments, settings, layout, *timed)
        parts = costs.part_costs(lines, costs.parts(experiments, name, "extras" in asked))
        rules = vocabulary.cost if (vocabulary := experiments.reported(name)) else None
        ending = cost_text.ending(lines, settings, gpus or costs.devices(settings), rules.hardware if rules else None)
        texts.append(f"{name}\n\n{cost_text.tables(lines, parts, settings, wide=wide)}\n\n{ending}")
        notes += [f"{name}: {line}" for line in ending.splitlines() if line]
        rows += [row | {"paper": name} for row in cost_text.rows_of(lines, parts, settings)]
    if as_json:
        typer.echo(
            document("cost", {"preset": preset, "targets": asked, "gpus": gpus or None, "set": changes}, rows, notes)
        )
    else:
        typer.echo("\n\n".join([_scale(preset), *texts]))
    if csv:
        with atomic(csv) as temporary:
            cost_text.write_csv(temporary, rows)


def _timed(preset: "PresetModel") -> tuple[float | None, str]:
    """Mean wall seconds of the preset's runs on another machine, and their source; unscaled without numpy or torch."""
    from redraft.analysis.cost.campaign_cost import ELSEWHERE
    from redraft.ops.workflow.campaign import SECONDS, priors

    try:
        return priors(preset).get("train"), ELSEWHERE
    except ModuleNotFoundError as error:
        seconds = priors(preset, scaled=False).get("train")
        return seconds, f"mean of the preset's runs on another machine ({SECONDS}), not scaled without {error.name}"


def _scale(preset: str) -> str:
    """Which preset this is, and how the papers' scale is asked for."""
    hint = "" if preset == PAPER_SCALE else f"; `--preset {PAPER_SCALE}` is the papers' scale"
    return f"costs at the preset {preset}{hint}"


def recover(
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel this campaign's jobs that Slurm still has.")] = False,
) -> None:
    """Clean up after a killed scheduler: leases of dead owners, unfinished files, its lock."""
    from redraft.layout import require
    from redraft.ops.workflow.recover import recover as clean

    require("results")
    typer.echo("\n".join(clean(Path("results"), cancel=cancel)) or "nothing to do")
