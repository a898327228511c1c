"""Group strategies on a scripted engine. What a group must be on every engine stands in `test_engines.py`."""

import itertools
import math

import numpy as np
import pytest

from redraft.config.capability import Capability
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.delayed import DelayedReuse
from redraft.methods.random import RandomReuse
from redraft.methods.speculative import Speculative
from redraft.rollout import context
from redraft.rollout.streams import stream
from redraft.rollout.types import Sample
from tests.groups import (
    DEVIATIONS,
    EOS,
    GROUP,
    METHODS,
    PROMPTS,
    RELEASES,
    SPECULATIVE,
    VOCABULARY,
    ScriptedEngine,
    ScriptedWorld,
    Setting,
    a_draft,
    group_of,
    memory_of,
    name_of,
    new_memory,
    release,
    roll_out,
    two_epochs,
)

conform = pytest.mark.parametrize("method", METHODS, ids=name_of)


@conform
def test_no_two_uses_share_a_random_stream(method, monkeypatch):
    drawn = []

    def recorded(seed, purpose, *position, count):
        assert seed == 7
        drawn.append((purpose, *position))
        return stream(seed, purpose, *position).random(count) * 0.999 + 0.0005

    monkeypatch.setattr(context, "uniforms", recorded)
    two_epochs(method)
    assert len(drawn) == len(set(drawn))
    first, second = ({(10 * e + p, p, s) for p in PROMPTS for s in range(GROUP)} for e in range(2))
    sampling = {tuple(position) for purpose, *position in drawn if purpose == "rollout/sampling"}
    acceptance = {tuple(position) for purpose, *position in drawn if purpose == "rollout/acceptance"}
    fixed = {tuple(position) for purpose, *position in drawn if purpose == "rollout/acceptance/fixed"}
    assert len(drawn) == len(sampling) + len(acceptance) + len(fixed)
    if Capability.GUMBEL in method.needs:
        assert not drawn, "noise is made from a key"
        return
    assert first <= sampling <= first | second
    if getattr(method, "fixed_uniforms", False):
        assert (acceptance, fixed) == (set(), {(p, s) for p in PROMPTS for s in range(GROUP)})
    else:
        assert (acceptance, fixed) == (second if method.retention.visits else set(), set())


@conform
def test_samples_and_steps_decode_with_numbers_of_their_own(method):
    if Capability.GUMBEL in method.needs:
        pytest.skip("its noise stays the same over visits")
    numbers = [uniforms[:1] for engine, _ in two_epochs(method) for _, _, uniforms in engine.decoded]
    assert len(numbers) == len(set(numbers)) >= len(PROMPTS) * GROUP


@pytest.mark.parametrize("method", SPECULATIVE + RELEASES, ids=name_of)
def test_drafts_are_the_previous_epochs_of_the_same_prompt_and_sample(method):
    memory = new_memory()
    for visit in range(2):
        memory.put(group_of([a_draft([1 + visit, 1 + sample, EOS], sample=sample) for sample in range(GROUP)], visit))
    engine = ScriptedEngine()
    roll_out(method, 0, engine, Setting(5, 2, memory))
    assert [d.tolist() for d in engine.scored] == [[2, 1 + sample, EOS] for sample in range(GROUP)]
    other = ScriptedEngine()
    roll_out(method, 1, other, Setting(5, 2, memory))
    assert not other.scored, "a draft is never another prompt's"


def test_a_prompt_that_was_skipped_keeps_its_draft():
    engine = ScriptedEngine()
    roll_out(SPECULATIVE[-1], 0, engine, Setting(9, 5, memory_of([1, EOS])))
    assert [d.tolist() for d in engine.scored] == [[1, EOS]] * GROUP


def never_end(context):
    return np.array([0.0] + [1 / (VOCABULARY - 1)] * (VOCABULARY - 1))


