"""Every group strategy on a scripted engine: what a group must be, and when nothing may be generated."""

import asyncio
import math
from contextlib import asynccontextmanager

import numpy as np
import pytest

from redraft.config.method import DelayedReuse, RandomReuse, ReleaseVariant, Speculative, Vanilla
from redraft.rollout import strategies
from redraft.rollout.drafts import DraftStore
from redraft.rollout.engine import Continuation
from redraft.rollout.strategies import Context, strategy
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Rollout

EOS, VOCABULARY, LIMIT, GROUP = 0, 6, 8, 4
PROMPTS = {0: [3, 4], 1: [5], 2: [2, 2, 2]}
SPECULATIVE = [Speculative(lenience=lenience) for lenience in (0, 1, "e^0.5", "inf")]
REUSING = SPECULATIVE[1:]
DEVIATIONS = ("fixed_uniforms", "refreshed_log_probs", "trainer_verification")


def release(*deviations, lenience="e^0.5"):
    """The published code with these of its deviations."""
    return ReleaseVariant(lenience=lenience, **{name: name in deviations for name in DEVIATIONS})


RELEASES = [release(), *map(release, DEVIATIONS), release(*DEVIATIONS)]
METHODS = [Vanilla(), *SPECULATIVE, RandomReuse(), DelayedReuse(), DelayedReuse(lenience="inf"), *RELEASES]


def name_of(method):
    deviations = [name for name in DEVIATIONS if getattr(method, name, False)]
    return "-".join([method.kind, f"{getattr(method, 'lenience', 0):.3g}", *deviations])


class ScriptedEngine:
    """An engine whose policy is a fixed random law of each context; `drift` moves it, `law` replaces it."""

    eos = EOS

    def __init__(self, drift=0.0, law=None):
        self.drift, self.scored, self.decoded = drift, [], []
        if law:
            self.law = law

    def law(self, context):
        context = [int(token) for token in context]
        logits = stream(0, "law", *context).normal(size=VOCABULARY)
        logits = logits + self.drift * stream(1, "law", *context).normal(size=VOCABULARY)
        return np.exp(logits) / np.exp(logits).sum()

    @asynccontextmanager
    async def session(self, prompt):
        yield ScriptedSession(self, list(prompt))


class ScriptedSession:
    def __init__(self, engine, prompt):
        self.engine, self.prompt = engine, prompt

    async def score(self, draft):
        self.engine.scored.append(draft)
        await asyncio.sleep(0)
        with np.errstate(divide="ignore"):
            return np.array(
                [np.log(self.engine.law([*self.prompt, *draft[:i]])[t]) for i, t in enumerate(draft)], dtype=np.float32
            )

    async def decode(self, prefix, max_new_tokens, uniforms):
        assert max_new_tokens >= 1
        assert uniforms.shape == (max_new_tokens,)
        assert EOS not in prefix, "nothing may be decoded behind the end of a response"
        self.engine.decoded.append((prefix.tolist(), max_new_tokens, tuple(uniforms)))
        await asyncio.sleep(0)
        tokens, log_probs = [], []
        while len(tokens) < max_new_tokens and EOS not in tokens:
            law = self.engine.law([*self.prompt, *prefix, *tokens])
            token = int(np.searchsorted(np.cumsum(law) / law.sum(), uniforms[len(tokens)]))
            tokens.append(token)
            log_probs.append(np.log(law[token]))
        finish = Finish.EOS if tokens[-1] == EOS else Finish.LENGTH
        return Continuation(np.array(tokens, dtype=np.int32), np.array(log_probs, dtype=np.float32), finish)


def make_context(step=0, epoch=0, drafts=None, limit=LIMIT):
    return Context(7, step, epoch, GROUP, limit, drafts if drafts is not None else DraftStore())


def roll_out(method, prompt, engine, context):
    return asyncio.run(strategy(method)(prompt, PROMPTS[prompt], engine, context))


