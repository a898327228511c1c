"""Graded groups as rows of verl's TransferQueue, and statistics of the log-probabilities that verl adds to them.

verl splits mini-batches by numbers of rows. Groups may differ in size, and mini-batches in their number of groups, so
each is padded with masked rows to its largest possible size: a mini-batch then consists of whole groups, as in the
local trainer. A masked row belongs to no group and adds nothing to a token-mean loss. A sequence-mean loss would count
it, so that combination is rejected.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from redraft.config.experiment import Run
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.rollout.types import Group, OldLogProbs, Sample, Use
from redraft.train.losses import shaped

PARTITION = "train"
Row = tuple[str, dict[str, Any], dict[str, Any]]
"""verl's key, fields and tag."""


class HandoverBuffer:
    """Replaces verl's replay buffer, which would select, filter and refill groups on its own.

    Attributes:
        batch: batch of verl's next step.
    """

    def __init__(self) -> None:
        self.batch: KVBatchMeta | None = None

    def sample(self, **_: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The batch, which can be taken once, and no metrics."""
        batch, self.batch = self.batch, None
        assert batch is not None, "verl requested a batch before one was set"
        return batch, {}


class RowWriter:
    """Writes groups into verl's TransferQueue.

    Args:
        run: its algorithm shapes rewards, and its group size is the largest possible one.
        prompts: token ids of each prompt by its index.
        pad: token id of masked rows.
    """

    def __init__(self, run: Run, prompts: Sequence[Sequence[int]], pad: int) -> None:
        self.run, self.prompts, self.pad = run, prompts, pad

    def put(self, minis: Sequence[Sequence[Group]], global_step: int) -> KVBatchMeta:
        """Write the groups of each optimiser update, padded with masked rows.

        Raises:
            UserError: for groups or updates of different sizes with a loss that would count masked rows.
        """
        self._check_masked_rows(minis)
        # Masked groups are numbered after all others, so that no key occurs twice.
        rows, numbers, masked = [], itertools.count(), itertools.count(sum(map(len, minis)))
        for mini in minis:
            for group in mini:
                number = next(numbers)
                samples = self._samples(group, number, global_step)
                padding = self._masked(group.prompt, len(group.samples), number, global_step)
                rows.append([*samples, *padding])
            for _ in range(self.run.trainer.most_prompts_per_update - len(mini)):
                rows.append(list(self._masked(mini[0].prompt, 0, next(masked), global_step)))
        return self._put(rows)

    def put_unmasked(self, groups: Sequence[Group], global_step: int) -> KVBatchMeta:
        """Write groups of any sizes that are only measured, without masked rows."""
        return self._put([list(self._samples(group, number, global_step)) for number, group in enumerate(groups)])

    def _put(self, groups: Sequence[Sequence[Row]]) -> KVBatchMeta:
        keys, tags = [], []
        for rows in groups:
            group_keys, group_tags = [key for key, _, _ in rows], [tag for _, _, tag in rows]
            fields = list_of_dict_to_tensordict([field for _, field, _ in rows])
            tq.kv_batch_put(keys=group_keys, partition_id=PARTITION, fields=fields, tags=group_tags)
            keys += group_keys
            tags += group_tags
        return KVBatchMeta(partition_id=PARTITION, keys=keys, tags=tags)

    def _check_masked_rows(self, minis: Sequence[Sequence[Group]]) -> None:
        mode, size = self.run.algorithm.loss_agg_mode, self.run.trainer.group_size
        groups, uneven = [group for mini in minis for group in mini], len({len(mini) for mini in minis}) > 1
        sizes = {len(group.samples) for group in groups}
        if max(sizes) > size:
            raise RuntimeError(f"a group of {max(sizes)} samples exceeds the run's group size of {size}")
        stopped = any(sample.use is Use.STOPPED for group in groups for sample in group.samples)
        if mode != "token-mean" and (sizes != {size} or stopped or uneven):
            raise UserError(
                "under verl a loss over sequences would count the masked rows of smaller groups or updates",
                key="algorithm.loss_agg_mode",
                value=mode,
                allowed="token-mean",
            )

    def _samples(self, group: Group, number: int, global_step: int) -> Iterator[Row]:
        rollouts = group.rollouts
        lengths = np.array([rollout.length for rollout in rollouts])
        rewards = shaped(self.run.algorithm, group.rewards, lengths, self.run.trainer.max_response_tokens)
        for index, (sample, reward) in enumerate(zip(group.samples, rewards.tolist(), strict=True)):
            rollout = sample.rollout
            # With importance weights the first token after a rejection has a density that no engine computed.
            fresh_from = rollout.length if sample.carried else rollout.prefix_length + (rollout.log_weights is not None)
            # verl's baselines take the rewards of all rows of a `uid`, also of those that are masked.
            mask = [int(sample.use is Use.TRAINED)] * rollout.length
            yield self._row(
                f"{number:09d}",
                index,
                group.prompt,
                rollout.tokens.tolist(),
                rollout.behaviour.tolist(),
                mask,
                reward,
                global_step,
                {"prefix_length": fresh_from},
            )

    def _masked(self, prompt: int, first: int, number: int, global_step: int) -> Iterator[Row]:
        """Masked rows with indices from `first` up to the run's group size."""
        for index in range(first, self.run.trainer.group_size):
            key, field, tag = self._row(
                f"pad{number:09d}", index, prompt, [self.pad], [0.0], [0], 0.0, global_step, {"prefix_length": 1}
            )
            # verl leaves such rows out of its counts.
            yield key, field, tag | {"is_padding": True}

    def _row(
        self,
        uid: str,
        index: int,
        prompt: int,
        tokens: list[int],
        log_probs: list[float],
        mask: list[int],
        reward: float,
        global_step: int,
        extra: dict[str, Any],
    ) -> Row:
        """One row; `rollout_log_probs` are those of each token's sampling policy (with importance weights: the
        density)."""
        output = AgentLoopOutput(
            prompt_ids=list(self.prompts[prompt]),
            response_ids=tokens,
            response_mask=mask,
            response_logprobs=log_probs,
            reward_score=reward,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": {}, "turn_scores": [], "tool_rewards": [], **extra},
        )
        field = output.as_dict()
        whole = torch.cat([field["prompts"], field["responses"]])
        field |= {
            "uid": uid,
            "session_id": index,
            "loss_mask": field["response_mask"],
            "input_ids": whole,
            "position_ids": torch.arange(len(whole)),
            "multi_modal_inputs": {},
            "global_steps": global_step,
        }
        sizes = {"prompt_len": len(field["prompts"]), "response_len": len(tokens), "seq_len": len(whole)}
        # Versions of the weights that sampled the row: those before this update.
        steps = {"global_steps": global_step, "min_global_steps": global_step - 1, "max_global_steps": global_step - 1}
        return f"{uid}_{index}_0", field, {"status": "success", **sizes, **steps}


def mini_batches(groups: Sequence[Group], trainer: TrainerConfig) -> list[list[Group]]:
    """Groups of each optimiser update, without updates that train on no sample.

    For those verl would divide by zero tokens.
    """
    rest = iter(groups)
    minis = [list(itertools.islice(rest, size)) for size in trainer.groups_of_updates(len(groups))]
    return [mini for mini in minis if any(s.use is Use.TRAINED for g in mini for s in g.samples)]


def stored_keys(groups: Sequence[Group]) -> list[str]:
    """Keys of rows whose old log-probabilities are the stored ones of the sampling policy."""
    samples: Iterator[tuple[int, int, Sample]] = (
        (number, index, sample) for number, group in enumerate(groups) for index, sample in enumerate(group.samples)
    )
    return [f"{n:09d}_{index}_0" for n, index, sample in samples if sample.old_log_probs is OldLogProbs.STORED]


def put_stored_log_probs(keys: Sequence[str]) -> None:
    """Replace recomputed old log-probabilities by stored ones."""
    if keys:
        data = tq.kv_batch_get(keys=list(keys), partition_id=PARTITION, select_fields=["rollout_log_probs"])
        data["old_log_probs"] = data.pop("rollout_log_probs")
        tq.kv_batch_put(keys=list(keys), partition_id=PARTITION, fields=data)


def low_variance_kl(batch: KVBatchMeta) -> float:
    """Estimate of the KL divergence from the sampling policy p to the reference policy q, in nats per token.

    The estimator is exp(d) - 1 - d with d = log q - log p, unbiased and never negative (Schulman, 2020, "Approximating
    KL Divergence", k3). verl's `low_var_kl` clamps d and the result; here nothing is clamped.
    """
    chosen = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["ref_log_prob", "rollout_log_probs"]
    data = tq.kv_batch_get(keys=chosen, partition_id=batch.partition_id, select_fields=fields)
    rows = zip(data["ref_log_prob"].unbind(), data["rollout_log_probs"].unbind(), strict=True)
    gaps = torch.cat([(reference - policy).double() for reference, policy in rows])
    return float((gaps.expm1() - gaps).mean())


def log_prob_gaps(batch: KVBatchMeta) -> tuple[float, float, float]:
    """Mean and largest absolute gap between engine and trainer log-probabilities of new tokens; drift of all tokens.

    The mean gap is rounding while both have the same weights, and grows if the engine keeps old weights. Reused tokens
    are excluded, since older policies sampled them. For the drift see `redraft.train.local.learner`.

    Args:
        batch: with the current policy's log-probabilities in `old_log_probs`, so before stored ones replace them.
    """
    chosen = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["old_log_probs", "rollout_log_probs", "extra_fields"]
    data = tq.kv_batch_get(keys=chosen, partition_id=batch.partition_id, select_fields=fields)
    prefixes = [getattr(extra, "data", extra)["prefix_length"] for extra in data["extra_fields"]]
    rows = zip(data["old_log_probs"].unbind(), data["rollout_log_probs"].unbind(), strict=True)
    differences = [(trainer - stored).double() for trainer, stored in rows]
    all_tokens = torch.cat(differences)
    new = torch.cat([row[prefix:].abs() for row, prefix in zip(differences, prefixes, strict=True)])
    mean, largest = (float(new.mean()), float(new.max())) if len(new) else (0.0, 0.0)
    return mean, largest, float((all_tokens.expm1() - all_tokens).mean())
