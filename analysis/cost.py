"""What a campaign costs before it is launched: GPU-hours and storage by cell, and what each table adds.

Hours are SPEC-RL's own (its Table 4, one node of 8 GPUs): as printed where a cell is one of its rows, else estimated by
the rules of `_seconds_a_step` and `_scale`. Runs that are finished count with their measured hours instead. Each line
says where its hours come from. No number here ever enters a result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.reported import read_reported
from redraft.config import Cell, Experiments, Preset, PretrainedModel, Run, format_lenience, run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json
from redraft.layout import Layout

BREAKDOWN = 4
"""The reported table of hours and seconds a step."""
SPEEDUPS = (2, 3, 6)
"""Reported tables whose `speedup` says how fast rollouts of a cell are that Table 4 has not."""
LENGTHS = (1, 5, 6)
"""Reported tables whose `tokens_m` of runs without reuse gives the mean response length."""
METHODS = {"vanilla": "vanilla", "speculative": "spec-rl", "random": "random-reuse", "delayed": "delayed-reuse"}
"""A method's kind, and what the transcriptions call it."""
PARAMETERS = {
    "Qwen/Qwen3-1.7B-Base": 1.72e9,
    "Qwen/Qwen3-8B-Base": 8.19e9,
    "Qwen/Qwen3-14B-Base": 14.77e9,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24e9,
}
"""Parameters of the models, counted from their published configurations (layers, widths, vocabulary)."""
WEIGHT_BYTES = 2
"""A kept policy holds bfloat16."""
ROLLOUT_BYTES = 8
"""A token of a saved rollout, before compression: the token and the step it was sampled at."""
DRAFT_BYTES = 12
"""A token in the draft store: the token, its log-probability and the step."""
CHECKPOINTS = 2
"""Checkpoints that a run keeps."""
DRAFT_EPOCHS = 2
"""Epochs that the draft store keeps."""

UNKNOWN = "unknown until one run is finished"

Values = dict[str, float]


@dataclass(frozen=True)
class CellCost:
    """What all runs of a cell take; None is unknown.

    Attributes:
        cell: name.
        runs: number of seeds.
        hours: wall hours of one run.
        device_hours: of all runs, in the preset's unit.
        policies: bytes of all kept policies.
        rollouts: bytes of all saved rollouts, before compression.
        drafts: bytes of one run's draft store, in memory and in a checkpoint.
        source: where the hours come from.
        stored: bytes on disk of all runs when they are finished.
        stored_source: where these come from.
        fresh_share: new samples whose reward is logged, over rollouts that are trained on.
    """

    cell: str
    runs: int
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
class Measured:
    """A finished run: wall hours, the GPUs (or cores) that it had, and bytes of its files."""

    hours: float
    devices: int
    stored: int


@dataclass(frozen=True)
class PartCost:
    """What a table or figure needs: its cells' hours, those that nothing before it needs, and the sum so far."""

    part: str
    cells: int
    device_hours: float
    added: float
    cumulative: float
    unknown: int


class Reported:
    """The paper's rows by cell, read once.

    Args:
        folder: `experiments/<paper>`.
    """

    def __init__(self, folder: Path) -> None:
        wanted = {BREAKDOWN, *SPEEDUPS, *LENGTHS}
        files = {number: folder / "reported" / f"table{number:02d}.csv" for number in wanted}
        self.tables = {number: read_reported(folder, number) for number, file in files.items() if file.exists()}

    def row(self, number: int, model: str, data: str, algorithm: str, method: str, lenience: str | None) -> Values:
        """A row of a table by column, at its last step; empty if there is none. Any lenience matches None."""
        if number not in self.tables:
            return {}
        frame = self.tables[number]
        key = {"model": model, "dataset": data, "algorithm": algorithm, "method": method}
        key |= {} if lenience is None else {"lenience": lenience}
        chosen = frame[(frame[list(key)] == pd.Series(key)).all(axis=1)]
        steps = pd.to_numeric(chosen["step"])
        chosen = chosen[steps.isna() | (steps == steps.max())]
        values = dict(zip(chosen["column"], chosen["value"], strict=True))
        generation_steps = pd.to_numeric(chosen["gen_step"]).max()
        done = steps.max() if pd.isna(generation_steps) else generation_steps
        return values | ({} if pd.isna(done) else {"steps": float(done)})

    def breakdown(self, model: str, algorithm: str, method: str) -> Values:
        """Table 4's row of a setting; its data are DeepMath-6K."""
        return self.row(BREAKDOWN, model, self.data, algorithm, method, None)

    def speedup(self, cell: Cell) -> tuple[float, int] | None:
        """The printed speedup of a cell's rollouts and the number of its table; none for a trainer of other updates."""
        if cell.reuse.kind not in METHODS or (cell.trainer | cell.trainer_factors).keys() - {"epochs"}:
            return None
        key = (cell.model, cell.data, cell.algorithm.kind, METHODS[cell.reuse.kind], lenience_of(cell))
        found = ((self.row(number, *key), number) for number in SPEEDUPS)
        return next(((row["speedup"], number) for row, number in found if "speedup" in row), None)

    @property
    def data(self) -> str:
        """The data set of Table 4."""
        return str(self.tables[BREAKDOWN]["dataset"].iloc[0])

    @property
    def models(self) -> list[str]:
        """Models of Table 4."""
        return list(dict.fromkeys(self.tables[BREAKDOWN]["model"])) if BREAKDOWN in self.tables else []


