"""Every strategy on every engine, and vLLM's engine against the one in this process, over the same weights."""

import importlib.util
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.config.reuse import RandomReuse, Speculative, Vanilla
from redraft.engines.torch_engine import TorchEngine
from redraft.engines.vllm_engine import VLLMEngine
from redraft.errors import UserError
from redraft.rollout.engine import Inversion
from redraft.rollout.strategies import strategy
from redraft.rollout.streams import stream, uniforms
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
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, intermediate_size=48, max_position_embeddings=256, initializer_range=0.25,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=EOS, pad_token_id=None,
    )  # fmt: skip
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
            law = self.policies[epoch](input_ids=tokens).logits[0].log_softmax(-1)
        return law[:-1].gather(1, tokens[0, 1:, None])[len(prompt) - 1 :, 0].numpy()


class VLLMWorld(TorchWorld):
    """One vLLM in this process, which takes over the policy of an epoch."""

    def __init__(self, policies, folder):
        from redraft.engines.vllm_local import LocalVLLM

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
    world = VLLMWorld(policies, tmp_path_factory.mktemp("policy"))
    yield world
    world.latest.close()


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
    refreshed = getattr(method, "refreshed_log_probs", False)
    for old, new in zip(before, after, strict=True):
        for name in ("tokens", "sampled_at") if refreshed else ("tokens", "log_probs", "sampled_at"):
            kept = getattr(new, name)[: new.prefix_length]
            assert kept.tolist() == getattr(old, name)[: new.prefix_length].tolist()
        assert new.draft_length == (0 if method.kind == "vanilla" else old.length)
        if refreshed:
            np.testing.assert_allclose(new.log_probs, world.log_probs(1, PROMPTS[new.prompt], new.tokens), atol=1e-4)


@conform
def test_the_first_epoch_is_vanillas(method, epochs):
    """Without a draft there is nothing to verify, and the same streams give the same rollouts."""
    engine, rollouts = epochs(method)[0]
    _, vanilla = epochs(Vanilla())[0]
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
    batch = world.run(*(strategy(Vanilla())(setting.task(p), setting.tools(engine)) for p in PROMPTS))
    alone, later = (roll_out(Vanilla(), 1, engine, Setting(step, limit=40), world) for step in (5, 6))
    assert [r.tokens.tolist() for r in alone] == [r.tokens.tolist() for r in batch[1].rollouts]
    assert len({r.tokens.tobytes() for r in alone + later}) > GROUP


def test_a_token_follows_the_policys_law(world):
    """Goodness of fit; 25.7 is the quantile of chi-square with 5 degrees of freedom beyond which lies 1e-4."""
    engine, draws = world.engine(1), 2000

    async def one(i):
        async with engine.session([5, 3]) as session:
            return (await session.decode(NOTHING, 1, Inversion(uniforms(0, "law", i, count=1)))).tokens[0]

    counts = np.bincount(world.run(*map(one, range(draws))), minlength=VOCABULARY)
    expected = draws * np.exp([world.log_probs(1, [5, 3], [token])[0] for token in range(VOCABULARY)])
    assert expected.min() > 10
    assert ((counts - expected) ** 2 / expected).sum() < 25.7


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
        tools = setting.tools(world.engine(visit, frozenset()))
        return world.run(*(strategy(method)(setting.task(p), tools) for p in prompts))

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
