"""Every strategy on every engine, and vLLM's engine against the one in this process, over the same weights."""

import importlib.util
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.config.capability import Capability
from redraft.config.trainer import InProcessEngine, VerlEngine
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.vllm.engine import VLLMEngine
from redraft.errors import UserError
from redraft.methods.random import RandomReuse
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.rollout.engine import Gumbel, Inversion, Residual
from redraft.rollout.streams import gumbel, stream, uniforms
from redraft.rollout.types import Finish
from tests.groups import (
    EOS,
    GROUP,
    LIMIT,
    METHODS,
    PROMPTS,
    REUSING,
    SPECULATIVE,
    VOCABULARY,
    Recording,
    ScriptedWorld,
    Setting,
    is_able,
    memory_of,
    name_of,
    new_memory,
    roll_out,
    two_epochs,
)

STOPS = frozenset({EOS})
NOTHING = np.zeros(0, dtype=np.int32)
LONGEST = 160
SURE, HOPELESS = -99.0, 50.0
"""Log-probabilities of a draft's tokens under which any policy would accept or reject them."""


@pytest.fixture(scope="module")
def policies():
    """Models of two epochs: random weights, and the same after a change of about a third."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=48,
        max_position_embeddings=256,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    first = Qwen3ForCausalLM(config).eval()
    second = deepcopy(first)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return first, second


class TorchWorld:
    """Engines in this process with the policies of two epochs."""

    def __init__(self, policies):
        self.policies = policies

    def engine(self, epoch, stops=STOPS):
        self.latest = TorchEngine(self.policies[epoch], stops=stops, max_length=LONGEST, max_rows=64)
        return Recording(self.latest)

    def run(self, *coroutines):
        return self.latest.run(*coroutines)

    def log_probs(self, epoch, prompt, response):
        tokens = torch.tensor([[*prompt, *map(int, response)]])
        with torch.no_grad():
            distribution = self.policies[epoch](input_ids=tokens).logits[0].log_softmax(-1)
        return distribution[:-1].gather(1, tokens[0, 1:, None])[len(prompt) - 1 :, 0].numpy()


class VLLMWorld(TorchWorld):
    """One vLLM in this process, which takes over the policy of an epoch."""

    def __init__(self, policies, folder):
        from redraft.engines.vllm.local import LocalVLLM

        super().__init__(policies)
        policies[0].save_pretrained(folder)
        self.latest = LocalVLLM(folder, LONGEST + 1)
        self.loaded = 0

    def engine(self, epoch, stops=STOPS):
        if epoch != self.loaded:
            self.latest.load(self.policies[epoch].state_dict().items())
            self.loaded = epoch
        return Recording(VLLMEngine(self.latest, stops, LONGEST + 1))


@pytest.fixture(scope="module")
def server(policies, tmp_path_factory):
    if not importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    with pytest.MonkeyPatch.context() as patch:
        use_all_seeds(patch)
        world = VLLMWorld(policies, tmp_path_factory.mktemp("policy"))
        yield world
        world.latest.close()


def use_all_seeds(patch):
    """Sample by vLLM's method for GPUs in 0.24, whose method for processors ignores all seeds of a batch in which a
    request has none, as requests for scores have."""
    import vllm
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    if vllm.__version__.startswith("0.24."):
        patch.setattr(TopKTopPSampler, "forward_cpu", TopKTopPSampler.forward_native)


WITH_SERVER = pytest.param("vllm", marks=pytest.mark.servers)


@pytest.fixture(scope="module", params=[WITH_SERVER])
def vllm(server):
    """The server, under a parameter through which every test that takes it is marked."""
    return server


@pytest.fixture(scope="module", params=["scripted", "torch", WITH_SERVER])
def world(request, policies):
    if request.param == "vllm":
        return request.getfixturevalue("server")
    return ScriptedWorld() if request.param == "scripted" else TorchWorld(policies)


@pytest.fixture(scope="module")
def epochs(world):
    """Two epochs of a method, rolled out once."""
    found = {}

    def of(method):
        if not is_able(world.engine(0), method):
            pytest.skip(f"the engine cannot do all that {method.kind} needs")
        if name_of(method) not in found:
            found[name_of(method)] = two_epochs(method, world)
        return found[name_of(method)]

    return of


conform = pytest.mark.parametrize("method", METHODS, ids=name_of)


@conform
def test_a_group_has_one_rollout_a_sample_in_order(method, epochs):
    for _, rollouts in epochs(method):
        assert [(r.prompt, r.sample) for r in rollouts] == [(p, s) for p in PROMPTS for s in range(GROUP)]


@conform
def test_rollouts_end_once_and_within_the_limit(method, epochs):
    finishes = set()
    for _, rollouts in epochs(method):
        for rollout in rollouts:
            assert 1 <= rollout.length <= LIMIT
            assert EOS not in rollout.tokens[:-1]
            assert rollout.finish is (Finish.EOS if rollout.tokens[-1] == EOS else Finish.LENGTH)
            assert rollout.finish is Finish.EOS or rollout.length == LIMIT
            finishes.add(rollout.finish)
    assert finishes == set(Finish)


@conform
def test_history_has_one_entry_a_token_and_types_do_not_change(method, epochs):
    for _, rollouts in epochs(method):
        for rollout in rollouts:
            assert len(rollout.tokens) == len(rollout.log_probs) == len(rollout.sampled_at) == rollout.length
            types = (rollout.tokens.dtype, rollout.log_probs.dtype, rollout.sampled_at.dtype)
            assert types == (np.int32, np.float32, np.int32)


@conform
def test_decoded_and_reused_tokens_are_all_tokens_and_what_the_engine_did(method, epochs):
    for engine, rollouts in epochs(method):
        assert all(r.decoded + r.prefix_length == r.length for r in rollouts)
        assert len(engine.decoded) == sum(r.decoded > 0 for r in rollouts)
        assert sum(map(len, engine.scored)) == sum(r.verified for r in rollouts)
        assert {r.verified for r in rollouts} <= {0} | {r.draft_length for r in rollouts}


@conform
def test_new_tokens_carry_this_step_and_the_current_policys_log_probs(method, epochs, world):
    for epoch, (_, rollouts) in enumerate(epochs(method)):
        for rollout in rollouts:
            new = slice(rollout.prefix_length, None)
            assert (rollout.sampled_at[new] == 10 * epoch + rollout.prompt).all()
            expected = world.log_probs(epoch, PROMPTS[rollout.prompt], rollout.tokens)
            np.testing.assert_allclose(rollout.log_probs[new], expected[new], atol=1e-4)


@conform
def test_reused_tokens_keep_their_log_probs_and_the_step_they_were_sampled_at(method, epochs, world):
    (_, before), (_, after) = epochs(method)
    refreshed = method.exact or method.importance or getattr(method, "refreshed_log_probs", False)
    for old, new in zip(before, after, strict=True):
        for name in ("tokens", "sampled_at") if refreshed else ("tokens", "log_probs", "sampled_at"):
            kept = getattr(new, name)[: new.prefix_length]
            assert kept.tolist() == getattr(old, name)[: new.prefix_length].tolist()
        assert new.draft_length == (old.length if method.retention.visits else 0)
        if refreshed:
            np.testing.assert_allclose(new.log_probs, world.log_probs(1, PROMPTS[new.prompt], new.tokens), atol=1e-4)


@conform
def test_the_first_epoch_is_vanillas(method, epochs):
    """Without a draft there is nothing to verify, and the same streams give the same rollouts."""
    engine, rollouts = epochs(method)[0]
    _, vanilla = epochs(Vanilla())[0]
    if Capability.GUMBEL not in method.needs:
        assert [r.tokens.tolist() for r in rollouts] == [r.tokens.tolist() for r in vanilla]
    assert not engine.scored
    assert {(r.draft_length, r.verified, r.prefix_length, r.fully_reused) for r in rollouts} == {(0, 0, 0, False)}


@conform
def test_a_step_done_again_gives_the_same_rollouts(method, epochs, world):
    once, again = epochs(method)[1][1], two_epochs(method, world)[1][1]
    assert [r.tokens.tolist() for r in once] == [r.tokens.tolist() for r in again]


def test_lenience_orders_how_much_is_reused(epochs):
    reused = [sum(r.prefix_length for r in epochs(method)[1][1]) for method in SPECULATIVE]
    assert reused == sorted(set(reused)), "strictly more with each larger lenience"
    assert reused[0] == 0
    assert all(r.fully_reused for r in epochs(SPECULATIVE[-1])[1][1])


def test_the_epochs_have_drafts_that_are_rejected_kept_in_part_and_kept_whole(epochs):
    """Else the tests above would say little."""
    rollouts = [rollout for method in SPECULATIVE for rollout in epochs(method)[1][1]]
    assert any(r.prefix_length == 0 for r in rollouts)
    assert any(0 < r.prefix_length < r.draft_length for r in rollouts)
    assert {r.finish for r in rollouts if r.fully_reused} == set(Finish)


@pytest.mark.parametrize("method", REUSING, ids=name_of)
@pytest.mark.parametrize("tokens", [[1, 2, EOS], [1] * LIMIT, [EOS], [2] * (LIMIT - 1) + [EOS]], ids=len)
def test_a_fully_accepted_response_that_was_complete_generates_nothing(method, tokens, world):
    engine, drafts = world.engine(0), memory_of(tokens, log_probs=[SURE] * len(tokens), sampled_at=3)
    group = roll_out(method, 0, engine, Setting(20, 1, drafts), world)
    assert not engine.decoded
    assert len(engine.scored) == GROUP
    for rollout in group:
        assert rollout.tokens.tolist() == tokens
        assert rollout.finish is (Finish.EOS if tokens[-1] == EOS else Finish.LENGTH)
        assert (rollout.decoded, rollout.fully_reused, rollout.verified) == (0, True, len(tokens))
        assert set(rollout.sampled_at.tolist()) == {3}


@pytest.mark.parametrize("method", REUSING, ids=name_of)
def test_an_accepted_draft_that_was_cut_by_a_shorter_limit_goes_on(method, world):
    engine, tokens = world.engine(0), [1, 2, 3, 4]
    group = roll_out(method, 0, engine, Setting(20, 1, memory_of(tokens, log_probs=[SURE] * 4)), world)
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [(tokens, LIMIT - 4)] * GROUP
    assert all(r.tokens[:4].tolist() == tokens and r.prefix_length == 4 and r.decoded >= 1 for r in group)


@pytest.mark.parametrize("method", REUSING[:-1], ids=name_of)
def test_a_rejected_end_of_sequence_is_continued_before_it(method, world):
    engine, drafts = world.engine(0), memory_of([1, 2, EOS], log_probs=[SURE, SURE, HOPELESS])
    group = roll_out(method, 0, engine, Setting(20, 1, drafts), world)
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [([1, 2], LIMIT - 2)] * GROUP
    assert {(r.prefix_length, r.draft_length, r.verified, r.fully_reused) for r in group} == {(2, 3, 3, False)}
    assert all(r.tokens[:2].tolist() == [1, 2] and r.decoded >= 1 for r in group)


@pytest.mark.parametrize("method", SPECULATIVE[:-1], ids=name_of)
def test_a_draft_rejected_at_once_is_started_over(method, world):
    engine = world.engine(0)
    group = roll_out(method, 0, engine, Setting(20, 1, memory_of([EOS], log_probs=[HOPELESS])), world)
    assert [(prefix, room) for prefix, room, _ in engine.decoded] == [([], LIMIT)] * GROUP
    assert {(r.prefix_length, r.verified, r.decoded == r.length) for r in group} == {(0, 1, True)}
    assert all((r.sampled_at == 20).all() for r in group)


def test_every_stop_token_ends_a_response_and_an_accepted_one_is_not_continued(world):
    stops = frozenset({EOS, 3})
    engine = world.engine(0, stops)
    group = [r for step in range(4) for p in PROMPTS for r in roll_out(Vanilla(), p, engine, Setting(step), world)]
    assert {int(r.tokens[-1]) for r in group if r.finish is Finish.EOS} == stops
    assert all(not stops & set(r.tokens[:-1].tolist()) for r in group)
    assert all(r.tokens[-1] not in stops for r in group if r.finish is Finish.LENGTH)
    engine = world.engine(0, stops)
    roll_out(SPECULATIVE[-1], 0, engine, Setting(20, 1, memory_of([1, 3])), world)
    assert not engine.decoded


def test_a_rollout_is_the_same_alone_or_in_a_batch_and_another_at_another_step(world):
    engine = world.engine(0)
    setting = Setting(5, limit=40)
    batch = world.run(*(Vanilla().strategy()(setting.task(p), setting.context(engine)) for p in PROMPTS))
    alone, later = (roll_out(Vanilla(), 1, engine, Setting(step, limit=40), world) for step in (5, 6))
    assert [r.tokens.tolist() for r in alone] == [r.tokens.tolist() for r in batch[1].rollouts]
    assert len({r.tokens.tobytes() for r in alone + later}) > GROUP


def test_a_token_follows_the_policys_distribution(world):
    """Goodness of fit; 25.7 is the quantile of chi-square with 5 degrees of freedom beyond which lies 1e-4."""
    engine, draws = world.engine(1), 2000

    async def one(i):
        async with engine.session([5, 3]) as session:
            return (await session.decode(NOTHING, 1, Inversion(uniforms(0, "law", i, count=1)))).tokens[0]

    counts = np.bincount(world.run(*map(one, range(draws))), minlength=VOCABULARY)
    expected = draws * np.exp([world.log_probs(1, [5, 3], [token])[0] for token in range(VOCABULARY)])
    assert expected.min() > 10
    assert ((counts - expected) ** 2 / expected).sum() < 25.7


ALL = np.arange(VOCABULARY)
PROMPT, GRID = [5, 3], 2000


@pytest.fixture(scope="module", params=["scripted", "torch"])
def exact(request, policies):
    """Engines that can do everything."""
    return ScriptedWorld() if request.param == "scripted" else TorchWorld(policies)


def distribution_of(world, prompt, prefix=()):
    """The policy's distribution, float64 (vocabulary,), behind a prefix."""
    return np.exp([float(world.log_probs(1, [*prompt, *prefix], [token])[0]) for token in ALL])


