"""SPEED-RL's schedule: screening, qualification, continuation, the bounded buffer, and the state of a checkpoint."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.config import GRPO, InProcessEngine, ProblemFile, Run, Speed, TinyModel, Vanilla
from redraft.errors import UserError
from redraft.methods.schedule import ScheduleState
from redraft.rollout.storage import pack_groups, unpack_groups
from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample
from tests.trainers import make_trainer

PROBLEMS, SCREENING, WHOLE = 40, 2, 5
STEP, BATCH = 6, 3


def a_schedule(speed=None, size=STEP, batch=BATCH, seed=0, problems=PROBLEMS, group=WHOLE):
    trainer = make_trainer(prompts_per_step=size, prompts_per_batch=batch, group_size=group, prompts_per_update=1)
    run = Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=seed,
        model_role="tiny",
        data_role="sums",
        model=TinyModel(),
        data=ProblemFile(path="none", size=problems),
        algorithm=GRPO(),
        reuse=Vanilla(),
        schedule=speed or Speed(screening=SCREENING),
        trainer=trainer,
        engine=InProcessEngine(),
    )
    return run.schedule.schedule(trainer, problems, seed)


def rolled(task, step, correct):
    """Group of a task whose screening has so many correct responses."""
    rewards = [1.0] * correct + [0.0] * (SCREENING - correct) + [0.0] * (WHOLE - SCREENING)
    first = len(task.carried)
    one = np.zeros(1, np.int32)
    made = [
        Sample(Rollout(task.prompt, s, one, one.astype(np.float32), one + step, Finish.EOS), rewards[s])
        for s in range(first, first + task.samples)
    ]
    return Group(task.prompt, task.visit, (*task.carried, *made))


def step_of(one, step, correct):
    """Tasks of a step, and the batch behind it; `correct` says how many screening responses of a prompt are right."""
    tasks = one.next(step)
    one.finished([rolled(task, step, correct(task.prompt, step)) for task in tasks])
    return tasks, one.batch()


def parts(tasks):
    """Prompts that a step continues, and those that it screens."""
    continued = [task.prompt for task in tasks if task.carried]
    return continued, [task.prompt for task in tasks if not task.carried]


def prompts(groups):
    return [group.prompt for group in groups]


def test_the_first_step_screens_and_the_next_continues_beside_new_screening():
    one = a_schedule()
    tasks, batch = step_of(one, 0, lambda *_: 1)
    assert batch is None
    assert [(task.samples, task.carried) for task in tasks] == [(SCREENING, ())] * STEP
    first = [task.prompt for task in tasks]
    tasks = one.next(1)
    continued, screened = parts(tasks)
    assert continued == first[:BATCH], "the oldest, as many as a batch lacks"
    assert screened == [], "a whole batch waits behind it, so nothing is screened"
    assert all(task.samples == WHOLE - SCREENING and len(task.carried) == SCREENING for task in tasks[:BATCH])
    assert all(sample.carried for task in tasks[:BATCH] for sample in task.carried), "paid for in the step before"


def test_both_phases_share_a_step_while_too_little_waits():
    one = a_schedule()
    good = set()

    def correct(prompt, step):
        if step == 0 and len(good) < 4:
            good.add(prompt)
        return int(prompt in good)

    step_of(one, 0, correct)
    tasks, batch = step_of(one, 1, correct)
    continued, screened = parts(tasks)
    assert (len(continued), len(screened)) == (BATCH, STEP)
    assert prompts(batch) == continued
    assert not set(screened) & good
    assert all(len(group.samples) == WHOLE for group in batch)
    assert one.counts() == {
        "prompts_screened": STEP,
        "prompts_qualified": 0,
        "prompts_continued": BATCH,
        "prompts_waiting": 1,
        "prompts_dropped": 0,
    }


@pytest.mark.parametrize(("correct", "passes"), [(0, False), (1, True), (2, False)])
def test_only_strictly_intermediate_pass_rates_qualify(correct, passes):
    one = a_schedule()
    step_of(one, 0, lambda *_: correct)
    assert bool(parts(one.next(1))[0]) == passes


def test_other_thresholds_are_strict_too():
    for high, passes in ((0.5, False), (0.51, True)):
        one = a_schedule(Speed(screening=SCREENING, high=high))
        step_of(one, 0, lambda *_: 1)
        assert bool(parts(one.next(1))[0]) == passes
    for low, passes in ((0.5, False), (0.49, True)):
        one = a_schedule(Speed(screening=SCREENING, low=low))
        step_of(one, 0, lambda *_: 1)
        assert bool(parts(one.next(1))[0]) == passes


def test_a_full_buffer_drops_the_oldest_and_counts_them():
    one = a_schedule(Speed(screening=SCREENING, buffer=4))
    tasks, _ = step_of(one, 0, lambda *_: 1)
    assert one.counts()["prompts_dropped"] == 2
    assert parts(one.next(1))[0] == [task.prompt for task in tasks][2:5]


def test_every_pass_screens_every_prompt_once_but_those_that_wait():
    one, seen = a_schedule(), {}
    for step in range(60):
        tasks, _ = step_of(one, step, lambda prompt, _: int(prompt % 7 == 0))
        for task in tasks:
            if not task.carried:
                seen.setdefault(task.visit, []).append(task.prompt)
    for visit in list(seen)[1:-1]:
        assert len(seen[visit]) == len(set(seen[visit]))
        assert set(range(PROBLEMS)) - set(seen[visit]) <= {p for p in range(PROBLEMS) if p % 7 == 0}
    assert sorted(seen[0]) == list(range(PROBLEMS)) or set(range(PROBLEMS)) - set(seen[0]) <= {0, 7, 14, 21, 28, 35}
    assert seen[1] != seen[2]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5), st.one_of(st.none(), st.integers(5, 9)))
@settings(max_examples=60, deadline=None)
def test_what_is_trained_on_is_informative_whole_and_used_once(seed, size, batch, buffer):
    problems = size + 2 * batch - 1  # as few as there can be, so that what waits comes round again soon
    one = a_schedule(Speed(screening=SCREENING, buffer=buffer), size, batch, problems=problems)
    rng = np.random.default_rng(seed)
    outcome = {}
    used = []

    def correct(prompt, step):
        return outcome.setdefault((prompt, step), int(rng.integers(0, 3)))

    for step in range(12):
        tasks = one.next(step)
        assert [task.prompt for task in tasks] == [task.prompt for task in one.next(step)], "asking changes nothing"
        assert len({task.prompt for task in tasks}) == len(tasks) > 0
        one.finished([rolled(task, step, correct(task.prompt, step)) for task in tasks])
        counts = one.counts()
        assert counts["prompts_screened"] + counts["prompts_continued"] == len(tasks)
        assert counts["prompts_waiting"] <= one.capacity
        assert buffer or not counts["prompts_dropped"], "without a bound of one's own nothing is dropped"
        if found := one.batch():
            assert len(found) == batch
            assert all(group.informative and len(group.samples) == WHOLE for group in found)
            used += [(group.prompt, group.visit) for group in found]
    assert len(used) == len(set(used))


@given(st.integers(0, 2**32), st.integers(0, 8))
@settings(max_examples=30, deadline=None)
def test_a_restored_schedule_goes_on_as_the_uninterrupted_one(seed, stop):
    def outcomes(prompt, step):
        return int(np.random.default_rng([seed, prompt, step]).integers(0, 3))

    def trace(one, steps):
        return [
            (tasks_of(tasks), batch and prompts(batch)) for tasks, batch in (step_of(one, s, outcomes) for s in steps)
        ]

    def tasks_of(tasks):
        return [(t.prompt, t.visit, t.samples, [s.reward for s in t.carried]) for t in tasks]

    whole, first, second = a_schedule(), a_schedule(), a_schedule()
    expected = trace(whole, range(12))
    assert trace(first, range(stop)) == expected[:stop]
    state = first.state()
    packed = {name: unpack_groups(pack_groups(groups)) for name, groups in state.waiting.items()}
    second.restore(ScheduleState(packed, dict(state.values)))
    assert [second.epoch(0), *trace(second, range(stop, 12))] == [first.epoch(0), *expected[stop:]]


def test_responses_of_an_earlier_policy_are_trained_on_as_the_configuration_says():
    for stale, expected in (("recomputed", OldLogProbs.RECOMPUTED), ("stored", OldLogProbs.STORED)):
        one = a_schedule(Speed(screening=SCREENING, stale=stale))
        step_of(one, 0, lambda *_: 1)
        _, batch = step_of(one, 1, lambda *_: 1)
        for group in batch:
            assert [s.old_log_probs for s in group.samples[:SCREENING]] == [expected] * SCREENING
            assert {s.old_log_probs for s in group.samples[SCREENING:]} == {OldLogProbs.RECOMPUTED}


def test_seeds_have_orders_of_their_own():
    assert prompts(a_schedule(seed=0).next(0)) != prompts(a_schedule(seed=1).next(0))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speed": Speed(screening=WHOLE)}, ["schedule.screening", "5", "below group_size"]),
        ({"speed": Speed(screening=SCREENING, buffer=BATCH - 1)}, ["schedule.buffer", "2", "at least 3"]),
        ({"problems": 10}, ["trainer.prompts_per_step", "6", "at most 5", "10 problems"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, words):
    with pytest.raises(UserError) as error:
        a_schedule(**fields)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("fields", [{"screening": 1}, {"low": 0.5, "high": 0.5}, {"buffer": 0}, {"high": 0}])
def test_values_that_let_nothing_pass_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Speed(**fields)
