"""Graded groups as the rows that verl trains on, and back from them what the record says of log-probabilities.

verl cuts mini-batches by numbers of rows. Groups may differ in size, and mini-batches in groups, so each is filled with
masked rows to the size of the largest that there can be: a mini-batch then holds whole groups, as in the local trainer.
A masked row belongs to no group and adds nothing to a token-mean loss; a sequence-mean loss would count it, and is
refused.
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


class HandedOver:
    """Takes the place of verl's replay buffer, which would look for finished groups, filter and refill by itself.

    Attributes:
        batch: what verl's next step trains on.
    """

    def __init__(self) -> None:
        self.batch: KVBatchMeta | None = None

    def sample(self, **_: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The batch that was handed over, once, and no metrics."""
        batch, self.batch = self.batch, None
        assert batch is not None, "verl asks for a batch that nobody handed over"
        return batch, {}


class Rows:
    """Puts groups into verl's TransferQueue.

    Args:
        run: whose algorithm shapes rewards; its group size is the largest that there can be.
        prompts: tokens of every prompt by its index.
        pad: token of masked rows.
    """

    def __init__(self, run: Run, prompts: Sequence[Sequence[int]], pad: int) -> None:
        self.run, self.prompts, self.pad = run, prompts, pad

    def put(self, minis: Sequence[Sequence[Group]], global_step: int) -> KVBatchMeta:
        """Hand the groups of each optimiser update over.

        Raises:
            UserError: for groups or updates of different sizes under a loss that would count masked rows.
        """
        self._refuse_masked_sequences(minis)
        rows, numbers, masked = [], itertools.count(), itertools.count(sum(map(len, minis)))
        for mini in minis:
            for group in mini:
                number, made = next(numbers), len(group.samples)
                samples = self._samples(group, number, global_step)
                rows.append([*samples, *self._masked(group.prompt, made, number, global_step)])
            for _ in range(self.run.trainer.most_prompts_per_update - len(mini)):
                rows.append(list(self._masked(mini[0].prompt, 0, next(masked), global_step)))
        return self._put(rows)

    def put_unmasked(self, groups: Sequence[Group], global_step: int) -> KVBatchMeta:
        """Hand groups over that are only measured: whatever their size, without masked rows."""
        return self._put([list(self._samples(group, number, global_step)) for number, group in enumerate(groups)])

    def _put(self, groups: Sequence[Sequence[Row]]) -> KVBatchMeta:
        keys, tags = [], []
        for rows in groups:
            some = [key for key, _, _ in rows], [tag for _, _, tag in rows]
            fields = list_of_dict_to_tensordict([field for _, field, _ in rows])
            tq.kv_batch_put(keys=some[0], partition_id=PARTITION, fields=fields, tags=some[1])
            keys += some[0]
            tags += some[1]
        return KVBatchMeta(partition_id=PARTITION, keys=keys, tags=tags)

    def _refuse_masked_sequences(self, minis: Sequence[Sequence[Group]]) -> None:
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
        for place, (sample, reward) in enumerate(zip(group.samples, rewards.tolist(), strict=True)):
            rollout = sample.rollout
            # Behind a rejection the first token's weight is another's, so its density is no engine's log-probability.
            fresh_from = rollout.length if sample.carried else rollout.prefix_length + (rollout.log_weights is not None)
            mask = [int(sample.use is Use.TRAINED)] * rollout.length
            yield self._row(
                f"{number:09d}",
                place,
                group.prompt,
                rollout.tokens.tolist(),
                rollout.behaviour.tolist(),
                mask,
                reward,
                global_step,
                {"prefix_length": fresh_from},
            )

    def _masked(self, prompt: int, made: int, number: int, global_step: int) -> Iterator[Row]:
        """Rows without a response token that counts, behind those that were made, up to the run's group size."""
        for place in range(made, self.run.trainer.group_size):
            key, field, tag = self._row(
                f"pad{number:09d}", place, prompt, [self.pad], [0.0], [0], 0.0, global_step, {"prefix_length": 1}
            )
            yield key, field, tag | {"is_padding": True}

    def _row(
        self,
        uid: str,
        place: int,
        prompt: int,
        tokens: list[int],
        log_probs: list[float],
        mask: list[int],
        reward: float,
        global_step: int,
        extra: dict[str, Any],
    ) -> Row:
        """One row; `rollout_log_probs` are those of the policy that sampled each token, or its density with weights."""
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
            "session_id": place,
            "loss_mask": field["response_mask"],
            "input_ids": whole,
            "position_ids": torch.arange(len(whole)),
            "multi_modal_inputs": {},
            "global_steps": global_step,
        }
        sizes = {"prompt_len": len(field["prompts"]), "response_len": len(tokens), "seq_len": len(whole)}
        steps = {"global_steps": global_step, "min_global_steps": global_step - 1, "max_global_steps": global_step - 1}
        return f"{uid}_{place}_0", field, {"status": "success", **sizes, **steps}


