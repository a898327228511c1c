"""State of a campaign's runs, read from the files that they leave; nothing is written."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redraft.cli.terminal import filled, table
from redraft.config import Experiments, Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json
from redraft.layout import Layout
from redraft.ops.locking.entries import Entry, history
from redraft.ops.locking.lease import EVALUATION

Target = Mapping[str, list[str] | None]
"""What is looked at: papers, each with the names of its grids, or None for all of them."""

State = Literal["done", "trained", "running", "failed", "outdated", "waiting"]
STATES: tuple[State, ...] = ("done", "trained", "running", "failed", "outdated", "waiting")
"""Order of counts. `trained` lacks its evaluation; `outdated` is of another configuration than today's."""
LAST_LINES = 5
"""Lines shown of a failed run's log."""
TAIL_BYTES = 20_000
"""Bytes read at the end of a log."""


@dataclass(frozen=True)
class RunStatus:
    """State of one run.

    Attributes:
        cell: `paper/cell`.
        seed: seed of the run.
        state: one of `STATES`.
        step: number of steps with a record.
        steps: number of all steps.
        owner: present or last owner of its folder.
        age: time since the owner's last heart-beat in seconds, if the run is running.
        detail: end of a failed run and the last lines of its log.
    """

    cell: str
    seed: int
    state: State
    step: int
    steps: int
    owner: str = ""
    age: float | None = None
    detail: tuple[str, ...] = ()


def target(
    layout: Layout, experiments: Experiments, papers: Sequence[str] = (), grids: Sequence[str] = ()
) -> dict[str, list[str] | None]:
    """The papers and grids that are looked at.

    Args:
        layout: layout of the preset.
        experiments: experiments that declare its cells.
        papers: only these papers; if empty the preset's, without grids only those that a bare `snakemake` runs.
        grids: only these grids; the preset's if empty.

    Raises:
        UserError: for an unknown paper or grid.
    """
    preset = experiments.preset(layout.preset)
    asked = list(papers) or preset.papers([] if grids else preset.first)
    return _grids(experiments, asked, grids) if grids else {paper: preset.default.get(paper) for paper in asked}


def look(layout: Layout, experiments: Experiments, asked: Target) -> list[RunStatus]:
    """State of each run of a target, in the order of cells and seeds."""
    preset = experiments.preset(layout.preset)
    runs = [
        experiments.run(cell.id, seed, preset.name)
        for paper, grids in asked.items()
        for cell in experiments.cells(paper, grids)
        if not experiments.misfit(cell.id, preset.name)
        for seed in sorted({*experiments.seeds(cell, preset), *layout.seeds(cell.id)})
    ]
    return [run_status(layout, run) for run in runs if not run.unsupported]


def elsewhere(layout: Layout, runs: Sequence[RunStatus]) -> Counter[str]:
    """Numbers of finished runs of other cells, by paper."""
    looked_at = {run.cell for run in runs}
    folders = [file.parent for file in layout.folder.glob("runs/*/*/seed*/scores.json")]
    cells = [folder.parent for folder in folders if (folder / "manifest.json").exists()]
    return Counter(cell.parent.name for cell in cells if f"{cell.parent.name}/{cell.name}" not in looked_at)


def _grids(experiments: Experiments, papers: Sequence[str], grids: Sequence[str]) -> dict[str, list[str] | None]:
    """Those of some grids that each paper has; a UserError for a grid that none of them has."""
    known = {paper: {grid.name for grid in experiments.cell_file(paper).grids} for paper in papers}
    for grid in grids:
        if not any(grid in names for names in known.values()):
            raise UserError("no such grid", key="--grid", value=grid, allowed=sorted(set().union(*known.values())))
    return {paper: [grid for grid in grids if grid in known[paper]] for paper in papers}


def run_status(layout: Layout, run: Run) -> RunStatus:
    """State of one run."""
    cell = f"{run.paper}/{run.cell}"
    folder = layout.run(cell, run.seed)
    held = _last_owner(folder)
    state = _state(folder, run_fingerprint(run), held)
    records, step = folder / "steps.jsonl", 0
    if state != "outdated" and records.exists():
        step = records.read_bytes().count(b"\n")  # whole lines of a file that may be written at this moment
    running = held is not None and state == "running"
    return RunStatus(
        cell,
        run.seed,
        state,
        step,
        run.steps,
        owner=str(held) if held is not None and state in {"running", "failed"} else "",
        age=max(time.time() - held.beat, 0.0) if held is not None and running else None,
        detail=_why(folder, held) if state == "failed" else (),
    )