async def asked(engine, *, score=None, at=None, prefix=NOTHING, draws=None, **wishes):
    """Answer to one request in a session of its own: a draft's scores, or one token."""
    async with engine.session(PROMPT) as session:
        if score is not None:
            return await session.score(score, at)
        return await session.decode(prefix, 1, draws or Inversion(np.array([0.5])), **wishes)


def fractions(world, engine, draws, **wishes):
    """Share of each token among first tokens drawn by these."""
    tokens = [c.tokens[0] for c in world.run(*(asked(engine, draws=d, **wishes) for d in draws))]
    return np.bincount(tokens, minlength=VOCABULARY) / len(draws)


def on_a_grid():
    """Draws that enumerate a distribution: each token's share is its probability, but for one of the grid's cells."""
    return [Inversion(np.array([(i + 0.5) / GRID])) for i in range(GRID)]


def by_noise():
    return [Gumbel(key) for key in stream(0, "keys").integers(0, 2**63, GRID)]


def misfit(found, distribution):
    """Chi-square of shares; 29.9 is the quantile with 7 degrees of freedom beyond which lies 1e-4."""
    possible = distribution > 0
    assert not found[~possible].any()
    return GRID * ((found - distribution)[possible] ** 2 / distribution[possible]).sum()


REQUESTS = {
    Capability.OTHER_SCORES: {"score": np.array([1, 2], dtype=np.int32), "at": np.array([[3], [4]])},
    Capability.RESIDUAL: {"first": Residual(np.array([1]), np.array([0.01]))},
    Capability.GUMBEL: {"draws": Gumbel(7)},
    Capability.TOP_LOG_PROBS: {"top": 2},
}


