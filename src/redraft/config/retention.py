"""Retention: what a method keeps of earlier rollouts in memory."""

from typing import Literal

from pydantic import Field

from redraft.config.base import Config


class Retention(Config):
    """Retention of earlier rollouts for each prompt. Both trainers keep exactly this much, and by default nothing."""

    visits: int = Field(default=0, ge=0)
    """Number of latest rollouts of each sample that are kept as drafts."""
    correct: int = Field(default=0, ge=0)
    """Number of correct responses that are kept, from any visit."""
    evict: Literal["oldest", "newest"] = "oldest"
    """Correct responses that go when there are more: the oldest, or those that came last."""
    top: int = Field(default=0, ge=0)
    """Number of most probable tokens of the sampling distribution that are kept with each draft token."""
