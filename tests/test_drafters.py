"""Drafters without a distribution: the tokens are those of plain decoding, whatever is proposed."""

import numpy as np
import pytest
import torch

from redraft.engines.torch.draft_head import HeadDrafter
from redraft.engines.torch.matched import MatchingDrafter, NGramDrafter, SuffixDrafter
from redraft.engines.torch.speculation import Fixed, Speculated, SpeculativeEngine
from redraft.errors import UserError
from redraft.rollout.engine import Residual
from redraft.rollout.history import ResponseHistory
from redraft.rollout.streams import uniforms
from tests.test_self_speculation import Changing, sampled
from tests.test_torch_engine import EOS, LIMIT, make_engine, make_jobs, make_model, run

PROMPTS = [job.prompt for job in make_jobs(12)]
INVERTED = [uniforms(0, "drafters", i, count=LIMIT) for i in range(12)]
NOISY = [9_000_000_000_000_000_000 + number for number in range(12)]


@pytest.fixture(scope="module")
def qwen3():
    return make_model("qwen3", 4, 2)


def tokens_of(continuations):
    return [found.tokens.tolist() for found in continuations]


class Told(MatchingDrafter):
    """Knows the responses, and proposes every third token of a response wrongly, and nothing in some rows."""

    def __init__(self, prompts, responses):
        super().__init__()
        self.responses = {tuple(prompt): response for prompt, response in zip(prompts, responses, strict=True)}

    def matched(self, request, context, count):
        prompt = request.session.prompt
        at = len(context) - len(prompt)
        known = self.responses.get(tuple(prompt), [])[at : at + count] if at % 4 else []
        return [token if (at + i) % 3 else (token + 1) % 23 for i, token in enumerate(known)]


def suffixes(responses=(), prompts=(), window=2, longest=4, shortest=1, least_share=0.0):
    history = ResponseHistory(window)
    for prompt, response in zip(prompts, responses, strict=True):
        history.add(prompt, [response])
    return SuffixDrafter(history, longest, shortest, least_share)


DRAFTERS = {
    "told": Told,
    "ngram": lambda prompts, responses: NGramDrafter(3, 1),
    "suffix": lambda prompts, responses: suffixes(responses, prompts),
}


def learnt(model, failed=False):
    drafter = HeadDrafter(model, 2, torch.Generator().manual_seed(4))
    drafter.failed = failed
    return drafter


def speculating(model, drafter, count=3, controller=None, **settings):
    options = {"stops": {EOS}, "max_length": 32, "max_rows": 16} | settings
    return SpeculativeEngine(model, drafter, controller or Fixed(count), count, **options)


@pytest.mark.parametrize("kind", [*DRAFTERS, "head"])
@pytest.mark.parametrize(
    "options", [{}, {"max_rows": 5}, {"temperature": 0}, {"top_p": 0.8}, {"temperature": 0.6}], ids=str
)
def test_tokens_are_those_of_plain_decoding(kind, options, qwen3):
    """With inverse-CDF sampling and Gumbel noise side by side, up to stops and limits."""
    keys = INVERTED if options.keys() & {"top_p"} or options.get("temperature") == 0 else INVERTED[:6] + NOISY[6:]
    plain = sampled(make_engine(qwen3, **options), PROMPTS, keys)
    drafter = learnt(qwen3) if kind == "head" else DRAFTERS[kind](PROMPTS, tokens_of(plain))
    engine = speculating(qwen3, drafter, **options)
    for controller in (Fixed(3), Changing()):
        engine.controller = controller
        found = sampled(engine, PROMPTS, keys)
        assert tokens_of(found) == tokens_of(plain)
        assert [one.finish for one in found] == [one.finish for one in plain]
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
        done = engine.speculated
        assert done.proposed >= done.kept
        assert done.kept > (0 if kind in ("ngram", "head") else 15)
        assert sum(stretch.passes for stretch in engine.activity.trace) == done.passes + done.plain_passes
        assert sum(stretch.passes for stretch in engine.activity.trace if stretch.proposals) == done.passes


@pytest.mark.parametrize("kind", DRAFTERS)
def test_residual_first_tokens_and_tops_are_those_of_plain_decoding(kind, qwen3):
    forbidden = np.arange(2, 20, dtype=np.int32)
    request = {"top": 3, "first": Residual(forbidden, np.zeros(len(forbidden)))}
    keys = INVERTED[:6] + NOISY[6:]
    plain = sampled(make_engine(qwen3), PROMPTS, keys, **request)
    engine = speculating(qwen3, DRAFTERS[kind](PROMPTS, tokens_of(plain)))
    found = sampled(engine, PROMPTS, keys, **request)
    assert tokens_of(found) == tokens_of(plain)
    # N-grams of these few random tokens propose, and are right by chance at most.
    assert engine.speculated.kept > 0 or (kind == "ngram" and engine.speculated.proposed > 0)
    for one, other in zip(found, plain, strict=True):
        assert one.tokens[0] not in forbidden
        np.testing.assert_array_equal(one.top.tokens[:, 0], other.top.tokens[:, 0])
        np.testing.assert_allclose(one.top.log_probs, other.top.log_probs, atol=1e-4)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_prefixes_and_scored_drafts_go_before_proposals(kind, qwen3):
    jobs = make_jobs(20)
    plain = [found.tokens.tolist() for _, found in run(make_engine(qwen3), jobs)]
    whole = [[*job.prefix.tolist(), *tokens] for job, tokens in zip(jobs, plain, strict=True)]
    engine = speculating(qwen3, DRAFTERS[kind]([job.prompt for job in jobs], whole), max_rows=7)
    assert [found.tokens.tolist() for _, found in run(engine, jobs)] == plain
    assert engine.speculated.kept > 0 or (kind == "ngram" and engine.speculated.proposed > 0)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}], ids=str)
