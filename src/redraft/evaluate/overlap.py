"""How much a step's rollouts repeat earlier ones of their prompts.

ROUGE-1 (Lin, 2004, "ROUGE: a package for automatic evaluation of summaries") compares a response with the one that its
prompt and sample had an epoch earlier, as SPEC-RL's Figure 2 does. Over a whole training, the different responses that
a prompt has had are counted: full reuse adds none.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from scipy import sparse

from redraft.evaluate.ragged import Ragged

Key = tuple[int, int]
"""Prompt and sample."""


class Rouge(NamedTuple):
    """ROUGE-1 of each response, float64, (rows,), 0 to 1."""

    f: np.ndarray
    precision: np.ndarray
    recall: np.ndarray


def rouge_1(responses: Ragged, earlier: Ragged) -> Rouge:
    """Tokens that a response shares with an earlier one, each counted as often as it stands in both.

    Lin's ROUGE-1 is the recall: shared tokens over those of the reference, here the earlier response. The precision is
    over those of the response, and F is the harmonic mean of both, as in the package rouge-score, whose numbers these
    are but for two empty responses: they are the same, so this says 1, where rouge-score says 0.

    Args:
        responses: the rows to be scored; tokens are at least 0.
        earlier: as many rows.
    """
    width = 1 + max(int(r.values.max(initial=0)) for r in (responses, earlier))
    shared = _counts(responses, width).minimum(_counts(earlier, width)).sum(axis=1).astype(float)
    precision, recall = (shared / np.maximum(r.lengths, 1) for r in (responses, earlier))
    total = precision + recall
    f = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
    empty = (responses.lengths == 0) & (earlier.lengths == 0)
    return Rouge(*(np.where(empty, 1.0, values) for values in (f, precision, recall)))


def _counts(responses: Ragged, width: int) -> sparse.csr_array:
    """How often each token stands in each row, (rows, width)."""
    begins = np.concatenate([[0], responses.ends]).astype(np.int32)
    # The values are copied, since adding up duplicates sorts them in place.
    entries = (np.ones(len(responses.values), dtype=np.int32), responses.values.copy(), begins)
    counts = sparse.csr_array(entries, shape=(len(responses), width))
    counts.sum_duplicates()
    return counts


class PreviousEpoch:
    """Responses by prompt and sample, of an epoch and the one before it; older ones are forgotten."""

    def __init__(self) -> None:
        self._epoch = -1
        self._earlier: dict[Key, np.ndarray] = {}
        self._current: dict[Key, np.ndarray] = {}

    def exchange(self, epoch: int, keys: Sequence[Key], responses: Ragged) -> list[np.ndarray | None]:
        """Keep the responses of a step and return those that their keys had in the epoch before, or None.

        Of a key that comes more than once in an epoch, the last response is kept, as by the draft store; each of its
        responses is compared.

        Args:
            epoch: of the step; never lower than in the call before.
            keys: of the responses.
            responses: views on them are kept.
        """
        if epoch != self._epoch:
            self._earlier = self._current if epoch == self._epoch + 1 else {}
            self._current, self._epoch = {}, epoch
        self._current.update(zip(keys, responses.rows(), strict=True))
        return [self._earlier.get(key) for key in keys]


class Trajectories:
    """The different responses of each prompt so far: 64-bit hashes of them, and how many rollouts there were."""

    def __init__(self) -> None:
        self._seen: dict[int, set[bytes]] = defaultdict(set)
        self._rollouts: Counter[int] = Counter()

    def add(self, prompts: Sequence[int], responses: Ragged) -> tuple[float, float]:
        """Take in a step's rollouts.

        Returns:
            Means over the step's different prompts: of the number of different responses that a prompt has had so far,
            this step's included, and of that number over the prompt's rollouts so far.
        """
        for prompt, row in zip(prompts, responses.rows(), strict=True):
            self._seen[prompt].add(blake2b(row.tobytes(), digest_size=8).digest())
        self._rollouts.update(prompts)
        counts = {prompt: len(self._seen[prompt]) for prompt in prompts}
        shares = [count / self._rollouts[prompt] for prompt, count in counts.items()]
        return float(np.mean(list(counts.values()))), float(np.mean(shares))
