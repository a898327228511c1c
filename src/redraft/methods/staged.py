"""AR3PO (arXiv 2509.25808): responses in stages while a prompt has none correct, then reuse of an earlier one."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from redraft.config.base import MOST_PROMPTS, MOST_RESPONSES, Lenience, invalid
from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.reuse import ReuseMethod
from redraft.methods.schedule import ScheduleMethod
from redraft.methods.speed import Speed
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    from redraft.methods.drafts.response import DraftVerifier
    from redraft.rollout.context import RolloutContext
    from redraft.rollout.types import Group, OldLogProbs, Task, Use


class Staged(ReuseMethod):
    """AR3PO (arXiv 2509.25808): responses in stages while a prompt has none correct, then reuse of an earlier one.

    A group has `stage_size` responses a stage, up to the trainer's `group_size`. If all are wrong, a correct response
    from memory replaces one of them.
    """

    order: ClassVar[int] = 110
    title: ClassVar[str] = "AR3PO"
    kind: Literal["staged"] = "staged"
    stage_size: int = Field(default=4, ge=2, le=MOST_RESPONSES)
    """Responses of a stage (k); divides `group_size`, and equals it where there are no stages. A group of one response
    would have no baseline."""
    replay: Literal["none", "recomputed", "stopped", "stored"] = "stopped"
    """Part of the reused response in the update. `recomputed`: trained on, its old log-probabilities are the current
    policy's (option I); `stopped`: it only enters the baseline (option II); `stored`: trained on, its old
    log-probabilities are those of the policy that sampled it (direct replay); `none`: nothing is reused."""
    capacity: int = Field(default=64, ge=1, le=MOST_PROMPTS)
    """Correct responses that are kept of each prompt; the paper has no bound."""
    evict: Literal["oldest", "newest"] = "oldest"
    """Correct responses that go when there are more; the paper does not say."""
    replaced: Literal["random", "first", "last"] = "random"
    """Wrong response that is replaced; the paper does not say."""
    lenience: Lenience | None = None
    """ℓ of SPEC-RL's equation (3), by which each response goes on from the last one with its index; none if empty."""

    @model_validator(mode="after")
    def _replays(self) -> Self:
        if self.replay == "none":
            for name in ("capacity", "evict", "replaced"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise invalid(f"{name} has no effect with replay: none", "the default", (name,))
        return self

    def check(self, schedule: ScheduleMethod, trainer: TrainerConfig) -> None:
        """Reject stages that do not divide a group, and a schedule that decides on the size of groups too.

        Raises:
            UserError: for the first of the two.
        """
        size = trainer.group_size
        if size % self.stage_size:
            divisors = [k for k in range(2, size + 1) if size % k == 0]
            raise UserError(
                "stages must divide a group",
                key="reuse.stage_size",
                value=self.stage_size,
                allowed=f"{', '.join(map(str, divisors))}, which divide group_size {size}",
            )
        if isinstance(schedule, Speed):
            raise UserError(
                "schedule and reuse would both decide how many responses a prompt gets",
                key="reuse.kind",
                value=self.kind,
                hint="take another, or another schedule",
            )

    @property
    def retention(self) -> Retention:
        """Correct responses of each prompt, and drafts of the last visit where there is a lenience."""
        kept = 0 if self.replay == "none" else self.capacity
        return Retention(visits=0 if self.lenience is None else 1, correct=kept, evict=self.evict)

    @property
    def needs(self) -> frozenset[Capability]:
        """Updates from stored log-probabilities for direct replay."""
        return frozenset({Capability.STORED_LOG_PROBS} if self.replay == "stored" else ())

    def strategy(self) -> Strategy:
        """Responses in stages, from drafts where there is a lenience."""
        from redraft.methods.drafts.verification import spec_rl_verifier

        return staged(self, None if self.lenience is None else spec_rl_verifier(self.lenience))

    @classmethod
    def examples(cls) -> list[Self]:
        """Without drafts, and with them."""
        return [cls(stage_size=2), cls(stage_size=2, lenience=1.0)]


def staged(method: Staged, verifier: "DraftVerifier | None" = None) -> Strategy:
    """Make `stage_size` responses at a time until one is correct or the task's number of samples is made.

    Args:
        method: sizes and options.
        verifier: of each sample's last rollout, as a draft; None samples every response from its first token.
    """
    from redraft.methods.drafts.response import complete, graded, no_draft
    from redraft.rollout.types import Group

    async def run(task: "Task", context: "RolloutContext") -> "Group":
        drafts = context.memory.drafts(task.prompt, before=task.visit) if verifier else {}
        group = Group(task.prompt, task.visit, task.carried)
        end = len(task.carried) + task.samples
        while len(group.samples) < end and not any(sample.correct for sample in group.samples):
            first = len(group.samples)
            stage = range(first, min(first + method.stage_size, end))
            made = (complete(drafts.get(s) or no_draft(task.prompt, s), task, context, verifier) for s in stage)
            # Earlier stages join the group as carried samples, but are not marked so: this step pays for them.
            group = await graded(replace(task, carried=group.samples), await asyncio.gather(*made), context)
        return _with_replay(group, method, context)

    return run


def _with_replay(group: "Group", method: Staged, context: "RolloutContext") -> "Group":
    """The group; if all its responses are wrong, a correct one from memory replaces one of them."""
    from redraft.rollout.types import Sample, Use

    known = [] if method.replay == "none" else context.memory.correct(group.prompt)
    if not known or any(sample.correct for sample in group.samples):
        return group
    samples = list(group.samples)
    # One group of a prompt has one replay at most, hence sample 0.
    which, position = context.streams.uniforms("replay", group.prompt, 0, 2)
    wrong = {"first": 0, "last": len(samples) - 1, "random": _index(position, len(samples))}[method.replaced]
    samples[wrong] = replace(samples[wrong], use=Use.REPLACED)
    use, old_log_probs = part_of_replay(method.replay)
    # A new index, since the replaced sample keeps its own.
    rollout = replace(known[_index(which, len(known))], sample=len(samples))
    # Memory has correct responses only, and a reward before shaping is 0 or 1.
    return replace(group, samples=(*samples, Sample(rollout, 1.0, use, old_log_probs, carried=True)))


def part_of_replay(replay: str) -> "tuple[Use, OldLogProbs]":
    """Part of the reused response in the update, and its old log-probabilities, by `Staged.replay`."""
    from redraft.rollout.types import OldLogProbs, Use

    return {
        "recomputed": (Use.TRAINED, OldLogProbs.RECOMPUTED),
        "stopped": (Use.STOPPED, OldLogProbs.RECOMPUTED),
        "stored": (Use.TRAINED, OldLogProbs.STORED),
    }[replay]


def _index(uniform: float, count: int) -> int:
    """Index below `count` from a number on (0, 1]."""
    # 1 - u is on [0, 1); the bound guards against a product that is rounded up to `count`.
    return min(int((1.0 - uniform) * count), count - 1)
