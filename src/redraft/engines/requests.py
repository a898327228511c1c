"""Parts of every engine: checks of requests and answers, the ends of a draft's chunks, and counts of its work."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from redraft.config.capability import Capability
from redraft.errors import UserError
from redraft.rollout.engine import Draws, Gumbel, Residual


def refuse_scores(capabilities: Collection[Capability], at: np.ndarray | None, top: int, draws: Gumbel | None) -> None:
    """Raise a UserError that names the capability if a request to score cannot be served exactly."""
    other = {Capability.OTHER_SCORES: at is not None}
    _refuse(capabilities, other | {Capability.TOP_LOG_PROBS: top > 0, Capability.GUMBEL: draws is not None})


def refuse_draws(capabilities: Collection[Capability], draws: Draws, first: Residual | None, top: int) -> None:
    """Raise a UserError that names the capability if a request to decode cannot be served exactly."""
    needs = {Capability.GUMBEL: isinstance(draws, Gumbel), Capability.RESIDUAL: first is not None}
    _refuse(capabilities, needs | {Capability.TOP_LOG_PROBS: top > 0})


def _refuse(capabilities: Collection[Capability], needs: dict[Capability, bool]) -> None:
    for capability, needed in needs.items():
        if needed and capability not in capabilities:
            raise UserError(
                "this engine cannot do exactly what a method asks of it",
                key="engine",
                value=str(capability),
                allowed=[str(has) for has in capabilities] or "sampling the policy and scoring a draft's own tokens",
            )


def checked(log_probs: np.ndarray) -> np.ndarray:
    """A copy of log-probabilities, or a UserError if one is NaN, as those of a diverged policy are."""
    if np.isnan(log_probs).any():
        raise UserError(
            "the model's log-probabilities are NaN: it has diverged (then the learning rate was too high), "
            "or its weights are damaged"
        )
    return log_probs.copy()


def chunk_end(length: int, behind: int | None, chunk: int | None) -> int:
    """End of the part of a draft that is scored next, tokens of the draft.

    What is left behind a chunk goes with it if it is less than half of one, since a pass over few tokens costs more
    than they.

    Args:
        length: of the draft, tokens.
        behind: tokens that were scored before; None to score all at once.
        chunk: tokens of a chunk; None for the whole draft.

    Raises:
        ValueError: if nothing is left to score.
    """
    if not 0 <= (behind or 0) < length:
        raise ValueError(f"a draft of {length} tokens has nothing to score behind {behind or 0}")
    if behind is None or chunk is None:
        return length
    end = behind + chunk
    return end if 2 * (length - end) >= chunk else length


@dataclass
class Usage:
    """Cost of an engine's work so far.

    Attributes:
        verification_seconds: busy with scoring drafts, or waited for it, as the engine says.
        decoding_seconds: the same of decoding; 0 where the engine does not measure it.
        scored_tokens: draft tokens that were scored.
    """

    verification_seconds: float = 0.0
    decoding_seconds: float = 0.0
    scored_tokens: int = 0
