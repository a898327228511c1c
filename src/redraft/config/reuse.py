"""Reuse: parts of earlier rollouts that a group takes over. The defaults of each class are its paper's settings."""

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from redraft.config.base import Config, Lenience, parse_lenience
from redraft.config.capability import Capability
from redraft.config.schedule import Schedule, Speed
from redraft.config.trainer import Trainer
from redraft.errors import UserError


class Retention(Config):
    """Retention of earlier rollouts for each prompt. Both trainers keep exactly this much, and by default nothing."""

    visits: int = Field(default=0, ge=0)
    """Number of latest rollouts of each sample that are kept as drafts."""
    correct: int = Field(default=0, ge=0)
    """Number of correct responses that are kept, from any visit."""
    evict: Literal["oldest", "newest"] = "oldest"
    """Correct responses that go when there are more: the oldest, or those that came last."""
    top: int = Field(default=0, ge=0)
    """Number of most probable tokens of the sampling law that are kept with each draft token."""


class RolloutMethod(Config):
    """Declarations that every kind of reuse makes."""

    @property
    def retention(self) -> Retention:
        """Earlier rollouts that the method reads."""
        return Retention()

    @property
    def needs(self) -> frozenset[Capability]:
        """Capabilities of engine and trainer that the method needs."""
        return frozenset()

    @property
    def importance(self) -> "Importance | None":
        """Importance weights in the update; None if all are 1."""
        return None

    def check(self, schedule: Schedule, trainer: Trainer) -> None:
        """Refuse a schedule or a trainer that the method does not fit; most fit all.

        Raises:
            UserError: for the first that it does not fit.
        """

    def check_vocabulary(self, size: int) -> None:
        """Refuse a model that has fewer tokens than are to be kept of each law.

        Raises:
            UserError: if it has.
        """
        if self.retention.top > size:
            raise UserError("more tokens of each law would be kept than the model knows", key="reuse.top",
                            value=self.retention.top, allowed=f"1 to {size}")  # fmt: skip


class Vanilla(RolloutMethod):
    """No reuse: every rollout is sampled from its first token. The papers' baseline."""

    kind: Literal["vanilla"] = "vanilla"


class LastVisit(RolloutMethod):
    """Fields of methods whose draft is the rollout of the last visit."""

    fresh_every: int = Field(default=0, ge=0)
    """Visits after which a sample is drawn anew, without a draft; 0 for never. Samples of a group take turns: no token
    is older than so many visits, and each group of as many samples has one new trajectory at least. An exact rule stays
    exact, since nothing that was accepted decides."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)


class Speculative(LastVisit):
    """SPEC-RL: the rollout of the last visit is verified as a draft and continued (arXiv 2509.23232, equation 3)."""

    kind: Literal["speculative"] = "speculative"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3): 0 reuses nothing, 1 is the plain rule, inf reuses all. The paper has e^0.5 for GRPO."""


class AdaptiveReuse(LastVisit):
    """SPEC-RL with a lenience that a controller moves, so that the batch stays within a budget of drift. Ours.

    Behind each update that follows on drafts, log ℓ moves by `gain` times 1 - measured / budget, at most by `gain`.
    """

    kind: Literal["adaptive"] = "adaptive"
    budget: float = Field(gt=0)
    """Value of `measure` that is held."""
    measure: Literal["drift", "clip_fraction"] = "drift"
    """Field of the step's record: `drift`, nats a token between the policies that sampled the batch and the current
    one, or the share of clipped tokens."""
    initial: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ at first; the paper has e^0.5 for GRPO."""
    gain: float = Field(default=0.25, gt=0)
    """Largest change of log ℓ in an update."""
    lowest: Lenience = Field(default=parse_lenience("e^-1"), validate_default=True)
    """Least ℓ, above 0."""
    highest: Lenience = Field(default=parse_lenience("e^2"), validate_default=True)
    """Largest ℓ, finite."""

    @model_validator(mode="after")
    def _ordered(self) -> "AdaptiveReuse":
        if not 0 < self.lowest <= self.initial <= self.highest < math.inf:
            raise ValueError("0 < lowest <= initial <= highest < inf must hold of its leniences")
        return self


class RandomReuse(RolloutMethod):
    """SPEC-RL's Random Reuse (§4.3): drafts are cut at a uniformly random token, without verification."""

    kind: Literal["random"] = "random"

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)


class DelayedReuse(RolloutMethod):
    """SPEC-RL's Delayed Reuse (§4.3): the draft is the rollout of two visits ago, in the second visit that of one."""

    kind: Literal["delayed"] = "delayed"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last two visits."""
        return Retention(visits=2)


class ReleaseVariant(RolloutMethod):
    """Deviations of SPEC-RL's published code from its paper, singly or together; for comparison only."""

    kind: Literal["release"] = "release"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""
    fixed_uniforms: bool = True
    """Acceptance uniforms are the same in every epoch, as from a generator that is seeded at every call."""
    refreshed_log_probs: bool = True
    """Stored log-probabilities of a reused prefix are replaced by the current policy's in every epoch."""
    trainer_verification: bool = True
    """The training engine scores drafts, and the rollout engine prefills the accepted prefix once more."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)

    @property
    def needs(self) -> frozenset[Capability]:
        """Scores by the training engine, if it verifies."""
        return frozenset({Capability.TRAINER_SCORES} if self.trainer_verification else ())


class StoredLaw(LastVisit):
    """Fields of exact rules that know the draft's law by its most probable tokens, which are stored with it."""

    top: int = Field(default=32, ge=1)
    """Most probable tokens of the law that are stored with each token (k), 8 bytes each. A token that is not among them
    is rejected, which costs acceptance and not exactness."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit with the top of their law."""
        return Retention(visits=1, top=self.top)

    @property
    def needs(self) -> frozenset[Capability]:
        """Top laws and residuals."""
        return frozenset({Capability.TOP_LAW, Capability.RESIDUAL})