def test_tokens_found_in_the_cache_count_behind_a_kept_prefix():
    kept, rejected = (Setting(20, 1, memory_of([1, 2, 3], log_probs=[-99, -99, old])) for old in (-99, 50))
    for setting in (kept, rejected):
        roll_out(SPECULATIVE[1], 0, ScriptedEngine(), setting)
    assert kept.meter.cached_tokens == GROUP * (len(PROMPTS[0]) + 3)
    assert rejected.meter.cached_tokens == GROUP * (len(PROMPTS[0]) + 2)
    for without in (Setting(20, 0), Setting(20, 1, memory_of([1, 2], log_probs=[50, 50]))):
        roll_out(SPECULATIVE[1], 0, ScriptedEngine(), without)
        assert without.meter.cached_tokens == 0


def test_time_for_acceptance_and_assembly_is_that_of_each_sample_added_up(monkeypatch):
    """The clock goes on by a second whenever it is read, and is read before and behind each piece of work."""
    readings = itertools.count()
    monkeypatch.setattr(context.time, "process_time", lambda: float(next(readings)))
    drafted, without = Setting(20, 1, memory_of([1, 2, EOS])), Setting(20, 0)
    for setting in (drafted, without):
        roll_out(SPECULATIVE[1], 0, ScriptedEngine(), setting)
    assert drafted.meter.assembly_seconds == 3 * GROUP, "numbers, judgement, joining"
    assert without.meter.assembly_seconds == GROUP, "what has no draft is only joined"


def test_what_is_only_measured_draws_other_numbers_than_what_is_trained_on():
    trained, measured = (context.Streams(7, 3, *purpose) for purpose in ((), ("fresh",)))
    for draw in ("uniforms", "fixed_uniforms"):
        one, other = (getattr(streams, draw)("sampling", 0, 1, 4) for streams in (trained, measured))
        assert not np.isin(one, other).any()


def history(rollouts):
    """All that a strategy decides about rollouts, to be compared bit by bit."""
    arrays = ("tokens", "log_probs", "sampled_at")
    counts = ("prefix_length", "draft_length", "verified", "finish")
    return [[getattr(r, name).tobytes() for name in arrays] + [getattr(r, name) for name in counts] for r in rollouts]


def test_random_reuse_scores_nothing_and_cuts_everywhere():
    engine, rollouts = two_epochs(RandomReuse())[1]
    assert not engine.scored
    assert {r.verified for r in rollouts} == {0}
    assert all(r.draft_length and r.prefix_length < r.draft_length for r in rollouts)
    assert any(r.prefix_length for r in rollouts)


def test_random_reuse_cuts_each_draft_uniformly_and_anew_at_every_step():
    memory, steps = memory_of([1, 2, 3, 4, 5]), 100
    groups = [roll_out(RandomReuse(), 0, ScriptedEngine(), Setting(step, 1, memory)) for step in range(steps)]
    cuts = np.array([[r.prefix_length for r in group] for group in groups])
    counts = np.bincount(cuts.ravel(), minlength=5)
    expected = steps * GROUP / 5
    assert len(counts) == 5, "the last token never stays"
    assert np.abs(counts - expected).max() < 4 * math.sqrt(expected)
    assert all(len(set(column)) > 1 for column in cuts.T), "one sample is not always cut at one place"
    assert any(len(set(row)) > 1 for row in cuts), "nor are all samples of a step"


@pytest.mark.parametrize("lenience", [1, "e^0.5", "inf"])
def test_delayed_reuse_takes_the_rollout_of_two_visits_ago(lenience):
    method, memory, scored = DelayedReuse(lenience=lenience), new_memory(), []
    for visit in range(4):
        engine = ScriptedEngine()
        roll_out(method, 0, engine, Setting(visit, visit, memory))
        scored.append([draft.tolist() for draft in engine.scored])
        memory.put(group_of([a_draft([1 + visit, 1 + sample, EOS], sample=sample) for sample in range(GROUP)], visit))
    assert scored[0] == [], "there was nothing yet"
    for visit, drafted in ((1, 0), (2, 0), (3, 1)):
        assert scored[visit] == [[1 + drafted, 1 + sample, EOS] for sample in range(GROUP)]