@pytest.mark.parametrize("capability", REQUESTS, ids=lambda capability: capability.name)
def test_an_engine_serves_what_it_declares_and_refuses_the_rest_by_name(capability, world):
    engine = world.engine(1)
    if capability in engine.capabilities:
        (found,) = world.run(asked(engine, **REQUESTS[capability]))
        if capability is Capability.OTHER_SCORES:
            assert found.others.shape == (2, 1)
        if capability is Capability.TOP_LOG_PROBS:
            assert found.top.tokens.shape == (len(found.tokens), 2)
        return
    with pytest.raises(UserError, match="cannot do exactly") as error:
        world.run(asked(engine, **REQUESTS[capability]))
    assert error.value.value == str(capability)
    assert world.run(asked(engine)), "the engine goes on"


def test_what_presets_are_checked_against_is_what_engines_and_trainers_declare():
    of_trainers = {Capability.TRAINER_SCORES, Capability.STORED_LOG_PROBS, Capability.SELF_SPECULATION}
    of_trainers |= {Capability.DRAFTERS}
    assert InProcessEngine.capabilities == TorchEngine.capabilities | of_trainers
    assert VerlEngine.capabilities - of_trainers == VLLMEngine.capabilities
    assert set(REQUESTS) == set(Capability) - of_trainers


