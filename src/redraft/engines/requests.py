"""What all engines share: checks of requests and answers, the ends of a draft's chunks, and counts of work."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from redraft.config.capability import Capability
from redraft.errors import UserError


def check_capabilities(
    capabilities: Collection[Capability],
    *,
    others: bool = False,
    residual: bool = False,
    noise: bool = False,
    top: int = 0,
) -> None:
    """Raise a UserError that names the capability if a request needs one that the engine lacks.

    Args:
        others: the request scores other tokens than the draft's.
        residual: its first token is sampled from a residual distribution.
        noise: it samples by Gumbel noise.
        top: number of most probable tokens that it reports.
    """
    needs = {
        Capability.OTHER_SCORES: others,
        Capability.RESIDUAL: residual,
        Capability.GUMBEL: noise,
        Capability.TOP_LOG_PROBS: top > 0,
    }
    for capability, needed in needs.items():
        if needed and capability not in capabilities:
            raise UserError(
                "this engine cannot do exactly what a method needs",
                key="engine",
                value=str(capability),
                allowed=[str(has) for has in capabilities] or "sampling the policy and scoring a draft's own tokens",
            )


def checked(log_probs: np.ndarray) -> np.ndarray:
    """A copy of log-probabilities, or a UserError if one is NaN, as with a diverged policy."""
    if np.isnan(log_probs).any():
        raise UserError(
            "the model's log-probabilities are NaN: it has diverged (then the learning rate was too high), "
            "or its weights are damaged"
        )
    # The argument may be a view of a whole batch's array, which would stay in memory.
    return log_probs.copy()


def chunk_end(length: int, scored: int | None, chunk: int | None) -> int:
    """End of the next chunk of a draft, in tokens from its start.

    A rest shorter than half a chunk joins the chunk before it, since a pass has a fixed cost.

    Args:
        length: of the draft, tokens.
        scored: tokens that are scored already; None to score all at once.
        chunk: tokens of a chunk; None for the whole draft.

    Raises:
        ValueError: if nothing is left to score.
    """
    if not 0 <= (scored or 0) < length:
        raise ValueError(f"a draft of {length} tokens has nothing to score after {scored or 0}")
    if scored is None or chunk is None:
        return length
    end = scored + chunk
    return end if 2 * (length - end) >= chunk else length


@dataclass
class Usage:
    """Cost of an engine's work so far.

    Attributes:
        verification_seconds: time spent on scoring drafts, or waiting for it, as documented by the engine.
        decoding_seconds: the same for decoding; 0 if the engine does not measure it.
        scored_tokens: draft tokens that were scored.
    """

    verification_seconds: float = 0.0
    decoding_seconds: float = 0.0
    scored_tokens: int = 0
