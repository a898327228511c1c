"""verl's synchronous trainer with what this project needs of a step: whose turn a prompt is, a record, a checkpoint.

Registered as `redraft` (`trainer.v1.trainer_mode`). The steps themselves, advantages, losses and DAPO's group filter
are verl's. A step of verl's is an update; it takes one generation step, a batch of prompts, or under DAPO as many as
are needed. Records are of generation steps, as the local trainer's.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from redraft.config.experiment import Run
from redraft.config.identity import run_fingerprint
from redraft.ops.lease import check_held
from redraft.train.folders import linked_folder
from redraft.train.run_folder import RunFolder
from redraft.train.verl.order import in_epoch_order
from redraft.train.verl.progress import Progress, VerlCheckpoints
from redraft.train.verl.records import StepRecords, Update, log_prob_gap
from redraft.train.verl.shard import Group, Shard, epochs_kept, name_of


class BudgetSpent(Exception):
    """All generation steps of the run were begun, and DAPO's filter left too few groups for another update."""


@register_trainer("redraft")
class GroupTrainer(PPOTrainerSync):
    """Trains a run whose groups come from `GroupWorker`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        ours = OmegaConf.to_container(config.redraft)
        self.run = Run.model_validate(ours["run"])
        self.folder = RunFolder(Path(ours["folder"]))
        self.progress = Progress(commits=ours["commits"])
        checkpoints = Path(config.trainer.default_local_dir)
        self.check: Callable[[], None] = lambda: None
        if ours.get("lease"):
            self.check = partial(check_held, self.folder.path, ours["lease"])
        self.checkpoints = VerlCheckpoints(checkpoints, run_fingerprint(self.run), ours["inputs"], self.check)
        self.records = StepRecords(self.run, self.folder)
        epochs = epochs_kept(self.run.reuse)
        self.shards = [ray.remote(Shard).options(name=name_of(i)).remote(epochs) for i in range(ours["shards"])]
        self.chosen: dict[int, None] = {}
        self.began = 0.0
        self.replay_buffer.watch = self._watch

    @property
    def trainer_mode(self) -> str:
        """The base class asks whether this is `sync`, by name, and takes any other name for asynchronous."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None:
        """Ours is the name under which the class is registered; the base class wants to keep it."""

    # Which prompts

    def _init_dataloader(self) -> None:
        """verl's loaders, the training data in the local trainer's order."""
        super()._init_dataloader()
        self.train_dataloader: Any = in_epoch_order(self.train_dataloader, self.run.seed)

    def _fetch_one_gen_batch(self) -> Any:
        """verl's next prompts, each with the pass over the data and the generation step that it belongs to."""
        batch = super()._fetch_one_gen_batch()
        positions = torch.arange(self.progress.fetched, self.progress.fetched + len(batch))
        # verl's random names would put rollouts into another order, and so into other mini-batches, in each process.
        tu.assign_non_tensor_stack(batch, "uid", [f"{position:09d}" for position in positions.tolist()])
        batch["epoch"] = positions[:, None] // len(self.train_dataset)
        batch["generation_step"] = positions[:, None] // self.run.trainer.prompts_per_step
        self.progress.fetched += len(batch)
        return batch

    def _balance_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """verl's spreading over GPUs, from rollouts in the order of their prompts and not of their ends."""
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: _place(batch.keys[i])))
        return super()._balance_batch(batch, *args, **kwargs)

    def _submit_batch_to_rollout(self, batch: Any) -> int:
        self.chosen.update(dict.fromkeys(int(index) for index in batch["index"]))
        return super()._submit_batch_to_rollout(batch)

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        """Refill for filtered groups by a whole generation step, as the paper counts them.

        verl asks for two prompts for each that it filtered out, and goes on asking while a step is rolled out.

        Raises:
            BudgetSpent: if all generation steps of the run were begun.
        """
        if self.replay_buffer.in_flight("train"):
            return num_prompts
        if self._generation_steps >= self.run.steps:
            raise BudgetSpent
        super()._add_prompts_to_generate(self.run.trainer.prompts_per_step)
        return num_prompts

    def _watch(self) -> None:
        """Refuse to wait, or to train, without a group: verl would do either.

        Raises:
            RuntimeError: if a group could not be rolled out; Ray's error if a process is gone.
        """
        failures = [reason for shard in ray.get([s.failed.remote() for s in self.shards]) for reason in shard]
        if failures:
            raise RuntimeError(f"{len(failures)} groups could not be rolled out; the first: {failures[0]}")
        self.agent_loop_manager.check()

    def on_step_begin(self) -> None:
        """verl's hook; also the time from which a step without an update is counted."""
        super().on_step_begin()
        self.began = time.perf_counter()

    def on_sample_end(self) -> None:
        """Engines sleep; under DAPO an evaluated step may lie before the one whose groups complete the update."""
        super().on_sample_end()
        self.check()
        if early := [step for step in self._evaluated() if step < self._generation_steps]:
            folder = self.checkpoints.folder / "policy"
            self.actor_rollout_wg.save_checkpoint(str(folder / "actor"), None, self.global_steps - 1)
            self._keep_policy(folder, early)
            shutil.rmtree(folder)

    # What a step leaves

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        """verl's metrics, and behind them the step's records and, if one is due, the rest of the checkpoint."""
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        due = self._checkpoint_due()
        update = Update(metrics, log_prob_gap(batch), self._fresh_rewards(self._generation_steps - 1))
        self._record(self._finished(), timing_raw, update)
        if due:
            self.checkpoints.finish(self.progress)

    def _finished(self) -> list[Group]:
        """The groups that were rolled out since this was last asked."""
        return [Group.unpacked(g) for shard in ray.get([s.drain.remote() for s in self.shards]) for g in shard]

    def _record(self, groups: list[Group], seconds: Mapping[str, float], update: Update | None) -> None:
        """Write the records of the generation steps since the last update, and count them as done."""
        self.check()
        training_step = self.global_steps if update else self.global_steps - 1
        self.progress.seconds += self.records.write(groups, self.progress.records, seconds, update, training_step)
        self.progress.updates, self.progress.records = self.global_steps, self._generation_steps

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's loop, and the end of a run whose last groups were not enough for an update."""
        try:
            super().fit(agent_loop_manager)
        except BudgetSpent:
            waited = time.perf_counter() - self.began
            PPOTrainerSync.on_sample_end(self)  # engines sleep while models are saved
            super()._save_checkpoint()
            self._save_the_rest(self._evaluated())
            self._record(self._finished(), {"gen": waited, "step": waited}, None)
            self.checkpoints.finish(self.progress)

    def _fresh_rewards(self, step: int) -> list[float]:
        """Rewards of new samples of the updated policy on the prompts that were rolled out since the last update."""
        chosen, self.chosen = self.chosen, {}
        if not self.run.trainer.fresh_samples:
            return []
        return self.agent_loop_manager.fresh_rewards(list(chosen), step)

    # Checkpoints

    @property
    def _generation_steps(self) -> int:
        """How many were begun; when rollouts have been sampled, all of them are done."""
        return self.progress.fetched // self.run.trainer.prompts_per_step

    def _evaluated(self) -> list[int]:
        """Steps since the last update whose policies are evaluated."""
        return [step for step in self.run.evaluated_steps if self.progress.records < step <= self._generation_steps]

    def _checkpoint_due(self) -> bool:
        """Whether this policy is evaluated, enough steps went by since the last checkpoint, or it is the last."""
        before, now, every = self.progress.records, self._generation_steps, self.run.engine.checkpoint_every
        return bool(self._evaluated()) or before // every < now // every or now >= self.run.steps

    def _save_checkpoint(self) -> None:
        """verl calls this in every step, while its engines sleep; what is due is saved.

        The checkpoint counts once the step's record is written too.
        """
        if self._generation_steps >= self.run.steps:
            self.total_training_steps = self.global_steps  # under DAPO not known before
        if self._checkpoint_due():
            self.check()
            super()._save_checkpoint()
            self._save_the_rest([step for step in self._evaluated() if step == self._generation_steps])

    def _save_the_rest(self, evaluated: list[int]) -> None:
        """Drafts beside what verl saved, and the policy of these steps."""
        drafts = [str(self.checkpoints.drafts(self.global_steps, i)) for i in range(len(self.shards))]
        ray.get([shard.save.remote(file) for shard, file in zip(self.shards, drafts, strict=True)])
        self._keep_policy(self.checkpoints.path(self.global_steps), evaluated)

    def _keep_policy(self, checkpoint: Path, steps: list[int]) -> None:
        for step in steps:
            linked_folder(checkpoint / "actor" / "huggingface", self.folder.policy(step))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        _, loaded = self.checkpoints.latest()
        self.progress = replace(loaded, commits=self.progress.commits)
        files = [str(file) for file in self.checkpoints.draft_files(loaded.updates)]
        ray.get([shard.load.remote(files, i, len(self.shards)) for i, shard in enumerate(self.shards)])


def _place(key: str) -> tuple[str, int, int]:
    """Where a rollout stands: prompt, sample, part; of verl's key `prompt_sample_part`."""
    prompt, sample, part = key.split("_")
    return prompt, int(sample), int(part)