def test_other_tokens_are_scored_in_the_drafts_places(exact):
    drafts = [np.array([1, 2, 3, 2, EOS], dtype=np.int32), np.array([4], dtype=np.int32)]
    wanted = [np.tile(ALL, (5, 1)), np.array([[3, 3, 0]], dtype=np.int32)]
    engine = exact.engine(1)
    requests = [asked(engine, score=d, at=at) for d, at in zip(drafts, wanted, strict=True)]
    *scored, plain = exact.run(*requests, asked(engine, score=drafts[0]))
    for draft, at, scores in zip(drafts, wanted, scored, strict=True):
        assert (scores.others.shape, scores.others.dtype) == (at.shape, np.float32)
        np.testing.assert_allclose(scores.log_probs, exact.log_probs(1, PROMPT, draft), atol=1e-4)
        for place, tokens in enumerate(at):
            distribution = distribution_of(exact, PROMPT, draft[:place])
            np.testing.assert_allclose(np.exp(scores.others[place]), distribution[tokens], atol=1e-4)
    own = np.take_along_axis(scored[0].others, drafts[0][:, None].astype(int), 1)[:, 0]
    np.testing.assert_array_equal(own, scored[0].log_probs)
    assert plain.others is None
    np.testing.assert_allclose(plain.log_probs, scored[0].log_probs, atol=1e-5)