def mini_batches(groups: Sequence[Group], trainer: TrainerConfig) -> list[list[Group]]:
    """Groups of each optimiser update of which any sample is trained on.

    Of the others verl would divide by zero tokens.
    """
    rest = iter(groups)
    minis = [list(itertools.islice(rest, size)) for size in trainer.groups_of_updates(len(groups))]
    return [mini for mini in minis if any(s.use is Use.TRAINED for g in mini for s in g.samples)]


def stored_keys(groups: Sequence[Group]) -> list[str]:
    """Keys of rows whose old log-probabilities are those of the policy that sampled them."""
    samples: Iterator[tuple[int, int, Sample]] = (
        (number, place, sample) for number, group in enumerate(groups) for place, sample in enumerate(group.samples)
    )
    return [f"{n:09d}_{place}_0" for n, place, sample in samples if sample.old_log_probs is OldLogProbs.STORED]


def put_stored_log_probs(keys: Sequence[str]) -> None:
    """Put stored log-probabilities in place of recomputed ones."""
    if keys:
        data = tq.kv_batch_get(keys=list(keys), partition_id=PARTITION, select_fields=["rollout_log_probs"])
        data["old_log_probs"] = data.pop("rollout_log_probs")
        tq.kv_batch_put(keys=list(keys), partition_id=PARTITION, fields=data)


def low_variance_kl(batch: KVBatchMeta) -> float:
    """Estimate of the KL divergence of the policy that sampled from the reference policy, nats a token.

    The estimator is exp(d) - 1 - d of d = log q - log p, unbiased and never negative (Schulman, 2020, "Approximating KL
    Divergence", k3). verl's `low_var_kl` clamps d and the result; here nothing is clamped.
    """
    chosen = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["ref_log_prob", "rollout_log_probs"]
    data = tq.kv_batch_get(keys=chosen, partition_id=batch.partition_id, select_fields=fields)
    rows = zip(data["ref_log_prob"].unbind(), data["rollout_log_probs"].unbind(), strict=True)
    gaps = torch.cat([(reference - policy).double() for reference, policy in rows])
    return float((gaps.expm1() - gaps).mean())


def log_prob_gaps(batch: KVBatchMeta) -> tuple[float, float, float]:
    """Mean and largest difference between the engine's and the trainer's log-probability of a token sampled now; drift.

    The mean is rounding while both hold the same weights, and grows when the engine keeps old ones. Reused tokens are
    left out: theirs are of older policies. The drift is that of all tokens (`redraft.train.local.learner`).
    """
    chosen = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["old_log_probs", "rollout_log_probs", "extra_fields"]
    data = tq.kv_batch_get(keys=chosen, partition_id=batch.partition_id, select_fields=fields)
    prefixes = [getattr(extra, "data", extra)["prefix_length"] for extra in data["extra_fields"]]
    rows = zip(data["old_log_probs"].unbind(), data["rollout_log_probs"].unbind(), strict=True)
    differences = [(trainer - stored).double() for trainer, stored in rows]
    every = torch.cat(differences)
    new = torch.cat([row[prefix:].abs() for row, prefix in zip(differences, prefixes, strict=True)])
    mean, largest = (float(new.mean()), float(new.max())) if len(new) else (0.0, 0.0)
    return mean, largest, float((every.expm1() - every).mean())
