"""Overlap of a step's rollouts with earlier rollouts of the same prompts.

ROUGE-1 (Lin, 2004, "ROUGE: a package for automatic evaluation of summaries") compares a response with that of the same
prompt and sample an epoch earlier, as in SPEC-RL's Figure 2. The number of different responses of a prompt over the
whole training shows reuse as well: a draft that is reused whole adds none.
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
    """ROUGE-1 of each response: F, precision and recall, each float64, (rows,), 0 to 1."""

    f: np.ndarray
    precision: np.ndarray
    recall: np.ndarray


def rouge_1(responses: Ragged, earlier: Ragged) -> Rouge:
    """ROUGE-1 of responses against earlier ones, row by row.

    A token counts as shared as often as it stands in both responses. Lin's ROUGE-1 is the recall, the shared tokens
    over the tokens of the reference, which is the earlier response. The precision is over the tokens of the response,
    and F is the harmonic mean of both. The values equal those of the package rouge-score with one exception: for two
    empty responses this function returns 1, since they are the same, and rouge-score returns 0.

    Args:
        responses: the rows to score; token ids are at least 0.
        earlier: the references, as many rows.
    """
    width = 1 + max(int(r.values.max(initial=0)) for r in (responses, earlier))
    shared = _counts(responses, width).minimum(_counts(earlier, width)).sum(axis=1).astype(float)
    precision, recall = (shared / np.maximum(r.lengths, 1) for r in (responses, earlier))
    total = precision + recall
    f = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
    empty = (responses.lengths == 0) & (earlier.lengths == 0)
    return Rouge(*(np.where(empty, 1.0, values) for values in (f, precision, recall)))


def _counts(responses: Ragged, width: int) -> sparse.csr_array:
    """Count of each token in each row, int32, (rows, width)."""
    begins = np.concatenate([[0], responses.ends]).astype(np.int32)
    # `sum_duplicates` sorts the values in place, so they are copied.
    entries = (np.ones(len(responses.values), dtype=np.int32), responses.values.copy(), begins)
    counts = sparse.csr_array(entries, shape=(len(responses), width))
    counts.sum_duplicates()
    return counts


class PreviousEpoch:
    """Responses by prompt and sample of the current epoch and the one before it; older responses are dropped."""

    def __init__(self) -> None:
        self._epoch = -1
        self._earlier: dict[Key, np.ndarray] = {}
        self._current: dict[Key, np.ndarray] = {}

    def exchange(self, epoch: int, keys: Sequence[Key], responses: Ragged) -> list[np.ndarray | None]:
        """Keep a step's responses and return the responses of the same keys in the epoch before.

        If a key occurs more than once in an epoch, its last response is kept, as in the draft store. All its responses
        are compared.

        Args:
            epoch: epoch of the step; never lower than in the call before.
            keys: prompt and sample of each response.
            responses: one row per key; views on the rows are kept.

        Returns:
            The earlier response of each key, or None if there is none.
        """
        if epoch != self._epoch:
            self._earlier = self._current if epoch == self._epoch + 1 else {}
            self._current, self._epoch = {}, epoch
        self._current.update(zip(keys, responses.rows(), strict=True))
        return [self._earlier.get(key) for key in keys]


class Trajectories:
    """Counts of different responses and of rollouts per prompt so far; responses are kept as 64-bit hashes."""

    def __init__(self) -> None:
        self._seen: dict[int, set[bytes]] = defaultdict(set)
        self._rollouts: Counter[int] = Counter()

    def add(self, prompts: Sequence[int], responses: Ragged) -> tuple[float, float]:
        """Add a step's rollouts.

        Returns:
            Two means over the step's different prompts: the number of different responses of a prompt so far, with
            this step's, and that number over the number of the prompt's rollouts so far.
        """
        for prompt, row in zip(prompts, responses.rows(), strict=True):
            self._seen[prompt].add(blake2b(row.tobytes(), digest_size=8).digest())
        self._rollouts.update(prompts)
        counts = {prompt: len(self._seen[prompt]) for prompt in prompts}
        shares = [count / self._rollouts[prompt] for prompt, count in counts.items()]
        return float(np.mean(list(counts.values()))), float(np.mean(shares))
