"""States of a campaign's runs, read from their files; nothing is written."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from redraft.cli.terminal import filled, table
from redraft.config import Experiments, Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import hashes, sha256
from redraft.layout import REOPENED, Layout
from redraft.ops.locking.entries import Entry, history
from redraft.ops.locking.lease import EVALUATION
from redraft.ops.workflow.plan import target_cells, target_grids
from redraft.ops.workflow.reruns import files_to_make
from redraft.provenance import local_content
from redraft.result_files import (
    check_manifest,
    check_records,
    check_run,
    finished_steps,
    read_left_out,
    read_manifest,
    read_record,
)

Target = Mapping[str, list[str] | None]
"""Papers of a status, each with the names of its grids or None for all grids."""
TARGETS = ("reproduction", "extras")
"""Targets of Snakemake that include further grids of all papers of a preset."""

State = Literal["done", "unpacked", "trained", "running", "failed", "damaged", "outdated", "waiting"]
STATES: tuple[State, ...] = ("done", "unpacked", "trained", "running", "failed", "damaged", "outdated", "waiting")
"""States in the order of the counts. `unpacked`: a published run, finished elsewhere, of which only the manifest and
the scores are here; `trained`: not evaluated yet, or to be evaluated again; `damaged`: a file is not what was recorded;
`outdated`: of another configuration or other files, so that the workflow trains it again."""
SETTLED: frozenset[State] = frozenset({"done", "unpacked", "waiting"})
"""States that need no line of their own."""
LAST_LINES = 5
"""Number of lines shown of a failed run's log."""
TAIL_BYTES = 20_000
"""Number of bytes read at the end of a log."""