def _last_owner(folder: Path) -> Entry | None:
    """Entry of the last owner that trained, or of one that evaluates now; clean-ups do not count."""
    owners = [entry for entry in history(folder) if entry.content is None or entry.content.run]
    if owners and _lives(owners[-1]):
        return owners[-1]
    trained = [entry for entry in owners if entry.content is None or entry.content.run != EVALUATION]
    return trained[-1] if trained else None


def _lives(held: Entry) -> bool:
    return not held.free and held.judge(time.time()).state != "dead"


def _state(folder: Path, fingerprint: str, held: Entry | None) -> State:
    if held is not None and _lives(held):
        return "running"
    if (folder / "manifest.json").exists():
        if _fingerprint(folder / "manifest.json") != fingerprint:
            return "outdated"
        return "done" if (folder / "scores.json").exists() else "trained"
    if held is None:
        return "failed" if (folder / "log.txt").exists() else "waiting"
    return "failed" if held.content is None or held.content.run == fingerprint else "outdated"


def _fingerprint(manifest: Path) -> str | None:
    try:
        return read_json(manifest)["fingerprint"]
    except (UserError, KeyError, TypeError):
        return None


def _why(folder: Path, held: Entry | None) -> tuple[str, ...]:
    """End of a run that left no manifest, and the last lines of its latest log."""
    end = "it left no word of why it ended"
    if held is not None and held.content is not None and held.content.released:
        end = f"it ended at {held.content.released} by {held.content.end}"
    elif held is not None:
        end = f"it died: {held.judge(time.time()).why}"
    logs = [log for log in (folder / "log.txt", folder / "verl.log") if log.exists()]
    if not logs:
        return (end,)
    log = max(logs, key=lambda file: file.stat().st_mtime)
    with log.open("rb") as handle:
        handle.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = [line for line in handle.read().decode(errors="replace").splitlines() if line.strip()]
    return (end, f"{log}:", *(f"  {line}" for line in lines[-LAST_LINES:]))


def heading(layout: Layout, asked: Target) -> str:
    """What is looked at, as a line."""
    papers = [
        f"{paper}, grid {' and '.join(grids)}" if grids else f"{paper}, all grids" for paper, grids in asked.items()
    ]
    return filled(f"preset {layout.preset}: {'; '.join(papers)}")


def text(runs: Sequence[RunStatus], others: Mapping[str, int] | None = None, *, every: bool = False) -> str:
    """Counts of states, a table of runs, and the ends of failed runs.

    Args:
        runs: runs as `look` lists them.
        others: finished runs of other cells by paper, as `elsewhere` counts them.
        every: show runs that are done or wait too, and not only their count.
    """
    counts = Counter(run.state for run in runs)
    first = f"{len(runs)} runs: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    shown = [run for run in runs if every or run.state not in {"done", "waiting"}]
    parts = [(first if runs else "0 runs") + (f"\n{others_text(others)}" if others else "")]
    if shown:
        header = ["run", "state", "step", "owner", "heart-beat"]
        parts.append(table(header, map(_row, shown), left=["state", "owner"], wraps=["owner", "heart-beat"]))
    parts += [
        "\n".join([f"{run.cell} seed {run.seed}: {run.detail[0]}", *run.detail[1:]]) for run in shown if run.detail
    ]
    return "\n\n".join(parts)


def others_text(others: Mapping[str, int]) -> str:
    """How many finished runs there are besides, as a line."""
    count = sum(others.values())
    papers = ", ".join(f"{number} of {paper}" for paper, number in sorted(others.items()))
    runs = "finished run" if count == 1 else "finished runs"
    return filled(f"besides {count} {runs} of other cells: {papers} (`redraft list` shows which)")


def _row(run: RunStatus) -> list[str]:
    age = "" if run.age is None else f"{run.age:.0f} s ago"
    return [f"{run.cell} seed {run.seed}", run.state, f"{run.step}/{run.steps}", run.owner, age]
