"""verl's synchronous trainer as a `Trainer` of the training loop: verl computes, the loop decides.

Registered as `redraft` (`trainer.v1.trainer_mode`). verl computes log-probabilities, advantages, losses and updates.
The loop chooses prompts and batches, and writes records and checkpoints. verl's own loop, sampler, filter of groups and
checkpoint naming are not used.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from redraft.config.experiment import Run
from redraft.errors import UserError
from redraft.files import linked_folder
from redraft.ops.locking.lease import check_owner
from redraft.rollout.streams import stream
from redraft.rollout.types import Group, Task
from redraft.tasks.prompts import encode
from redraft.train import models
from redraft.train.contract import FreshSamples, Metrics, RolloutResult, UpdateResult
from redraft.train.loop import TrainingLoop
from redraft.train.losses import WEIGHTS, estimator
from redraft.train.verl.problem_files import read_problems
from redraft.train.verl.settings import engine_of
from redraft.train.verl.shard import Shard, name_of
from redraft.train.verl.transfer_rows import (
    HandoverBuffer,
    RowWriter,
    log_prob_gaps,
    low_variance_kl,
    mini_batches,
    put_stored_log_probs,
    stored_keys,
)

TIMERS = {
    "old_log_prob": "old_log_probs",
    "ref": "ref",
    "values": "values",
    "adv": "adv",
    "update_critic": "update_critic",
    "update_actor": "update_actor",
}
"""verl's timers to the stages of a step."""
METRICS = {
    "entropy": "actor/entropy",
    "kl": "actor/kl_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "gradient_norm": "actor/grad_norm",
}
CRITIC_METRICS = {"critic_loss": "critic/vf_loss", "critic_gradient_norm": "critic/grad_norm"}
"""A record's keys to verl's metrics."""
GAPS = ("log_prob_gap", "log_prob_gap_max", "drift")


