"""Configuration of retention: the parts of earlier rollouts that a method keeps in memory."""

from typing import Literal

from pydantic import Field

from redraft.config.base import MOST_RESPONSES, MOST_STEPS, MOST_TOKENS, Config


class Retention(Config):
    """Retention of earlier rollouts for each prompt. Both trainers keep exactly this; the default is nothing."""

    visits: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Number of latest rollouts of each sample that are kept as drafts."""
    correct: int = Field(default=0, ge=0, le=MOST_RESPONSES)
    """Number of correct responses that are kept, from any epoch pass."""
    evict: Literal["oldest", "newest"] = "oldest"
    """Correct responses that are dropped when there are more: the oldest or the newest."""
    top: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """Number of most probable tokens of the sampling distribution that are kept with each draft token."""
