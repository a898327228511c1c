"""Exact reuse through requests to vLLM: the distribution of sampled tokens, over servers of an enumerable policy.

The servers compute what vLLM's would with our worker: a softmax of biased logits that are divided by the temperature,
seeds, and of a prompt the most probable tokens as verl's hand them over. A real vLLM stands at the end.
"""

import asyncio
import importlib.util
from functools import cache
from itertools import product
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from redraft.engines.vllm.engine import VLLMEngine, seed_of
from redraft.lab.audit import samplers, vllm_samplers
from redraft.lab.audit.enumeration import Policy, Space, total_variation
from redraft.lab.audit.goodness import g_test
from redraft.lab.audit.samplers import count_responses, sample_last_pass
from redraft.lab.audit.tiny_models import PROMPT, ModelPolicy
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.block import BlockReuse
from redraft.methods.drafts.response import complete
from redraft.methods.drafts.verification import stored_top_verifier
from redraft.methods.gumbel import CoupledReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.residual import ResidualReuse
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.engine import Inversion, Residual
from redraft.rollout.types import Finish, Rollout, Task, TopLogProbs
from tests.groups import new_memory, no_reward

SPACE, DRIFT, DRAWS = Space(vocabulary=4, longest=2), 1.5, 500
POLICIES = [Policy(SPACE, 0, number, DRIFT) for number in (1, 2, 3)]
METHODS = [
    ResidualReuse(top=4),
    ResidualReuse(top=2),
    ResidualReuse(top=2, lenience=0.5),
    OneHotReuse(),
    ResidualReuse(top=3, fresh_every=2),
]
every_temperature = pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])


def named(method):
    return f"{method.kind}-{method.retention.top}"


every_method = pytest.mark.parametrize("method", METHODS, ids=named)


class Tempered(Policy):
    """Another policy's distribution at a temperature."""

    def __init__(self, policy, temperature):
        super().__init__(policy.space)
        self.policy, self.temperature = policy, temperature

    def distribution(self, prefix):
        if prefix not in self._next_token:
            weights = self.policy.distribution(prefix) ** (1 / self.temperature)
            self._next_token[prefix] = weights / weights.sum()
        return self._next_token[prefix]


class Servers:
    """Serves a policy after `PROMPT`; without `biased` it ignores biases of logits."""

    def __init__(self, policy, biased=True):
        self.policy, self.biased, self.requests = policy, biased, []
        self.at = cache(lambda temperature: Tempered(policy, temperature))

    def logits(self, response, settings):
        """As vLLM's sampler has them: first biases, then the temperature."""
        logits = np.log(self.policy.distribution(tuple(response)))
        for token, bias in settings.get("logit_bias", {}).items() if self.biased else ():
            logits[token] += bias
        return logits / settings["temperature"]

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        await asyncio.sleep(0)
        self.requests.append(sampling_params)
        response = prompt_ids[len(PROMPT) :]
        scored, policy = sampling_params.get("prompt_logprobs"), self.at(sampling_params["temperature"])
        if scored is not None:
            first = sampling_params["extra_args"]["scored_from"] + 1 - len(PROMPT)
            return SimpleNamespace(
                token_ids=[0],
                log_probs=None,
                stop_reason="completed",
                extra_fields=prompt_log_probs(policy, response, first, scored),
            )
        random = Random(sampling_params["seed"])
        tokens, log_probs = [], []
        while len(tokens) < sampling_params["max_tokens"] and 0 not in tokens:
            weights = np.exp(self.logits(response + tokens, sampling_params))
            (token,) = random.choices(range(SPACE.vocabulary), weights)
            log_probs.append(float(np.log(policy.distribution((*response, *tokens))[token])))
            tokens.append(token)
        return SimpleNamespace(token_ids=tokens, log_probs=log_probs, stop_reason="completed", extra_fields={})


def prompt_log_probs(policy, response, first, count):
    """Log-probabilities of a response's tokens from a position on, or of the `count` most probable ones."""
    ids, rows = [], []
    for place, token in list(enumerate(response))[first:]:
        distribution = policy.distribution(tuple(response[:place]))
        top = np.argsort(-distribution, kind="stable")[:count].tolist() if count else [token]
        ids, rows = [*ids, top], [*rows, np.log(distribution[top]).tolist()]
    return {"prompt_ids": [*ids, [0]], "prompt_logprobs": [*rows, [0.0]]}


