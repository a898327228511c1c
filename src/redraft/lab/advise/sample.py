"""What is known of two epochs of a prompt, and the work of every method that follows from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from redraft.lab.advise.replayed import Drafters, kept_rows, ngram_rows, one_hot_rows, plain_rows, suffix_rows
from redraft.lab.advise.work import RowWork, Work
from redraft.rollout.streams import stream

PLAIN, NGRAM, SUFFIX, ONE_HOT = "plain", "ngram", "suffix", "one-hot"
VARIANTS = 8
"""Samples of kept lengths, or pairs of drafts and responses, for each prompt."""


@dataclass(frozen=True, eq=False)
class PromptSample:
    """Responses of one prompt in an epoch, and those of the epoch before, which are its drafts.

    Attributes:
        prompt: its tokens.
        drafts: tokens of each response of the epoch before, at least one.
        responses: tokens of each response of the epoch, at least one.
        kept: by rule, for each draft the probabilities of 0 to all of its tokens.
    """

    prompt: Sequence[int]
    drafts: Sequence[np.ndarray]
    responses: Sequence[np.ndarray]
    kept: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)


Rows = Callable[[PromptSample, int], list[RowWork]]
"""Rows of a method for a prompt and a variant."""


def work_of(samples: Sequence[PromptSample], drafters: Drafters) -> dict[str, Work]:
    """Work of each method whose work is known for all prompts, by name; plain decoding is first."""
    rules = [rule for rule in samples[0].kept if all(rule in sample.kept for sample in samples)]
    exact: dict[str, Rows] = {
        PLAIN: lambda sample, _: plain_rows(sample.prompt, sample.responses),
        NGRAM: lambda sample, _: ngram_rows(sample.prompt, sample.responses, drafters.ngram, drafters.limit),
        SUFFIX: lambda sample, _: suffix_rows(
            sample.prompt, sample.responses, sample.drafts, drafters.suffix, drafters.limit
        ),
    }
    work = {name: _work(samples, rows, 1) for name, rows in exact.items()}
    turns = max(len(sample.drafts) for sample in samples)
    work[ONE_HOT] = _work(samples, lambda s, n: one_hot_rows(s.prompt, s.drafts, s.responses, n), turns)
    for rule in rules:
        rng = stream(0, f"advise {rule}")  # of its own, so that another rule's prediction does not change this one's

        def rows(sample: PromptSample, _: int, rule: str = rule, rng: np.random.Generator = rng) -> list[RowWork]:
            lengths = np.array([len(tokens) for tokens in sample.responses])
            return kept_rows(sample.prompt, sample.drafts, sample.kept[rule], lengths, rng)

        work[rule] = _work(samples, rows, VARIANTS)
    return work


def _work(samples: Sequence[PromptSample], rows: Rows, variants: int) -> Work:
    return Work.of_groups([[rows(sample, number) for number in range(variants)] for sample in samples])
