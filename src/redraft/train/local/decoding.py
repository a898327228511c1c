"""A run's decoding: the engine that it asks for, over the policy that is trained."""

import math
from pathlib import Path
from typing import Any

import torch

from redraft.config.decoding import BLOCK_STARTS, Plain, SelfSpeculation
from redraft.config.experiment import Run
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.speculation import SpeculativeEngine
from redraft.selfspec.calibration import read_calibration
from redraft.selfspec.controller import Control, Ladder, Roofline, SwitchRule, Threshold
from redraft.train.models import stop_tokens
from redraft.train.pretrained.precision import dtype_of, rounded

Record = dict[str, Any]


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
        return {"tail_share": self.engine.activity.tail_share}

    def adapt(self) -> None:
        """Learn from the engine's last rollout, which was one of training."""

    def state(self) -> Record:
        """What a run that goes on needs; empty if nothing."""
        return {}

    def restore(self, state: Record) -> None:
        """Go on from there, with the policy's present weights."""
        self.publish()


class SelfSpeculativeDecoding(Decoding):
    """An engine that speculates with a quantised copy of the policy.

    Args:
        calibration: file of the model's roofline; only needed for `when: roofline`.
    """

    engine: SpeculativeEngine

    def __init__(
        self,
        policy: Any,
        dtype: torch.dtype,
        settings: dict[str, Any],
        configured: SelfSpeculation,
        calibration: Path | None,
    ) -> None:
        self.policy = policy
        roofline = read_calibration(calibration) if configured.when == "roofline" and calibration else None

        def rule(gamma: int, accepted: float | None) -> SwitchRule:
            """The rule of a rollout, from its draft length and the last measured tokens of a block."""
            if configured.when == "always":
                return Threshold(math.inf)
            if configured.when == "threshold":
                return Threshold(configured.most_active or 0)
            assert roofline is not None
            return Roofline(roofline, gamma, accepted, configured.margin)

        ladder = Ladder(tuple(configured.draft_lengths), configured.raise_at, configured.lower_at, configured.patience)
        # `always` waits for no full batch: with a ramp of 0 the first pass speculates.
        self.control = Control(ladder, rule, 0 if configured.when == "always" else configured.ramp)
        model = rounded(policy, dtype)
        self.drafter = QuantisedDrafter(model, configured.bits, configured.group)
        self.engine = SpeculativeEngine(model, self.drafter, self.control, max(configured.draft_lengths), **settings)

    def publish(self) -> None:
        """Round and quantise the updated weights."""
        super().publish()
        self.drafter.refresh()

    def measured(self) -> Record:
        """The tail, draft length, acceptance, seconds, the drafter's error and the passes; see docs/metrics.md."""
        drafter, done = self.drafter, self.engine.speculated
        passes = done.passes + done.plain_passes
        at = zip(done.kept_at, done.proposed_at, strict=True)
        parts = [part for part in zip(BLOCK_STARTS, done.kept_from, done.proposed_from, strict=False) if part[2]]
        return super().measured() | {
            "draft_length": self.control.gamma,
            "block_efficiency": done.block_efficiency,
            "acceptance": done.kept / done.proposed if done.proposed else None,
            "speculated_passes": done.passes / passes if passes else None,
            "drafting_seconds": done.drafting_seconds,
            "block_verification_seconds": done.verification_seconds,
            "kept_at": {str(position + 1): kept / proposed for position, (kept, proposed) in enumerate(at)},
            "kept_from": {str(start): kept for start, kept, _ in parts},
            "proposed_from": {str(start): proposed for start, _, proposed in parts},
            "quantisation_seconds": drafter.seconds,
            "quantisation_error": drafter.error,
            "passes": [list(stretch) for stretch in self.control.trace],
        }

    def adapt(self) -> None:
        """Tell the control how many tokens a block had."""
        self.control.adapt(self.engine.speculated.block_efficiency)

    def state(self) -> Record:
        """State of the control."""
        return self.control.state()

    def restore(self, state: Record) -> None:
        """Restore the control, and quantise the restored weights."""
        self.control.restore(state)
        self.publish()


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
    match run.decoding:
        case Plain():
            return Decoding(policy, dtype, settings)
        case SelfSpeculation() as configured:
            return SelfSpeculativeDecoding(policy, dtype, settings, configured, run.calibration)
