"""Capabilities: operations that an engine or a trainer performs exactly, and that some methods need.

A run that needs a capability which its engine lacks is refused when it is read, with the reason.
"""

from enum import StrEnum


class Capability(StrEnum):
    """Operation beyond sampling a response and scoring the tokens of a draft."""

    OTHER_SCORES = "log-probabilities of given tokens in a draft's places"
    RESIDUAL = "a first token drawn from a residual distribution"
    GUMBEL = "draws by Gumbel noise that can be made again"
    TOP_LOG_PROBS = "the most probable tokens beside each sampled one"
    TRAINER_SCORES = "drafts verified by the training engine"
    STORED_LOG_PROBS = "updates that take old log-probabilities from the rollout"
    SELF_SPECULATION = "exact speculation by a quantised copy of the policy"