def lenience_of(cell: Cell) -> str:
    """A cell's lenience as the transcriptions write it; empty without one."""
    return format_lenience(cell.reuse.lenience) if hasattr(cell.reuse, "lenience") else ""


def wanted(experiments: Experiments, preset: Preset, targets: Sequence[str]) -> dict[str, list[Cell]]:
    """The cells that targets stand for, by paper, each once.

    Args:
        experiments: where they are declared.
        preset: whose papers are meant where a target names none.
        targets: `reproduction` (what papers report), `extras` (the preset's grids and those beyond the papers, as
            `snakemake extras`), a paper, a grid, `paper/grid`, or `paper/cell`; nothing is `reproduction`.

    Raises:
        UserError: for a target that is none of these.
    """
    found: dict[str, list[Cell]] = {}
    for target in targets or ["reproduction"]:
        for cell in _wanted(experiments, preset, target):
            cells = found.setdefault(cell.paper, [])
            cells += [] if cell in cells else [cell]
    return found


def _wanted(experiments: Experiments, preset: Preset, target: str) -> list[Cell]:
    if target in experiments.papers:
        return experiments.cells(target, experiments.grids(target, beyond_paper=False))
    if target == "reproduction":
        return [cell for paper in preset.default for cell in _wanted(experiments, preset, paper)]
    if target == "extras":
        grids = {paper: grids + experiments.grids(paper, beyond_paper=True) for paper, grids in preset.default.items()}
        return [cell for paper in grids for cell in experiments.cells(paper, grids[paper])]
    paper, _, name = target.rpartition("/")
    names = {p: {grid.name for grid in experiments.cell_file(p).grids} for p in ([paper] if paper else preset.default)}
    if holding := [p for p in names if name in names[p]]:
        return [cell for p in holding for cell in experiments.cells(p, [name])]
    if not paper:
        grids_of_all = [grid for grids in names.values() for grid in grids]
        allowed = ["reproduction", "extras", *experiments.papers, *grids_of_all, "paper/cell"]
        raise UserError("nothing is called so", key="target", value=target, allowed=allowed)
    return [experiments.cell(target)]


def cell_costs(experiments: Experiments, paper: str, preset: Preset, layout: Layout, extras: bool) -> list[CellCost]:
    """One line a cell that a paper reports, with `extras` those beyond it too; see `costs_of`."""
    grids = None if extras else experiments.grids(paper, beyond_paper=False)
    return costs_of(experiments.cells(paper, grids), experiments, preset, layout)


def costs_of(cells: Iterable[Cell], experiments: Experiments, preset: Preset, layout: Layout) -> list[CellCost]:
    """One line a cell, of those that the preset has a model and data for. Refuses nothing: what it lacks is unknown."""
    known = [cell for cell in cells if cell.model in preset.models and cell.data in preset.data]
    reported = {paper: Reported(experiments.folder / paper) for paper in {cell.paper for cell in known}}
    return [_cell_cost(cell, experiments, preset, layout, reported[cell.paper]) for cell in known]