def two_epochs(method, drift=0.7):
    """Groups of all prompts in two epochs of a drifting policy; the second finds drafts of the first.

    The second is epoch 1, or 2 where a draft is of two epochs ago.
    """
    drafts, epochs = DraftStore(), []
    for i, epoch in enumerate((0, 2 if method.kind == "delayed" else 1)):
        engine = ScriptedEngine(i * drift)
        groups = [roll_out(method, p, engine, make_context(10 * i + p, epoch, drafts)) for p in PROMPTS]
        for group in groups:
            for rollout in group:
                drafts.put(rollout, epoch)
        epochs.append((engine, [rollout for group in groups for rollout in group]))
    return epochs


def a_draft(tokens, log_probs=None, sampled_at=0, sample=0):
    """A rollout of prompt 0 that some earlier policy drew."""
    tokens = np.array(tokens, dtype=np.int32)
    log_probs = np.full(len(tokens), -1.0, np.float32) if log_probs is None else np.array(log_probs, np.float32)
    finish = Finish.EOS if tokens[-1] == EOS else Finish.LENGTH
    return Rollout(0, sample, tokens, log_probs, np.full(len(tokens), sampled_at, np.int32), finish)


def store_of(*tokens, **fields):
    """A store whose epoch 0 has these tokens as every sample's draft."""
    drafts = DraftStore()
    for sample in range(GROUP):
        drafts.put(a_draft(*tokens, sample=sample, **fields), 0)
    return drafts


conform = pytest.mark.parametrize("method", METHODS, ids=name_of)


@conform
def test_a_group_has_one_rollout_a_sample_in_order(method):
    for _, rollouts in two_epochs(method):
        assert [(r.prompt, r.sample) for r in rollouts] == [(p, s) for p in PROMPTS for s in range(GROUP)]


@conform
def test_rollouts_end_once_and_within_the_limit(method):
    finishes = set()
    for _, rollouts in two_epochs(method):
        for rollout in rollouts:
            assert 1 <= rollout.length <= LIMIT
            assert EOS not in rollout.tokens[:-1]
            assert rollout.finish is (Finish.EOS if rollout.tokens[-1] == EOS else Finish.LENGTH)
            assert rollout.finish is Finish.EOS or rollout.length == LIMIT
            finishes.add(rollout.finish)
    assert finishes == set(Finish)


@conform
def test_history_has_one_entry_a_token_and_types_do_not_change(method):
    for _, rollouts in two_epochs(method):
        for rollout in rollouts:
            assert len(rollout.tokens) == len(rollout.log_probs) == len(rollout.sampled_at) == rollout.length
            types = (rollout.tokens.dtype, rollout.log_probs.dtype, rollout.sampled_at.dtype)
            assert types == (np.int32, np.float32, np.int32)


@conform
def test_decoded_and_reused_tokens_are_all_tokens_and_what_the_engine_did(method):
    for engine, rollouts in two_epochs(method):
        assert all(r.decoded + r.prefix_length == r.length for r in rollouts)
        assert len(engine.decoded) == sum(r.decoded > 0 for r in rollouts)
        assert sum(map(len, engine.scored)) == sum(r.verified for r in rollouts)


@conform
def test_new_tokens_carry_this_step_and_the_current_policys_log_probs(method):
    engine, rollouts = two_epochs(method)[1]
    for rollout in rollouts:
        new = slice(rollout.prefix_length, None)
        assert (rollout.sampled_at[new] == 10 + rollout.prompt).all()
        for i in range(rollout.prefix_length, rollout.length):
            law = engine.law([*PROMPTS[rollout.prompt], *rollout.tokens[:i]])
            assert rollout.log_probs[i] == pytest.approx(math.log(law[rollout.tokens[i]]), abs=1e-5)


@conform
def test_reused_tokens_keep_their_log_probs_and_the_step_they_were_sampled_at(method):
    (_, before), (_, after) = two_epochs(method)
    refreshed = getattr(method, "refreshed_log_probs", False)
    for old, new in zip(before, after, strict=True):
        for name in ("tokens", "sampled_at") if refreshed else ("tokens", "log_probs", "sampled_at"):
            kept = getattr(new, name)[: new.prefix_length]
            assert kept.tolist() == getattr(old, name)[: new.prefix_length].tolist()
        assert new.draft_length == (0 if method.kind == "vanilla" else old.length)


