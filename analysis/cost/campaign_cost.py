"""Costs of a campaign before its launch: GPU-hours and storage by cell, and the additional cost of each table.

Finished runs count with their measured hours. Others are estimated from the paper's reported times, if there are any
(`redraft.analysis.cost.hour_estimates`). Each line names the source of its hours. No number of this module enters a
result.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redraft.analysis.cost.hour_estimates import UNKNOWN, Estimates, devices
from redraft.config import Cell, Experiments, Preset, Run, run_fingerprint
from redraft.config.taken_runs import taken_cells
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.ops.sizing.run_size import RunSizes
from redraft.result_files import read_manifest

CHECKPOINTS = 2
"""Number of checkpoints that a run keeps."""
ELSEWHERE = "mean of the preset's runs on another machine, at this one's pace (workflows/seconds.yaml)"
"""Source of hours if nothing is known about the cell itself."""


@dataclass(frozen=True)
class CellCost:
    """Costs of all runs of a cell; None is unknown.

    Attributes:
        cell: name.
        runs: number of seeds.
        devices: GPUs or cores of one run as it is configured, on all its nodes.
        hours: wall hours of one run.
        device_hours: GPU- or core-hours of all runs: of `devices`, or of those that finished runs had.
        policies: bytes of all kept policies.
        rollouts: bytes of all saved rollouts, before compression.
        drafts: bytes of one run's draft store, in memory and in a checkpoint.
        source: source of the hours.
        stored: bytes on disk of all finished runs.
        stored_source: source of `stored`.
        fresh_share: samples for `fresh_reward` over rollouts for training.
    """

    cell: str
    runs: int
    devices: int
    hours: float | None
    device_hours: float | None
    policies: float | None
    rollouts: float | None
    drafts: float | None
    source: str
    stored: float | None = None
    stored_source: str = UNKNOWN
    fresh_share: float = 0.0


@dataclass(frozen=True)
class PartCost:
    """Costs of a table or figure: hours of its cells, hours of cells that no earlier part needs, and the running total.

    Hours sum the known cells; None if none is known.
    """

    part: str
    cells: int
    device_hours: float | None
    added: float | None
    cumulative: float | None
    unknown: int


def wanted(experiments: Experiments, preset: Preset, targets: Sequence[str]) -> dict[str, list[Cell]]:
    """Cells to train for targets, by paper, each once; a target without a paper applies to the preset's papers.

    In place of a cell whose runs are another paper's, the list has that paper's cell (`CellFile.runs_from`).

    Targets are `reproduction` (what papers report), `extras` (also grids beyond the papers, as `snakemake extras`), a
    paper, a grid, `paper/grid`, or `paper/cell`. No target means `reproduction`.

    Raises:
        UserError: for an unknown target.
    """
    found: dict[str, list[Cell]] = {}
    taken = taken_cells(experiments, preset)
    for target in targets or ["reproduction"]:
        for each in _wanted(experiments, preset, target):
            cell = each
            while cell.id in taken:
                cell = experiments.cell(taken[cell.id])
            cells = found.setdefault(cell.paper, [])
            # Targets may overlap, and a run is paid once.
            cells += [] if cell in cells else [cell]
    return found


def _wanted(experiments: Experiments, preset: Preset, target: str) -> list[Cell]:
    # Papers first: a grid of the same name is named by `paper/grid`.
    if target in experiments.papers:
        return experiments.cells(target, experiments.grids(target, beyond_paper=False))
    if target == "reproduction":
        return [cell for paper in preset.default for cell in _wanted(experiments, preset, paper)]
    if target == "extras":
        grids = {
            paper: (experiments.default_grids(preset, paper) or []) + experiments.grids(paper, beyond_paper=True)
            for paper in preset.default
        }
        return [cell for paper in grids for cell in experiments.cells(paper, grids[paper])]
    paper, _, name = target.rpartition("/")
    names = {p: {grid.name for grid in experiments.cell_file(p).grids} for p in ([paper] if paper else preset.default)}
    if holding := [p for p in names if name in names[p]]:
        return [cell for p in holding for cell in experiments.cells(p, [name])]
    if not paper and experiments.named_so(name):
        return [experiments.cell(experiments.find(name))]
    if not paper:
        grids_of_all = [grid for grids in names.values() for grid in grids]
        allowed = {"reproduction", "extras", *experiments.papers, *grids_of_all, "paper/cell"}
        raise UserError("nothing is called so", key="target", value=target, allowed=sorted(allowed))
    return [experiments.cell(target)]


def costs_of(
    cells: Iterable[Cell],
    experiments: Experiments,
    preset: Preset,
    layout: Layout,
    timed: float | None = None,
    timed_source: str = ELSEWHERE,
) -> list[CellCost]:
    """Costs of the cells for which the preset has a model and data.

    `timed` is the mean wall time (seconds) of the preset's usual runs on another machine, for cells without any other
    source; runs of other sizes take so many times as long.
    """
    # A preset may lack models or data of a cell, which then has no run.
    known = [cell for cell in cells if not preset.lacks(cell)]
    estimates = {paper: Estimates.of(experiments, paper, preset) for paper in {cell.home for cell in known}}
    elsewhere, sizes = (timed, timed_source), RunSizes(experiments, preset)
    return [_cell_cost(cell, experiments, preset, layout, estimates[cell.home], elsewhere, sizes) for cell in known]


def _cell_cost(
    cell: Cell,
    experiments: Experiments,
    preset: Preset,
    layout: Layout,
    estimates: Estimates,
    elsewhere: tuple[float | None, str],
    sizes: RunSizes,
) -> CellCost:
    # Estimates are of the first seed, since seeds differ in nothing that costs.
    runs = [experiments.run_of(cell, seed, preset.name) for seed in experiments.seeds(cell, preset)]
    storage, count = estimates.storage(cell, runs[0], len(runs)), len(runs)
    fresh = runs[0].trainer.fresh_samples / runs[0].trainer.group_size
    needed = devices(runs[0].engine)
    if measured := [m for run in runs if (m := _measured(run, cell, layout)) is not None]:
        source = f"measured ({len(measured)} of {count} runs)"
        hours, device_hours, stored = (sum(values) / len(measured) for values in zip(*measured, strict=True))
        total, stored = device_hours * count, stored * count
        return CellCost(cell.name, count, needed, hours, total, *storage, source, stored, source, fresh)
    estimated, source = estimates.hours(cell, runs[0])
    timed, timed_source = elsewhere
    # Only where the paper gives no hours: another machine's mean knows only the size of the cell.
    if estimated is None and timed is not None:
        estimated, source = timed * sizes.of_run(runs[0]) / 3600, timed_source
    total = None if estimated is None else estimated * needed * count
    policies, rollouts, drafts = storage
    if policies is None or rollouts is None or drafts is None:
        return CellCost(cell.name, count, needed, estimated, total, *storage, source, fresh_share=fresh)
    left = policies + rollouts + drafts * CHECKPOINTS * count  # each of the last checkpoints contains a draft store
    counted = "parameters and token counts"
    return CellCost(cell.name, count, needed, estimated, total, *storage, source, left, counted, fresh)


def training_line(cell_ids: Sequence[str], experiments: Experiments, preset: Preset, layout: Layout) -> str:
    """One line with the cost of training runs, given by their cells; empty if no hours are known."""
    counts = Counter(cell_ids)
    found = costs_of([experiments.cell(cell) for cell in counts], experiments, preset, layout)
    pairs = list(zip(found, counts.values(), strict=True))
    known = [cost.device_hours / cost.runs * count for cost, count in pairs if cost.device_hours is not None]
    unknown = sum(count for cost, count in pairs if cost.device_hours is None)
    if not known:
        return ""
    rest = f", and {unknown} runs of unknown hours" if unknown else ""
    hours = sum(known)
    return f"training: {f'{hours:,.0f}' if hours >= 10 else f'{hours:.2g}'} {unit(preset)} by `redraft cost`{rest}"


def unit(preset: Preset) -> str:
    """Name of the unit of hours."""
    return "GPU-hours" if preset.engine.gpus else "core-hours"


def _measured(run: Run, cell: Cell, layout: Layout) -> tuple[float, float, int] | None:
    """Wall hours, GPU- or core-hours, and bytes of a finished run of this configuration; None if there is none."""
    folder = layout.run(cell.id, run.seed)
    if not (folder / "manifest.json").exists():
        return None
    manifest = read_manifest(folder / "manifest.json", "fingerprint", "seconds")
    # The time of another configuration is no measurement of this one.
    if manifest["fingerprint"] != run_fingerprint(run):
        return None
    engine = manifest.get("configuration", {}).get("engine", {})
    # Both are per node, as in `devices`. A manifest without an engine had that of the run.
    run_devices = (engine.get("gpus") or engine.get("threads", 0)) * engine.get("nodes", 1) or devices(run.engine)
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    hours = manifest["seconds"] / 3600
    return hours, hours * run_devices, stored


def parts(experiments: Experiments, paper: str, extras: bool) -> dict[str, list[str]]:
    """Table or figure to the cells that it needs, tables first, by number."""
    needed = {
        f"Table {table.number}": table.cells
        for table in sorted(experiments.tables(paper).tables, key=lambda table: table.number)
        if extras or not table.beyond_paper
    }
    for figure in sorted(experiments.figures(paper).figures, key=lambda figure: figure.number):
        if extras or not figure.beyond_paper:
            needed[f"Figure {figure.number}"] = [cell for panel in figure.panels for cell in panel.cells]
    return needed


def part_costs(costs: Iterable[CellCost], needed: dict[str, list[str]]) -> list[PartCost]:
    """Costs of each table or figure that needs one of these cells, and of the cells that none needs."""
    by_cell = {cost.cell: cost for cost in costs}
    seen: set[str] = set()
    lines = []
    rest = set(by_cell) - {cell for cells in needed.values() for cell in cells}
    for part, names in (needed | ({"other cells": sorted(rest)} if rest else {})).items():
        cells = {name for name in names if name in by_cell}
        if not cells:
            continue
        new = cells - seen
        seen |= cells
        lines.append(
            PartCost(
                part,
                len(cells),
                total(by_cell[c] for c in cells),
                total(by_cell[c] for c in new),
                total(by_cell[c] for c in seen),
                sum(by_cell[c].device_hours is None for c in cells),
            )
        )
    return lines


def total(costs: Iterable[CellCost]) -> float | None:
    """Sum of known GPU- or core-hours; None if there are cells and none is known."""
    # Sorted, since cells come from sets and the last bits of a sum depend on its order.
    hours = [cost.device_hours for cost in sorted(costs, key=lambda cost: cost.cell)]
    known = [each for each in hours if each is not None]
    return sum(known) if known or not hours else None


def wall_hours(costs: list[CellCost], available: int) -> float | None:
    """Lower bound of the wall hours of all runs with known hours on `available` GPUs (or cores).

    None if one run needs more devices.
    """
    if any(cost.devices > available for cost in costs):
        return None
    known = [(cost.devices, cost.hours, cost.runs) for cost in costs if cost.hours is not None]
    if not known:
        return 0.0
    # No schedule is shorter than its longest run, nor than device-hours over devices.
    bounds = [hours for _, hours, _ in known]
    bounds.append(sum(size * hours * runs for size, hours, runs in known) / available)
    # Runs of one size or a larger one: only so many are side by side, and the remaining devices do not help them.
    for least in {size for size, _, _ in known}:
        bounds.append(sum(hours * runs for size, hours, runs in known if size >= least) / (available // least))
    return max(bounds)
