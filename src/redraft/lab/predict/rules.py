"""What each rule would keep of a draft: sums over the law of its kept tokens, by the rules that are trained with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from redraft.config.base import format_lenience
from redraft.errors import UserError
from redraft.lab.predict.positions import BothLaws, Positions
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.laws import Laws
from redraft.methods.acceptance.random_cut import law_of_random_cut
from redraft.methods.acceptance.residual import PublishedRule, ResidualRule
from redraft.methods.acceptance.rule import FromTheLeft

LENIENCES = (1.0, float(np.exp(0.2)), float(np.exp(0.5)))
"""Of the published rule."""
TOP = 32
"""Most probable tokens of q that a rule stores, if not all (`redraft.config.reuse`)."""
NOWHERE = -1
"""A token that no vocabulary has."""


@dataclass(frozen=True)
class Candidate:
    """A rule that a run could reuse drafts by.

    Attributes:
        name: for people.
        kind: of the configuration's `reuse`.
        exact: true if responses have the policy's law, given that drafts are drawn from q.
        of_both: true if it takes the drafter's whole law.
        law_of_kept: probability of each number of kept tokens, float64 (n + 1,).
        scores: true if drafts are scored.
    """

    name: str
    kind: str
    exact: bool
    of_both: bool
    law_of_kept: Callable[[Positions], np.ndarray]
    scores: bool = True


@dataclass(frozen=True, eq=False)
class Kept:
    """What a rule keeps of drafts, in expectation.

    Attributes:
        tokens: float64 (drafts,), expected number of kept tokens.
        whole: float64 (drafts,), probability that a draft is kept whole.
    """

    tokens: np.ndarray
    whole: np.ndarray


def candidates(leniences: Sequence[float] = LENIENCES, top: int = TOP) -> list[Candidate]:
    """All rules.

    Args:
        leniences: of the published rule.
        top: as of `read_positions`.
    """
    published = [
        Candidate(f"published, l = {format_lenience(lenience)}", "speculative", False, False, _published(lenience))
        for lenience in leniences
    ]
    return [
        *published,
        Candidate("random cut", "random", False, False, lambda at: law_of_random_cut(len(at.tokens)), scores=False),
        Candidate("residual", "residual", True, False, lambda at: _judged(_laws(at))),
        Candidate(f"residual, top {top}", "residual", True, True, _residual_of_top),
        Candidate("block", "block", True, True, lambda at: BlockRule().law_of_kept(_both(at).block)),
        Candidate(f"block, top {top}", "block", True, True, lambda at: BlockRule().law_of_kept(_both(at).block_top)),
        Candidate("Gumbel", "gumbel", True, True, lambda at: FromTheLeft().law_of_kept(_both(at).same)),
        Candidate("one-hot", "one_hot", True, False, lambda at: _judged(Laws.one_hot(at.tokens, at.policy))),
    ]


def chosen(rules: Sequence[Candidate], kinds: Sequence[str]) -> list[Candidate]:
    """The rules of some kinds, all if none is named.

    Raises:
        UserError: for a kind that no rule has.
    """
    known = dict.fromkeys(rule.kind for rule in rules)
    for kind in kinds:
        if kind not in known:
            raise UserError("no such rule", key="--rules", value=kind, allowed=known)
    return [rule for rule in rules if not kinds or rule.kind in kinds]


def kept(rule: Candidate, positions: Sequence[Positions]) -> Kept:
    """Sums over the law of kept tokens of each draft."""
    laws = [rule.law_of_kept(at) for at in positions]
    tokens = [float(law @ np.arange(len(law))) for law in laws]
    return Kept(np.array(tokens), np.array([float(law[-1]) for law in laws]))


def _published(lenience: float) -> Callable[[Positions], np.ndarray]:
    rule = PublishedRule(lenience)
    return lambda at: rule.law_of_kept(rule.chances(_laws(at)))


def _judged(laws: Laws) -> np.ndarray:
    rule = ResidualRule()
    return rule.law_of_kept(rule.chances(laws))


def _residual_of_top(at: Positions) -> np.ndarray:
    return _judged(_laws(at, np.where(_both(at).in_top, at.tokens, NOWHERE)))


def _laws(at: Positions, stored: np.ndarray | None = None) -> Laws:
    """Laws of which a draft's tokens alone are known; a rule that accepts from the left looks at no other."""
    support = at.tokens if stored is None else stored
    return Laws(at.tokens, at.policy, at.drawn_from, support[:, None], at.policy[:, None], at.drawn_from[:, None])


def _both(at: Positions) -> BothLaws:
    if at.both is None:
        raise ValueError("the drafter's law is not known")
    return at.both