@conform
def test_the_first_epoch_is_vanillas(method):
    """Without a draft there is nothing to verify, and the same streams give the same rollouts."""
    engine, rollouts = two_epochs(method)[0]
    _, vanilla = two_epochs(Vanilla())[0]
    assert [r.tokens.tolist() for r in rollouts] == [r.tokens.tolist() for r in vanilla]
    assert not engine.scored
    assert {(r.draft_length, r.verified, r.prefix_length, r.fully_reused) for r in rollouts} == {(0, 0, 0, False)}


@conform
def test_no_two_uses_share_a_random_stream(method, monkeypatch):
    drawn = []

    def recorded(seed, purpose, *position, count):
        assert seed == 7
        drawn.append((purpose, *position))
        return stream(seed, purpose, *position).random(count) * 0.999 + 0.0005

    monkeypatch.setattr(strategies, "uniforms", recorded)
    two_epochs(method)
    assert len(drawn) == len(set(drawn))
    first, second = ({(10 * e + p, p, s) for p in PROMPTS for s in range(GROUP)} for e in range(2))
    sampling = {tuple(position) for purpose, *position in drawn if purpose == "rollout/sampling"}
    acceptance = {tuple(position) for purpose, *position in drawn if purpose == "rollout/acceptance"}
    fixed = {tuple(position) for purpose, *position in drawn if purpose == "rollout/acceptance/fixed"}
    assert first <= sampling <= first | second
    if getattr(method, "fixed_uniforms", False):
        assert (acceptance, fixed) == (set(), {(p, s) for p in PROMPTS for s in range(GROUP)})
    else:
        assert (acceptance, fixed) == (set() if method.kind == "vanilla" else second, set())
    assert len(drawn) == len(sampling) + len(acceptance) + len(fixed)


@conform
def test_samples_and_steps_decode_with_numbers_of_their_own(method):
    numbers = [uniforms[:1] for engine, _ in two_epochs(method) for _, _, uniforms in engine.decoded]
    assert len(numbers) == len(set(numbers)) >= len(PROMPTS) * GROUP


@conform
def test_a_step_done_again_gives_the_same_rollouts(method):
    once, again = (two_epochs(method)[1][1] for _ in range(2))
    assert [r.tokens.tolist() for r in once] == [r.tokens.tolist() for r in again]


def test_lenience_orders_how_much_is_reused():
    reused = [sum(r.prefix_length for r in two_epochs(method)[1][1]) for method in SPECULATIVE]
    assert reused == sorted(set(reused)), "strictly more with each larger lenience"
    assert reused[0] == 0
    _, all_reused = two_epochs(SPECULATIVE[-1])[1]
    assert all(r.fully_reused for r in all_reused)


@pytest.mark.parametrize("method", SPECULATIVE + RELEASES, ids=name_of)
def test_drafts_are_the_previous_epochs_of_the_same_prompt_and_sample(method):
    drafts = DraftStore()
    for epoch in range(2):
        for sample in range(GROUP):
            drafts.put(a_draft([1 + epoch, 1 + sample, EOS], sample=sample), epoch)
    engine = ScriptedEngine()
    roll_out(method, 0, engine, make_context(5, 2, drafts))
    assert [d.tolist() for d in engine.scored] == [[2, 1 + sample, EOS] for sample in range(GROUP)]
    other = ScriptedEngine()
    roll_out(method, 1, other, make_context(5, 2, drafts))
    assert not other.scored, "a draft is never another prompt's"


def test_drafts_of_an_epoch_that_is_not_the_previous_one_are_not_used():
    engine = ScriptedEngine()
    roll_out(SPECULATIVE[-1], 0, engine, make_context(9, 2, store_of([1, EOS])))
    assert not engine.scored