class Engine(VLLMEngine):
    def __init__(self, servers, temperature=1.0):
        super().__init__(servers, {0}, len(PROMPT) + SPACE.longest + 1, temperature=temperature)

    def run(self, *coroutines):
        async def everything():
            return await asyncio.gather(*coroutines)

        return asyncio.run(everything())


def drawn_by(strategy, retention, temperature=1.0, **servers):
    """G-test of the last visit, and mean kept tokens."""
    engines = [Engine(Servers(policy, **servers), temperature) for policy in POLICIES]
    found, kept = count_responses(sample_last_pass(strategy, retention, engines, SPACE, DRAWS), SPACE)
    return g_test(found, Tempered(POLICIES[-1], temperature).response_distribution()), kept


@pytest.mark.parametrize(
    ("method", "temperature"),
    [*product(METHODS, [1.0]), *product(METHODS[1:2], [0.6, 1.5])],
    ids=lambda m: str(m) if isinstance(m, float) else named(m),
)
def test_three_visits_of_a_changing_policy_end_with_its_distribution(method, temperature):
    found, kept = drawn_by(method.strategy(), method.retention, temperature)
    assert not found.rejected, found
    assert kept > 0.1


@pytest.mark.parametrize("fault", ["the published rule", "biases unheard", "half a residual"])
def test_another_distribution_is_found(fault):
    method = samplers.METHODS["published, l = 1" if fault == "the published rule" else "residual"]
    rolled = samplers.half_residual_fault("vllm").strategy if fault == "half a residual" else method.strategy()
    assert drawn_by(rolled, method.retention, biased=fault != "biases unheard")[0].rejected


@pytest.mark.parametrize("top", [1, 2, 3, 4])
@every_temperature
def test_a_token_is_kept_or_sampled_with_the_policys_distribution_exactly(top, temperature):
    """All drafts of one token, uniforms by halves of the acceptance probability, all first tokens of the servers."""
    earlier, now = POLICIES[:2]
    q, p = (Tempered(policy, temperature).distribution(()) for policy in (earlier, now))
    stored = np.argsort(-q, kind="stable")[:top].astype(np.int32)[None]
    made = np.zeros(SPACE.vocabulary)
    for token in range(SPACE.vocabulary):
        chance, behind = judged(token, q, stored, now, temperature)
        made[token] += q[token] * chance
        made += q[token] * (1 - chance) * behind
    assert total_variation(made, p) < 1e-6, "float32"


def judged(token, q, stored, policy, temperature):
    """Probability of keeping a draft of one token, and else the distribution of the token that the servers sample."""
    servers, found = Servers(policy), {}

    class Half(ResidualRule):
        def accepts(self, drafts, uniforms):
            found["chance"] = float(self.acceptance(drafts)[0])
            return np.zeros(len(uniforms), dtype=bool)

    draft = Rollout(
        0,
        0,
        np.array([token], np.int32),
        np.log(q[[token]]).astype(np.float32),
        np.zeros(1, np.int32),
        Finish.LENGTH,
        top=TopLogProbs(stored, np.log(q[stored]).astype(np.float32)),
    )
    engine, memory = Engine(servers, temperature), new_memory(visits=1, top=stored.shape[1])
    tools = RolloutContext(engine, no_reward, memory, Meter(), Streams(0, 0), {0: PROMPT}, 1)
    engine.run(complete(draft, Task(0, 1, 1), tools, stored_top_verifier(Half())))
    drawing = next(r for r in servers.requests if "seed" in r)
    weights = np.exp(servers.logits([], drawing))
    return found["chance"], weights / weights.sum()


