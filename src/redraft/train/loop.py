"""The loop of every run: resume, roll out, update, record, keep policies, write checkpoints. One for all trainers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redraft.config.experiment import Run
from redraft.config.identity import fingerprint, run_fingerprint
from redraft.files import read_json_lines, sha256
from redraft.methods.adaptive import AdaptiveReuse, with_lenience
from redraft.ops.locking.lease import Lease
from redraft.rollout.types import Task
from redraft.tasks.problems import Problem
from redraft.train.checkpoint import Checkpoints, TrainingState
from redraft.train.contract import Trainer
from redraft.train.records import (
    StageClock,
    append_record,
    describe,
    describe_batch,
    save_groups_of_step,
    truncate_records,
)
from redraft.train.run_folder import RunFolder

Progress = Callable[[int, int, dict[str, Any]], None]
"""Called after each step with (steps done, steps in all, the step's record)."""


def inputs_of(model_folder: Path, problems: Sequence[Problem]) -> dict[str, str]:
    """Hashes of what a run starts from, by name."""
    return {
        "initial_policy": sha256(model_folder / "model.safetensors"),
        "problems": fingerprint([[problem.prompt, problem.answer] for problem in problems]),
    }


class TrainingLoop:
    """A run's folder, and how far the run is.

    Args:
        problems: number of prompts in the training data.
        screen: as of `Checkpoints`.

    Raises:
        UserError: if the schedule does not fit the problems.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        inputs: Mapping[str, str],
        problems: int,
        screen: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.run, self.folder, self.identity = run, RunFolder(folder), run_fingerprint(run)
        self.steps, self.steps_per_epoch = run.steps, run.trainer.steps_per_epoch(problems)
        self.schedule = run.schedule.schedule(run.trainer, problems, run.seed)
        self.checkpoints = Checkpoints(self.folder.checkpoints(self.identity), self.identity, dict(inputs), screen)
        self.state = TrainingState()
        self.check: Callable[[], None] = lambda: None

    def prepare(self, commit: str | None, lease: Lease | None = None) -> None:
        """Find the last undamaged checkpoint, and remove from the folder what lies behind it.

        Args:
            commit: of the code that goes on, for the record.
            lease: on the folder; without it, concurrent writers are not excluded.

        Raises:
            UserError: if the folder holds another experiment, or a finished run without its last checkpoint.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        _, self.state = self.checkpoints.latest(hashes=True)
        if self.state.step < self.steps:
            self.folder.keep_finished(self.identity, self.checkpoints.inputs)
        if lease:
            self.check = lease.check
            lease.resumed_from(self.state.step)
        self.folder.keep_checkpoints(self.identity)
        truncate_records(self.folder.records, self.state.step)
        self.folder.truncate_rollouts(self.state.step)
        self.folder.keep_policies(self.evaluated_steps)
        if self.state.step < self.steps and commit not in self.state.commits:
            self.state.commits.append(commit)

    def restore(self, trainer: Trainer) -> None:
        """Bring trainer and schedule to the last checkpoint, which `prepare` has found whole."""
        folder, _ = self.checkpoints.latest(hashes=False)
        if folder:
            trainer.restore(folder)
            self.schedule.restore(self.checkpoints.schedule(folder))

    def train(self, trainer: Trainer, progress: Progress = lambda *_: None) -> None:
        """Take all steps that are not done yet.

        Raises:
            LeaseLost: if another process has taken the folder.
            UserError: if the policy diverges or the disk is full; what was finished before is not lost.
        """
        for record in self.taken(trainer):
            progress(self.state.step, self.steps, record)

    def taken(self, trainer: Trainer) -> Iterator[dict[str, Any]]:
        """Records of the steps that are not done yet, each of which is taken when its record is asked for."""
        while self.state.step < self.steps:
            yield self._step(trainer, time.perf_counter())

    def _step(self, trainer: Trainer, began: float) -> dict[str, Any]:
        """Roll out, update if there is enough to update from, and leave record, policy and checkpoint."""
        step, clock = self.state.step, StageClock(trainer.now)
        epoch, tasks = self.schedule.epoch(step), self.tasks(step)
        rolled = trainer.roll_out(tasks, step)
        clock.add(rolled.seconds, rolled.unseen)
        self.schedule.finished(rolled.groups)
        batch = self.schedule.batch()
        if batch is None:
            metrics = trainer.no_update
        else:
            self.state.training_step += 1
            updated = trainer.update([group.updated for group in batch])
            clock.add(updated.seconds)
            metrics = updated.metrics
        record: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "training_step": self.state.training_step,
            **describe(rolled.groups, step, self.steps_per_epoch),
            **self.schedule.counts(),
            **describe_batch(batch, step),
            "updated": batch is not None,
            "tokens_cached": rolled.cached,
            "grading_seconds": rolled.grading_seconds,
            **rolled.measured,
            **metrics,
        }
        lenience, reuse = self.lenience, self.run.reuse
        if lenience is not None and isinstance(reuse, AdaptiveReuse):
            self.state.lenience = reuse.next_lenience(lenience, record)
            record["lenience"] = lenience
        self.check()
        save_groups_of_step(self.folder.rollouts(step), epoch, rolled.groups)
        with self._checkpoint(trainer, clock, batch is not None):
            if batch:
                trainer.publish()
            with clock.excluded():
                record |= self._fresh(trainer, tasks)
            record["seconds"] = clock.finish()
            self.check()
            append_record(self.folder.records, record)
            self.state.step += 1
            self.state.seconds += time.perf_counter() - began
        return record

    def tasks(self, step: int) -> list[Task]:
        """Tasks of a step, from 0, with the lenience that a controller has set."""
        return with_lenience(self.schedule.next(step), self.lenience)

    @property
    def lenience(self) -> float | None:
        """Lenience of the next step by a controller; None without one."""
        reuse = self.run.reuse
        return (self.state.lenience or reuse.initial) if isinstance(reuse, AdaptiveReuse) else None

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps done by the policies that are kept for evaluation so far."""
        return self.run.evaluated_steps(read_json_lines(self.folder.records))

    def _fresh(self, trainer: Trainer, tasks: Sequence[Task]) -> dict[str, float | None]:
        """Mean reward and KL of new samples: reused rollouts say what an older policy could, and where it was."""
        samples = self.run.trainer.fresh_samples
        new = [task for task in tasks if not task.carried]  # prompts that are continued were chosen by their rewards
        if not samples or not new:
            return {"fresh_reward": None, "fresh_kl": None}
        found = trainer.fresh([Task(task.prompt, task.visit, samples) for task in new], self.state.step)
        return {"fresh_reward": sum(found.rewards) / len(found.rewards), "fresh_kl": found.kl}

    @contextmanager
    def _checkpoint(self, trainer: Trainer, clock: StageClock, updated: bool) -> Iterator[None]:
        """Write what is due before the block; the checkpoint counts once the block has written the step's record."""
        done, every = self.state.step + 1, self.run.engine.checkpoint_every
        evaluated = self.run.evaluates(done, self.state.training_step, updated)
        if not evaluated and done % every:
            yield
            return
        self.check()
        with self.checkpoints.written(done, self.state) as folder:
            with clock.excluded():
                trainer.save(folder)
                self.checkpoints.save_schedule(folder, self.schedule.state())
                if evaluated:
                    trainer.save_policy(folder, self.folder.policy(done))
            yield
