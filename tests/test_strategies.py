"""Every group strategy on a scripted engine: what a group must be, and when nothing may be generated."""

import asyncio
import math
from contextlib import asynccontextmanager

import numpy as np
import pytest

from redraft.config.method import Speculative, Vanilla
from redraft.rollout import strategies
from redraft.rollout.drafts import DraftStore
from redraft.rollout.engine import Continuation
from redraft.rollout.strategies import Context, strategy
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Rollout

EOS, VOCABULARY, LIMIT, GROUP = 0, 6, 8, 4
PROMPTS = {0: [3, 4], 1: [5], 2: [2, 2, 2]}
METHODS = [Vanilla()] + [Speculative(lenience=lenience) for lenience in (0, 1, "e^0.5", "inf")]
SPECULATIVE = METHODS[1:]
REUSING = METHODS[2:]


def name_of(method):
    return f"{method.kind}-{getattr(method, 'lenience', 0):.3g}"


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
    """Groups of all prompts in two epochs of a drifting policy; the second epoch finds drafts of the first."""
    drafts, epochs = DraftStore(), []
    for epoch in range(2):
        engine = ScriptedEngine(epoch * drift)
        groups = [roll_out(method, p, engine, make_context(10 * epoch + p, epoch, drafts)) for p in PROMPTS]
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
every_speculative = pytest.mark.parametrize("method", SPECULATIVE, ids=name_of)


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
    for old, new in zip(before, after, strict=True):
        for name in ("tokens", "log_probs", "sampled_at"):
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
    assert first <= sampling <= first | second
    assert acceptance == (set() if method.kind == "vanilla" else second)
    assert len(drawn) == len(sampling) + len(acceptance)


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


@every_speculative
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
