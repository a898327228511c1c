"""Capabilities: operations that an engine or a trainer performs exactly, and that some methods need.

A run is rejected when it is read if its engine lacks a capability that it needs. The message has the reason.
"""

from enum import StrEnum


class Capability(StrEnum):
    """Operation beyond sampling a response and scoring the tokens of a draft."""

    OTHER_SCORES = "log-probabilities of given tokens at a draft's positions"
    RESIDUAL = "a first token sampled from a residual distribution"
    GUMBEL = "sampling with reproducible Gumbel noise"
    TOP_LOG_PROBS = "the most probable tokens next to each sampled one"
    TRAINER_SCORES = "drafts verified by the training engine"
    STORED_LOG_PROBS = "updates that take old log-probabilities from the rollout"
    SELF_SPECULATION = "exact speculation by a quantised copy of the policy"
    DRAFTERS = "exact speculation by n-grams, suffixes or a learned head"
