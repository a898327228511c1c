"""A run's decoding: the engine that it asks for, over the policy that is trained."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from redraft.config.decoding import BLOCK_STARTS, LearnedHead, NGram, Plain, SelfSpeculation, Speculation, Suffix
from redraft.config.experiment import Run
from redraft.engines.torch.draft_head import HeadDrafter, head_losses
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.head import hidden_states
from redraft.engines.torch.loop import now
from redraft.engines.torch.matched import NGramDrafter, SuffixDrafter
from redraft.engines.torch.speculation import Drafter, SpeculativeEngine
from redraft.files import read_json, write_json
from redraft.messages import echo
from redraft.rollout.history import ResponseHistory
from redraft.rollout.streams import stream
from redraft.rollout.types import Group
from redraft.selfspec.calibration import read_calibration
from redraft.selfspec.controller import Control, Ladder, Roofline, SwitchRule, Threshold
from redraft.train.local.learner import Batch
from redraft.train.models import stop_tokens
from redraft.train.pretrained.precision import dtype_of, rounded

Record = dict[str, Any]
DECODING = "decoding.json"
"""File of a checkpoint with the state of the control."""
HISTORY = "history.arrow"
"""File of a checkpoint with the responses that a suffix drafter searches."""


class Decoding:
    """Owns the engine of the local trainer.

    Args:
        policy: the policy that is trained, with float32 weights.
        dtype: precision of the engine, which computes with the policy itself in float32, else with a rounded copy.
        settings: further arguments of `TorchEngine`.
    """

    engine: TorchEngine

    def __init__(self, policy: Any, dtype: torch.dtype, settings: dict[str, Any]) -> None:
        self.policy = policy
        self.engine = TorchEngine(rounded(policy, dtype), **settings)

    def publish(self) -> None:
        """Copy the policy's updated weights to the engine, rounded, before anything is rolled out with them."""
        if self.engine.model is not self.policy:
            with torch.no_grad():
                for own, trained in zip(self.engine.model.parameters(), self.policy.parameters(), strict=True):
                    own.copy_(trained)

    def measured(self) -> Record:
        """Fields of a step's record about the engine's last rollout; see docs/metrics.md."""
        activity = self.engine.activity
        return {
            "tail_share": activity.tail_share,
            "decoding_passes": activity.passes,
            "passes": [list(stretch) for stretch in activity.trace],
        }

    def adapt(self, groups: Sequence[Group], prompts: Sequence[Sequence[int]]) -> Record:
        """Learn from the engine's last rollout, which was one of training; further fields of the step's record.

        Args:
            groups: of the rollout.
            prompts: tokens of every prompt by its index.
        """
        return {}

    @property
    def parts(self) -> dict[str, Any]:
        """Modules and optimizers for a checkpoint, by name."""
        return {}

    def save(self, folder: Path) -> None:
        """Write into a checkpoint's folder what a run that goes on needs, beside the parts."""

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote, with the policy's present weights."""
        self.publish()