@every_method
def test_what_is_stored_is_the_current_policys_distribution_also_of_tokens_that_were_kept(method):
    engine, memory = None, new_memory(**method.retention.model_dump())
    for visit, policy in enumerate(POLICIES[:2]):
        engine = Engine(Servers(policy))
        tools = RolloutContext(engine, no_reward, memory, Meter(), Streams(0, visit), {0: PROMPT}, SPACE.longest)
        (group,) = engine.run(method.strategy()(Task(0, visit, 100), tools))
        memory.put(group)
    assert {r.prefix_length for r in group.rollouts} >= {0, 1}
    for rollout in group.rollouts:
        distributions, places = np.log(POLICIES[1].distributions(tuple(rollout.tokens))), np.arange(rollout.length)
        np.testing.assert_allclose(rollout.log_probs, distributions[places, rollout.tokens], atol=1e-6)
        if method.retention.top:
            ordered = -np.sort(-distributions, axis=1)[:, : method.retention.top]
            np.testing.assert_allclose(rollout.top.log_probs, ordered, atol=1e-6)
            np.testing.assert_allclose(distributions[places[:, None], rollout.top.tokens], ordered, atol=1e-6)
        else:
            assert rollout.top is None


def test_requests_have_seeds_of_their_own_and_a_bias_is_the_first_tokens_alone():
    servers = Servers(POLICIES[1])
    engine, memory = Engine(servers), new_memory(visits=1)
    for visit in (0, 1):
        tools = RolloutContext(engine, no_reward, memory, Meter(), Streams(0, visit), {0: PROMPT}, SPACE.longest)
        (group,) = engine.run(OneHotReuse().strategy()(Task(0, visit, 200), tools))
        memory.put(group)
    sampled = [request for request in servers.requests if "seed" in request]
    assert len({request["seed"] for request in sampled}) == len(sampled)
    biased = [request for request in sampled if "logit_bias" in request]
    assert {request["max_tokens"] for request in biased} == {1}
    assert all(list(request["logit_bias"].values()) == [-1000.0] for request in biased), "the draft's token, in full"
    rejected = [r for r in group.rollouts if r.prefix_length < r.draft_length]
    assert len(biased) == len(rejected)
    longer = sum(r.decoded > 1 for r in rejected)
    assert len(sampled) == 200 + len(rejected) + longer
    assert len(servers.requests) - len(sampled) == 200, "a draft is scored once"


def test_seeds_are_two_uniforms_of_the_response():
    async def one(first, numbers):
        async with engine.session(PROMPT) as session:
            return await session.decode(np.zeros(0, np.int32), len(numbers), Inversion(np.array(numbers)), first)

    engine, no_end = Engine(Servers(POLICIES[0])), Residual(np.array([0]), np.zeros(1))
    for first in (None, no_end):
        engine.run(one(first, [0.25, 0.75]), one(first, [0.5]))
    seeds = [request["seed"] for request in engine.client.requests]
    assert sorted(seeds) == sorted(map(seed_of, [0.25, 0.5, 0.25, 0.5, 0.75]))


def test_methods_that_vllm_cannot_do_need_what_its_engine_does_not_declare():
    able = {type(m) for m in samplers.METHODS.values() if m.needs <= VLLMEngine.capabilities}
    assert {ResidualReuse, BlockReuse, OneHotReuse} <= able
    assert CoupledReuse not in able
    named = [sampler.name for sampler in vllm_samplers.samplers()]
    assert set(named) == {name for name, m in samplers.METHODS.items() if type(m) in able} | {
        "planted: half a residual",
        "planted: the last kept token left out, residual",
    }


FEW = 1000


@pytest.fixture(scope="module")
def served():
    """Engines of a real vLLM with the audit's policies of three visits, and these policies at a temperature."""
    if not importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    models = samplers.policies()
    with vllm_samplers.serving(models) as engines:
        yield engines, lambda temperature: [ModelPolicy(samplers.SPACE, model, temperature) for model in models]


ALL = list(vllm_samplers.samplers())
TEMPERED = [s for s in ALL if s.name in ("vanilla", "residual, top 2", "block", "planted: half a residual")]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("sampler", "temperature"),
    [*product(ALL, [1.0]), *product(TEMPERED, [0.6, 1.5])],
    ids=lambda s: str(s) if isinstance(s, float) else s.name,
)
def test_vllm_draws_from_the_policys_distribution_and_what_does_not_is_found(sampler, temperature, served):
    """The published rule and the planted faults leave these policies' distribution by 0.1 to 0.3, so that few draws
    do."""
    engines, policies = served
    for engine in engines:
        engine.temperature = temperature
    found = samplers.audit_engines(sampler, engines, policies(temperature), FEW)
    assert found.passes, found
    assert found.test.samples == FEW
    assert (found.kept > 0.05) is (sampler.name != "vanilla")
