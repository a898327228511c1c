"""What must hold of every registered schedule (`redraft.methods.schedule.Schedule`)."""

import itertools
import json

import numpy as np
import pytest

from redraft.errors import UserError
from redraft.methods.schedule import ScheduleMethod, ScheduleState
from redraft.rollout.storage import pack_groups
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Group, Rollout, Sample
from redraft.train.checkpoint import Checkpoints
from tests.trainers import make_trainer

SIZE, GROUP, PROBLEMS, STEPS = 3, 3, 12, 12


def trainer_of(size=SIZE, batch=None, group=GROUP):
    return make_trainer(prompts_per_step=size, prompts_per_batch=batch, group_size=group, prompts_per_update=1)


def fits(method, trainer, problems=PROBLEMS):
    try:
        method.check(trainer, problems)
    except UserError:
        return False
    return True


SETTINGS = [
    pytest.param(method, batch, id=f"{method.kind}-{number}-{batch}")
    for kind in ScheduleMethod.registered()
    for number, method in enumerate(kind.examples())
    for batch in (SIZE, 2 * SIZE)
    if fits(method, trainer_of(batch=batch))
]
conform = pytest.mark.parametrize(("method", "batch"), SETTINGS)


def rolled(task):
    """Group of a task, whose rewards follow from prompt, visit and sample."""
    nothing, first = np.zeros(1, np.int32), len(task.carried)
    made = (
        Sample(
            Rollout(task.prompt, sample, nothing, nothing.astype(np.float32), nothing, Finish.EOS),
            float(stream(0, "rewards", task.prompt, task.visit, sample).integers(2)),
        )
        for sample in range(first, first + task.samples)
    )
    return Group(task.prompt, task.visit, (*task.carried, *made))


def described(groups):
    return [(g.prompt, g.visit, [(s.reward, s.carried, s.use, s.old_log_probs) for s in g.samples]) for g in groups]


def content(state):
    """A state as bytes and text, to be compared."""
    return {name: pack_groups(groups) for name, groups in state.waiting.items()}, json.dumps(dict(state.values))


def taken(schedule, step):
    """Take a step as the training loop does; returns all that the schedule decided in it."""
    epoch, tasks = schedule.epoch(step), schedule.next(step)
    schedule.finished([rolled(task) for task in tasks])
    batch = schedule.batch()
    return epoch, tasks_of(tasks), None if batch is None else described(batch), dict(schedule.counts())


def tasks_of(tasks):
    return [(t.prompt, t.visit, t.samples, [s.reward for s in t.carried], t.lenience) for t in tasks]


def new(method, batch, seed=0):
    return method.schedule(trainer_of(batch=batch), PROBLEMS, seed)


def test_every_schedule_has_a_setting_that_fits():
    tried = {parameters.values[0].kind for parameters in SETTINGS}
    assert tried == set(ScheduleMethod.members)


@conform
def test_the_same_seed_and_groups_give_the_same_steps_and_another_seed_others(method, batch):
    one, same, other = new(method, batch), new(method, batch), new(method, batch, seed=1)
    steps = [[taken(schedule, step) for step in range(STEPS)] for schedule in (one, same, other)]
    assert steps[0] == steps[1] != steps[2]


@conform
def test_asking_changes_nothing(method, batch):
    schedule = new(method, batch)
    for step in range(STEPS):
        before = content(schedule.state())
        asked = [(schedule.epoch(step), tasks_of(schedule.next(step))) for _ in range(2)]
        assert asked[0] == asked[1]
        assert content(schedule.state()) == before
        taken(schedule, step)


@conform
def test_no_prompt_occurs_twice_in_a_step_and_no_group_in_two_batches(method, batch):
    schedule, used, rolled_out = new(method, batch), [], set()
    for step in range(STEPS):
        tasks = schedule.next(step)
        prompts = [task.prompt for task in tasks]
        assert prompts
        assert len(set(prompts)) == len(prompts)
        assert all(0 <= prompt < PROBLEMS for prompt in prompts)
        assert all(task.samples >= 1 and len(task.carried) + task.samples <= GROUP for task in tasks)
        assert all(sample.carried for task in tasks for sample in task.carried)
        rolled_out |= {(task.prompt, task.visit) for task in tasks}
        if groups := taken(schedule, step)[2]:
            used += [(prompt, visit) for prompt, visit, _ in groups]
    assert used
    assert len(set(used)) == len(used)
    assert set(used) <= rolled_out


@conform
def test_a_resumed_run_is_the_undisturbed_one(method, batch, tmp_path):
    """The state passes through the files of a checkpoint, at every step."""
    checkpoints, undisturbed, states = Checkpoints(tmp_path, "run", {}), new(method, batch), []
    steps = []
    for step in range(STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        checkpoints.save_schedule(folder, undisturbed.state())
        states.append((folder, content(undisturbed.state()), undisturbed.state()))
        steps.append(taken(undisturbed, step))
    for start, (folder, saved, state) in enumerate(states):
        assert content(state) == saved, "later steps leave a state as it was"
        resumed = new(method, batch)
        resumed.restore(checkpoints.schedule(folder))
        assert content(resumed.state()) == saved
        assert [taken(resumed, step) for step in range(start, STEPS)] == steps[start:]


@conform
def test_counts_are_numbers_of_the_step(method, batch):
    schedule = new(method, batch)
    counts = [taken(schedule, step)[3] for step in range(STEPS)]
    assert all(isinstance(count, int) for step in counts for count in step.values())
    assert len({frozenset(step) for step in counts}) == 1, "records have the same fields in all steps"


@pytest.mark.parametrize("kind", ScheduleMethod.registered(), ids=lambda kind: kind.__name__)
def test_sizes_work_or_are_rejected_before_a_run_starts(kind):
    found = set()
    sizes = itertools.product((1, 3, 5), (None, 4, 6), (2, 3), (4, 12))
    for method, (size, batch, group, problems) in itertools.product(kind.examples(), sizes):
        trainer = trainer_of(size, batch, group)
        found.add(accepted := fits(method, trainer, problems))
        if not accepted:
            with pytest.raises(UserError) as error:
                method.schedule(trainer, problems, 0)
            assert error.value.key.startswith(("trainer.", "schedule."))
            continue
        schedule = method.schedule(trainer, problems, 0)
        for step in range(STEPS):
            prompts = [prompt for prompt, *_ in taken(schedule, step)[1]]
            assert len(set(prompts)) == len(prompts) > 0
    assert found == {True, False}


def test_a_state_may_hold_anything_that_json_holds_and_integers_of_earlier_checkpoints(tmp_path):
    checkpoints, values = Checkpoints(tmp_path, "run", {}), {"seen": [1, 2], "rate": 0.25, "by": {"a": None}, "at": 7}
    checkpoints.save_schedule(tmp_path, ScheduleState(values=values))
    assert checkpoints.schedule(tmp_path).values == values
    (tmp_path / "schedule" / "counters.json").write_text('{"cursor": 31}')
    assert checkpoints.schedule(tmp_path) == ScheduleState({}, {"cursor": 31})
