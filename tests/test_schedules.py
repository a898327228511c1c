"""Schedules: which prompts a step rolls out, which groups make a batch, and what waits, is dropped or is restored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.config import (
    DAPO,
    GRPO,
    PPO,
    RLOO,
    DynamicSampling,
    Epochs,
    InProcessEngine,
    ProblemFile,
    Run,
    TinyModel,
    Vanilla,
)
from redraft.errors import UserError
from redraft.methods.schedule import ScheduleState
from redraft.rollout.storage import pack_groups, unpack_groups
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Group, Rollout, Sample
from tests.trainers import make_trainer

PROBLEMS, GROUP = 12, 3
NONE, SOME, ALL = (0, 0, 0), (0, 1, 0), (1, 1, 1)


def a_schedule(chosen=None, size=3, batch=None, update=1, seed=0, problems=PROBLEMS, algorithm=None):
    """The schedule of a run that rolls out `size` prompts a step and trains on `batch` at once."""
    trainer = make_trainer(prompts_per_step=size, prompts_per_batch=batch, group_size=GROUP, prompts_per_update=update)
    run = Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=seed,
        model_role="tiny",
        data_role="sums",
        model=TinyModel(),
        data=ProblemFile(path="none", size=problems),
        algorithm=algorithm or GRPO(),
        reuse=Vanilla(),
        schedule=chosen or Epochs(),
        trainer=trainer,
        engine=InProcessEngine(),
    )
    return run.schedule.schedule(trainer, problems, seed)


def group(prompt, rewards, visit=0):
    nothing = np.zeros(1, dtype=np.int32)
    rollouts = [
        Rollout(prompt, s, nothing, nothing.astype(np.float32), nothing, Finish.EOS) for s in range(len(rewards))
    ]
    return Group(prompt, visit, tuple(Sample(r, float(w)) for r, w in zip(rollouts, rewards, strict=True)))


def groups_of(first, *rewards):
    """Groups with prompts from `first` on."""
    return [group(first + i, of_group) for i, of_group in enumerate(rewards)]


def prompts(groups):
    return [group.prompt for group in groups]


def waiting(one):
    return [prompt for groups in one.state().waiting.values() for prompt in prompts(groups)]


def gathered(one, groups):
    """The batch after the groups of a step, asked for once as the campaign does."""
    one.finished(groups)
    return one.batch()


@pytest.mark.parametrize("chosen", [Epochs(), DynamicSampling()], ids=lambda s: s.kind)
@pytest.mark.parametrize("size", [1, 4, 12])
def test_each_pass_rolls_out_every_prompt_once_in_an_order_of_its_own(chosen, size):
    one, steps = a_schedule(chosen, size), PROBLEMS // size
    passes = [[task for step in range(e * steps, (e + 1) * steps) for task in one.next(step)] for e in range(3)]
    assert all(sorted(prompts(tasks)) == list(range(PROBLEMS)) for tasks in passes)
    assert len({tuple(prompts(tasks)) for tasks in passes}) == 3
    for visit, tasks in enumerate(passes):
        assert {(task.visit, task.samples, task.carried, task.lenience) for task in tasks} == {(visit, GROUP, (), None)}


def test_tasks_follow_from_seed_and_step_alone():
    one, other = a_schedule(), a_schedule()
    late = prompts(one.next(7))
    for step in range(7):
        gathered(other, groups_of(0, SOME, SOME, SOME))
        other.next(step)
    assert prompts(other.next(7)) == late == prompts(other.next(7))
    assert prompts(a_schedule(seed=1).next(7)) != late


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), RLOO()], ids=lambda a: a.kind)
def test_other_algorithms_take_every_batch_as_it_is(algorithm):
    one, groups = a_schedule(algorithm.usual_schedule, algorithm=algorithm), groups_of(0, NONE, SOME, ALL)
    assert gathered(one, groups) == groups
    assert waiting(one) == []


@pytest.mark.parametrize("steps", [2, 3])
def test_a_batch_of_several_steps_holds_all_their_groups_in_order(steps):
    one, taken = a_schedule(batch=3 * steps, update=3), []
    for step in range(2 * steps):
        batch = gathered(one, groups_of(3 * step, NONE, SOME, ALL))
        assert (batch is not None) == (step % steps == steps - 1)
        taken += batch or []
        assert prompts(taken) + waiting(one) == list(range(3 * step + 3))


def test_a_group_teaches_if_its_rewards_differ():
    rewards = [NONE, SOME, ALL, (1, 0, 1), (0.5, 0.5, 0.5), (1,), (0.25, 0.75)]
    assert [group(0, r).informative for r in rewards] == [False, True, False, True, False, False, True]


def test_uninformative_groups_are_dropped_and_refilled_by_later_steps():
    one = a_schedule(DynamicSampling())
    assert gathered(one, groups_of(0, SOME, NONE, ALL)) is None
    assert waiting(one) == [0]
    assert gathered(one, groups_of(3, NONE, NONE, ALL)) is None
    assert waiting(one) == [0]
    batch = gathered(one, groups_of(6, (1, 0, 0), NONE, (0, 0, 1)))
    assert prompts(batch) == [0, 6, 8]
    assert [group.rewards.tolist() for group in batch] == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert waiting(one) == []


def test_what_is_over_is_dropped_and_the_oldest_come_first():
    one = a_schedule(DynamicSampling())
    assert gathered(one, groups_of(0, SOME, NONE, SOME)) is None
    assert prompts(gathered(one, groups_of(3, SOME, SOME, SOME))) == [0, 2, 3]
    assert waiting(one) == []
    assert gathered(one, groups_of(6, SOME, SOME, ALL)) is None
    assert waiting(one) == [6, 7]


@pytest.mark.parametrize(("batch", "updates"), [(2, [True, True]), (4, [False, True]), (5, [False, True])])
def test_dynamic_sampling_s_batches_may_be_of_any_size(batch, updates):
    one = a_schedule(DynamicSampling(), batch=batch)
    found = [gathered(one, groups_of(3 * step, SOME, SOME, SOME)) for step in range(2)]
    assert [batch is not None for batch in found] == updates
    assert {len(groups) for groups in found if groups} == {batch}


@given(st.lists(st.lists(st.sampled_from([NONE, SOME, ALL]), min_size=4, max_size=4), max_size=8))
def test_every_update_has_a_whole_batch_of_informative_groups_each_used_once(steps):
    one, used = a_schedule(DynamicSampling(), size=4), []
    for i, rewards in enumerate(steps):
        batch = gathered(one, groups_of(4 * i, *rewards))
        assert len(waiting(one)) < 4
        if batch:
            assert len(batch) == 4
            assert all(group.informative for group in batch)
            used += prompts(batch)
            assert waiting(one) == []
    assert len(used) == len(set(used))


@pytest.mark.parametrize("chosen", [Epochs(), DynamicSampling()], ids=lambda s: s.kind)
def test_groups_of_different_sizes_wait_and_are_counted_as_groups(chosen):
    one = a_schedule(chosen, batch=6, update=3)
    ragged = [group(0, (0, 1)), group(1, (1, 0, 0, 0, 1)), group(2, SOME)]
    assert gathered(one, ragged) is None
    batch = gathered(one, [group(3, SOME), group(4, (1, 0)), group(5, (0, 1, 1, 1))])
    assert [len(group.samples) for group in batch] == [2, 5, 3, 3, 2, 4]


@pytest.mark.parametrize("chosen", [Epochs(), DynamicSampling()], ids=lambda s: s.kind)
def test_a_restored_schedule_goes_on_as_the_one_that_was_saved(chosen):
    """The state passes through the storage of groups, as it does in a checkpoint."""
    before = a_schedule(chosen, batch=6, update=3)
    assert gathered(before, [group(0, (0, 1)), group(1, NONE), group(2, SOME)]) is None
    state = {name: unpack_groups(pack_groups(groups)) for name, groups in before.state().waiting.items()}
    after = a_schedule(chosen, batch=6, update=3)
    assert waiting(after) == []
    after.restore(ScheduleState(state))
    assert waiting(after) == waiting(before) != []
    for step in range(1, 4):
        new = groups_of(3 * step, SOME, SOME, SOME)
        ours, theirs = gathered(after, new), gathered(before, new)
        assert prompts(ours or []) == prompts(theirs or [])
        assert waiting(after) == waiting(before)
        assert prompts(after.next(step)) == prompts(before.next(step))


def test_a_state_is_not_changed_by_what_follows():
    one = a_schedule(batch=6, update=3)
    gathered(one, groups_of(0, SOME, SOME, SOME))
    other = a_schedule(batch=6, update=3)
    other.restore(one.state())
    gathered(one, groups_of(3, SOME, SOME, SOME))
    assert waiting(other) == [0, 1, 2]


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="must divide the number of problems") as error:
        a_schedule(size=5)
    assert (error.value.key, error.value.value) == ("trainer.prompts_per_step", 5)
    with pytest.raises(UserError, match="whole number of steps") as error:
        a_schedule(size=3, batch=4)
    assert (error.value.key, error.value.value) == ("trainer.prompts_per_batch", 4)
    assert a_schedule(DynamicSampling(), size=3, batch=4), "dynamic sampling gathers as long as it takes"
    with pytest.raises(UserError, match="must divide the number of problems"):
        a_schedule(DynamicSampling(), size=5)


def test_dynamic_sampling_is_dapo_s_usual_schedule_and_no_other_s():
    assert DAPO().usual_schedule == DynamicSampling()
    assert {a.usual_schedule.kind for a in (GRPO(), PPO(), RLOO())} == {"epochs"}


@pytest.mark.parametrize("done", [0, 1, 3, 4, 5, 6, 9])
def test_a_pass_s_order_is_that_of_its_stream_wherever_a_run_goes_on(done):
    """The order of runs that were made before there were schedules, under both trainers."""
    one = a_schedule(size=4, seed=5)
    order = [p for epoch in range(5) for p in stream(5, "order", epoch).permutation(PROBLEMS).tolist()]
    assert [p for step in range(done, done + 3) for p in prompts(one.next(step))] == order[4 * done : 4 * done + 12]