def test_without_its_deviations_the_release_variant_is_speculative_reuse():
    for lenience in (1, "e^0.5", "inf"):
        ours, theirs = (two_epochs(m)[1] for m in (Speculative(lenience=lenience), release(lenience=lenience)))
        assert history(ours[1]) == history(theirs[1])
        assert any(r.prefix_length for r in ours[1])


@pytest.mark.parametrize("deviation", DEVIATIONS[:2])
def test_each_deviation_changes_what_is_kept(deviation):
    ours, theirs = (two_epochs(m)[1][1] for m in (release(), release(deviation)))
    assert history(ours) != history(theirs)


def acceptance_uniforms(method, step, epoch, monkeypatch):
    """The numbers that decide on the drafts of a group at a step, (samples, tokens)."""
    seen, judged = [], SpecRLRule.accepts

    def recorded(rule, drafts, uniforms):
        seen.append(uniforms)
        return judged(rule, drafts, uniforms)

    with monkeypatch.context() as patch:
        patch.setattr(SpecRLRule, "accepts", recorded)
        roll_out(method, 0, ScriptedEngine(), Setting(step, epoch, memory_of([1, 2, 3, 4, 5])))
    assert len(seen) == GROUP
    return np.array(seen)


def test_fixed_uniforms_are_the_same_at_every_step_and_differ_between_samples(monkeypatch):
    first, later = (acceptance_uniforms(release("fixed_uniforms"), *at, monkeypatch) for at in ((3, 1), (17, 4)))
    assert first.tolist() == later.tolist()
    assert len({row.tobytes() for row in first}) == GROUP


@pytest.mark.parametrize("method", [Speculative(), release("refreshed_log_probs", "trainer_verification")], ids=name_of)
def test_uniforms_that_are_not_fixed_differ_between_steps_and_samples(method, monkeypatch):
    first, later = (acceptance_uniforms(method, *at, monkeypatch) for at in ((3, 1), (17, 4)))
    assert not np.isin(first, later).any()
    assert len(np.unique(first)) == first.size


def test_refreshed_log_probs_are_the_current_policys():
    engine, rollouts = two_epochs(release("refreshed_log_probs"))[1]
    kept = [r for r in rollouts if r.prefix_length]
    assert kept
    for rollout in kept:
        for i, token in enumerate(rollout.tokens):
            distribution = engine.distribution([*PROMPTS[rollout.prompt], *rollout.tokens[:i]])
            assert rollout.log_probs[i] == np.float32(math.log(distribution[token]))


@pytest.mark.parametrize("method", [Speculative(), DelayedReuse(), release(*DEVIATIONS)], ids=name_of)
def test_scores_of_the_trainer_decide_and_the_engine_scores_nothing(method):
    engine, setting = (
        ScriptedEngine(distribution=never_end),
        Setting(20, 1, memory_of([1, 2, 3, 4], log_probs=[-1.0] * 4)),
    )
    for sample in range(GROUP):
        scores = np.array([-0.25] * 4, dtype=np.float32)
        scores[sample:] = -math.inf
        setting.scores[0, sample] = scores
    group = roll_out(method, 0, engine, setting)
    assert not engine.scored
    assert [(r.prefix_length, r.verified) for r in group] == [(sample, 4) for sample in range(GROUP)]
    stored = -0.25 if method.kind == "release" else -1.0
    assert all((r.log_probs[: r.prefix_length] == stored).all() for r in group)


def test_drafts_that_the_trainer_has_not_scored_are_scored_by_the_engine():
    setting, engine = Setting(20, 1, memory_of([1, 2, EOS])), ScriptedEngine()
    setting.scores[0, 1] = np.zeros(3, dtype=np.float32)
    roll_out(release(*DEVIATIONS), 0, engine, setting)
    assert len(engine.scored) == GROUP - 1


