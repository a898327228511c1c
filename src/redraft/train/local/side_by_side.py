"""Runs of one seed are trained again side by side, step by step in turn, and their rollouts are repeated.

A campaign's runs are timed one after the other, beside other jobs, on a machine whose speed changes: equal work took
up to 1.56 times as long in one run as in another. Training on a processor is deterministic, so a run that is trained
again does the same work. Here a step of every run comes before the next step of any, and the rollouts of a step, where
methods differ, are made in several rounds. What slows the machine down slows all runs, and rounds say how much is left.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from redraft.config import Experiments, Run
from redraft.config.base import GENERATION_STAGES, STEP_STAGES
from redraft.config.trainer import InProcessEngine
from redraft.data_dictionary import write_parquet
from redraft.errors import UserError
from redraft.files import hashes, sha256, write_json
from redraft.layout import Layout
from redraft.ops.locking.devices import devices
from redraft.provenance import environment, git_state
from redraft.result_files import read_manifest, read_steps
from redraft.train.local.trainer import LocalTrainer
from redraft.train.progress import reporter
from redraft.train.records import describe

ROUNDS = 3
"""Rounds of each step. Every round has the stages of generation, the last one, in which the step is taken, all."""
Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) after a step of all runs."""


def time_runs(preset_name: str, seed: int, file: Path, manifests: list[Path]) -> None:
    """Train finished runs of a paper and seed again, side by side and with repeated rollouts, and write their seconds.

    Args:
        preset_name: name of the preset.
        seed: of all runs.
        file: file of the seconds; a record of what they belong to is written beside it, last.
        manifests: of the finished runs.

    Raises:
        UserError: if a run does other work than the finished one did.
    """
    experiments, layout = Experiments(), Layout(preset_name)
    cells = [read_manifest(manifest, "run")["run"].rpartition("/seed")[0] for manifest in manifests]
    runs = [experiments.run(cell, seed, preset_name) for cell in cells]
    report = reporter(f"side by side seed {seed}", every=5)
    models = [layout.model(run.model_role) for run in runs]
    with devices(runs[0].engine.gpus, str(file.parent)):
        seconds = train_side_by_side(runs, models, progress=lambda i, n: report(i, n, f"{len(runs)} runs"))
    for run, manifest in zip(runs, manifests, strict=True):
        check_work(seconds[seconds["cell"] == run.cell], manifest.parent / "steps.jsonl")
    write_parquet(seconds, file, "timing")
    made_from = {run.cell: sha256(manifest) for run, manifest in zip(runs, manifests, strict=True)}
    write_json(
        file.with_suffix(".json"),
        {
            "sha256": hashes(file),
            "made_from": made_from,
            "git": git_state(),
            **environment(),
        },
    )


def train_side_by_side(
    runs: Sequence[Run], models: Sequence[Path], rounds: int = ROUNDS, progress: Progress = lambda *_: None
) -> pd.DataFrame:
    """Seconds of all rounds of all steps.

    Args:
        runs: of one seed, whose records no other run has.
        models: initial policy of each run, in transformers' format.
        rounds: how often each step's rollouts are made, >= 1.

    Returns:
        A line a run, step and round: cell, step, round, tokens_decoded, `seconds.<stage>`, NaN where the round has no
        such stage, and the record's other times (`<name>_seconds`).

    Raises:
        UserError: if a run is not trained in this process.
    """
    for run in runs:
        if not isinstance(run.engine, InProcessEngine):
            raise UserError(
                "only runs of the local trainer are repeated", key="engine.kind", value=run.engine.kind, allowed="torch"
            )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        rehearsals = [_Rehearsal(run, model, folder / run.cell, stack) for run, model in zip(runs, models, strict=True)]
        longest = max(run.steps for run in runs)
        lines: list[dict[str, Any]] = []
        for step in range(longest):
            at_work = [each for each in rehearsals if step < each.run.steps]
            for number in range(rounds - 1):
                lines += [each.rehearsed(step, number) for each in _in_turn(at_work, step + number)]
            lines += [each.taken(rounds - 1) for each in _in_turn(at_work, step + rounds - 1)]
            progress(step + 1, longest)
    return pd.DataFrame(lines)


def check_work(seconds: pd.DataFrame, records: Path) -> None:
    """Raise a UserError for the first round that did not decode what the finished run did, by its `steps.jsonl`."""
    finished = pd.Series({record["step"]: record["tokens_decoded"] for record in read_steps(records)})
    other = seconds[seconds["tokens_decoded"] != seconds["step"].map(finished)]
    if not other.empty:
        line = other.iloc[0]
        raise UserError(
            "trained again, this run does other work, so its seconds are not the finished run's",
            file=records,
            key=f"tokens_decoded of step {line['step']}",
            value=line["tokens_decoded"],
            allowed=str(finished[line["step"]]),
        )


class _Rehearsal:
    """A run that is trained again in a separate folder, without measurements that training does not need."""

    def __init__(self, run: Run, model: Path, folder: Path, stack: ExitStack) -> None:
        self.run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"fresh_samples": 0})})
        self.trainer = LocalTrainer(self.run, model, folder)
        stack.enter_context(self.trainer.graders)
        self.trainer.loop.prepare(None)
        self.records: Iterator[dict[str, Any]] = self.trainer.loop.remaining_steps(self.trainer)

    def rehearsed(self, step: int, number: int) -> dict[str, Any]:
        rolled = self.trainer.rehearse(self.trainer.loop.tasks(step), step)
        decoded = describe(rolled.groups, step, self.trainer.loop.steps_per_epoch)["tokens_decoded"]
        record = {"step": step, "tokens_decoded": decoded, "grading_seconds": rolled.grading_seconds, **rolled.measured}
        return self._line(number, record, {stage: rolled.seconds[stage] for stage in GENERATION_STAGES})

    def taken(self, number: int) -> dict[str, Any]:
        record = next(self.records)
        return self._line(number, record, {stage: record["seconds"][stage] for stage in STEP_STAGES})

    def _line(self, number: int, record: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
        line = {"cell": self.run.cell, "round": number} | {name: record[name] for name in ("step", "tokens_decoded")}
        parts = {name: value for name, value in record.items() if name.endswith("_seconds")}
        return line | {f"seconds.{stage}": value for stage, value in seconds.items()} | parts


def _in_turn(rehearsals: list[_Rehearsal], first: int) -> list[_Rehearsal]:
    """The same, beginning with another one each time: who is first is not always the same."""
    start = first % len(rehearsals)
    return rehearsals[start:] + rehearsals[:start]
