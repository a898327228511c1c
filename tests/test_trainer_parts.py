"""The local trainer's own part of a step: what its seconds are, what it remembers, what measures without training."""

import pytest
import torch

from redraft.config import Vanilla
from redraft.rollout.types import Task
from redraft.train.local import trainer as local_trainer
from redraft.train.local.trainer import LocalTrainer
from redraft.train.records import StageClock
from tests.groups import a_draft, group_of
from tests.test_trainer import make_run

TASKS = [Task(0, 3, 2)]


@pytest.fixture
def trainer(tiny_model, tmp_path):
    return LocalTrainer(make_run(), tiny_model, tmp_path)


def rollouts(reward=0.5):
    """Two rollouts of prompt 0."""
    return [group_of([a_draft([5, 6]), a_draft([7, 8, 9], sample=1)], visit=3, rewards=[reward, 1.0])]


@pytest.fixture
def scripted(trainer, monkeypatch):
    """Let rolling out take 10 s, in which the engine verifies for 2 s, assembles for 0.5 s and waits for 4 s.

    The graders work for 1.5 s. All of this comes on top of what was there before.
    """
    clocked, asked = [1000.0], []
    monkeypatch.setattr(trainer, "now", lambda: clocked[0])
    trainer.engine.usage.verification_seconds, trainer.graders.seconds = 100.0, 200.0

    def strategy(name):
        return lambda task, context: asked.append((name, task, context))

    def run(*_, outside):
        meter = asked[-1][2].meter
        clocked[0] += 10.0
        trainer.engine.usage.verification_seconds += 2.0
        trainer.graders.seconds += 1.5
        meter.assembly_seconds += 0.5
        meter.cached_tokens += 7
        outside.seconds += 4.0
        return rollouts()

    monkeypatch.setattr(trainer, "strategy", strategy("trained"))
    monkeypatch.setattr(local_trainer, "vanilla", strategy("vanilla"))
    monkeypatch.setattr(trainer.engine, "run", run)
    return asked


@pytest.mark.parametrize(
    ("device", "reward", "unseen", "decoding"),
    [
        ("cpu", 1.5, 1.5, 7.5),  # processor seconds: the graders' work was not among the ten
        ("cuda", 4.0, 0.0, 3.5),  # wall seconds: the wait was
    ],
)
def test_seconds_of_a_rollout_are_those_of_this_step_and_each_belongs_to_one_stage(
    trainer, scripted, device, reward, unseen, decoding
):
    trainer.device = torch.device(device)
    for step in (0, 1):
        rolled = trainer.roll_out(TASKS, step)
        found = {name: value for name, value in rolled.seconds.items() if value}
        assert found == {"verification": 2.0, "assembly": 0.5, "reward": reward, "rollout": decoding}
        assert (rolled.unseen, rolled.grading_seconds, rolled.cached) == (unseen, 1.5, 7)


def test_what_was_rolled_out_is_remembered_and_comes_back_from_a_checkpoint(trainer, scripted, tiny_model, tmp_path):
    trainer.roll_out(TASKS, 0)
    trainer.save(tmp_path / "checkpoint")
    other = LocalTrainer(make_run(), tiny_model, tmp_path / "other")
    assert not other.memory.drafts(0)
    other.restore(tmp_path / "checkpoint")
    for memory in (trainer.memory, other.memory):
        assert {sample: draft.tokens.tolist() for sample, draft in memory.drafts(0).items()} == {
            0: [5, 6],
            1: [7, 8, 9],
        }


def test_a_method_without_drafts_remembers_nothing(tiny_model, tmp_path, monkeypatch):
    trainer = LocalTrainer(make_run(Vanilla()), tiny_model, tmp_path)
    monkeypatch.setattr(trainer, "strategy", lambda *_: None)
    monkeypatch.setattr(trainer.engine, "run", lambda *_, outside: rollouts())
    trainer.roll_out(TASKS, 0)
    assert len(trainer.memory) == 0


def test_fresh_samples_are_new_ones_drawn_by_numbers_of_their_own_and_forgotten(trainer, scripted):
    trainer.roll_out(TASKS, 4)
    before = trainer.memory.packed()
    fresh = trainer.fresh([Task(0, 3, 1)], 4)
    (trained, _, first), (method, task, second) = scripted
    assert fresh.rewards == [0.5, 1.0]
    assert (trained, method) == ("trained", "vanilla")
    assert (task.prompt, task.samples, task.carried) == (0, 1, ())
    numbers = [each.streams.uniforms("sampling", 0, 0, 3).tolist() for each in (first, second)]
    assert numbers[0] != numbers[1]
    assert trainer.memory.packed() == before


def test_seconds_of_a_stage_that_is_claimed_again_add_up_and_other_stages_keep_theirs():
    clocked = [0.0]
    clock = StageClock(lambda: clocked[0])
    clocked[0] += 9.0
    clock.add({"rollout": 3.0, "update_actor": 0.0})
    clock.add({"rollout": 0.0, "update_actor": 1.5})
    clock.add({"rollout": 0.5})
    finished = clock.finish()
    assert [finished[name] for name in ("rollout", "update_actor", "others", "total")] == [3.5, 1.5, 4.0, 9.0]