@register_trainer("redraft")
class VerlSteps(PPOTrainerSync):
    """Computes the steps of one run."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        ours = OmegaConf.to_container(config.redraft)
        self.run = Run.model_validate(ours["run"])
        problems = read_problems(Path(config.data.train_files[0]))
        self.loop = TrainingLoop(self.run, Path(ours["folder"]), ours["inputs"], len(problems))
        if ours.get("lease"):
            self.loop.check = partial(check_owner, self.loop.folder.path, ours["lease"])
        # The launcher has verified the hashes, and has added its commit to those of the checkpoint.
        self.loop.load_state(hashes=False)
        self.loop.state.commits = list(ours["commits"])
        tokenizer = models.load_tokenizer(config.actor_rollout_ref.model.path)
        prompts = encode(tokenizer, [problem.prompt for problem in problems])
        self.rows = RowWriter(self.run, prompts, tokenizer.eos_token_id)
        retention = self.run.reuse.retention
        # Before verl starts its rollout workers, which look the shards up by name.
        self.shards = [ray.remote(Shard).options(name=name_of(i)).remote(retention) for i in range(ours["shards"])]
        self.awake = True
        self.stored: list[str] = []
        self.gaps: dict[str, float] = {}
        estimator(self.run.algorithm)  # registers the estimator, which verl looks up in this process

    @property
    def trainer_mode(self) -> str:
        """Always `sync`: the base class treats any other name as asynchronous."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None:
        """Ignore the base class's assignment, which is the name under which this class is registered."""

    def fit(self, agent_loop_manager: Any) -> None:
        """Run all steps in the training loop."""
        self.agent_loop_manager = agent_loop_manager
        # Set by the `fit` that this replaces, and read by verl's hooks.
        self.prev_step_profile = self.curr_step_profile = self.next_step_profile = False
        self.loop.train(self)

    # Called by the training loop

    @property
    def no_update(self) -> Metrics:
        """Metrics of a step that only rolls out."""
        return dict.fromkeys([*self._metric_names, *GAPS])

    @property
    def _metric_names(self) -> dict[str, str]:
        weights = {key: f"rollout_corr/{name}" for key, name in WEIGHTS.items()} if self.run.reuse.importance else {}
        return METRICS | (CRITIC_METRICS if self.run.algorithm.kind == "ppo" else {}) | weights

    def now(self) -> float:
        """Wall seconds, since many processes do the work."""
        return time.perf_counter()

    def roll_out(self, tasks: Sequence[Task], step: int) -> RolloutResult:
        """Roll out tasks on vLLM. Wall seconds are divided among overlapping stages in proportion to their waits."""
        self._wake()
        self._seed("rollout", step)
        began = self.now()
        groups, waited, cached, grading = self.agent_loop_manager.roll_out(tasks, step)
        share = (self.now() - began) / (sum(waited.values()) or 1.0)
        return RolloutResult(groups, {stage: seconds * share for stage, seconds in waited.items()}, cached, grading)

    def update(self, groups: Sequence[Group]) -> UpdateResult:
        """One step of verl on these groups; a UserError if the policy has diverged."""
        # Counted without an update too, as `training_step` is, from which `restore` sets it.
        self.global_steps += 1
        minis = mini_batches(groups, self.run.trainer)
        if not minis:
            return UpdateResult(self.no_update)
        self.stored = stored_keys([group for mini in minis for group in mini])
        self.replay_buffer.batch = self.rows.put(minis, self.global_steps)
        metrics: dict[str, Any] = {}
        self.timing_raw: dict[str, float] = {}
        batch = self._step_once(metrics, self.timing_raw, sum(map(len, minis)))
        # Keys are indices in a batch: rows that are left would mix with the next batch.
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        measured: dict[str, float | None] = {}
        for key, name in self._metric_names.items():
            if (value := metrics.get(name)) is not None and not math.isfinite(value):
                raise UserError(
                    f"the policy has diverged: verl's {name} of an update is {value}",
                    key="trainer.learning_rate",
                    value=self.run.trainer.learning_rate,
                    hint="take a smaller one",
                )
            measured[key] = None if value is None else float(value)
        seconds = {stage: self.timing_raw.get(timer, 0.0) for timer, stage in TIMERS.items()}
        return UpdateResult(measured | self.gaps, seconds)

    def publish(self) -> None:
        """Give vLLM the updated weights."""
        self._wake()

    def fresh(self, tasks: Sequence[Task], step: int) -> FreshSamples:
        """Measure new samples of the current policy; the KL divergence is estimated from the sampled tokens."""
        self._wake()
        self._seed("fresh", step)
        groups = self.agent_loop_manager.fresh(tasks, step)
        rewards = [reward for group in groups for reward in group.rewards.tolist()]
        if not self.use_reference_policy:
            return FreshSamples(rewards)
        self._rest()  # frees vLLM's memory for the reference policy
        batch = self._balance_batch(self.rows.put_unmasked(groups, self.global_steps), {})
        batch = self._compute_ref_log_prob(batch, {})
        divergence = low_variance_kl(batch)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        self._wake()
        return FreshSamples(rewards, divergence)

    def save(self, folder: Path) -> None:
        """Let each process write its part of a checkpoint; vLLM's memory is freed for them."""
        self._rest()
        for name, group in self._learners().items():
            group.save_checkpoint(str(folder / name), None, self.global_steps)
        files = [str(folder / "memory" / f"shard-{i}.arrow") for i in range(len(self.shards))]
        ray.get([shard.save.remote(file) for shard, file in zip(self.shards, files, strict=True)])

    def restore(self, folder: Path) -> None:
        """Let each process load its part of a checkpoint; the memory is redistributed if the number of shards
        changed."""
        self.global_steps = self.loop.state.training_step
        for name, group in self._learners().items():
            # verl can delete what it has loaded, which is the checkpoint itself.
            group.load_checkpoint(local_path=str(folder / name), del_local_after_load=False)
        files = [str(file) for file in sorted((folder / "memory").glob("*.arrow"))]
        ray.get([shard.load.remote(files, i, len(self.shards)) for i, shard in enumerate(self.shards)])

    def save_policy(self, checkpoint: Path, folder: Path) -> None:
        """Link the policy that verl wrote into the checkpoint."""
        linked_folder(checkpoint / "actor" / "huggingface", folder)

    def _learners(self) -> dict[str, Any]:
        return {"actor": self.actor_rollout_wg} | ({"critic": self.critic_wg} if self.use_critic else {})

    # Called by verl

    def _build_replay_buffer(self) -> HandoverBuffer:
        """Replace verl's buffer, since the schedule chooses the groups of a batch."""
        return HandoverBuffer()

    def on_sample_end(self) -> None:
        """verl's update begins: engines that are awake are put to sleep and drop weights and cache."""
        if self.awake:
            super().on_sample_end()
        self.awake = False

    def _rest(self) -> None:
        if self.awake:
            self.checkpoint_manager.sleep_replicas()
        self.awake = False

    def _seed(self, purpose: str, step: int) -> None:
        """With seeds of steps, seed the random numbers of each of vLLM's replicas."""
        if engine_of(self.run).seeds == "request":
            return
        servers = self.llm_server_manager.server_handles
        seeds = [int(stream(self.run.seed, f"vllm/{purpose}", step, i).integers(2**63)) for i in range(len(servers))]
        calls = zip(servers, seeds, strict=True)
        ray.get([server.collective_rpc.remote("seed_sampling", args=(seed,)) for server, seed in calls])

    def _wake(self) -> None:
        """Send the current weights to sleeping engines, which wakes them."""
        if not self.awake:
            # verl's hook writes its time there.
            self.timing_raw = {}
            self.on_step_end()
        self.awake = True

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's old log-probabilities, replaced by stored ones where samples have them."""
        batch = super()._compute_old_log_prob(batch, metrics)
        # Before: stored values are not the current policy's. After: advantages and losses read them.
        self.gaps = dict(zip(GAPS, log_prob_gaps(batch), strict=True))
        put_stored_log_probs(self.stored)
        return batch

    def _load_checkpoint(self) -> None:
        """Restore the run; verl calls this after its processes start and before vLLM gets its first weights."""
        self.global_steps = 0
        self.loop.restore(self)
