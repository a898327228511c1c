"""`redraft status`, `redraft cost` and `redraft recover`: progress, cost and clean-up of a campaign."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Cells, Changes, Preset, Wide
from redraft.cli.terminal import document
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.config import Experiments
    from redraft.config import Preset as PresetModel

PAPER_SCALE = "paper"
"""Preset with the papers' models, data and training length."""


def status(
    target: Annotated[
        str,
        typer.Argument(
            help="reproduction, extras, or a folder under experiments/; the papers of a bare `snakemake` if empty."
        ),
    ] = "",
    grid: Annotated[list[str], typer.Option(help="Only this grid; repeat the option for several.")] = [],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    every: Annotated[bool, typer.Option("--all", help="Also list waiting and finished runs.")] = False,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Print the state of every run of a campaign, and the last log lines of failed runs.

    Without a target and a grid: the runs of a bare `snakemake`. Outdated are the runs that Snakemake would train again.
    """
    from redraft.config import Experiments
    from redraft.layout import Layout, require
    from redraft.ops.workflow import status as statuses

    require("results")
    experiments, layout = Experiments(), Layout(preset)
    grids = statuses.target(layout, experiments, [target] if target else [], grid)
    runs = statuses.run_statuses(layout, experiments, grids)
    others = statuses.other_finished_runs(layout, runs)
    left_out = statuses.left_out_cells(layout, experiments, grids)
    if as_json:
        notes = [statuses.others_text(others)] if others else []
        notes += statuses.left_out_lines(left_out)
        echo(document("status", {"preset": preset, "grids": grids}, map(asdict, runs), notes))
    else:
        echo(f"{statuses.heading(layout, grids)}\n{statuses.status_text(runs, others, left_out, every=every)}")
    # After the output, so that one damaged run hides no other; the exit code says it.
    if damaged := [f"{run.cell} seed {run.seed}" for run in runs if run.state == "damaged"]:
        hint = "see its error above; `redraft run` makes a run again once its folder is removed"
        raise UserError("files of these runs are damaged", key="run", value=", ".join(damaged), hint=hint)


def cost(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="reproduction, extras, a paper, a grid or paper/cell; reproduction if empty."),
    ] = None,
    preset: Preset = DEFAULT_PRESET,
    gpus: Annotated[int, typer.Option(help="Available GPUs (or cores); 0 for those of the largest run.")] = 0,
    extras: Annotated[bool, typer.Option(help="Include the grids beyond the paper.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write all rows to this file.")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Print the memory of a GPU by model instead, for runs under verl.")
    ] = False,
    wide: Wide = False,
    as_json: AsJson = False,
    changes: Changes = [],  # noqa: B006
    cells: Cells = None,
) -> None:
    """Print the cost of a campaign before its launch: hours and storage per cell, and the cost that each table adds.

    `--preset paper` is the papers' scale. --set costs variants of the cells without saving them.
    """
    from redraft.analysis.cost import campaign_cost as costs
    from redraft.analysis.cost import cost_text
    from redraft.config import Experiments, variants
    from redraft.files import atomic
    from redraft.layout import Layout

    experiments, layout = Experiments(), Layout(preset)
    settings, texts, notes = experiments.preset(preset), [], [_scale(preset)]
    rows: list[dict[str, Any]] = []
    prior = _prior_seconds(settings)
    requested = [*(targets or ["reproduction"]), *(["extras"] if extras else [])]
    if memory and csv:
        raise UserError("this table has no CSV", key="--csv", value=str(csv), allowed="--json, or without --memory")
    if memory and (gpus or wide):
        raise UserError("--memory has no such option", key="--gpus" if gpus else "--wide", allowed="--json")
    if memory:
        _print_memory(experiments, settings, requested, changes, as_json)
        return
    for name, wanted in costs.wanted(experiments, settings, requested).items():
        # Costs do not depend on the seed.
        tested = [variants.tried(experiments, cell.id, changes, 0, preset)[0] for cell in wanted] if changes else wanted
        lines = costs.costs_of(tested, experiments, settings, layout, *prior)
        parts = costs.part_costs(lines, costs.parts(experiments, name, "extras" in requested))
        rules = vocabulary.cost if (vocabulary := experiments.reported(name)) else None
        available = gpus or max((line.devices for line in lines), default=0)
        ending = cost_text.ending(lines, settings, available, rules.hardware if rules else None)
        texts.append(f"{name}\n\n{cost_text.tables(lines, parts, settings, wide=wide)}\n\n{ending}")
        notes += [f"{name}: {line}" for line in ending.splitlines() if line]
        # Tables of papers have the same columns; the file has all of them.
        rows += [row | {"paper": name} for row in cost_text.rows_of(lines, parts, settings)]
    if as_json:
        echo(
            document(
                "cost", {"preset": preset, "targets": requested, "gpus": gpus or None, "set": changes}, rows, notes
            )
        )
    else:
        echo("\n\n".join([_scale(preset), *texts]))
    if csv:
        with atomic(csv) as temporary:
            cost_text.write_csv(temporary, rows)


def _print_memory(
    experiments: "Experiments", preset: "PresetModel", targets: list[str], changes: list[str], as_json: bool
) -> None:
    """Print the memory of a GPU by model, for the cells of targets that the preset has."""
    from redraft.analysis.cost import memory_text
    from redraft.analysis.cost.campaign_cost import wanted
    from redraft.config import variants

    cells = [cell for found in wanted(experiments, preset, targets).values() for cell in found]
    fitting = [cell.id for cell in cells if experiments.has_run(cell, preset)]
    seed = preset.seeds[0]
    rows = memory_text.memory_rows(variants.tried(experiments, cell, changes, seed, preset.name)[1] for cell in fitting)
    if as_json:
        request = {"preset": preset.name, "targets": targets, "set": changes, "memory": True}
        echo(document("cost", request, rows))
    elif rows:
        echo(memory_text.memory_table(rows))
    else:
        echo(f"no run of the preset {preset.name} trains under verl on GPUs with a model of known sizes")


def _prior_seconds(preset: "PresetModel") -> tuple[float | None, str]:
    """Mean wall time of the preset's runs on another machine, in seconds, and its source; unscaled without numpy or
    torch."""
    from redraft.analysis.cost.campaign_cost import ELSEWHERE
    from redraft.ops.workflow.job_times import SECONDS, priors

    try:
        return priors(preset).get("train"), ELSEWHERE
    except ModuleNotFoundError as error:
        seconds = priors(preset, scaled=False).get("train")
        return seconds, f"mean of the preset's runs on another machine ({SECONDS}), not scaled without {error.name}"


def _scale(preset: str) -> str:
    """A line with the preset, and the option for the papers' scale."""
    hint = "" if preset == PAPER_SCALE else f"; `--preset {PAPER_SCALE}` is the papers' scale"
    return f"costs at the preset {preset}{hint}"


def recover(
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the campaign's jobs that are still in Slurm's queue.")
    ] = False,
) -> None:
    """Clean up after a killed scheduler: release leases of dead processes, remove unfinished files, unlock
    snakemake."""
    from redraft.layout import require
    from redraft.ops.workflow.recover import recover as clean

    require("results")
    echo("\n".join(clean(Path("results"), cancel=cancel)) or "nothing to do")
