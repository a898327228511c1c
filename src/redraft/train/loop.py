"""The training loop of a run: resume, roll out, update, record, keep policies, write checkpoints; for all trainers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redraft.config.experiment import Run
from redraft.config.identity import run_fingerprint
from redraft.files import read_json_lines, sha256
from redraft.methods.adaptive import AdaptiveReuse, with_lenience
from redraft.ops.locking.lease import Lease
from redraft.provenance import source_fingerprint, source_record
from redraft.rollout.types import Task
from redraft.tasks.problems import Problem, fingerprint_of
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
    """Hashes of a run's initial policy and problems, by name.

    `source` is there if the policy was imported from a local folder, whose tokenizer or configuration may change too.
    """
    inputs = {
        "initial_policy": sha256(model_folder / "model.safetensors"),
        "problems": fingerprint_of(problems),
    }
    source = source_record(model_folder)
    return inputs | {"source": source_fingerprint(source)} if source else inputs


class TrainingLoop:
    """A run's folder and progress, and the steps that are left.

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
        """Find the last undamaged checkpoint, and remove all files of later steps from the folder.

        Args:
            commit: of the code that continues the run, for the manifest.
            lease: on the folder; without it, concurrent writers are not excluded.

        Raises:
            UserError: if the folder holds another experiment, or a finished run without its last checkpoint.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.load_state(hashes=True)
        if self.state.step < self.steps:
            # Before anything is removed: a finished run without its checkpoint is kept.
            self.folder.keep_finished(self.identity, self.checkpoints.inputs)
        if lease:
            self.check = lease.check
            lease.record_resume(self.state.step)
        self.folder.remove_unfinished()
        self.folder.keep_checkpoints(self.identity)
        truncate_records(self.folder.records, self.state.step, self.state.records)
        self.folder.truncate_rollouts(self.state.step)
        # After the records are truncated: they say which steps were evaluated.
        self.folder.keep_policies(self.evaluated_steps)
        if self.state.step < self.steps and commit not in self.state.commits:
            self.state.commits.append(commit)

    def load_state(self, hashes: bool) -> None:
        """Read the state of the last checkpoint, or that of a run's start where there is none.

        Args:
            hashes: also verify the checkpoint's hashes; without, another call has done so.
        """
        _, self.state = self.checkpoints.latest(hashes=hashes)
        if isinstance(self.run.reuse, AdaptiveReuse) and self.state.lenience is None:
            self.state.lenience = self.run.reuse.initial

    def restore(self, trainer: Trainer) -> None:
        """Load the last checkpoint, which `prepare` has verified, into trainer and schedule."""
        folder, _ = self.checkpoints.latest(hashes=False)
        if folder:
            trainer.restore(folder)
            self.schedule.restore(self.checkpoints.schedule(folder))

    def train(self, trainer: Trainer, progress: Progress = lambda *_: None) -> None:
        """Take all steps that are not done yet.

        Raises:
            LeaseLost: if another process has taken the folder.
            UserError: if the policy diverges or the disk is full; finished steps are kept.
        """
        for record in self.remaining_steps(trainer):
            progress(self.state.step, self.steps, record)

    def remaining_steps(self, trainer: Trainer) -> Iterator[dict[str, Any]]:
        """Take the steps that are not done yet, lazily, and yield the record of each."""
        while self.state.step < self.steps:
            yield self._step(trainer, time.perf_counter())

    def _step(self, trainer: Trainer, began: float) -> dict[str, Any]:
        """Roll out, update once a batch is full, and write record, policy and checkpoint."""
        step, clock = self.state.step, StageClock(trainer.now)
        epoch, tasks = self.schedule.epoch(step), self.tasks(step)
        rollout = trainer.roll_out(tasks, step)
        clock.add(rollout.seconds, rollout.unseen)
        self.schedule.finished(rollout.groups)
        batch = self.schedule.batch()
        if batch is None:  # the schedule waits for more groups
            metrics = trainer.no_update
        else:
            self.state.training_step += 1
            update = trainer.update([group.updated for group in batch])
            clock.add(update.seconds)
            metrics = update.metrics
        record: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "training_step": self.state.training_step,
            **describe(rollout.groups, step, self.steps_per_epoch),
            **self.schedule.counts(),
            **describe_batch(batch, step),
            "updated": batch is not None,
            "tokens_cached": rollout.cached,
            "grading_seconds": rollout.grading_seconds,
            **rollout.measured,
            **metrics,
        }
        if self.state.lenience is not None and isinstance(self.run.reuse, AdaptiveReuse):
            # The record has the lenience of this step, the checkpoint below that of the next one.
            record["lenience"] = self.state.lenience
            self.state.lenience = self.run.reuse.next_lenience(self.state.lenience, record)
        self.check()  # the lease, before anything is written
        # Before the record: a recorded step has its rollouts, and rollouts without a record are removed on resuming.
        save_groups_of_step(self.folder.rollouts(step), epoch, rollout.groups)
        with self._checkpoint(trainer, clock, batch is not None):
            if batch:
                # After `save`: under verl vLLM sleeps while its processes write, and `publish` wakes it.
                trainer.publish()
            with clock.excluded():
                record |= self._fresh(trainer, tasks)
            record["seconds"] = clock.finish()
            self.check()
            append_record(self.folder.records, record)
            # Within the block, so that the checkpoint has counted this step.
            self.state.step += 1
            self.state.seconds += time.perf_counter() - began
        return record

    def tasks(self, step: int) -> list[Task]:
        """Tasks of a step, with the lenience that a controller has set."""
        return with_lenience(self.schedule.next(step), self.state.lenience)

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps after which a policy was kept for evaluation."""
        return self.run.evaluated_steps(read_json_lines(self.folder.records))

    def _fresh(self, trainer: Trainer, tasks: Sequence[Task]) -> dict[str, float | None]:
        """Mean reward and KL of new samples; those of reused rollouts would describe older policies."""
        samples = self.run.trainer.fresh_samples
        new = [task for task in tasks if not task.carried]  # continued prompts were selected by their rewards
        if not samples or not new:
            return {"fresh_reward": None, "fresh_kl": None}
        fresh = trainer.fresh([Task(task.prompt, task.visit, samples) for task in new], self.state.step)
        return {"fresh_reward": sum(fresh.rewards) / len(fresh.rewards), "fresh_kl": fresh.kl}

    @contextmanager
    def _checkpoint(self, trainer: Trainer, clock: StageClock, updated: bool) -> Iterator[None]:
        """Write checkpoint and policy if due; the checkpoint is valid when the block has written the record."""
        done, every = self.state.step + 1, self.run.engine.checkpoint_every
        evaluated = self.run.trainer.evaluates(done, self.steps, self.state.training_step, updated)
        if not evaluated and done % every:
            yield
            return
        self.check()
        with self.checkpoints.written(done, self.state) as folder:
            with clock.excluded():
                trainer.save(folder)
                self.checkpoints.save_schedule(folder, self.schedule.state())
                if evaluated:
                    # If the record is never written, `RunFolder.keep_policies` removes it again.
                    trainer.save_policy(folder, self.folder.policy(done))
            yield
            # Before the folder gets its name: its state has this hash.
            self.state.records = sha256(self.folder.records)
