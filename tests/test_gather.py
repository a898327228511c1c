"""DAPO's dynamic sampling: which groups are kept, when there are enough, and what waits or is dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.config.algorithm import DAPO, GRPO, PPO, RLOO
from redraft.rollout.types import Finish, Rollout
from redraft.train.checkpoint import State
from redraft.train.gather import gather, informative

GROUP = 3


def groups_of(first, *rewards):
    """Rollouts and rewards of groups with prompts from `first` on."""
    nothing = np.zeros(1, dtype=np.int32)
    rollouts = [
        Rollout(first + i, s, nothing, nothing.astype(np.float32), nothing, Finish.EOS)
        for i in range(len(rewards))
        for s in range(GROUP)
    ]
    return rollouts, np.array(rewards, dtype=np.float32).reshape(-1)


def keys(rollouts):
    return [(rollout.prompt, rollout.sample) for rollout in rollouts]


def keys_of(*prompts):
    return [(prompt, sample) for prompt in prompts for sample in range(GROUP)]


NONE, SOME, ALL = (0, 0, 0), (0, 1, 0), (1, 1, 1)


def test_a_group_teaches_if_its_rewards_differ():
    _, rewards = groups_of(0, NONE, SOME, ALL, (1, 0, 1), (0.5, 0.5, 0.5))
    assert informative(rewards, GROUP).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), RLOO()], ids=lambda a: a.kind)
def test_other_algorithms_take_every_batch_as_it_is(algorithm):
    state, (rollouts, rewards) = State(), groups_of(0, NONE, SOME, ALL)
    taken, their_rewards = gather(algorithm, state, rollouts, rewards, GROUP, 3)
    assert keys(taken) == keys(rollouts)
    assert their_rewards.tolist() == rewards.tolist()
    assert not state.pending


def test_uninformative_groups_are_dropped_and_refilled_by_later_steps():
    state = State()
    assert gather(DAPO(), state, *groups_of(0, SOME, NONE, ALL), GROUP, 3) is None
    assert keys(state.pending) == keys_of(0)
    assert gather(DAPO(), state, *groups_of(3, NONE, NONE, ALL), GROUP, 3) is None
    assert keys(state.pending) == keys_of(0)
    assert state.pending_rewards.tolist() == [0, 1, 0]
    taken, rewards = gather(DAPO(), state, *groups_of(6, (1, 0, 0), NONE, (0, 0, 1)), GROUP, 3)
    assert keys(taken) == keys_of(0, 6, 8)
    assert rewards.tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 1]
    assert not state.pending
    assert state.pending_rewards.shape == (0,)


def test_what_is_over_is_dropped_and_the_oldest_come_first():
    state = State()
    gather(DAPO(), state, *groups_of(0, SOME, NONE, SOME), GROUP, 3)
    taken, rewards = gather(DAPO(), state, *groups_of(3, SOME, SOME, SOME), GROUP, 3)
    assert keys(taken) == keys_of(0, 2, 3)
    assert len(rewards) == 3 * GROUP
    assert not state.pending
    assert gather(DAPO(), state, *groups_of(6, SOME, SOME, ALL), GROUP, 3) is None
    assert keys(state.pending) == keys_of(6, 7)


@given(st.lists(st.lists(st.sampled_from([NONE, SOME, ALL]), min_size=4, max_size=4), max_size=8))
def test_every_update_has_a_whole_batch_of_informative_groups_each_used_once(steps):
    state, used = State(), []
    for i, rewards in enumerate(steps):
        enough = gather(DAPO(), state, *groups_of(4 * i, *rewards), GROUP, 4)
        assert len(state.pending) == len(state.pending_rewards) < 4 * GROUP
        if enough:
            taken, their_rewards = enough
            assert len(taken) == len(their_rewards) == 4 * GROUP
            assert informative(their_rewards, GROUP).all()
            used += keys(taken)
            assert not state.pending
    assert len(used) == len(set(used))