def _cell_cost(cell: Cell, experiments: Experiments, preset: Preset, layout: Layout, reported: Reported) -> CellCost:
    runs = [experiments.run(cell.id, seed, preset.name) for seed in preset.seeds]
    storage, count = _storage(cell, runs[0], len(runs), preset, reported), len(runs)
    fresh = runs[0].trainer.fresh_samples / runs[0].trainer.group_size
    if measured := [m for run in runs if (m := _measured(run, cell, layout, preset)) is not None]:
        source = f"measured ({len(measured)} of {count} runs)"
        hours, device_hours, stored = (
            sum(values) / len(measured)
            for values in zip(*((m.hours, m.hours * m.devices, m.stored) for m in measured), strict=True)
        )
        return CellCost(cell.name, count, hours, device_hours * count, *storage, source, stored * count, source, fresh)
    estimated, source = estimate(cell, runs[0], preset, reported)
    total = None if estimated is None else estimated * devices(preset) * count
    return CellCost(cell.name, count, estimated, total, *storage, source, *_stored(*storage, count), fresh)


def _stored(
    policies: float | None, rollouts: float | None, drafts: float | None, runs: int
) -> tuple[float | None, str]:
    """Bytes that all runs leave, by what is estimated of them; the last checkpoints hold a draft store each."""
    if policies is None or rollouts is None or drafts is None:
        return None, UNKNOWN
    return policies + rollouts + drafts * CHECKPOINTS * runs, "parameters and token counts"


def devices(preset: Preset) -> int:
    """GPUs that one run takes, or cores where it takes no GPU."""
    return preset.engine.gpus or preset.engine.threads


def unit(preset: Preset) -> str:
    """What the hours are of."""
    return "GPU-hours" if preset.engine.gpus else "core-hours"


def _measured(run: Run, cell: Cell, layout: Layout, preset: Preset) -> Measured | None:
    """What a finished run took, if it is configured as it would be run today; its GPUs are those that it had."""
    folder = layout.run(cell.id, run.seed)
    if not (folder / "manifest.json").exists():
        return None
    manifest = read_json(folder / "manifest.json")
    if manifest["fingerprint"] != run_fingerprint(run):
        return None
    engine = manifest.get("configuration", {}).get("engine", {})
    had = engine.get("gpus", 0) or (engine.get("threads") if engine else None) or devices(preset)
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Measured(manifest["seconds"] / 3600, had, stored)


def estimate(cell: Cell, run: Run, preset: Preset, reported: Reported) -> tuple[float | None, str]:
    """Wall hours of one run from the reported tables, and by which rule; None where they say nothing."""
    if not preset.paper_scale or not reported.models:
        return None, UNKNOWN
    if (scale := _scale(cell, preset, reported)) is None:
        return None, "unknown: the paper has no such model, and its parameters are not known"
    model, factor, scaled = scale
    algorithm = "grpo" if cell.algorithm.kind == "rloo" else cell.algorithm.kind
    as_grpo = f", {cell.algorithm.kind} as grpo" if algorithm != cell.algorithm.kind else ""
    if row := _printed(cell, model, reported):
        return row["end_to_end_h"] * factor, "Table 4" + scaled
    seconds, rule = _seconds_a_step(cell, model, algorithm, reported)
    if seconds is None:
        return None, UNKNOWN
    return seconds * run.steps * factor / 3600, f"{rule} × {run.steps} steps{as_grpo}{scaled}"


def _scale(cell: Cell, preset: Preset, reported: Reported) -> tuple[str, float, str] | None:
    """The model of Table 4 that stands for a cell's, the factor on its hours, and what to say about it; None if none.

    A model that Table 4 has not takes the hours of the largest one there, in proportion to parameters.
    """
    if cell.model in reported.models:
        return cell.model, 1.0, ""
    known = {role: size for role in (cell.model, *reported.models) if (size := _parameters(preset, role))}
    if len(known) <= len(reported.models):
        return None
    nearest = max(reported.models, key=lambda role: known[role])
    factor = known[cell.model] / known[nearest]
    return nearest, factor, f", scaled from {nearest} by parameters (× {factor:.2f})"


def _parameters(preset: Preset, role: str) -> float | None:
    model = preset.models.get(role)
    return PARAMETERS.get(model.path) if isinstance(model, PretrainedModel) else None


def _printed(cell: Cell, model: str, reported: Reported) -> Values:
    """Table 4's own row of a cell, if it has one: the same data, method and lenience, and an unchanged trainer."""
    if cell.data != reported.data or cell.trainer or cell.trainer_factors or cell.reuse.kind not in METHODS:
        return {}
    method = METHODS[cell.reuse.kind]
    return reported.row(BREAKDOWN, model, cell.data, cell.algorithm.kind, method, lenience_of(cell))


