"""Base of all kinds of reuse: what a method declares to trainers, audit, prediction and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from pydantic import Field

from redraft.config.base import MOST_STEPS, MOST_TOKENS, Config
from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.registry import Registered
from redraft.methods.schedule import ScheduleMethod
from redraft.methods.speed import Speed
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np

    from redraft.methods.acceptance.positions import Positions
    from redraft.methods.acceptance.rule import Rule

Part = Literal["rules", "drift", "numbers", "bandit"]
"""What enumerates a rule: the audit (`rules`), or a part of the bias laboratory."""


@dataclass(frozen=True)
class AuditedRule:
    """Acceptance rule whose distribution of responses is enumerated.

    Attributes:
        top: most probable tokens of the draft's distribution that are stored; all if None, and with 0 the draft is
            taken to be certain.
        both: of the stored tokens, only those count that are among as many most probable ones of the policy, as under
            vLLM.
        renewed: false if a kept token keeps the log-probability of the visit in which it was sampled.
        exact: true if responses should have the policy's distribution, or have it by weight.
        parts: that enumerate it.
    """

    rule: "Rule"
    top: int | None = None
    both: bool = False
    renewed: bool = True
    exact: bool = True
    parts: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Candidate:
    """Rule whose kept tokens are predicted from saved drafts.

    Attributes:
        name: in tables.
        kind: of the configuration's `reuse`.
        exact: true if responses have the policy's distribution, given that drafts are sampled from q.
        of_both: true if it takes the drafter's whole distribution.
        distribution_of_kept: probability of each number of kept tokens, float64 (n + 1,).
        scores: true if drafts are scored.
    """

    name: str
    kind: str
    exact: bool
    of_both: bool
    distribution_of_kept: Callable[["Positions"], "np.ndarray"]
    scores: bool = True


class Importance(Config):
    """Importance weights of the policy loss, as verl's rollout correction takes them: truncated."""

    level: Literal["token", "sequence"] = "sequence"
    """Weight of a token: its own, or the product of its response's, without which the weighted distribution is not the
    policy's; that product varies more."""
    bound: float = Field(default=2.0, gt=0)
    """Largest weight; verl's default."""


class ReuseMethod(Registered):
    """Reuse of earlier rollouts of a prompt. The defaults of each kind are its paper's settings."""

    exact: ClassVar[bool] = False
    """True if responses have the current policy's distribution."""
    scores: ClassVar[bool] = True
    """True if drafts are scored under the current policy."""
    title: ClassVar[str] = ""
    """Name of the method in the report's sentences; its kind if empty."""
    label: ClassVar[str] = ""
    """Name in tables and figures, if that is not the kind."""

    def strategy(self) -> Strategy:
        """The function that rolls out a prompt."""
        raise NotImplementedError

    @property
    def retention(self) -> Retention:
        """Earlier rollouts that the method reads."""
        return Retention()

    @property
    def needs(self) -> frozenset[Capability]:
        """Capabilities of engine and trainer that the method needs."""
        return frozenset()

    @property
    def importance(self) -> Importance | None:
        """Importance weights in the update; None if all are 1."""
        return None

    def check(self, schedule: ScheduleMethod, trainer: TrainerConfig) -> None:
        """Reject a schedule or a trainer that the method does not fit; most fit all.

        Raises:
            UserError: for the first that it does not fit.
        """

    def check_vocabulary(self, size: int) -> None:
        """Reject a model that has fewer tokens than are to be kept of each distribution.

        Raises:
            UserError: if it has.
        """
        if self.retention.top > size:
            raise UserError(
                "more tokens of each distribution would be kept than the model knows",
                key="reuse.top",
                value=self.retention.top,
                allowed=f"1 to {size}",
            )

    @property
    def names(self) -> list[str]:
        """Names of this setting in tables and figures, the most precise one first."""
        return [self.label or self.kind]

    @classmethod
    def examples(cls) -> list[Self]:
        """Settings that every engine is tested with (`tests/test_engines.py`)."""
        return [cls()]

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """Rules by name, for `redraft audit rules` and the bias laboratory."""
        return {}

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """Settings by name whose samples `redraft audit samplers` tests, for a model with this number of tokens."""
        return {}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """Rules for `redraft predict`, each with `top` stored tokens or each lenience if it has such."""
        return []


class DraftsOfLastVisit(ReuseMethod):
    """Fields of methods whose draft is the rollout of the last visit."""

    fresh_every: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Epoch passes after which a sample is sampled without a draft; 0 for never. Samples of a group take turns: no
    token is older than this number of visits, and a group of at least as many samples has a new one in each pass.
    An exact rule stays exact, since nothing that was accepted decides. Not with SPEED, where rewards decide which
    passes sample all of a group."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)

    def check(self, schedule: ScheduleMethod, trainer: TrainerConfig) -> None:
        """Reject turns without drafts under SPEED.

        Raises:
            UserError: for `fresh_every` with SPEED.
        """
        if self.fresh_every and isinstance(schedule, Speed):
            raise UserError(
                "a sample has its turn without a draft in given passes, of which this schedule leaves some out",
                key="reuse.fresh_every",
                value=self.fresh_every,
                allowed="0 with this schedule",
            )


class StoredTop(DraftsOfLastVisit):
    """Fields of rules that know the draft's distribution by its most probable tokens, which are stored with it."""

    top: int = Field(default=32, ge=1, le=MOST_TOKENS)
    """Most probable tokens of the distribution that are stored with each token (k), 8 bytes each. A token that is not
    among them is rejected, which costs acceptance and not exactness."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit with the top of their distribution."""
        return Retention(visits=1, top=self.top)

    @property
    def needs(self) -> frozenset[Capability]:
        """Top distributions and residuals."""
        return frozenset({Capability.TOP_LOG_PROBS, Capability.RESIDUAL})

    @property
    def names(self) -> list[str]:
        """With the number of stored tokens, and without."""
        return [f"{self.kind}, top {self.top}", self.kind]

    @classmethod
    def examples(cls) -> list[Self]:
        """Few tokens, and all of the tests' vocabulary."""
        return [cls(top=2), cls(top=6)]

    def rule(self) -> "Rule":
        """The rule that verifies drafts."""
        raise NotImplementedError

    def strategy(self) -> Strategy:
        """Reuse of drafts by the rule."""
        # Imported here, as in all methods: they are part of the configuration, which loads no NumPy
        # (tests/test_imports.py).
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import stored_top_verifier

        return reuse_drafts(stored_top_verifier(self.rule()), fresh_every=self.fresh_every)

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The whole distribution stored, and a part of it."""
        kind, rule = cls().kind, cls().rule()
        return {
            kind: AuditedRule(rule),
            f"{kind}, top 2": AuditedRule(rule, 2, parts=("rules",)),
            f"{kind}, top 2 of both": AuditedRule(rule, 2, both=True, parts=("rules",)),
        }

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """The whole distribution stored, and a part of it."""
        return {cls().kind: cls(top=vocabulary), f"{cls().kind}, top 2": cls(top=2)}