@pytest.mark.parametrize("prefix", [[], [1, 2]], ids=["at once", "behind a prefix"])
def test_a_residual_is_the_distribution_of_the_first_token_only(prefix, exact):
    engine, distribution = exact.engine(1), distribution_of(exact, PROMPT, prefix)
    left = np.array([0.5, 0.0, 1.0, 1e-9, 0.8, 1.0])
    rest = distribution * left
    first = Residual(np.array([0, 1, 3, 4], dtype=np.int32), left[[0, 1, 3, 4]])
    wishes = {"prefix": np.array(prefix, dtype=np.int32), "first": first}
    found = fractions(exact, engine, on_a_grid(), **wishes)
    np.testing.assert_allclose(found, rest / rest.sum(), atol=1.5 / GRID)
    assert misfit(fractions(exact, engine, by_noise(), **wishes), rest / rest.sum()) < 29.9

    async def long(u, first):
        async with engine.session(PROMPT) as session:
            return await session.decode(wishes["prefix"], 4, Inversion(np.array([0.5, *u])), first)

    (continuation,) = exact.run(long([0.3, 0.6, 0.9], first))
    expected = exact.log_probs(1, [*PROMPT, *prefix], continuation.tokens)
    np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4, err_msg="log-probs are the policy's")
    behind = [*prefix, continuation.tokens[0]]
    if EOS not in continuation.tokens:
        (again,) = exact.run(asked(engine, prefix=np.array(behind, dtype=np.int32), draws=Inversion(np.array([0.3]))))
        assert again.tokens[0] == continuation.tokens[1]


def test_a_residual_without_mass_is_the_policys_distribution(exact):
    engine, distribution = exact.engine(1), distribution_of(exact, PROMPT)
    first = Residual(ALL.astype(np.int32), np.zeros(VOCABULARY))
    np.testing.assert_allclose(fractions(exact, engine, on_a_grid(), first=first), distribution, atol=1.5 / GRID)


def by_seeds():
    """Draws of vLLM, which makes a seed of each first uniform."""
    return [Inversion(np.array([u])) for u in uniforms(0, "seeds", count=GRID)]


@pytest.mark.parametrize("prefix", [[], [1, 2]], ids=["at once", "behind a prefix"])
def test_vllm_draws_the_first_token_alone_from_a_residual(prefix, vllm):
    engine, distribution = vllm.engine(1), distribution_of(vllm, PROMPT, prefix)
    left = np.array([0.5, 0.0, 1.0, 1e-9, 0.8, 1.0])
    first, behind = Residual(ALL.astype(np.int32), left), np.array(prefix, dtype=np.int32)
    found = fractions(vllm, engine, by_seeds(), prefix=behind, first=first)
    assert misfit(found, distribution * left / (distribution * left).sum()) < 29.9

    async def long(i):
        async with engine.session(PROMPT) as session:
            draws = uniforms(0, "long", i, count=6)
            whole = await session.decode(behind, 6, Inversion(draws), first)
            start = np.concatenate([behind, whole.tokens[:1]])
            again = None if EOS in whole.tokens[:1] else await session.decode(start, 5, Inversion(draws[1:]))
            return whole, again

    for whole, again in vllm.run(*map(long, range(20))):
        expected = vllm.log_probs(1, [*PROMPT, *prefix], whole.tokens)
        np.testing.assert_allclose(whole.log_probs, expected, atol=1e-4, err_msg="log-probs are the policy's")
        assert (EOS in whole.tokens) is (whole.finish is Finish.EOS)
        assert whole.tokens[1:].tolist() == ([] if again is None else again.tokens.tolist())


def test_vllm_draws_the_policys_distribution_where_a_residual_has_no_mass(vllm):
    nothing = Residual(ALL.astype(np.int32), np.zeros(VOCABULARY))
    assert misfit(fractions(vllm, vllm.engine(1), by_seeds(), first=nothing), distribution_of(vllm, PROMPT)) < 29.9