@dataclass(frozen=True)
class RunStatus:
    """State of one run.

    Attributes:
        cell: `paper/cell`.
        seed: seed of the run.
        state: one of `STATES`.
        step: number of steps with a record.
        steps: total number of steps.
        owner: current or last owner of its folder.
        age: time since the owner's last heart-beat in seconds, if the run is running.
        detail: reason of a failed run and the last lines of its log; error of a damaged one.
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
    """Select papers and grids.

    Args:
        layout: layout of the preset.
        experiments: experiments that declare its cells.
        papers: only these papers, or one of `TARGETS`; if empty, the papers of a bare `snakemake`, or with `grids` all
            papers of the preset.
        grids: only these grids; the preset's if empty.

    Raises:
        UserError: for an unknown paper or grid.
    """
    preset = experiments.preset(layout.preset)
    if targets := [name for name in papers if name in TARGETS]:
        if grids:
            raise UserError("a target has its own grids", key="--grid", value=grids[0], hint=f"omit {targets[0]}")
        return {paper: target_grids(experiments, preset, paper, targets) for paper in preset.papers([])}
    chosen = list(papers) or preset.papers([] if grids else preset.first)
    if not grids:
        return {paper: experiments.default_grids(preset, paper) for paper in chosen}
    known = {paper: {grid.name for grid in experiments.cell_file(paper).grids} for paper in chosen}
    for grid in grids:
        if not any(grid in names for names in known.values()):
            raise UserError("no such grid", key="--grid", value=grid, allowed=sorted(set().union(*known.values())))
    return {paper: [grid for grid in grids if grid in known[paper]] for paper in chosen}


def run_statuses(layout: Layout, experiments: Experiments, grids_by_paper: Target) -> list[RunStatus]:
    """Status of each run of the selected grids, in the order of cells and seeds.

    Runs that wait are not among them if the latest campaign left out their cell (`left_out_cells`).
    """
    preset, left_out = experiments.preset(layout.preset), read_left_out(layout.left_out)
    runs = [
        experiments.run(cell.id, seed, preset.name)
        for paper, grids in grids_by_paper.items()
        for cell in target_cells(experiments, preset, paper, grids)
        if experiments.has_run(cell, preset)
        # Also seeds of earlier calls that left a folder.
        for seed in sorted({*experiments.seeds(cell, preset), *layout.seeds(cell.id)})
    ]
    wanted = {(run.paper, run.cell, run.seed): run for run in runs if not run.unsupported}
    statuses = _as_snakemake_plans(layout, [run_status(layout, run) for run in wanted.values()])
    return [run for run in statuses if run.state != "waiting" or run.cell not in left_out]


def _as_snakemake_plans(layout: Layout, runs: Sequence[RunStatus]) -> list[RunStatus]:
    """Replace the states of runs that are trained by what Snakemake would do, if it has records of their inputs."""
    folders = [layout.run(run.cell, run.seed) for run in runs]
    finished = [
        run.state in {"done", "trained", "outdated"} and (folder / "manifest.json").exists()
        for run, folder in zip(runs, folders, strict=True)
    ]
    if not any(finished):
        return list(runs)
    to_make = files_to_make(layout.preset, [str(folder / "scores.json") for folder in folders])
    if to_make is None:
        return list(runs)
    planned = []
    for run, folder, judge in zip(runs, folders, finished, strict=True):
        scores, state = folder / "scores.json", run.state
        if judge and str(folder / "manifest.json") in to_make:
            state = "outdated"
        elif judge:
            state = "done" if scores.exists() and str(scores) not in to_make else "trained"
        step = 0 if state == "outdated" else finished_steps(folder)
        planned.append(replace(run, state=state, step=step) if judge else run)
    return planned


def left_out_cells(layout: Layout, experiments: Experiments, grids_by_paper: Target) -> dict[str, str]:
    """Cells of the selected grids that the latest campaign left out since they do not fit, with the reason."""
    preset = experiments.preset(layout.preset)
    selected = {
        cell.id for paper, grids in grids_by_paper.items() for cell in target_cells(experiments, preset, paper, grids)
    }
    return {cell: reason for cell, reason in read_left_out(layout.left_out).items() if cell in selected}


def other_finished_runs(layout: Layout, runs: Sequence[RunStatus]) -> Counter[str]:
    """Number of finished runs of other cells, by paper."""
    included = {run.cell for run in runs}
    folders = [file.parent for file in layout.folder.glob("runs/*/*/seed*/scores.json")]
    cells = [folder.parent for folder in folders if (folder / "manifest.json").exists()]
    return Counter(cell.parent.name for cell in cells if f"{cell.parent.name}/{cell.name}" not in included)


def run_status(layout: Layout, run: Run) -> RunStatus:
    """Status of one run."""
    cell = f"{run.paper}/{run.cell}"
    folder = layout.run(cell, run.seed)
    owner = _last_owner(folder)
    state, error = _state(layout, run, owner)
    step = 0 if state == "outdated" else run.steps if state == "unpacked" else finished_steps(folder)
    running = owner is not None and state == "running"
    return RunStatus(
        cell,
        run.seed,
        state,
        step,
        run.steps,
        owner=str(owner) if owner is not None and state in {"running", "failed"} else "",
        age=max(time.time() - owner.beat, 0.0) if owner is not None and running else None,
        detail=_why(folder, owner) if state == "failed" else tuple(error.splitlines()),
    )


def _last_owner(folder: Path) -> Entry | None:
    """Lease entry of a live evaluation, else of the last training process; `redraft recover` does not count."""
    owners = [entry for entry in history(folder) if entry.content is None or entry.content.run]
    if owners and _may_be_alive(owners[-1]):
        return owners[-1]
    trained = [entry for entry in owners if entry.content is None or entry.content.run != EVALUATION]
    return trained[-1] if trained else None


def _may_be_alive(owner: Entry) -> bool:
    return not owner.free and owner.judge(time.time()).state != "dead"


def _state(layout: Layout, run: Run, owner: Entry | None) -> tuple[State, str]:
    """State of a run, and the error of a damaged one."""
    folder = layout.run(f"{run.paper}/{run.cell}", run.seed)
    if owner is not None and _may_be_alive(owner):
        return "running", ""
    if (folder / "manifest.json").exists():
        try:
            return _finished_state(layout, run, folder), ""
        except UserError as error:
            return "damaged", str(error)
    if owner is None:
        return "failed" if (folder / "log.txt").exists() else "waiting", ""
    return "failed" if owner.content is None or owner.content.run == run_fingerprint(run) else "outdated", ""


def _finished_state(layout: Layout, run: Run, folder: Path) -> State:
    """State of a run with a manifest; a UserError for a damaged file."""
    manifest = read_manifest(folder / "manifest.json", "fingerprint", "sha256")
    if manifest["fingerprint"] != run_fingerprint(run):
        return "outdated"
    if (layout.folder / REOPENED).exists() and not (folder / "steps.jsonl").exists():
        check_manifest(folder, manifest, run.steps)
        return "unpacked"
    graded = (folder / "scores.json").exists() and not _trained_since(folder)
    if graded:
        check_run(folder, run.steps)
    else:
        check_records(folder, manifest, run.steps)
    if _files_changed(layout, run, folder / "manifest.json"):
        return "outdated"
    return "done" if graded else "trained"


def _trained_since(folder: Path) -> bool:
    """True if a run was trained again after the evaluation in its folder, which the workflow will then repeat."""
    manifest, generations = folder / "manifest.json", folder / "generations.json"
    if not generations.is_file() or manifest.stat().st_mtime <= generations.stat().st_mtime:
        return False
    return read_record(generations)["made_from"] != hashes(manifest)


def _files_changed(layout: Layout, run: Run, manifest: Path) -> bool:
    """Whether the files that a finished run was made from have changed: the user's model, problems and calibration.

    The imported model and the calibration are read only if they are newer than the manifest.
    """
    inputs, imported = read_manifest(manifest).get("inputs", {}), layout.model(run.model_role)
    contents = {"source": local_content(run.model, imported)}
    if run.data.kind == "file":
        contents[f"data/{run.data.path}"] = local_content(run.data, imported)
    files = {"initial_policy": imported / "model.safetensors", "calibration": run.calibration}
    for name, file in files.items():
        if file and file.exists() and file.stat().st_mtime > manifest.stat().st_mtime:
            contents[name] = sha256(file)
    return any(content not in (None, inputs.get(name)) for name, content in contents.items())


def _why(folder: Path, owner: Entry | None) -> tuple[str, ...]:
    """Reason why a run has no manifest, and the last lines of its latest log."""
    end = "the reason of its end is unknown"
    if owner is not None and owner.content is not None and owner.content.released:
        end = f"it ended at {owner.content.released} with {owner.content.end}"
    elif owner is not None:
        end = f"it died: {owner.judge(time.time()).reason}"
    logs = [log for log in (folder / "log.txt", folder / "verl.log") if log.exists()]
    if not logs:
        return (end,)
    # Under verl the driver has its own log; the one written last has the reason.
    log = max(logs, key=lambda file: file.stat().st_mtime)
    with log.open("rb") as handle:
        handle.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = [line for line in handle.read().decode(errors="replace").splitlines() if line.strip()]
    return (end, f"{log}:", *(f"  {line}" for line in lines[-LAST_LINES:]))


def heading(layout: Layout, grids_by_paper: Target) -> str:
    """A line with the preset, papers and grids."""
    papers = [
        f"{paper}, grid {' and '.join(grids)}" if grids else f"{paper}, all grids"
        for paper, grids in grids_by_paper.items()
    ]
    return filled(f"preset {layout.preset}: {'; '.join(papers)}")


def status_text(
    runs: Sequence[RunStatus],
    others: Mapping[str, int] | None = None,
    left_out: Mapping[str, str] | None = None,
    *,
    every: bool = False,
) -> str:
    """Counts of states, a table of runs, and the reasons of failed runs and of cells that are left out.

    Args:
        runs: runs of `run_statuses`.
        others: counts of `other_finished_runs`.
        left_out: reasons of `left_out_cells`.
        every: also show finished and waiting runs in the table.
    """
    counts = Counter(run.state for run in runs)
    first = f"{len(runs)} runs: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    shown = [run for run in runs if every or run.state not in SETTLED]
    parts = [(first if runs else "0 runs") + (f"\n{filled(others_text(others))}" if others else "")]
    if shown:
        header = ["run", "state", "step", "owner", "heart-beat"]
        parts.append(table(header, map(_row, shown), left=["state", "owner"], wraps=["owner", "heart-beat"]))
    parts += ["\n".join(filled(line, "  ") for line in left_out_lines(left_out))] if left_out else []
    parts += [
        "\n".join([f"{run.cell} seed {run.seed}: {run.detail[0]}", *run.detail[1:]]) for run in shown if run.detail
    ]
    return "\n\n".join(parts)


def others_text(others: Mapping[str, int]) -> str:
    """A line with the number of finished runs of other cells."""
    count = sum(others.values())
    papers = ", ".join(f"{number} of {paper}" for paper, number in sorted(others.items()))
    runs = "finished run" if count == 1 else "finished runs"
    return f"also {count} {runs} of other cells: {papers} (`redraft list` shows which)"


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """A line for each cell that a campaign left out."""
    return [f"left out: {cell}: does not fit: {reason}" for cell, reason in left_out.items()]


def _row(run: RunStatus) -> list[str]:
    age = "" if run.age is None else f"{run.age:.0f} s ago"
    return [f"{run.cell} seed {run.seed}", run.state, f"{run.step}/{run.steps}", run.owner, age]
