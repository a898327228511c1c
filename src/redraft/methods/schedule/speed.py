"""SPEED-RL (arXiv 2506.09016, Algorithm 2): prompts are screened, and only informative ones are rolled out whole.

A step continues qualified prompts and screens new ones, so that both phases share one pass of the engine. Only as many
are continued as the next batch lacks: what qualifies beyond it waits with its screening responses alone (§4.3), the
oldest first, and is continued by a policy that is as new as can be. Nothing is screened while a whole batch waits
behind the one that is continued.

Three things of the release are left out. It continues all that qualified at once, and keeps finished groups over
several updates. It drops the prompts that it fetched in a step that trains. Its buffer has no bound.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from redraft.config.schedule import Speed
from redraft.config.trainer import Trainer
from redraft.methods.schedule.base import ScheduleState
from redraft.rollout.streams import stream
from redraft.rollout.types import Group, OldLogProbs, Sample, Task

FINISHED, QUALIFIED = "finished", "qualified"
CURSOR = "cursor"


class SpeedSchedule:
    """Two phases of rollouts, with a buffer of qualified prompts between them.

    Args:
        speed: sizes and thresholds of the two phases.
        trainer: sizes of steps, batches and groups.
        problems: prompts in the data.
        seed: the run's.
    """

    def __init__(self, speed: Speed, trainer: Trainer, problems: int, seed: int) -> None:
        self.speed, self.trainer, self.problems, self.seed = speed, trainer, problems, seed
        self.capacity = speed.capacity(trainer)
        self.finished_groups: list[Group] = []
        self.qualified: list[Group] = []
        self.cursor = 0  # prompts that the passes over the data have come to, skipped ones included
        self.counted: dict[str, int] = {}

    def epoch(self, _step: int) -> int:
        """Pass of the next prompt that is screened."""
        return self.cursor // self.problems

    def next(self, _step: int) -> list[Task]:
        """Continuations of the prompts that qualified first, and new prompts to screen."""
        continued, rest = self._parted()
        rests = self.trainer.group_size - self.speed.screening
        tasks = [Task(group.prompt, group.visit, rests, _carried(group)) for group in continued]
        return tasks + ([] if self._is_enough(rest) else self._new()[0])

    def _parted(self) -> tuple[list[Group], list[Group]]:
        """Qualified prompts that the next batch takes, and the others."""
        lacking = self.trainer.batch_prompts - len(self.finished_groups)
        return self.qualified[:lacking], self.qualified[lacking:]

    def _is_enough(self, rest: Sequence[Group]) -> bool:
        """True if the batch behind the next one is there already."""
        return len(rest) >= self.trainer.batch_prompts

    def _new(self) -> tuple[list[Task], int]:
        """Prompts to screen in the order of the passes, without those that wait, and the cursor behind them."""
        taken = {group.prompt for group in (*self.qualified, *self.finished_groups)}
        tasks: list[Task] = []
        places = self._places()
        while len(tasks) < self.trainer.prompts_per_step:
            cursor, prompt = next(places)
            if prompt not in taken:
                taken.add(prompt)
                tasks.append(Task(prompt, cursor // self.problems, self.speed.screening))
        return tasks, cursor + 1

    def _places(self) -> Iterator[tuple[int, int]]:
        """Places of the passes from the cursor on, and the prompt that stands there; without end."""
        for visit in itertools.count(self.cursor // self.problems):
            order = stream(self.seed, "order", visit).permutation(self.problems).tolist()
            begin = max(self.cursor - visit * self.problems, 0)
            yield from ((visit * self.problems + place, order[place]) for place in range(begin, self.problems))

    def finished(self, groups: Sequence[Group]) -> None:
        """Keep continued groups for the batch, and screened ones that qualify for continuation."""
        continued, rest = self._parted()
        screened = groups[len(continued) :]
        if screened:
            self.cursor = self._new()[1]
        passed = [group for group in screened if self._qualifies(group)]
        self.finished_groups += groups[: len(continued)]
        waiting = [*rest, *passed]
        self.qualified = waiting[max(0, len(waiting) - self.capacity) :]
        self.counted = {
            "prompts_screened": len(screened), "prompts_qualified": len(passed), "prompts_continued": len(continued),
            "prompts_waiting": len(self.qualified), "prompts_dropped": len(waiting) - len(self.qualified),
        }  # fmt: skip

    def _qualifies(self, group: Group) -> bool:
        correct = sum(sample.correct for sample in group.samples)
        return self.speed.low < correct / len(group.samples) < self.speed.high

    def batch(self) -> list[Group] | None:
        """All finished groups, once they are a batch."""
        if len(self.finished_groups) < self.trainer.batch_prompts:
            return None
        batch, self.finished_groups = self.finished_groups, []
        return [self._corrected(group) for group in batch]

    def _corrected(self, group: Group) -> Group:
        """The group with stored log-probabilities for responses of an earlier step, if they are asked for."""
        if self.speed.stale == "recomputed":
            return group
        stored = (replace(s, old_log_probs=OldLogProbs.STORED) if s.carried else s for s in group.samples)
        return replace(group, samples=tuple(stored))

    def counts(self) -> Mapping[str, int]:
        """Prompts of the last step, by what became of them."""
        return self.counted

    def state(self) -> ScheduleState:
        """Groups of a batch that is not full, prompts to be continued, and the place in the data."""
        return ScheduleState({FINISHED: self.finished_groups, QUALIFIED: self.qualified}, {CURSOR: self.cursor})

    def restore(self, state: ScheduleState) -> None:
        """Go on from a state."""
        self.finished_groups, self.qualified = (list(state.waiting[name]) for name in (FINISHED, QUALIFIED))
        self.cursor = state.counters[CURSOR]


def _carried(group: Group) -> tuple[Sample, ...]:
    """Samples of a screened group, which its continuation does not pay for again."""
    return tuple(replace(sample, carried=True) for sample in group.samples)