class ResidualReuse(StoredLaw):
    """Exact reuse token by token, with the residual law behind a rejection (arXiv 2211.17192, Appendix A.1)."""

    kind: Literal["residual"] = "residual"
    lenience: Lenience = Field(default=1.0, validate_default=True)
    """ℓ, at most 1: above it accepted tokens may have more mass than the policy's law, and no residual repairs that."""

    @field_validator("lenience")
    @classmethod
    def _has_residual(cls, lenience: float) -> float:
        if not 0 < lenience <= 1:
            raise ValueError("must be above 0 and at most 1: no residual exists for another lenience")
        return lenience


class BlockReuse(StoredLaw):
    """Exact reuse by block verification, which accepts tokens jointly (arXiv 2403.10444)."""

    kind: Literal["block"] = "block"


class Importance(Config):
    """Importance weights of the policy loss, as verl's rollout correction takes them: truncated."""

    level: Literal["token", "sequence"] = "sequence"
    """Weight of a token: its own, or the product of its response's, without which the weighted law is not the
    policy's; that product varies more."""
    bound: float = Field(default=2.0, gt=0)
    """Largest weight; verl's default."""


class WeightedReuse(StoredLaw):
    """SPEC-RL's rule by the stored law, with importance weights that undo its bias. Ours."""

    kind: Literal["weighted"] = "weighted"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ, above 0 and finite."""
    weights: Importance = Importance()
    """Use of the weights in the update."""

    @field_validator("lenience")
    @classmethod
    def _has_weights(cls, lenience: float) -> float:
        if not 0 < lenience < math.inf:
            raise ValueError("must be above 0 and finite: no weights undo another lenience")
        return lenience

    @property
    def needs(self) -> frozenset[Capability]:
        """Top laws."""
        return frozenset({Capability.TOP_LAW})

    @property
    def importance(self) -> Importance:
        """The configured weights."""
        return self.weights


class CoupledReuse(LastVisit):
    """Exact reuse by Gumbel coupling: each visit draws by the same noise, which is not stored (arXiv 2408.07978)."""

    kind: Literal["gumbel"] = "gumbel"

    @property
    def needs(self) -> frozenset[Capability]:
        """Draws by noise that can be made again."""
        return frozenset({Capability.GUMBEL})


class OneHotReuse(LastVisit):
    """Exact reuse that supposes nothing about a draft's law: a token is accepted with the policy's probability."""

    kind: Literal["one_hot"] = "one_hot"

    @property
    def needs(self) -> frozenset[Capability]:
        """Residuals."""
        return frozenset({Capability.RESIDUAL})


class Staged(RolloutMethod):
    """AR3PO (arXiv 2509.25808): responses in stages while a prompt has none correct, then reuse of an earlier one.

    A group has `stage_size` responses a stage, up to the trainer's `group_size`. If all are wrong, a correct response
    from memory takes the place of one of them.
    """

    kind: Literal["staged"] = "staged"
    stage_size: int = Field(default=4, ge=2)
    """Responses of a stage (k); divides `group_size`, and equals it where there are no stages. A group of one response
    would have no baseline."""
    replay: Literal["none", "recomputed", "stopped", "stored"] = "stopped"
    """Part of the reused response in the update. `recomputed`: trained on, its old log-probabilities are the current
    policy's (option I); `stopped`: it only enters the baseline (option II); `stored`: trained on, its old
    log-probabilities are those of the policy that sampled it (direct replay); `none`: nothing is reused."""
    capacity: int = Field(default=64, ge=1)
    """Correct responses that are kept of each prompt; the paper has no bound."""
    evict: Literal["oldest", "newest"] = "oldest"
    """Correct responses that go when there are more; the paper does not say."""
    replaced: Literal["random", "first", "last"] = "random"
    """Wrong response whose place is taken; the paper does not say."""
    lenience: Lenience | None = None
    """ℓ of SPEC-RL's equation (3), by which each response goes on from the last one in its place; none if empty."""

    def check(self, schedule: Schedule, trainer: Trainer) -> None:
        """Refuse stages that do not divide a group, and a schedule that decides on the size of groups too.

        Raises:
            UserError: for the first of the two.
        """
        size = trainer.group_size
        if size % self.stage_size:
            divisors = [k for k in range(2, size + 1) if size % k == 0]
            raise UserError("stages must divide a group", key="reuse.stage_size", value=self.stage_size,
                            allowed=f"{', '.join(map(str, divisors))}, which divide group_size {size}")  # fmt: skip
        if isinstance(schedule, Speed):
            raise UserError("schedule and reuse would both decide how many responses a prompt gets",
                            key="reuse.kind", value=self.kind, hint="take another, or another schedule")  # fmt: skip

    @property
    def retention(self) -> Retention:
        """Correct responses of each prompt, and drafts of the last visit where there is a lenience."""
        kept = 0 if self.replay == "none" else self.capacity
        return Retention(visits=0 if self.lenience is None else 1, correct=kept, evict=self.evict)

    @property
    def needs(self) -> frozenset[Capability]:
        """Updates from stored log-probabilities for direct replay."""
        return frozenset({Capability.STORED_LOG_PROBS} if self.replay == "stored" else ())


Reuse = Annotated[
    Vanilla
    | Speculative
    | AdaptiveReuse
    | RandomReuse
    | DelayedReuse
    | ReleaseVariant
    | ResidualReuse
    | BlockReuse
    | WeightedReuse
    | CoupledReuse
    | OneHotReuse
    | Staged,
    Field(discriminator="kind"),
]
