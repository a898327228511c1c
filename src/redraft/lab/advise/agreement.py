"""Distributions over kept lengths from tokens and log-probabilities alone, without a model.

Where a draft y ~ q and a later response y' ~ p of the same prompt have the same tokens so far, both have the same
context, and their next tokens are independent samples of q and p there. If both sample the token v, q(v) and p(v) are
known. That happens with probability q(v) p(v), so with the weight 1 / p(v) these tokens are a sample of q, and give the
distribution of the ratio p(v) / q(v) that a rule sees. Kept lengths follow as if ratios of successive tokens were
independent.

An estimate: shared contexts are more certain than others, a token that is too rare to be shared has no weight, and
ratios of successive tokens are not independent. docs/advise.md compares it with acceptance by policies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np

from redraft.lab.advise.replayed import common_prefix
from redraft.lab.predict.saved_rollouts import Draft
from redraft.rollout.streams import stream

PATHS = 1000
"""Simulated drafts, whose mean is block verification's distribution."""


@dataclass(frozen=True, eq=False)
class SharedRatios:
    """Ratios of the tokens that drafts and responses share.

    Attributes:
        log_ratios: float64 (n,), log p - log q.
        shares: float64 (n,), of each among the tokens of a draft; they sum to 1.
    """

    log_ratios: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, prompts: Iterable[tuple[Sequence[Draft], Sequence[Draft]]]) -> Self | None:
        """Of drafts and responses, one pair of lists for each prompt; None if they share no token."""
        ratios, weights = [np.zeros(0)], [np.zeros(0)]
        for drafts, responses in prompts:
            for draft, response in product(drafts, responses):
                agreed = common_prefix(draft.tokens, response.tokens)
                log_p = response.log_probs[:agreed].astype(float)
                ratios.append(log_p - draft.log_probs[:agreed])
                weights.append(np.exp(-log_p))
        total = np.concatenate(weights)
        return cls(np.concatenate(ratios), total / total.sum()) if len(total) else None

    def from_the_left(self, lenience: float, longest: int) -> np.ndarray:
        """Probability that at least k tokens are kept if each is accepted with probability min(1, l p / q).

        Returns:
            float64 (longest + 1,), of k from 0.
        """
        log_lenience = np.log(lenience) if lenience > 0 else -np.inf
        accepted = float(self.shares @ np.exp(np.minimum(log_lenience + self.log_ratios, 0.0)))
        return np.minimum(accepted, 1.0) ** np.arange(longest + 1)

    def by_block(self, longest: int) -> np.ndarray:
        """The same for block verification: the mean of w_k = min(1, w_(k-1) p / q) (arXiv 2403.10444, Lemma 3)."""
        steps = stream(0, "advise ratios").choice(self.log_ratios, (longest, PATHS), p=self.shares)
        log_w, reached = np.zeros(PATHS), np.ones(longest + 1)
        for position, step in enumerate(steps):
            log_w = np.minimum(log_w + step, 0.0)
            reached[position + 1] = np.exp(log_w).mean()
        # Its expectation never rises, but a mean over paths may.
        return np.minimum.accumulate(reached)


def distribution_of_kept(reached: np.ndarray, length: int) -> np.ndarray:
    """Probability of each number of kept tokens of a draft, float64 (length + 1,), from those of at least k tokens."""
    own = reached[: length + 1]
    return own - np.append(own[1:], 0.0)