def _seconds_a_step(cell: Cell, model: str, algorithm: str, reported: Reported) -> tuple[float | None, str]:
    """Seconds of a step that Table 4 does not print for this cell, and the rule.

    A run without reuse takes the seconds of its model and algorithm. One with a printed speedup takes those less the
    rollout's, the rollout's over that speedup, and verification and assembly as SPEC-RL's row has them; random reuse
    verifies nothing. Any other takes the seconds of SPEC-RL's row.
    """
    vanilla = reported.breakdown(model, algorithm, "vanilla")
    spec = reported.breakdown(model, algorithm, "spec-rl")
    if not vanilla or not spec:
        return None, ""
    if cell.reuse.kind == "vanilla":
        return vanilla["total_s"], "Table 4 s/step"
    if found := reported.speedup(cell):
        speedup, number = found
        overhead = spec["assembly_s"] + (0.0 if cell.reuse.kind == "random" else spec["verification_s"])
        rest = vanilla["total_s"] - vanilla["rollout_s"]
        return rest + vanilla["rollout_s"] / speedup + overhead, f"Table 4 × Table {number} speedup"
    return spec["total_s"], "Table 4 s/step of SPEC-RL"


def _storage(
    cell: Cell, run: Run, runs: int, preset: Preset, reported: Reported
) -> tuple[float | None, float | None, float | None]:
    """Bytes of all kept policies, of all rollouts, and of one draft store."""
    size, length = _parameters(preset, cell.model), _length(cell, run, reported) if preset.paper_scale else None
    policies = None if size is None else size * WEIGHT_BYTES * len(run.evaluated_steps) * runs
    if length is None:
        return policies, None, None
    group = run.trainer.group_size
    rollouts = run.steps * run.trainer.prompts_per_step * group * length * ROLLOUT_BYTES * runs
    drafts = 0.0 if cell.reuse.kind == "vanilla" else run.data.size * group * length * DRAFT_BYTES * DRAFT_EPOCHS
    return policies, rollouts, drafts


def _length(cell: Cell, run: Run, reported: Reported) -> float | None:
    """Mean tokens of a response: what the run without reuse decoded over its rollouts."""
    algorithm = "grpo" if cell.algorithm.kind == "rloo" else cell.algorithm.kind
    if not reported.tables:
        return None
    for data in (cell.data, reported.data):
        for number in LENGTHS:
            row = reported.row(number, cell.model, data, algorithm, "vanilla", "")
            if "tokens_m" in row:
                return row["tokens_m"] * 1e6 / (row["steps"] * run.trainer.prompts_per_step * run.trainer.group_size)
    return None


def parts(experiments: Experiments, paper: str, extras: bool) -> dict[str, list[str]]:
    """Cells by the table or figure that needs them, tables first, in order of number."""
    needed = {
        f"Table {table.number}": [*(row.cell for row in table.rows), table.baseline]
        for table in sorted(experiments.tables(paper).tables, key=lambda table: table.number)
        if extras or table.number <= 100
    }
    for figure in sorted(experiments.figures(paper).figures, key=lambda figure: figure.number):
        if extras or figure.number <= 100:
            needed[f"Figure {figure.number}"] = [cell for panel in figure.panels for cell in panel.cells]
    return needed


def part_costs(costs: Iterable[CellCost], needed: dict[str, list[str]]) -> list[PartCost]:
    """One line a table or figure that needs one of these cells, and one for the cells that none needs."""
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
        lines.append(PartCost(
            part, len(cells), total(by_cell[c] for c in cells), total(by_cell[c] for c in new),
            total(by_cell[c] for c in seen), sum(by_cell[c].device_hours is None for c in cells),
        ))  # fmt: skip
    return lines


def total(costs: Iterable[CellCost]) -> float:
    """GPU- or core-hours of all that are known."""
    return sum(cost.device_hours or 0.0 for cost in sorted(costs, key=lambda cost: cost.cell))


def wall_hours(costs: list[CellCost], preset: Preset, available: int) -> float | None:
    """Wall hours of all runs with known hours on so many GPUs (or cores), never less than the longest run.

    None if that is too few for one run.
    """
    if not (together := available // devices(preset)):
        return None
    runs = [cost.hours for cost in costs if cost.hours is not None for _ in range(cost.runs)]
    return max([sum(runs) / together, *runs], default=0.0)
