"""Self-speculative decoding: exact in distribution by enumeration and on a model, and the engine's bookkeeping around
it."""

import asyncio
import itertools
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.config.decoding import BLOCK_STARTS
from redraft.engines.torch import sampling
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.sampling import uniform
from redraft.engines.torch.speculation import Fixed, Speculated, SpeculativeEngine, agree, keep
from redraft.errors import UserError
from redraft.rollout.engine import Gumbel, Inversion, Residual
from redraft.rollout.streams import hashed, uniforms
from redraft.rollout.types import Finish
from tests.test_torch_engine import (
    EOS,
    LIMIT,
    NOTHING,
    check_against_plain_forward,
    make_engine,
    make_jobs,
    make_model,
    plain_log_probs,
    run,
)

FINE = 12
"""Steps of a grid of uniform numbers: probabilities and ratios of quarters are whole numbers of steps."""


def quarters(*numbers):
    return torch.tensor([number / 4 for number in numbers]).log()


def test_tokens_have_the_policys_distribution_and_not_the_drafters_by_enumeration():
    """All proposals and uniforms of blocks of two, with distributions of three tokens that depend on the token
    before."""
    drafter_first, policy_first = quarters(2, 1, 1), quarters(1, 3, 0)
    drafter_second = [quarters(1, 1, 2), quarters(4, 0, 0), quarters(0, 2, 2)]
    policy_second = [quarters(2, 2, 0), quarters(1, 1, 2), quarters(3, 0, 1)]
    policy_third = quarters(0, 1, 3)
    grid = (torch.arange(FINE) + 0.5) / FINE
    chances = torch.cartesian_prod(grid, grid)
    first, second, third = Counter(), Counter(), Counter()
    for a, b in itertools.product(range(3), repeat=2):
        weight = float(drafter_first[a].exp() * drafter_second[a][b].exp())
        rows = len(chances) * FINE
        draws = grid.repeat(len(chances))[:, None].expand(-1, 3)
        kept, behind = keep(
            torch.stack([policy_first, policy_second[a], policy_third]).expand(rows, -1, -1),
            torch.stack([drafter_first, drafter_second[a]]).expand(rows, -1, -1),
            torch.tensor([[a, b]]).expand(rows, -1),
            chances.repeat_interleave(FINE, 0),
            draws,
        )
        for count, token in zip(kept.tolist(), behind.tolist(), strict=True):
            block = [*(a, b)[:count], token]
            first[block[0]] += weight / rows
            if count >= 1:
                second[tuple(block[:2])] += weight / rows
            if count == 2:
                third[token] += weight / rows
    assert [first[t] for t in range(3)] == pytest.approx(policy_first.exp().tolist(), abs=1e-9)
    for a in range(3):
        passed = sum(second[a, b] for b in range(3))
        assert passed == pytest.approx(float(torch.minimum(policy_first, drafter_first)[a].exp()), abs=1e-9)
        for b in range(3):
            assert second[a, b] == pytest.approx(passed * float(policy_second[a][b].exp()), abs=1e-9)
    assert third[1] / third[2] == pytest.approx(1 / 3)


def test_equal_distributions_keep_everything_and_disjoint_ones_nothing():
    same, other = quarters(2, 2, 0), quarters(0, 0, 4)
    policy, proposals = torch.stack([same, same])[None], torch.tensor([[1]])
    for chance in (1e-9, 1 - 1e-9):
        assert (
            keep(
                policy,
                same[None, None],
                proposals,
                torch.tensor([[chance]], dtype=torch.float64),
                torch.tensor([[0.1, 0.9]]),
            )[0]
            == 1
        )
        kept, behind = keep(
            policy,
            other[None, None],
            torch.tensor([[2]]),
            torch.tensor([[chance]], dtype=torch.float64),
            torch.tensor([[0.9, 0.1]]),
        )
        assert (int(kept), int(behind)) == (0, 1), "sampled from the policy's distribution by the first number"


def test_leading_agreement_is_counted():
    drawn, proposals = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]]), torch.tensor([[1, 2], [0, 2], [1, 0]])
    assert agree(drawn, proposals).tolist() == [2, 0, 1]


def test_uniform_numbers_are_float64_below_1_at_the_largest_hash(monkeypatch):
    monkeypatch.setattr(sampling, "hashed", lambda *_: torch.tensor([0, 2**52 - 1]))
    numbers = uniform(*[torch.zeros(1, dtype=torch.long)] * 3)
    assert numbers.dtype == torch.float64
    assert numbers.tolist() == [2.0**-53, 1 - 2.0**-53]