def test_responses_of_this_rollout_are_proposed_to_those_that_come_later(options, qwen3):
    """The same response again, in a batch of one row: its first tokens follow the prompt's, so all are proposed."""
    keys = [NOISY[0]] * 3 if not options else INVERTED[:3]
    engine = speculating(qwen3, suffixes(), max_rows=1, **options)
    (first, *others) = tokens_of(sampled(engine, [[5, 6, 7]] * 3, keys))
    assert all(other == first for other in others)
    done = engine.speculated
    assert done.blocks > 0
    assert done.kept >= 2 * (len(first) - 1 - -(-len(first) // 4)), "all but the token that ends each block"
    sampled(engine, [[5, 6, 7]], keys[:1])
    assert engine.speculated.kept < len(first) - 1, "a rollout is forgotten unless it was added to the history"


def test_no_more_is_proposed_than_a_response_has_room_for(qwen3):
    engine = speculating(qwen3, NGramDrafter(3, 1), 5, stops=(), temperature=0)
    (found,) = sampled(engine, [[3, 3, 3]], [uniforms(0, "room", count=4)], limit=4)
    assert len(found.tokens) == 4
    assert len(engine.speculated.proposed_at) <= 3
    assert sampled(engine, [[3, 3, 3]], [uniforms(0, "room", count=1)], limit=1)[0].tokens.shape == (1,)
    assert (engine.speculated.proposed, engine.speculated.plain_passes) == (0, 1)


def test_counts_leave_out_rows_without_proposals():
    done = Speculated()
    done.add(torch.tensor([0, 2, 0, 1]), torch.tensor([0, 15, 16, 40]), torch.tensor([0, 3, 1, 1]))
    assert (done.blocks, done.proposed, done.kept, done.block_efficiency) == (3, 5, 3, 2.0)
    assert (done.kept_at, done.proposed_at) == ([2, 1, 0], [3, 1, 1])
    assert (done.kept_from, done.proposed_from) == ([2, 0, 1], [3, 1, 1])


def test_a_history_keeps_the_last_passes_and_comes_back_from_its_file(tmp_path):
    history = ResponseHistory(2)
    for number in range(3):
        history.add([1, 2], [np.array([number, 5], np.int32), np.array([], np.int32)])
    history.add((3,), [np.array([9], np.int32)])
    history.save(tmp_path / "history.arrow")
    for one in (history, ResponseHistory.load(tmp_path / "history.arrow", 2)):
        assert [[r.tolist() for r in made] for made in one.passes([1, 2])] == [[[1, 5], []], [[2, 5], []]]
        assert [[r.tolist() for r in made] for made in one.passes([3])] == [[[9]]]
        assert (one.tokens, one.passes([4])) == (5, [])
    ResponseHistory(1).save(tmp_path / "empty.arrow")
    assert ResponseHistory.load(tmp_path / "empty.arrow", 1).tokens == 0
    with pytest.raises(ValueError, match="window"):
        ResponseHistory(0)
    with pytest.raises(UserError, match="missing"):
        ResponseHistory.load(tmp_path / "none.arrow", 1)
    (tmp_path / "history.arrow").write_bytes(b"no Arrow file")
    with pytest.raises(UserError, match="damaged"):
        ResponseHistory.load(tmp_path / "history.arrow", 1)


def test_groups_of_equal_prompts_are_one_pass_and_groups_without_a_response_none():
    one, two, three = (np.array([n], np.int32) for n in (1, 2, 3))
    history = ResponseHistory(1)
    history.add_rollout([([7], [one]), ([8], [three]), ((7,), [two])])
    history.add_rollout([([7], []), ([9], [])])
    assert history.passes([7]) == [[one, two]]
    assert (history.passes([8]), history.passes([9])) == ([[three]], [])


@pytest.mark.parametrize("keys", [INVERTED, NOISY], ids=["inversion", "noise"])
def test_the_comparison_sees_a_token_that_is_kept_wrongly(keys, qwen3, monkeypatch):
    plain = tokens_of(sampled(make_engine(qwen3), PROMPTS, keys))
    engine = speculating(qwen3, Told(PROMPTS, plain))
    monkeypatch.setattr(
        "redraft.engines.torch.speculation.agree",
        lambda sampled_BT, proposals_Bn, proposed_B: (proposed_B > 0).long(),
    )
    assert tokens_of(sampled(engine, PROMPTS, keys)) != plain