class SpeculativeDecoding(Decoding):
    """An engine with a drafter whose draft length is controlled.

    Args:
        model: the policy in the engine's precision.
        calibration: file of the model's roofline; only needed for `when: roofline`.
    """

    engine: SpeculativeEngine

    def __init__(
        self,
        policy: Any,
        model: Any,
        settings: dict[str, Any],
        configured: Speculation,
        drafter: Drafter,
        calibration: Path | None = None,
    ) -> None:
        self.policy = policy
        roofline = read_calibration(calibration) if calibration else None

        def rule(gamma: int, accepted: float | None) -> SwitchRule:
            """The rule of a rollout, from its draft length and the last measured tokens of a block."""
            if configured.when == "always":
                return Threshold(math.inf)
            if configured.when == "threshold":
                return Threshold(configured.most_active or 0)
            assert roofline is not None
            assert isinstance(configured, SelfSpeculation)
            return Roofline(roofline, gamma, accepted, configured.margin)

        ladder = Ladder(tuple(configured.draft_lengths), configured.raise_at, configured.lower_at, configured.patience)
        # `always` waits for no full batch: with a ramp of 0 the first pass speculates.
        self.control = Control(ladder, rule, 0 if configured.when == "always" else configured.ramp)
        self.engine = SpeculativeEngine(model, drafter, self.control, max(configured.draft_lengths), **settings)

    def measured(self) -> Record:
        """The tail, draft length, acceptance, seconds and passes; see docs/metrics.md."""
        done = self.engine.speculated
        passes = done.passes + done.plain_passes
        at = zip(done.kept_at, done.proposed_at, strict=True)
        parts = [part for part in zip(BLOCK_STARTS, done.kept_from, done.proposed_from, strict=False) if part[2]]
        return super().measured() | {
            "draft_length": self.control.gamma,
            "block_efficiency": done.block_efficiency,
            "acceptance": done.kept / done.proposed if done.proposed else None,
            "speculated_passes": done.passes / passes if passes else None,
            "blocks": done.blocks,
            "proposed": done.proposed,
            "kept": done.kept,
            "drafting_seconds": done.drafting_seconds,
            "block_verification_seconds": done.verification_seconds,
            "kept_at": {str(position + 1): kept / proposed for position, (kept, proposed) in enumerate(at)},
            "kept_from": {str(start): kept for start, kept, _ in parts},
            "proposed_from": {str(start): proposed for start, _, proposed in parts},
        }

    def adapt(self, groups: Sequence[Group], prompts: Sequence[Sequence[int]]) -> Record:
        """Tell the control how many tokens a block of the full draft length would have at this rollout's acceptance."""
        done, gamma = self.engine.speculated, self.control.gamma
        whole = done.proposed in (0, done.blocks * gamma)
        self.control.adapt(done.block_efficiency if whole else 1 + gamma * done.kept / done.proposed)
        return {}

    def save(self, folder: Path) -> None:
        """Write the state of the control."""
        write_json(folder / DECODING, dict(self.control.state()))

    def restore(self, folder: Path) -> None:
        """Restore the control."""
        self.control.restore(read_json(folder / DECODING))
        super().restore(folder)


class SelfSpeculativeDecoding(SpeculativeDecoding):
    """An engine that speculates with a quantised copy of the policy."""

    def __init__(
        self, policy: Any, model: Any, settings: dict[str, Any], configured: SelfSpeculation, calibration: Path | None
    ) -> None:
        self.drafter = QuantisedDrafter(model, configured.bits, configured.group)
        super().__init__(policy, model, settings, configured, self.drafter, calibration)

    def publish(self) -> None:
        """Round and quantise the updated weights."""
        super().publish()
        self.drafter.refresh()

    def measured(self) -> Record:
        """Also the time and error of quantisation."""
        drafter = self.drafter
        return super().measured() | {"quantisation_seconds": drafter.seconds, "quantisation_error": drafter.error}


class SuffixDecoding(SpeculativeDecoding):
    """An engine that speculates with the responses of a prompt's last passes."""

    def __init__(self, policy: Any, model: Any, settings: dict[str, Any], configured: Suffix) -> None:
        history = ResponseHistory(configured.window)
        self.drafter = SuffixDrafter(history, configured.longest, configured.shortest, configured.least_share)
        super().__init__(policy, model, settings, configured, self.drafter)

    def measured(self) -> Record:
        """Also the size of the history that was searched."""
        return super().measured() | {"history_tokens": self.drafter.history.tokens}

    def adapt(self, groups: Sequence[Group], prompts: Sequence[Sequence[int]]) -> Record:
        """Add the responses of this rollout to the history, also those that were reused as a whole."""
        self.drafter.history.add_rollout(
            (prompts[group.prompt], [sample.rollout.tokens for sample in group.samples if not sample.carried])
            for group in groups
        )
        return super().adapt(groups, prompts)

    def save(self, folder: Path) -> None:
        """Write the control and the history."""
        super().save(folder)
        self.drafter.history.save(folder / HISTORY)

    def restore(self, folder: Path) -> None:
        """Restore the control and the history."""
        self.drafter.history = ResponseHistory.load(folder / HISTORY, self.drafter.history.window)
        super().restore(folder)


