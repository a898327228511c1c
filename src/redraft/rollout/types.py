"""What a rollout is made of."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Finish(StrEnum):
    """Why a response ended."""

    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, eq=False)
class Rollout:
    """One response to a prompt, with its history.

    Attributes:
        prompt: index of the prompt in the training data.
        sample: index within the prompt's group.
        tokens: int32, (length,), the end-of-sequence token included where there is one.
        log_probs: float32, (length,), of each token under the policy that sampled it.
        sampled_at: int32, (length,), the training step at which each token was sampled.
        finish: why it ended.
        prefix_length: tokens taken over from the draft.
        draft_length: tokens of the draft, 0 if there was none.
        verified: draft tokens scored under the current policy.
    """

    prompt: int
    sample: int
    tokens: np.ndarray
    log_probs: np.ndarray
    sampled_at: np.ndarray
    finish: Finish
    prefix_length: int = 0
    draft_length: int = 0
    verified: int = 0

    @property
    def length(self) -> int:
        """Tokens of the response."""
        return len(self.tokens)

    @property
    def decoded(self) -> int:
        """Tokens sampled for this rollout."""
        return self.length - self.prefix_length

    @property
    def fully_reused(self) -> bool:
        """Whether a draft was taken over whole."""
        return self.draft_length > 0 and self.prefix_length == self.draft_length