@pytest.mark.parametrize("method", REUSING, ids=name_of)
@pytest.mark.parametrize("tokens", [[1, 2, EOS], [1] * LIMIT, [EOS], [2] * (LIMIT - 1) + [EOS]], ids=len)
def test_a_fully_accepted_response_that_was_complete_generates_nothing(method, tokens):
    engine = ScriptedEngine()
    log_probs = [math.log(engine.law([*PROMPTS[0], *tokens[:i]])[t]) for i, t in enumerate(tokens)]
    drafts = store_of(tokens, log_probs=np.array(log_probs) - 1e-4, sampled_at=3)
    group = roll_out(method, 0, engine, make_context(20, 1, drafts))
    assert not engine.decoded
    assert len(engine.scored) == GROUP
    for rollout in group:
        assert rollout.tokens.tolist() == tokens
        assert rollout.finish is (Finish.EOS if tokens[-1] == EOS else Finish.LENGTH)
        assert (rollout.decoded, rollout.fully_reused, rollout.verified) == (0, True, len(tokens))
        assert set(rollout.sampled_at.tolist()) == {3}


@pytest.mark.parametrize("method", REUSING, ids=name_of)
def test_an_accepted_draft_that_was_cut_by_a_shorter_limit_goes_on(method):
    engine = ScriptedEngine()
    tokens = [1, 2, 3, 4]
    log_probs = [math.log(engine.law([*PROMPTS[0], *tokens[:i]])[t]) for i, t in enumerate(tokens)]
    group = roll_out(method, 0, engine, make_context(20, 1, store_of(tokens, log_probs=np.array(log_probs) - 1e-4)))
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [(tokens, LIMIT - 4)] * GROUP
    assert all(r.tokens[:4].tolist() == tokens and r.prefix_length == 4 and r.decoded >= 1 for r in group)


def never_end(context):
    return np.array([0.0] + [1 / (VOCABULARY - 1)] * (VOCABULARY - 1))


@pytest.mark.parametrize("method", SPECULATIVE[1:-1], ids=name_of)
def test_a_rejected_end_of_sequence_is_continued_before_it(method):
    engine = ScriptedEngine(law=never_end)
    drafts = store_of([1, 2, EOS], log_probs=[-9.0, -9.0, -0.1])
    group = roll_out(method, 0, engine, make_context(20, 1, drafts))
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [([1, 2], LIMIT - 2)] * GROUP
    assert {(r.prefix_length, r.draft_length, r.verified, r.fully_reused) for r in group} == {(2, 3, 3, False)}
    assert {(r.length, r.finish) for r in group} == {(LIMIT, Finish.LENGTH)}


@pytest.mark.parametrize("method", SPECULATIVE[:-1], ids=name_of)
def test_a_draft_rejected_at_once_is_started_over(method):
    engine = ScriptedEngine(law=never_end)
    group = roll_out(method, 0, engine, make_context(20, 1, store_of([EOS], log_probs=[-0.1])))
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [([], LIMIT)] * GROUP
    assert {(r.prefix_length, r.verified, r.decoded) for r in group} == {(0, 1, LIMIT)}
    assert all((r.sampled_at == 20).all() for r in group)


def test_time_for_acceptance_and_assembly_is_counted():
    context = make_context(20, 1, store_of([1, 2, EOS]))
    roll_out(SPECULATIVE[1], 0, ScriptedEngine(), context)
    assert context.assembly_seconds > 0


def history(rollouts):
    """All that a strategy decides about rollouts, to be compared bit by bit."""
    arrays = ("tokens", "log_probs", "sampled_at")
    counts = ("prefix_length", "draft_length", "verified", "finish")
    return [
        [getattr(r, name).tobytes() for name in arrays] + [getattr(r, name) for name in counts] for r in rollouts
    ]  # fmt: skip


def test_random_reuse_scores_nothing_and_cuts_everywhere():
    engine, rollouts = two_epochs(RandomReuse())[1]
    assert not engine.scored
    assert {r.verified for r in rollouts} == {0}
    assert all(r.draft_length and r.prefix_length < r.draft_length for r in rollouts)
    assert any(r.prefix_length for r in rollouts)