def test_uniform_numbers_of_a_position_are_of_one_use_alone():
    keys, positions = torch.arange(50)[:, None], torch.arange(40)[None]
    numbers = {use: uniform(keys, positions, torch.tensor([[use]])) for use in (-1, -2, -3)}
    for found in numbers.values():
        assert stats.kstest(found.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[-1].flatten(), numbers[-2].flatten())[0, 1]) < 0.08
    ours, a_token_s = (hashed(keys, positions, torch.tensor([[use]])) for use in (-1, 1))
    assert not torch.isin(ours, a_token_s).any()


@pytest.fixture(scope="module")
def qwen3():
    return make_model("qwen3", 4, 2)


def speculating(model, count=3, bits=3, controller=None, **settings):
    options = {"stops": {EOS}, "max_length": 32, "max_rows": 16} | settings
    return SpeculativeEngine(model, QuantisedDrafter(model, bits, 16), controller or Fixed(count), count, **options)


@pytest.mark.parametrize("shape", [("qwen3", 2, 2), ("llama", 2, 2), ("qwen3", 4, 2), ("llama", 4, 1)], ids=str)
@pytest.mark.parametrize("settings", [{}, {"max_rows": 3}, {"max_rows": 5, "max_batched_tokens": 12}], ids=str)
@pytest.mark.parametrize("count", [1, 4])
def test_log_probs_are_those_of_a_plain_forward(shape, settings, count):
    model, jobs = make_model(*shape), make_jobs()
    engine = speculating(model, count, **settings)
    check_against_plain_forward(model, jobs, run(engine, jobs))
    done = engine.speculated
    assert 0 < done.kept < done.proposed, "some are kept and some are not, or nothing was tested"


def test_responses_end_at_a_stop_or_the_limit_also_within_a_block(qwen3):
    jobs, finishes = make_jobs(40), set()
    for job, (_, continuation) in zip(jobs, run(speculating(qwen3, 5), jobs), strict=True):
        tokens, room = continuation.tokens.tolist(), LIMIT - job.keep
        assert len(tokens) == len(continuation.log_probs) <= room
        assert EOS not in tokens[:-1]
        assert continuation.finish is (Finish.EOS if tokens[-1] == EOS else Finish.LENGTH)
        assert len(tokens) == room or continuation.finish is Finish.EOS
        finishes.add(continuation.finish)
    assert finishes == set(Finish)


class Changing:
    """Proposes another number in every pass, none in some."""

    def __init__(self):
        self.passes, self.began, self.seen = 0, 0, []

    def begin(self):
        self.began += 1

    def draft_length(self, active, mean_length):
        self.passes += 1
        self.seen.append((active, mean_length))
        return (0, 3, 1, 0, 4)[self.passes % 5]


def sampled(engine, prompts, keys, limit=LIMIT, top=0, first=None):
    async def one(prompt, key):
        async with engine.session(prompt) as session:
            draws = Gumbel(key) if isinstance(key, int) else Inversion(key)
            return await session.decode(NOTHING, limit, draws, first, top)

    return engine.run(*map(one, prompts, keys))


def test_draws_by_gumbel_noise_are_those_of_plain_decoding_whatever_is_proposed(qwen3):
    prompts = [job.prompt for job in make_jobs(20)]
    keys = [9_000_000_000_000_000_000 + number for number in range(20)]
    plain = [found.tokens.tolist() for found in sampled(make_engine(qwen3), prompts, keys)]
    for controller, rows in ((Fixed(3), 16), (Fixed(1), 4), (Changing(), 7)):
        engine = speculating(qwen3, 4, controller=controller, max_rows=rows)
        assert [found.tokens.tolist() for found in sampled(engine, prompts, keys)] == plain
        assert engine.speculated.kept > 0


def test_without_proposals_draws_by_inversion_are_those_of_plain_decoding(qwen3):
    jobs, engine = make_jobs(), speculating(qwen3, controller=Fixed(0))
    plain = [found.tokens.tolist() for _, found in run(make_engine(qwen3), jobs)]
    assert [found.tokens.tolist() for _, found in run(engine, jobs)] == plain
    assert (engine.speculated.passes, engine.speculated.blocks) == (0, 0)
    assert engine.speculated.plain_passes > 0
    assert engine.speculated.block_efficiency is None


def small_model():
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        initializer_range=0.6,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


RESPONSES = [
    response
    for length in (1, 2, 3)
    for response in itertools.product(range(4), repeat=length)
    if EOS not in response[:-1] and (response[-1] == EOS or length == 3)
]
DRAWS = 6000