class HeadDecoding(SpeculativeDecoding):
    """An engine that speculates with a learned head, which is trained on the responses of each step.

    The head learns after a rollout, from the states of the policy that made it, before the policy is updated. So a
    checkpoint, which is written after the update, has all that the head has learnt. The policy and its random numbers
    are not touched.

    Args:
        seed: of the run; the head's initial weights have a random stream of their own.
        micro_batch: responses whose states are computed at once.
    """

    def __init__(
        self, policy: Any, model: Any, settings: dict[str, Any], configured: LearnedHead, seed: int, micro_batch: int
    ) -> None:
        initial = torch.Generator().manual_seed(int(stream(seed, "draft head").integers(2**63)))
        self.drafter = HeadDrafter(model, configured.width, initial)
        super().__init__(policy, model, settings, configured, self.drafter)
        self._configured, self._micro_batch = configured, micro_batch
        self._weights = list(self.drafter.head.parameters())
        self._optimizer = torch.optim.AdamW(self._weights, lr=configured.learning_rate, weight_decay=0.0)
        self._steps = max(configured.draft_lengths)

    def adapt(self, groups: Sequence[Group], prompts: Sequence[Sequence[int]]) -> Record:
        """Train the head on the responses of this rollout; return its loss before that, and the time."""
        super().adapt(groups, prompts)
        began, losses = now(self.engine.device), []
        rollouts = [sample.rollout for group in groups for sample in group.samples if not sample.carried]
        training = self.engine.model.training
        self.engine.model.eval()
        batch = Batch.of([prompts[rollout.prompt] for rollout in rollouts], rollouts, 0, self.engine.device)
        for _ in range(self._configured.updates):
            if self.drafter.failed:
                break
            losses.append(self._update(batch))
        self.engine.model.train(training)
        return {
            "head_loss": losses[0] if losses and math.isfinite(losses[0]) else None,
            "head_training_seconds": now(self.engine.device) - began,
        }

    def _update(self, batch: Batch) -> float:
        """One optimiser step on all responses; the loss before it, nats a token. No step where it is not finite."""
        total, count = 0.0, 0
        gradients = [torch.zeros_like(weight) for weight in self._weights]
        for _, part in batch.parts(self._micro_batch):
            at_T = torch.arange(part.tokens.shape[1], device=part.tokens.device)
            ends_B1 = (part.starts + part.mask.sum(1).long())[:, None]
            mask_BT = (at_T >= part.starts[:, None]) & (at_T < ends_B1)
            with torch.no_grad():
                hidden_BTH = hidden_states(self.engine.model, input_ids=part.tokens, attention_mask=None)
            # Of the head's weights alone: `backward` would leave gradients in the policy's embedding and output layer.
            losses = head_losses(self.drafter, self.engine.head, hidden_BTH, part.tokens, mask_BT, self._steps)
            loss = torch.stack(list(losses)).sum()
            for gradient, new in zip(gradients, torch.autograd.grad(loss, self._weights), strict=True):
                gradient.add_(new)
            total += float(loss.detach())
            count += self._steps * int(mask_BT.sum())
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient / count
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, 1.0))
        if math.isfinite(total) and math.isfinite(norm):
            self._optimizer.step()
        else:
            self.drafter.failed = True
            echo("the draft head has diverged: the run goes on with plain decoding", err=True)
        return total / count

    @property
    def parts(self) -> dict[str, Any]:
        """The head and its optimizer."""
        return {"draft_head": self.drafter.head, "draft_head_optimizer": self._optimizer}

    def save(self, folder: Path) -> None:
        """Write the control, and whether the head has failed."""
        write_json(folder / DECODING, {**self.control.state(), "failed": self.drafter.failed})

    def restore(self, folder: Path) -> None:
        """Restore the control, and whether the head has failed."""
        self.drafter.failed = bool(read_json(folder / DECODING)["failed"])
        super().restore(folder)


def open_decoding(run: Run, policy: Any, longest_prompt: int) -> Decoding:
    """The decoding of a run; `longest_prompt` is in tokens."""
    run.reuse.check_vocabulary(policy.config.vocab_size)
    settings = {
        "stops": stop_tokens(policy),
        "max_length": longest_prompt + run.trainer.max_response_tokens,
        "max_rows": run.engine.max_rows,
        "max_batched_tokens": run.engine.max_batched_tokens,
        "chunk": run.engine.draft_chunk,
        "temperature": run.trainer.temperature,
        "bitwise": run.engine.bitwise,
    }
    dtype = dtype_of(run.engine)
    if isinstance(run.decoding, Plain):
        return Decoding(policy, dtype, settings)
    model = rounded(policy, dtype)
    match run.decoding:
        case SelfSpeculation() as configured:
            return SelfSpeculativeDecoding(policy, model, settings, configured, run.calibration)
        case NGram() as configured:
            ngrams = NGramDrafter(configured.longest, configured.shortest)
            return SpeculativeDecoding(policy, model, settings, configured, ngrams)
        case Suffix() as configured:
            return SuffixDecoding(policy, model, settings, configured)
        case LearnedHead() as configured:
            rows = run.engine.rows_per_micro_batch
            return HeadDecoding(policy, model, settings, configured, run.seed, rows)