@pytest.mark.parametrize("top", [1, 3, VOCABULARY])
def test_vllm_says_the_top_of_the_distribution_with_scores_and_with_sampled_tokens(top, vllm):
    engine = vllm.engine(1)

    async def one(i):
        async with engine.session(PROMPT) as session:
            draft = np.append(long_draft(i, 5), EOS).astype(np.int32)
            scores, first = await session.score(draft, top=top), Residual(np.array([2]), np.array([0.1])) if i else None
            draws = Inversion(uniforms(0, "top", i, count=6))
            return draft, scores, await session.decode(draft[:2], 6, draws, first, top)

    for draft, scores, made in vllm.run(*map(one, range(4))):
        for tokens, distribution, known in ((draft, scores.top, 0), (np.append(draft[:2], made.tokens), made.top, 2)):
            assert distribution.tokens.shape == distribution.log_probs.shape == (len(tokens) - known, top)
            assert (distribution.tokens.dtype, distribution.log_probs.dtype) == (np.int32, np.float32)
            for place in range(known, len(tokens)):
                expected = distribution_of(vllm, PROMPT, tokens[:place])
                assert set(distribution.tokens[place - known]) == set(np.argsort(-expected)[:top])
                given = np.exp(distribution.log_probs[place - known])
                np.testing.assert_allclose(given, expected[distribution.tokens[place - known]], atol=1e-4)
        for place, (token, log_prob) in enumerate(zip(draft, scores.log_probs, strict=True)):
            among = token in scores.top.tokens[place]
            exact = np.log(distribution_of(vllm, PROMPT, draft[:place])[token])
            assert log_prob == (pytest.approx(exact, abs=1e-4) if among else -np.inf)


def test_gumbel_noise_draws_the_policys_distribution(exact):
    assert misfit(fractions(exact, exact.engine(1), by_noise()), distribution_of(exact, PROMPT)) < 29.9


def test_gumbel_noise_can_be_made_again_from_scores(exact):
    """Verification finds the token that sampling drew, at each position, from log-probs of all tokens."""
    engine = exact.engine(1, frozenset())

    async def one(key):
        async with engine.session(PROMPT) as session:
            sampled = await session.decode(NOTHING, 12, Gumbel(key))
            scores = await session.score(sampled.tokens, np.tile(ALL, (12, 1)))
        redrawn = (scores.others + gumbel(key, np.arange(12)[:, None], ALL)).argmax(1)
        return sampled.tokens.tolist(), redrawn.tolist()

    results = exact.run(*map(one, range(40)))
    assert all(sampled == redrawn for sampled, redrawn in results)
    assert len({tuple(sampled) for sampled, _ in results}) == 40, "keys draw different responses"


def test_gumbel_noise_depends_on_the_position_in_the_response_not_on_what_is_decoded_anew(exact):
    engine = exact.engine(1, frozenset())

    async def one(key):
        async with engine.session(PROMPT) as session:
            whole = (await session.decode(NOTHING, 10, Gumbel(key))).tokens
            parts = [await session.decode(whole[:cut], 10 - cut, Gumbel(key)) for cut in (3, 9, 0)]
        return whole.tolist(), [part.tokens.tolist() for part in parts]

    for whole, parts in exact.run(*map(one, range(5))):
        assert parts == [whole[3:], whole[9:], whole]


@pytest.mark.parametrize("top", [1, 3, VOCABULARY, VOCABULARY + 5])
def test_the_top_of_the_policys_distribution_comes_with_each_token(top, exact):
    engine, width = exact.engine(1), min(top, VOCABULARY)

    async def one(i, wanted):
        async with engine.session(PROMPT) as session:
            draws = Inversion(uniforms(0, "top", i, count=6)) if i % 2 else Gumbel(i)
            first = Residual(np.array([2]), np.array([0.1])) if i % 3 else None
            return await session.decode(np.array([1], dtype=np.int32), 6, draws, first, wanted)

    continuations = exact.run(*(one(i, top if i < 6 else 0) for i in range(8)))
    assert all(c.top is None for c in continuations[6:])
    for continuation in continuations[:6]:
        found, length = continuation.top, len(continuation.tokens)
        assert found.tokens.shape == found.log_probs.shape == (length, width)
        assert (found.tokens.dtype, found.log_probs.dtype) == (np.int32, np.float32)
        assert (np.diff(found.log_probs, axis=1) <= 0).all()
        for place in range(length):
            distribution = distribution_of(exact, PROMPT, [1, *continuation.tokens[:place]])
            assert set(found.tokens[place]) == set(np.argsort(-distribution)[:width])
            np.testing.assert_allclose(np.exp(found.log_probs[place]), distribution[found.tokens[place]], atol=1e-4)