def goodness(model, engine, **request):
    """Responses of an engine against the model's distribution: p-value of the G-test."""
    numbers = [uniforms(0, "law", i, count=3) for i in range(DRAWS)]
    found = Counter(tuple(r.tokens.tolist()) for r in sampled(engine, [[2, 3]] * DRAWS, numbers, 3, **request))
    distribution = np.array(
        [np.exp(plain_log_probs(model, [2, 3], response).astype(float).sum()) for response in RESPONSES]
    )
    assert distribution.sum() == pytest.approx(1, abs=1e-4)
    assert set(found) <= set(RESPONSES)
    enough = distribution * DRAWS > 5
    counts = np.array([found[response] for response in RESPONSES])
    observed = np.append(counts[enough], counts[~enough].sum() + 1e-9)
    expected = np.append(distribution[enough], distribution[~enough].sum() + 1e-12) * DRAWS
    return stats.power_divergence(observed, expected * observed.sum() / expected.sum(), lambda_="log-likelihood").pvalue


@pytest.mark.parametrize("controller", [Fixed(2), Fixed(1), Changing()], ids=lambda c: type(c).__name__)
def test_responses_have_the_models_distribution(controller):
    model = small_model()
    engine = speculating(model, 4, bits=2, controller=controller, max_rows=64)
    assert goodness(model, engine) > 1e-3
    assert engine.speculated.kept < 0.9 * engine.speculated.proposed, "a drafter that is always right tests nothing"


def test_the_test_sees_tokens_that_are_kept_too_often(monkeypatch):
    def lenient(policy, drafter, proposals, chances, draws):
        return keep(policy, drafter, proposals, chances * 0.5, draws)

    monkeypatch.setattr("redraft.engines.torch.speculation.keep", lenient)
    model = small_model()
    assert goodness(model, speculating(model, 2, bits=2, max_rows=64)) < 1e-6


def test_a_residual_first_token_and_the_top_of_each_distribution_are_served(qwen3):
    forbidden = np.arange(2, 20, dtype=np.int32)
    first = Residual(forbidden, np.zeros(len(forbidden)))
    prompts = [job.prompt for job in make_jobs(12)]
    keys = [*(uniforms(0, "first", i, count=LIMIT) for i in range(6)), *range(6)]
    for prompt, found in zip(prompts, sampled(speculating(qwen3, 3), prompts, keys, top=3, first=first), strict=True):
        assert found.tokens[0] not in forbidden
        np.testing.assert_allclose(found.log_probs, plain_log_probs(qwen3, prompt, found.tokens), atol=1e-4)
        assert found.top.tokens.shape == (len(found.tokens), 3)
        for i, log_probs in enumerate(found.top.log_probs):
            one = plain_log_probs(qwen3, prompt, [*found.tokens[:i], int(found.top.tokens[i][0])])[-1]
            assert log_probs[0] == pytest.approx(one, abs=1e-4)
            assert sorted(log_probs, reverse=True) == log_probs.tolist()


def test_a_session_goes_on_after_speculated_tokens(qwen3):
    engine = speculating(qwen3, 3, stops=())

    async def twice():
        async with engine.session([4, 5, 6]) as session:
            one = await session.decode(NOTHING, 7, Inversion(uniforms(0, "one", count=7)))
            other = await session.decode(one.tokens[:5], 6, Inversion(uniforms(0, "two", count=6)))
            return one, other

    ((one, other),) = engine.run(twice())
    assert other.cached == 3 + 5 - 1
    whole = [*one.tokens[:5], *other.tokens]
    np.testing.assert_allclose(other.log_probs, plain_log_probs(qwen3, [4, 5, 6], whole)[5:], atol=1e-4)


def test_the_controller_hears_of_each_rollout_and_sees_batch_and_lengths(qwen3):
    controller = Changing()
    engine = speculating(qwen3, 4, controller=controller, stops=())
    for _ in range(2):
        sampled(engine, [[3, 4], [5, 6, 7, 8]], [1, 2], limit=4)
    assert controller.began == 2
    assert controller.seen[0] == (2, 3.0), "two responses, of 2 and 4 tokens with their prompts"
    assert all(active <= 2 for active, _ in controller.seen)


def test_proposals_end_at_the_limit_of_the_response(qwen3):
    engine = speculating(qwen3, 2, controller=Fixed(50))
    check_against_plain_forward(qwen3, jobs := make_jobs(), run(engine, jobs))
    assert len(engine.speculated.proposed_at) == 2


def test_a_block_whose_proposals_are_all_kept_has_one_token_more(qwen3, monkeypatch):
    engine = speculating(qwen3, 3, stops=())
    monkeypatch.setattr(engine.drafter, "drafting", nullcontext)  # the policy proposes, so nothing is rejected
    (found,) = sampled(engine, [[3, 4]], [7], limit=8)
    assert (len(found.tokens), engine.speculated.passes, engine.speculated.kept) == (8, 2, 6)


