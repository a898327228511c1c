"""The controller of the lenience: its distribution, its bounds, and a run that it steers and that resumes."""

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redraft.config.retention import Retention
from redraft.files import read_json_lines
from redraft.methods.adaptive import AdaptiveReuse, with_lenience
from redraft.methods.drafts.verification import spec_rl_verifier
from redraft.methods.weighted import WeightedReuse
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.memory import Memory
from redraft.rollout.types import Finish, Rollout, Task
from redraft.train.local.trainer import LocalTrainer
from redraft.train.loop import TrainingLoop
from tests.test_trainer import first_steps, make_run, train

HELD = AdaptiveReuse(budget=0.02, gain=0.25)


def after(measured, lenience=1.0, verified=10, reuse=HELD):
    return reuse.next_lenience(lenience, {"drift": measured, "clip_fraction": 0.5, "tokens_verified": verified})


def test_log_lenience_moves_by_the_relative_error_from_the_budget():
    assert after(0.02) == 1.0
    assert after(0.0) == pytest.approx(math.exp(0.25))
    assert after(0.01) == pytest.approx(math.exp(0.125))
    assert after(0.03) == pytest.approx(math.exp(-0.125))
    assert after(9.0) == pytest.approx(math.exp(-0.25)), "one odd batch moves it by one step at most"


def test_a_step_without_drafts_or_update_moves_nothing():
    assert after(0.0, verified=0) == 1.0
    assert after(None) == 1.0


def test_the_share_of_clipped_tokens_can_be_held_instead():
    held = AdaptiveReuse(budget=0.25, measure="clip_fraction")
    assert after(0.0, reuse=held) == pytest.approx(math.exp(-0.25))


@given(st.lists(st.floats(0, 10), max_size=40))
def test_it_stays_within_its_bounds(drifts):
    lenience = HELD.initial
    for drift in drifts:
        lenience = after(drift, lenience)
        assert HELD.lowest <= lenience * (1 + 1e-12)
        assert lenience <= HELD.highest * (1 + 1e-12)


@given(st.floats(0.2, 3), st.floats(0.1, 5))
def test_a_drift_that_rises_with_the_lenience_is_brought_to_the_budget(slope, start):
    """A plant whose drift is slope times ℓ times the budget: the fixed point is ℓ = 1 / slope, if within bounds."""
    lenience = start
    for _ in range(200):
        lenience = after(0.02 * slope * lenience, lenience)
    assert lenience == pytest.approx(max(HELD.lowest, min(HELD.highest, 1 / slope)), rel=1e-3)


def test_tasks_carry_it():
    tasks = [Task(3, 1, 4), Task(5, 1, 4)]
    assert [task.lenience for task in with_lenience(tasks, 1.5)] == [1.5, 1.5]
    assert with_lenience(tasks, None) == tasks


@pytest.mark.parametrize(("own", "of_task", "kept"), [(0.0, math.inf, 3), (math.inf, 0.0, 0), (math.inf, None, 3)])
def test_a_tasks_lenience_overrides_that_of_the_method(own, of_task, kept):
    """The draft is scored beforehand, so no session is needed; with leniences 0 and inf nothing is random."""
    log_probs = np.full(3, -1.0, dtype=np.float32)
    draft = Rollout(0, 0, np.arange(3, dtype=np.int32), log_probs, np.zeros(3, dtype=np.int32), Finish.EOS)
    streams, memory = Streams(seed=0, step=1), Memory(Retention(visits=1))
    context = RolloutContext(None, None, memory, Meter(), streams, [[1]], 3, {(0, 0): log_probs})
    verification = asyncio.run(spec_rl_verifier(own)(draft, None, Task(0, 1, 1, lenience=of_task), context))
    assert verification.prefix == kept


@pytest.mark.parametrize(
    "fields",
    [
        {"budget": 0},
        {"budget": -1},
        {"budget": 0.1, "gain": 0},
        {"budget": 0.1, "initial": 0, "lowest": 0},
        {"budget": 0.1, "highest": "inf"},
        {"budget": 0.1, "initial": 9},
        {},
    ],
)
def test_a_controller_that_cannot_control_is_refused(fields):
    with pytest.raises(ValidationError):
        AdaptiveReuse(**fields)


@pytest.mark.parametrize("lenience", [0, "inf"])
def test_leniences_that_no_weights_undo_are_refused(lenience):
    with pytest.raises(ValidationError, match="no weights undo"):
        WeightedReuse(lenience=lenience)


def test_the_record_of_each_step_has_the_lenience_that_the_steps_before_it_set(adaptive):
    records = adaptive
    assert records[0]["lenience"] == pytest.approx(math.exp(0.5))
    for one, other in pairwise(records):
        assert other["lenience"] == pytest.approx(TRAINED.next_lenience(one["lenience"], one))
    assert len({record["lenience"] for record in records}) > 2


TRAINED = AdaptiveReuse(budget=1e-4)


def test_a_process_that_only_reads_a_new_run_s_state_has_its_initial_lenience(tmp_path):
    """As under verl, where the process that computes the steps is not the one that prepares the folder."""
    loop = TrainingLoop(make_run(TRAINED), tmp_path, {}, 8)
    loop.load_state(hashes=False)
    assert loop.state.lenience == TRAINED.initial


class Noting(LocalTrainer):
    """A trainer that notes the leniences of the tasks of each step."""

    def roll_out(self, tasks, step):
        self.noted = [*getattr(self, "noted", []), {task.lenience for task in tasks}]
        return super().roll_out(tasks, step)


def test_a_stopped_run_goes_on_with_its_lenience_and_every_task_has_that_of_its_step(adaptive, tiny_model, tmp_path):
    first_steps(Noting(make_run(TRAINED), tiny_model, tmp_path), 4)
    trainer = Noting(make_run(TRAINED), tiny_model, tmp_path)
    trainer.train()
    records = read_json_lines(tmp_path / "steps.jsonl")
    assert [record["lenience"] for record in records] == [record["lenience"] for record in adaptive]
    assert records[4]["lenience"] != TRAINED.initial
    assert trainer.noted == [{record["lenience"]} for record in records[4:]]


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory, tiny_model):
    return train(make_run(TRAINED), tiny_model, tmp_path_factory.mktemp("adaptive"))
