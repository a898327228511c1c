"""SPEED-RL (arXiv 2506.09016, Algorithm 2): prompts are screened, and only informative ones are rolled out whole.

A step continues qualified prompts and screens new ones, so that both phases share one pass of the engine. Only as many
are continued as the next batch lacks: what qualifies beyond it waits with its screening responses alone (§4.3), the
oldest first, and is continued by a policy that is as new as can be. Nothing is screened while a whole batch waits
after the one that is continued.

Three things of the release are left out. It continues all that qualified at once, and keeps finished groups over
several updates. It drops the prompts that it fetched in a step that trains. Its buffer has no bound.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from redraft.config.base import MOST_PROMPTS, MOST_RESPONSES
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.schedule import ScheduleMethod, ScheduleState

if TYPE_CHECKING:
    from redraft.rollout.types import Group, Sample, Task

FINISHED, QUALIFIED = "finished", "qualified"
CURSOR = "cursor"


class Speed(ScheduleMethod):
    """SPEED-RL (arXiv 2506.09016, Algorithm 2): prompts are screened by a few responses, informative ones continued.

    A step screens `prompts_per_step` new prompts and continues as many qualified ones as its update batch
    (`prompts_per_batch`) lacks, in one pass of the engine. A group has `group_size` responses in all.
    """

    order: ClassVar[int] = 20
    counted: ClassVar[tuple[str, ...]] = (
        *("prompts_screened", "prompts_qualified", "prompts_continued", "prompts_waiting", "prompts_dropped"),
    )
    kind: Literal["speed"] = "speed"
    screening: int = Field(default=4, ge=2, le=MOST_RESPONSES)
    """Responses that screen a prompt (N_init); the others (N_cont) follow. With one response nothing can pass."""
    low: float = Field(default=0.0, ge=0, lt=1)
    """Share of correct responses above which a prompt qualifies, strictly (P_low)."""
    high: float = Field(default=1.0, gt=0, le=1)
    """Share of correct responses below which it qualifies, strictly (P_high)."""
    buffer: int | None = Field(default=None, ge=1, le=MOST_PROMPTS)
    """Maximum number of qualified prompts that wait to be continued, at least a batch; beyond it the oldest are
    dropped. If empty, as many as one step can add to a batch that waits, so that none is dropped."""
    stale: Literal["recomputed", "stored"] = "recomputed"
    """Old log-probabilities of responses that an earlier policy sampled: the current policy's, as in the release, or
    those of the policy that sampled each token."""

    def capacity(self, trainer: TrainerConfig) -> int:
        """Maximum number of qualified prompts that wait."""
        # A step screens only while less than a batch waits (`_is_enough`), and adds its own prompts at most.
        return trainer.batch_prompts - 1 + trainer.prompts_per_step if self.buffer is None else self.buffer

    def check(self, trainer: TrainerConfig, problems: int) -> None:
        """Reject sizes that do not fit each other.

        Raises:
            UserError: for the first such size.
        """
        batch, capacity = trainer.batch_prompts, self.capacity(trainer)
        waiting = 2 * batch - 1  # at most, where a step screens: this batch's prompts, and not yet another batch
        checks = [
            (
                self.screening < trainer.group_size,
                "screening must leave responses to continue with",
                "schedule.screening",
                self.screening,
                f"2 to {trainer.group_size - 1}, below group_size",
            ),
            (capacity >= batch, "the buffer must hold a batch", "schedule.buffer", capacity, f"at least {batch}"),
            (
                trainer.prompts_per_step <= problems - waiting,
                "a step needs so many prompts beside those that wait",
                "trainer.prompts_per_step",
                trainer.prompts_per_step,
                f"at most {problems - waiting}: {problems} problems less {waiting} that may wait",
            ),
        ]
        for holds, message, key, value, allowed in checks:
            if not holds:
                raise UserError(message, key=key, value=value, allowed=allowed)

    @model_validator(mode="after")
    def _ordered(self) -> "Speed":
        if self.high <= self.low:
            raise ValueError(f"high ({self.high}) must be above low ({self.low})")
        return self

    def schedule(self, trainer: TrainerConfig, problems: int, seed: int) -> "SpeedSchedule":
        """Both phases."""
        self.check(trainer, problems)
        return SpeedSchedule(self, trainer, problems, seed)

    @classmethod
    def examples(cls) -> list[Self]:
        """Two responses screen; the buffer without bound and with one; both sources of old log-probabilities."""
        return [cls(screening=2), cls(screening=2, buffer=4, stale="stored")]


class SpeedSchedule:
    """Two phases of rollouts, with a buffer of qualified prompts between them.

    Args:
        speed: sizes and thresholds of the two phases.
        trainer: sizes of steps, batches and groups.
        problems: prompts in the data.
        seed: the run's.
    """

    def __init__(self, speed: Speed, trainer: TrainerConfig, problems: int, seed: int) -> None:
        self.speed, self.trainer, self.problems, self.seed = speed, trainer, problems, seed
        self.capacity = speed.capacity(trainer)
        self.finished_groups: list[Group] = []
        self.qualified: list[Group] = []
        self.cursor = 0  # prompts that the passes over the data have come to, skipped ones included
        self.counted: dict[str, int] = {}

    def epoch(self, _step: int) -> int:
        """Pass of the next prompt that is screened."""
        return self.cursor // self.problems

    def next(self, _step: int) -> list["Task"]:
        """Continuations of the prompts that qualified first, and new prompts to screen."""
        from redraft.rollout.types import Task

        continued, rest = self._parted()
        rests = self.trainer.group_size - self.speed.screening
        tasks = [Task(group.prompt, group.visit, rests, _carried(group)) for group in continued]
        return tasks + ([] if self._is_enough(rest) else self._new()[0])

    def _parted(self) -> tuple[list["Group"], list["Group"]]:
        """Qualified prompts that the next batch takes, and the others."""
        lacking = self.trainer.batch_prompts - len(self.finished_groups)
        return self.qualified[:lacking], self.qualified[lacking:]

    def _is_enough(self, rest: Sequence["Group"]) -> bool:
        """True if the batch after the next one is there already."""
        return len(rest) >= self.trainer.batch_prompts

    def _new(self) -> tuple[list["Task"], int]:
        """Prompts to screen in the order of the passes, without those that wait, and the cursor after them."""
        from redraft.rollout.types import Task

        # A prompt that waits is not screened again, so that no step has it twice.
        taken = {group.prompt for group in (*self.qualified, *self.finished_groups)}
        tasks: list[Task] = []
        positions = self._positions()
        while len(tasks) < self.trainer.prompts_per_step:
            cursor, prompt = next(positions)
            if prompt not in taken:
                taken.add(prompt)
                tasks.append(Task(prompt, cursor // self.problems, self.speed.screening))
        return tasks, cursor + 1

    def _positions(self) -> Iterator[tuple[int, int]]:
        """Positions of the passes from the cursor on, and the prompt at each; without end."""
        from redraft.rollout.streams import stream

        for visit in itertools.count(self.cursor // self.problems):
            order = stream(self.seed, "order", visit).permutation(self.problems).tolist()
            # Only the first of these passes begins within the data.
            begin = max(self.cursor - visit * self.problems, 0)
            yield from ((visit * self.problems + at, order[at]) for at in range(begin, self.problems))

    def finished(self, groups: Sequence["Group"]) -> None:
        """Keep continued groups for the batch, and screened ones that qualify for continuation."""
        # The same split as in `next`: nothing has changed since.
        continued, rest = self._parted()
        screened = groups[len(continued) :]
        if screened:
            # `next` changes nothing (`Schedule`), so the cursor moves here. The queues that `_new` reads are still
            # those of `next`.
            self.cursor = self._new()[1]
        passed = [group for group in screened if self._qualifies(group)]
        self.finished_groups += groups[: len(continued)]
        waiting = [*rest, *passed]
        # The oldest are dropped, which are the most off-policy.
        self.qualified = waiting[max(0, len(waiting) - self.capacity) :]
        dropped = len(waiting) - len(self.qualified)
        counts = (len(screened), len(passed), len(continued), len(self.qualified), dropped)
        self.counted = dict(zip(self.speed.counted, counts, strict=True))

    def _qualifies(self, group: "Group") -> bool:
        correct = sum(sample.correct for sample in group.samples)
        return self.speed.low < correct / len(group.samples) < self.speed.high

    def batch(self) -> list["Group"] | None:
        """All finished groups, once they are a batch."""
        if len(self.finished_groups) < self.trainer.batch_prompts:
            return None
        batch, self.finished_groups = self.finished_groups, []
        return [self._corrected(group) for group in batch]

    def _corrected(self, group: "Group") -> "Group":
        """The group with stored log-probabilities for responses of an earlier step, if they are configured."""
        from redraft.rollout.types import OldLogProbs

        if self.speed.stale == "recomputed":
            return group
        stored = (replace(s, old_log_probs=OldLogProbs.STORED) if s.carried else s for s in group.samples)
        return replace(group, samples=tuple(stored))

    def counts(self) -> Mapping[str, int]:
        """Prompts of the last step, by what became of them."""
        return self.counted

    def state(self) -> ScheduleState:
        """Groups of a batch that is not full, prompts to be continued, and the position in the data."""
        waiting = {FINISHED: list(self.finished_groups), QUALIFIED: list(self.qualified)}
        return ScheduleState(waiting, {CURSOR: self.cursor})

    def restore(self, state: ScheduleState) -> None:
        """Go on from a state."""
        self.finished_groups, self.qualified = (list(state.waiting[name]) for name in (FINISHED, QUALIFIED))
        self.cursor = state.values[CURSOR]


def _carried(group: "Group") -> tuple["Sample", ...]:
    """Samples of a screened group, which its continuation does not pay for again."""
    return tuple(replace(sample, carried=True) for sample in group.samples)
