"""Work of each method for recorded responses: exact where tokens alone decide, sampled where a rule does.

Proposals of `ngram` and `suffix` are point masses that are verified by agreement: a proposal is kept if the policy
samples the same token. Tokens are those of plain decoding, so recorded ones say how many passes a drafter needs. The
one-hot rule is the same with the whole draft as the proposal.

Other rules keep a number of tokens that their distribution over kept lengths gives. What follows the kept prefix was
not sampled, so its length is that of a later response of the same prompt that is longer than the prefix.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from redraft.config.base import MOST_TOKENS
from redraft.config.decoding import LearnedHead, Matching, NGram, SelfSpeculation, Suffix
from redraft.lab.advise.work import RowWork
from redraft.rollout.matching import SuffixIndex, ngram_proposal


@dataclass(frozen=True)
class Drafters:
    """Settings of the drafters, by default those of a cell that names the decoding alone.

    A draft length is constant, the first of `draft_lengths`. Neither toggles nor windows of more than one pass are
    replayed.

    Attributes:
        limit: longest response, tokens; no token after it is proposed.
    """

    ngram: NGram = field(default_factory=lambda: NGram(kind="ngram"))
    suffix: Suffix = field(default_factory=lambda: Suffix(kind="suffix"))
    head: LearnedHead = field(default_factory=lambda: LearnedHead(kind="head"))
    self_speculation: SelfSpeculation = field(default_factory=lambda: SelfSpeculation(kind="self_speculation"))
    limit: int = MOST_TOKENS


Propose = Callable[[Sequence[int], int], list[int]]
"""From the context, prompt included, and the most proposals, to proposals."""


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """Number of leading tokens that are the same."""
    n = min(len(one), len(other))
    same = one[:n] == other[:n]
    return n if same.all() else int(same.argmin())


class _Row:
    """A response while it is replayed."""

    def __init__(self, prompt: Sequence[int], tokens: np.ndarray) -> None:
        self.context, self.tokens = [*prompt], tokens.tolist()
        self.prompt, self.done = len(prompt), 1  # the prompt's pass yields the first token
        self.context.append(self.tokens[0])
        self.cached, self.fed, self.drafted = [0.0], [float(self.prompt)], [False]

    @property
    def ended(self) -> bool:
        """Whether all tokens are there."""
        return self.done >= len(self.tokens)

    def advance(self, propose: Propose, decoding: Matching, limit: int) -> None:
        """One pass: proposals are kept while they agree, and one more token follows."""
        # The engine knows the limit but not where the response will end; the last token needs no proposal.
        most = min(decoding.draft_lengths[0], limit - self.done - 1)
        proposals = propose(self.context, most) if most > 0 else []
        following = self.tokens[self.done :]
        kept = 0
        while kept < min(len(proposals), len(following)) and proposals[kept] == following[kept]:
            kept += 1
        self.cached.append(float(self.prompt + self.done - 1))
        self.fed.append(1.0 + len(proposals))
        self.drafted.append(bool(proposals))
        self.context += following[: kept + 1]
        self.done += kept + 1

    def work(self) -> RowWork:
        """Its passes; each but the prompt's looks its context up once."""
        return RowWork(np.array(self.cached), np.array(self.fed), np.array(self.drafted), len(self.fed) - 1)


def plain_rows(prompt: Sequence[int], responses: Iterable[np.ndarray]) -> list[RowWork]:
    """Plain decoding of a prompt's responses."""
    return [RowWork.of_prefix(len(prompt), 0, 0, len(tokens)) for tokens in responses]


def ngram_rows(
    prompt: Sequence[int], responses: Iterable[np.ndarray], decoding: NGram, limit: int = MOST_TOKENS
) -> list[RowWork]:
    """Proposals from the context itself."""

    def propose(context: Sequence[int], most: int) -> list[int]:
        return ngram_proposal(context, most, decoding.longest, decoding.shortest)

    rows = [_Row(prompt, tokens) for tokens in responses]
    for row in rows:
        while not row.ended:
            row.advance(propose, decoding, limit)
    return [row.work() for row in rows]


def suffix_rows(
    prompt: Sequence[int],
    responses: Iterable[np.ndarray],
    earlier: Iterable[np.ndarray],
    decoding: Suffix,
    limit: int = MOST_TOKENS,
) -> list[RowWork]:
    """Proposals from earlier responses of the prompt and from those of the group that have ended."""
    index = SuffixIndex(decoding.longest + decoding.draft_lengths[0])
    before = list(prompt)[-decoding.longest :]
    for tokens in earlier:
        index.add([*before, *tokens.tolist()], 0)

    def propose(context: Sequence[int], most: int) -> list[int]:
        return index.propose(context, most, decoding.longest, decoding.shortest, decoding.least_share)

    rows = [_Row(prompt, tokens) for tokens in responses]
    active = [row for row in rows if not row.ended]
    while active:
        for row in active:
            row.advance(propose, decoding, limit)
        # After the pass, since all of its rows are proposed for before it.
        for row in active:
            if row.ended:
                index.add([*before, *row.tokens], 0)
        active = [row for row in active if not row.ended]
    return [row.work() for row in rows]


def perfect_rows(prompt: Sequence[int], responses: Iterable[np.ndarray], length: int) -> list[RowWork]:
    """The bound of every drafter without a cost of its own: all of `length` proposals of every pass are kept."""
    rows = []
    for tokens in responses:
        starts = np.arange(0, len(tokens) - 1, length + 1, dtype=float)
        fed = np.concatenate([[float(len(prompt))], np.full(len(starts), 1.0 + length)])
        cached = np.concatenate([[0.0], len(prompt) + starts])
        rows.append(RowWork(cached, fed, np.arange(len(fed)) > 0))
    return rows


def one_hot_rows(
    prompt: Sequence[int], drafts: Sequence[np.ndarray], responses: Sequence[np.ndarray], turn: int
) -> list[RowWork]:
    """The one-hot rule, exact from tokens: it keeps what a sample of the policy has in common with the draft.

    Args:
        turn: shifts the pairs of drafts and responses, since any draft of the prompt could have been any response's.
    """
    rows = []
    for number, tokens in enumerate(responses):
        draft = drafts[(number + turn) % len(drafts)]
        kept = common_prefix(draft, tokens)
        rows.append(RowWork.of_prefix(len(prompt), len(draft), kept, len(tokens) - kept))
    return rows


def kept_rows(
    prompt: Sequence[int],
    drafts: Sequence[np.ndarray],
    kept: Sequence[np.ndarray],
    lengths: np.ndarray,
    rng: np.random.Generator,
) -> list[RowWork]:
    """A rule with known distributions of kept lengths, one sample for each draft.

    Args:
        kept: of each draft, probabilities of 0 to all of its tokens.
        lengths: of later responses of the prompt, integer (n,).
    """
    rows = []
    for draft, distribution in zip(drafts, kept, strict=True):
        # Differences of probabilities may be below 0 by rounding.
        possible = np.maximum(distribution, 0.0)
        count = int(rng.choice(len(possible), p=possible / possible.sum()))
        rest = 0
        if count < len(draft):
            longer = lengths[lengths > count]
            # Without a longer later response the draft's own rest is the only one that is known.
            rest = int(rng.choice(longer)) - count if len(longer) else len(draft) - count
        rows.append(RowWork.of_prefix(len(prompt), len(draft), count, rest))
    return rows
