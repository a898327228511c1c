"""AR3PO: stages, reuse of a correct response, what enters the update, and the distributions of its three options."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from redraft.analysis.data.prompt_frames import prompt_log
from redraft.config import GRPO, Epochs, Speed, Staged, Vanilla
from redraft.errors import UserError
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, OldLogProbs, Sample, Use
from redraft.train.losses import advantages
from redraft.train.records import save_groups_of_step
from tests.columns import same
from tests.groups import EOS, PROMPTS, ScriptedEngine, ScriptedWorld, Setting, a_draft, group_of
from tests.trainers import make_trainer

WHOLE = 8


def rewards_of(*outcomes):
    """A reward that gives these to the samples by index, and notes in which groups it was asked."""
    asked = []

    async def reward(_prompt, rollouts):
        asked.append([r.sample for r in rollouts])
        return np.array([outcomes[r.sample] for r in rollouts], np.float32)

    return reward, asked


def roll_out(method, outcomes, memory=None, step=3, visit=1, group=WHOLE):
    reward, asked = rewards_of(*outcomes)
    memory = memory or Memory(method.retention)
    setting = Setting(step, visit, memory, reward=reward, group=group)
    engine = ScriptedEngine()
    made = ScriptedWorld().run(method.strategy()(setting.task(0), setting.context(engine)))[0]
    return made, asked, engine


def memory_with(method, *correct):
    """A memory whose visit 0 has these correct responses to prompt 0."""
    memory = Memory(method.retention)
    drafts = [
        a_draft([*tokens, EOS], sample=i, log_probs=[-0.5] * (len(tokens) + 1)) for i, tokens in enumerate(correct)
    ]
    memory.put(group_of(drafts, rewards=[1.0] * len(drafts)))
    return memory


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("first", range(9))
def test_stages_end_with_the_first_that_has_a_correct_response(size, first):
    outcomes = [float(i == first) for i in range(WHOLE)]
    group, asked, _ = roll_out(Staged(stage_size=size), outcomes)
    expected = WHOLE if first >= WHOLE else (first // size + 1) * size
    assert [r.sample for r in group.rollouts] == list(range(expected))
    assert asked == [list(range(s, s + size)) for s in range(0, expected, size)], "a stage is graded at once"
    assert all(s.use is Use.TRAINED and not s.carried for s in group.samples)


def test_a_stage_draws_what_a_whole_group_would_have_drawn():
    whole, *_ = roll_out(Staged(stage_size=8), [0.0] * WHOLE)
    staged, *_ = roll_out(Staged(stage_size=2), [0.0] * WHOLE)
    assert [r.tokens.tolist() for r in staged.rollouts] == [r.tokens.tolist() for r in whole.rollouts]


@pytest.mark.parametrize(
    ("replay", "use", "old"),
    [
        ("recomputed", Use.TRAINED, OldLogProbs.RECOMPUTED),
        ("stopped", Use.STOPPED, OldLogProbs.RECOMPUTED),
        ("stored", Use.TRAINED, OldLogProbs.STORED),
    ],
)
def test_a_correct_response_takes_the_place_of_a_wrong_one(replay, use, old):
    method = Staged(replay=replay)
    group, *_ = roll_out(method, [0.0] * WHOLE, memory_with(method, [1, 2]))
    assert len(group.samples) == WHOLE + 1
    assert [s.use for s in group.samples].count(Use.REPLACED) == 1
    reused = group.samples[-1]
    assert group.replayed is reused
    assert (reused.use, reused.old_log_probs, reused.reward, reused.carried) == (use, old, 1.0, True)
    assert reused.rollout.tokens.tolist() == [1, 2, EOS]
    assert reused.rollout.log_probs.tolist() == [-0.5] * 3, "the behaviour policy's stay with it"
    updated = group.updated
    assert len(updated.samples) == WHOLE
    assert updated.rewards.tolist() == [0.0] * (WHOLE - 1) + [1.0]
    assert group.informative
    assert not replace(group, samples=group.samples[:-1]).informative


@pytest.mark.parametrize("outcomes", [[0, 0, 0, 0, 1, 0, 0, 0], [1] * 8])
def test_nothing_is_reused_where_a_response_is_correct(outcomes):
    method = Staged()
    group, *_ = roll_out(method, [float(o) for o in outcomes], memory_with(method, [1, 2]))
    assert group.replayed is None
    assert group.updated is group


def test_nothing_is_reused_where_nothing_is_known_or_reuse_is_off():
    for method in (Staged(), Staged(replay="none")):
        memory = Memory(method.retention) if method.replay != "none" else memory_with(Staged(), [1, 2])
        group, *_ = roll_out(method, [0.0] * WHOLE, memory)
        assert group.replayed is None
        assert not group.informative


def test_the_reused_response_is_drawn_uniformly_and_anew_at_every_step():
    method, steps = Staged(), 300
    memory = memory_with(method, [1], [2], [3])
    drawn = [roll_out(method, [0.0] * WHOLE, memory, step)[0].replayed.rollout.tokens[0] for step in range(steps)]
    counts = np.bincount(drawn, minlength=4)[1:]
    assert abs(counts - steps / 3).max() < 4 * np.sqrt(steps / 3)


def test_the_replaced_response_is_the_one_that_is_asked_for():
    memory = memory_with(Staged(), [1, 2])

    def place(replaced, step=3):
        group, *_ = roll_out(Staged(replaced=replaced), [0.0] * WHOLE, memory, step)
        return [s.use for s in group.samples].index(Use.REPLACED)

    assert (place("first"), place("last")) == (0, WHOLE - 1)
    assert len({place("random", step) for step in range(40)}) > WHOLE // 2


def test_a_reused_response_enters_memory_once_and_capacity_holds():
    method = Staged(capacity=2)
    memory = memory_with(method, [1])
    group, *_ = roll_out(method, [0.0] * WHOLE, memory)
    memory.put(group)
    assert [r.tokens.tolist() for r in memory.correct(0)] == [[1, EOS]]
    for visit, token in ((2, 2), (3, 3)):
        memory.put(group_of([a_draft([token, EOS], sampled_at=visit)], visit, rewards=[1.0]))
    assert [r.tokens.tolist() for r in memory.correct(0)] == [[2, EOS], [3, EOS]]
    first = Memory(Staged(capacity=2, evict="newest").retention)
    for visit, token in ((1, 1), (2, 2), (3, 3)):
        first.put(group_of([a_draft([token, EOS], sampled_at=visit)], visit, rewards=[1.0]))
    assert [r.tokens.tolist() for r in first.correct(0)] == [[1, EOS], [2, EOS]]


def test_with_a_lenience_each_response_goes_on_from_its_draft():
    method = Staged(lenience="inf")
    memory = Memory(method.retention)
    memory.put(group_of([a_draft([1, 1 + s % 3, EOS], sample=s) for s in range(WHOLE)]))
    group, _, engine = roll_out(method, [0.0] * 5 + [1.0] + [0.0] * 2, memory)
    assert [d.tolist() for d in engine.scored] == [[1, 1 + s % 3, EOS] for s in range(WHOLE)]
    assert all(r.fully_reused for r in group.rollouts)
    without, _, engine = roll_out(Staged(), [1.0] * 8, memory)
    assert engine.scored == []
    assert {r.draft_length for r in without.rollouts} == {0}


def test_the_log_of_prompts_follows_a_prompt_through_its_visits(tmp_path):
    """Two right, then none and one reused, then one right; two are kept at most."""
    method = Staged(capacity=2)
    memory = Memory(method.retention)
    (tmp_path / "rollouts").mkdir()
    for step, outcomes in enumerate([[0, 1, 1, 0], [0] * 8, [1, 0, 0, 0]]):
        group, *_ = roll_out(method, [float(o) for o in outcomes], memory, step, step)
        save_groups_of_step(tmp_path / "rollouts" / f"step-{step:04d}.parquet", step, [group])
        memory.put(group)
    log = prompt_log(SimpleNamespace(reuse=method), tmp_path)
    assert log["uid"].tolist() == ["0-0", "0-1", "0-2"]
    assert log[["step", "n_generated", "n_correct", "buffer_size", "source_step"]].to_numpy().tolist() == [
        [0, 4, 2, 0, -1],
        [1, 8, 0, 2, 0],
        [2, 4, 1, 2, -1],
    ]
    assert log["reused"].tolist() == [False, True, False]
    assert same("prompts", log)
    nothing = prompt_log(SimpleNamespace(reuse=Vanilla()), tmp_path)
    assert nothing["buffer_size"].tolist() == [0, 0, 0]


def adv(rewards, **fields):
    """Advantage of each response of one group, of one token each."""
    rewards = torch.tensor(rewards, dtype=torch.float32)
    algorithm = GRPO(**fields)
    return advantages(algorithm, rewards, torch.ones(len(rewards), 1), np.zeros(len(rewards), int))[0][:, 0]


def test_one_reused_response_of_eight_has_the_advantages_of_the_specification():
    rewards = [0.0] * 7 + [1.0]
    for std, wrong, right in (("population", -0.378, 2.646), ("unbiased", -0.354, 2.475)):
        found = adv(rewards, std=std)
        assert found[:7].tolist() == pytest.approx([wrong] * 7, abs=5e-4)
        assert float(found[7]) == pytest.approx(right, abs=5e-4)


def test_the_epsilon_of_the_standard_deviation_is_the_configured_one():
    rewards = [0.0, 1.0]
    for std, scale in (("population", 0.5), ("unbiased", 0.5**0.5)):
        for epsilon in (1e-6, 0.25):
            assert float(adv(rewards, std=std, std_epsilon=epsilon)[1]) == pytest.approx(0.5 / (scale + epsilon))


def test_groups_of_different_sizes_each_have_their_own_deviation():
    rewards = torch.tensor([0.0, 0, 0, 1, 0, 1])
    index = np.array([0, 0, 0, 0, 1, 1])
    found = advantages(GRPO(std="population"), rewards, torch.ones(6, 1), index)[0][:, 0]
    for rows in (slice(0, 4), slice(4, 6)):
        part = rewards[rows]
        assert torch.allclose(found[rows], (part - part.mean()) / (part.std(correction=0) + 1e-6))


def test_a_stage_size_must_divide_the_group():
    for size, group in itertools.product((3, 5, 6, 7), (8,)):
        with pytest.raises(UserError) as error:
            Staged(stage_size=size).check(Epochs(), make_trainer(group_size=group))
        assert all(word in str(error.value) for word in ("reuse.stage_size", str(size), "2, 4, 8")), str(error.value)
    Staged(stage_size=4).check(Epochs(), make_trainer(group_size=8))
    with pytest.raises(UserError, match="both decide"):
        Staged(stage_size=4).check(Speed(), make_trainer(group_size=8))
    with pytest.raises(ValueError, match="stage_size"):
        Staged(stage_size=1)


def test_the_scripted_prompts_are_what_the_tests_say():
    assert 0 in PROMPTS
    assert isinstance(Group(0, 0, (Sample(a_draft([EOS]), 1.0),)).samples[0].correct, bool)