def test_behind_a_second_decode_nothing_is_computed_again(world):
    """A prefix of what was decoded, all of it, one with another last token, and the prompt alone."""
    engine = world.engine(1, frozenset())

    async def one(i):
        async with engine.session(PROMPT) as session:
            draft = long_draft(i, 70)
            await session.score(draft)
            first = await session.decode(draft[:66], 9, Inversion(uniforms(0, "first", i, count=9)))
            whole = np.concatenate([draft[:66], first.tokens])
            other = np.append(whole[:68], 1 + whole[68] % 5).astype(np.int32)
            draws = Inversion(uniforms(0, "second", i, count=5))
            prefixes = [whole[:70], other, other[:66], whole[:40], whole[:0]]
            found = [(prefix, await session.decode(prefix, 5, draws)) for prefix in prefixes]
            on = found[-1][1].tokens
            unknown = long_draft(100 + i, 20)
            return [
                *found,
                (on, await session.decode(on, 5, draws)),
                (unknown, await session.decode(unknown, 5, draws)),
            ]

    for results in world.run(*map(one, range(6))):
        for prefix, continuation in results:
            expected = world.log_probs(1, [*PROMPT, *prefix], continuation.tokens)
            np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)
        for prefix, continuation in results[:-1]:
            before = len(PROMPT) + len(prefix) - 1
            assert continuation.cached >= (before // 32 * 32 if isinstance(world, VLLMWorld) else before)
        if isinstance(world, TorchWorld):
            assert results[-1][1].cached < 32, "what is not known is computed"


def long_draft(seed, length=100):
    """A draft without a stop."""
    return stream(seed, "draft").integers(1, VOCABULARY, length).astype(np.int32)


async def score_and_go_on(engine, draft, kept, count=10):
    async with engine.session([3, 4, 5]) as session:
        scored = (await session.score(draft)).log_probs
        return scored, await session.decode(draft[:kept], count, Inversion(uniforms(0, "on", count=count)))


def test_scored_log_probs_are_bit_by_bit_those_of_sampling(vllm):
    engine = vllm.engine(0, stops=frozenset())

    async def one(i):
        async with engine.session([1 + i]) as session:
            sampled = await session.decode(NOTHING, 60, Inversion(uniforms(0, "sample", i, count=60)))
            return sampled.log_probs, (await session.score(sampled.tokens)).log_probs

    for sampled, scored in vllm.run(*map(one, range(5))):
        assert len(sampled) == 60
        np.testing.assert_allclose(scored, sampled, atol=1e-6)


def test_vllm_scores_as_the_torch_engine_does_and_a_weight_update_reaches_it(vllm, policies):
    """An engine that keeps packed weights, or what it had cached with the old ones, gives the old log-probs."""
    torch_world, of_epoch, worst = TorchWorld(policies), [], 0.0
    drafts = [long_draft(seed) for seed in range(8)]
    for epoch in (0, 1, 0):
        answers = {}
        for name, world in (("vllm", vllm), ("torch", torch_world)):
            engine = world.engine(epoch)
            answers[name] = world.run(*(score_and_go_on(engine, draft, 70) for draft in drafts))
        for (ours, behind), (theirs, _), draft in zip(answers["vllm"], answers["torch"], drafts, strict=True):
            expected = torch_world.log_probs(epoch, [3, 4, 5, *draft[:70]], behind.tokens)
            worst = max(worst, np.abs(ours - theirs).max(), np.abs(behind.log_probs - expected).max())
            assert behind.cached == 64
        of_epoch.append(np.concatenate([scored for scored, _ in answers["vllm"]]))
    assert worst < 1e-4
    assert np.abs(of_epoch[0] - of_epoch[1]).max() > 0.1
    np.testing.assert_array_equal(of_epoch[0], of_epoch[2])


def test_loaded_weights_are_copies(vllm):
    engine, draft = vllm.engine(1), long_draft(0)
    weights = {name: tensor.clone() for name, tensor in vllm.policies[1].state_dict().items()}
    vllm.latest.load(weights.items())
    ((before, _),) = vllm.run(score_and_go_on(engine, draft, 50))
    for tensor in weights.values():
        tensor.zero_()
    ((after, _),) = vllm.run(score_and_go_on(engine, draft, 50))
    np.testing.assert_array_equal(before, after)


def test_tied_embeddings_which_would_stay_stale_are_not_loaded(vllm, policies, monkeypatch):
    monkeypatch.setattr(vllm.latest.engine.model_config.hf_text_config, "tie_word_embeddings", True)
    with pytest.raises(UserError, match="tie_word_embeddings"):
        vllm.latest.load(policies[0].state_dict().items())


@pytest.mark.parametrize("lenience", [1, "e^0.5", "e^2"])
def test_both_engines_accept_the_same_prefixes(lenience, vllm, policies):
    """Acceptance uniforms are the same; only a log-probability on the edge could be decided otherwise."""
    prompts = {p: stream(p, "prompt").integers(1, VOCABULARY, 1 + p).tolist() for p in range(16)}
    memory, found = new_memory(), []

    def groups(world, method, visit):
        setting = Setting(visit, visit, memory, limit=60, group=8, prompts=prompts)
        context = setting.context(world.engine(visit, frozenset()))
        return world.run(*(method.strategy()(setting.task(p), context) for p in prompts))

    torch_world = TorchWorld(policies)
    for group in groups(torch_world, Vanilla(), 0):
        memory.put(group)
    for world in (vllm, torch_world):
        rolled = groups(world, Speculative(lenience=lenience), 1)
        found.append([(r.prefix_length, r.verified) for group in rolled for r in group.rollouts])
    assert found[0] == found[1]
    prefixes = [prefix for prefix, _ in found[0]]
    assert len(prefixes) == 128
    assert len(set(prefixes)) > 5
    assert {verified for _, verified in found[0]} == {60}


@pytest.mark.parametrize("kept", [0, 20, 28, 29, 60, 100])
def test_a_continuation_finds_whole_blocks_of_what_was_scored(kept, vllm, policies):
    """Blocks have 32 tokens, the prompt 3; the last token before the continuation is always computed again."""
    draft = long_draft(kept)
    for world, cached in ((vllm, (kept + 2) // 32 * 32), (TorchWorld(policies), kept + 2)):
        engine = world.engine(0)
        ((_, continuation),) = world.run(score_and_go_on(engine, draft, kept))
        assert continuation.cached == cached
    engine = vllm.engine(0)
    vllm.latest.engine.reset_prefix_cache()

    async def without_scoring():
        async with engine.session([3, 4, 5]) as session:
            return await session.decode(draft[:kept], 10, Inversion(uniforms(0, "on", count=10)))

    (other,) = vllm.run(without_scoring())
    assert other.cached == 0
    (_, continuation), again = vllm.run(score_and_go_on(engine, draft, kept))[0], other
    assert continuation.tokens.tolist() == again.tokens.tolist(), "cached or not, the continuation is the same"


def test_prompts_that_do_not_fit_in_one_pass_of_vllm_are_served(vllm):
    """Requests with a seed fail on a CPU if their prefill is cut in chunks."""
    engine = vllm.engine(0)

    async def one(i):
        async with engine.session(stream(i, "prompt").integers(1, VOCABULARY, 140).tolist()) as session:
            return await session.decode(NOTHING, 5, Inversion(uniforms(0, "wide", i, count=5)))

    assert vllm.latest.engine.vllm_config.scheduler_config.max_num_batched_tokens < 200 * 140
    assert all(1 <= len(c.tokens) <= 5 for c in vllm.run(*map(one, range(200))))


def test_a_draft_as_long_as_the_longest_response_is_scored(vllm):
    ((scored, continuation),) = vllm.run(score_and_go_on(vllm.engine(0), long_draft(0, LONGEST - 3), LONGEST - 4, 1))
    assert scored.shape == (LONGEST - 3,)
    assert len(continuation.tokens) == 1


def test_random_reuse_asks_vllm_for_no_scores(vllm):
    engine = vllm.engine(0)
    roll_out(RandomReuse(), 0, engine, Setting(5, 1, memory_of([1, 2, 3, 4])), vllm)
    assert engine.engine.usage.scored_tokens == 0
    assert engine.engine.usage.decoding_seconds > 0
    assert engine.engine.usage.verification_seconds == 0


def test_a_failed_session_leaves_vllm_ready_for_the_next(vllm):
    engine = vllm.engine(0)

    async def fail():
        async with engine.session([3]) as session:
            await session.decode(NOTHING, 2, Inversion(uniforms(0, "fail", count=2)))
            raise ValueError("a test")

    with pytest.raises(ValueError, match="a test"):
        vllm.run(fail(), score_and_go_on(engine, long_draft(0), 50))
    assert vllm.run(score_and_go_on(engine, long_draft(0), 50))
    assert not vllm.latest.engine.has_unfinished_requests()