def test_a_task_s_own_lenience_takes_the_place_of_the_method_s():
    setting = Setting(20, 1, memory_of([1, 2, 3], log_probs=[50.0] * 3))
    assert {r.prefix_length for r in roll_out(Speculative(lenience=1), 0, ScriptedEngine(), setting)} == {0}
    for method in (Speculative(lenience=1), DelayedReuse(lenience=1), release("refreshed_log_probs")):
        kept = roll_out(method, 0, ScriptedEngine(), setting, lenience=math.inf)
        assert {r.prefix_length for r in kept} == {3}


@conform
def test_a_group_goes_on_from_the_samples_that_a_task_carries(method):
    carried = tuple(Sample(a_draft([1, EOS], sample=s), s / 4, carried=True) for s in range(2))
    setting = Setting(3, 1, memory_of([1, 2, 3], top=method.retention.top))
    made = setting.task(0, carried=carried)
    group = ScriptedWorld().run(method.strategy()(made, setting.context(ScriptedEngine())))[0]
    assert group.samples[:2] == carried
    assert [sample.rollout.sample for sample in group.samples] == list(range(2 + GROUP))
    assert not any(sample.carried for sample in group.samples[2:])


def test_a_draft_is_of_an_earlier_epoch_pass_than_the_task_s():
    """A prompt that is continued has been put in its own pass already; with full reuse the draft shows in the
    response."""
    memory = memory_of([1, 2, 3, EOS])
    memory.put(group_of([a_draft([4, 5, EOS], sample=sample) for sample in range(GROUP)], visit=1))
    found = roll_out(Speculative(lenience=math.inf), 0, ScriptedEngine(), Setting(3, 1, memory))
    assert [rollout.tokens.tolist() for rollout in found] == [[1, 2, 3, EOS]] * GROUP


@conform
def test_every_rollout_is_graded_once_and_by_its_own_reward(method):
    graded = []

    async def reward(prompt, rollouts):
        graded.append((prompt, [r.sample for r in rollouts]))
        return np.array([r.tokens.sum() % 2 for r in rollouts], np.float32)

    setting = Setting(3, 1, memory_of([1, 2, 3], top=method.retention.top), reward=reward)
    group = ScriptedWorld().run(method.strategy()(setting.task(0), setting.context(ScriptedEngine())))[0]
    stages = [samples for _, samples in graded]
    assert list(itertools.chain(*stages)) == list(range(len(group.rollouts)))
    assert {prompt for prompt, _ in graded} == {0}
    if method.kind != "staged":
        assert stages == [list(range(GROUP))]
    assert group.rewards.tolist() == [r.tokens.sum() % 2 for r in group.rollouts]
    assert (group.prompt, group.visit) == (0, 1)


def test_top_distributions_of_prefix_and_continuation_are_joined_where_the_method_retains_them():
    """Distributions differ from context to context, so that each must stand beside its own token."""

    def endless(context):
        distribution = ScriptedEngine().distribution(context)
        distribution[EOS] = 0.0
        return distribution / distribution.sum()

    memory, engine = new_memory(1, top=3), ScriptedEngine(distribution=endless)
    for visit in range(2):
        setting = Setting(visit, visit, memory)
        group = ScriptedWorld().run(RandomReuse().strategy()(setting.task(0), setting.context(engine)))[0]
        memory.put(group)
    assert any(r.prefix_length for r in group.rollouts)
    for rollout in group.rollouts:
        assert rollout.top.tokens.shape == rollout.top.log_probs.shape == (rollout.length, 3)
        for i in range(rollout.length):
            distribution = engine.distribution([*PROMPTS[0], *rollout.tokens[:i]])
            np.testing.assert_allclose(np.exp(rollout.top.log_probs[i]), np.sort(distribution)[::-1][:3], rtol=1e-5)
    plain = roll_out(RandomReuse(), 0, engine, Setting(5, 1, memory_of([1, 2, 3])))
    assert all(rollout.top is None for rollout in plain)