def test_random_reuse_cuts_each_draft_uniformly_and_anew_at_every_step():
    drafts, steps = store_of([1, 2, 3, 4, 5]), 100
    groups = [roll_out(RandomReuse(), 0, ScriptedEngine(), make_context(step, 1, drafts)) for step in range(steps)]
    cuts = np.array([[r.prefix_length for r in group] for group in groups])
    counts = np.bincount(cuts.ravel(), minlength=5)
    expected = steps * GROUP / 5
    assert len(counts) == 5, "the last token never stays"
    assert np.abs(counts - expected).max() < 4 * math.sqrt(expected)
    assert all(len(set(column)) > 1 for column in cuts.T), "one sample is not always cut at one place"
    assert any(len(set(row)) > 1 for row in cuts), "nor are all samples of a step"


@pytest.mark.parametrize("lenience", [1, "e^0.5", "inf"])
def test_delayed_reuse_takes_the_rollout_of_two_epochs_ago(lenience):
    method, drafts, scored = DelayedReuse(lenience=lenience), DraftStore(), []
    for epoch in range(4):
        engine = ScriptedEngine()
        roll_out(method, 0, engine, make_context(epoch, epoch, drafts))
        scored.append([draft.tolist() for draft in engine.scored])
        for sample in range(GROUP):
            drafts.put(a_draft([1 + epoch, 1 + sample, EOS], sample=sample), epoch)
    assert scored[0] == [], "there was nothing yet"
    for epoch, drafted in ((1, 0), (2, 0), (3, 1)):
        assert scored[epoch] == [[1 + drafted, 1 + sample, EOS] for sample in range(GROUP)]


def test_delayed_reuse_does_without_a_draft_rather_than_with_the_last_epochs():
    drafts, engine = DraftStore(), ScriptedEngine()
    drafts.put(a_draft([1, 2, EOS]), 4)
    group = roll_out(DelayedReuse(lenience="inf"), 0, engine, make_context(30, 5, drafts))
    assert not engine.scored
    assert [r.draft_length for r in group] == [0] * GROUP


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
    seen, judged = [], strategies.first_rejection

    def recorded(new, old, uniforms, *others):
        seen.append(uniforms[0])
        return judged(new, old, uniforms, *others)

    drafts = DraftStore()
    for sample in range(GROUP):
        drafts.put(a_draft([1, 2, 3, 4, 5], sample=sample), epoch - 1)
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "first_rejection", recorded)
        roll_out(method, 0, ScriptedEngine(), make_context(step, epoch, drafts))
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
            law = engine.law([*PROMPTS[rollout.prompt], *rollout.tokens[:i]])
            assert rollout.log_probs[i] == np.float32(math.log(law[token]))


@pytest.mark.parametrize("method", [Speculative(), DelayedReuse(), release(*DEVIATIONS)], ids=name_of)
def test_scores_of_the_trainer_decide_and_the_engine_scores_nothing(method):
    engine, context = ScriptedEngine(law=never_end), make_context(20, 2)
    epoch = 0 if method.kind == "delayed" else 1
    for sample in range(GROUP):
        context.drafts.put(a_draft([1, 2, 3, 4], log_probs=[-1.0] * 4, sample=sample), epoch)
        scores = np.array([-0.25] * 4, dtype=np.float32)
        scores[sample:] = -math.inf
        context.scores[0, sample] = scores
    group = roll_out(method, 0, engine, context)
    assert not engine.scored
    assert [(r.prefix_length, r.verified) for r in group] == [(sample, 4) for sample in range(GROUP)]
    stored = -0.25 if method.kind == "release" else -1.0
    assert all((r.log_probs[: r.prefix_length] == stored).all() for r in group)


def test_drafts_that_the_trainer_has_not_scored_are_scored_by_the_engine():
    context, engine = make_context(20, 1, store_of([1, 2, EOS])), ScriptedEngine()
    context.scores[0, 1] = np.zeros(3, dtype=np.float32)
    roll_out(release(*DEVIATIONS), 0, engine, context)
    assert len(engine.scored) == GROUP - 1