def test_counts_of_a_pass():
    done = Speculated()
    done.add(torch.tensor([0, 2, 3, 3]), torch.tensor([0, 15, 16, 40]), torch.full((4,), 3))
    assert (done.blocks, done.proposed, done.kept) == (4, 12, 8)
    assert (done.kept_at, done.proposed_at) == ([3, 3, 2], [4, 4, 4])
    assert done.block_efficiency == float(1 + Fraction(8, 4))
    assert (done.kept_from, done.proposed_from) == ([2, 3, 3], [6, 3, 3]), "from 0, 16 and 32 on"
    done.add(torch.tensor([1]), torch.tensor([31]), torch.tensor([1]))
    assert (done.kept_at, done.proposed_at, done.passes) == ([4, 3, 2], [5, 4, 4], 2)
    assert (done.kept_from, done.proposed_from) == ([2, 4, 3], [6, 4, 3])


def test_the_last_part_of_a_response_has_no_end():
    done = Speculated()
    begin = torch.tensor([BLOCK_STARTS[-1] - 1, BLOCK_STARTS[-1], 10 * BLOCK_STARTS[-1]])
    done.add(torch.tensor([2, 1, 0]), begin, torch.full((3,), 2))
    assert done.proposed_from == [0] * (len(BLOCK_STARTS) - 2) + [2, 4]
    assert done.kept_from == [0] * (len(BLOCK_STARTS) - 2) + [2, 1]


def test_blocks_are_counted_where_they_begin_in_the_response(qwen3, monkeypatch):
    """A prompt of three tokens and a prefix of 14: blocks of four tokens begin at 14, 18, 22, … up to 34."""
    engine = speculating(qwen3, 3, stops=(), max_length=48)
    monkeypatch.setattr(engine.drafter, "drafting", nullcontext)  # the policy proposes, so nothing is rejected

    async def behind_a_prefix():
        async with engine.session([3, 4, 5]) as session:
            prefix = np.arange(14, dtype=np.int32) % 7 + 2
            return await session.decode(prefix, 24, Inversion(uniforms(0, "prefix", count=24)))

    engine.run(behind_a_prefix())
    assert engine.speculated.proposed_from == [3, 12, 3], "one before 16, four before 32, one after"
    assert engine.speculated.kept_from == [3, 12, 3]


def test_the_policy_computes_with_its_own_weights_before_and_after(qwen3):
    before = {name: tensor.clone() for name, tensor in qwen3.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in qwen3.state_dict().items()}
    run(speculating(qwen3), make_jobs())
    assert {name: tensor.data_ptr() for name, tensor in qwen3.state_dict().items()} == places
    assert all(torch.equal(tensor, before[name]) for name, tensor in qwen3.state_dict().items())
    drafter = QuantisedDrafter(qwen3)
    with pytest.raises(RuntimeError), drafter.drafting():
        raise RuntimeError
    assert {name: tensor.data_ptr() for name, tensor in qwen3.state_dict().items()} == places


def test_quantisation_is_timed_by_the_clock_of_all_stages(qwen3, monkeypatch):
    drafter, times = QuantisedDrafter(qwen3), iter([10.0, 12.5])
    monkeypatch.setattr("redraft.engines.torch.drafter.now", lambda device: next(times))
    drafter.refresh()
    assert drafter.seconds == 2.5


def test_a_refreshed_drafter_follows_the_weights():
    model = make_model("qwen3", 4, 2)
    engine = speculating(model, bits=8)
    prompts, keys = [job.prompt for job in make_jobs(12)], list(range(12))
    sampled(engine, prompts, keys)
    fresh = engine.speculated.kept / engine.speculated.proposed
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    shares = []
    for refresh in (False, True):
        if refresh:
            engine.drafter.refresh()
        sampled(engine, prompts, keys)
        shares.append(engine.speculated.kept / engine.speculated.proposed)
    assert shares[0] < shares[1] - 0.2
    assert min(fresh, shares[1]) > 0.8


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_p": 0.9}], ids=str)
def test_truncated_distributions_are_rejected(qwen3, options):
    with pytest.raises(ValueError, match="full distribution"):
        speculating(qwen3, **options)


def test_a_model_without_projections_is_refused():
    with pytest.raises(UserError, match="no projections to quantise"):
        QuantisedDrafter(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_sessions_given_up_within_a_block_leave_the_engine_to_others(qwen3):
    engine = speculating(qwen3, 3, max_rows=2, stops=())

    async def impatient():
        async with engine.session([3, 4]) as session:
            asking = asyncio.ensure_future(session.decode(NOTHING, 12, Inversion(uniforms(0, "i", count=12))))
            for _ in range(4):
                await asyncio.sleep(0)
            asking.cancel()

    async def patient():
        async with engine.session([5, 6]) as session:
            return await session.decode(NOTHING, 12, Inversion(uniforms(0, "p", count=12)))

    found = engine.run(impatient(), patient(), impatient())[1]
    np.testing.assert_allclose(found.log_probs, plain_log_probs(qwen3, [5, 6], found.tokens), atol=1e-4)
