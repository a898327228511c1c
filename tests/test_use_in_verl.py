"""Reuse of drafts in stock verl: the client of an agent loop over a server with enumerable responses, and the store."""

import asyncio
import hashlib
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from redraft.errors import UserError
from redraft.integrations.verl import AGENT_LOOPS
from redraft.integrations.verl.client import DraftingClient
from redraft.integrations.verl.plan import Plan, ReuseSettings, identity, plan, served, settings_in
from redraft.integrations.verl.store import DraftStore, files_of, key_of, prepare_folder
from redraft.integrations.verl.tally import Outcome
from redraft.lab.audit.goodness import g_test
from redraft.methods.block import BlockReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.random import RandomReuse
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.rollout.storage import pack_groups

END, TOKENS, LIMIT, PROMPT = 0, 4, 3, [2, 3]
NEW = 1.2
"""Drift of the policy that verifies."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
USUAL = {name: value for name, value in SAMPLING.items() if name != "logprobs"}
EXACT = [OneHotReuse(), BlockReuse(top=TOKENS), BlockReuse(top=2), ResidualReuse(top=TOKENS)]
PASS = 250
FAR = 1e-2
"""p-value below which responses are not the policy's; seeds are fixed, so no test fails by chance."""


class Answer(BaseModel):
    """As verl's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str | None = "completed"
    num_preempted: int | None = 0
    extra_fields: dict = {}


@cache
def log_policy(context, drift):
    """Log-probabilities of the next token; `drift` moves the policy."""
    base, other = (np.random.default_rng([seed, *context]).normal(size=TOKENS) for seed in (1, 2))
    logits = base + drift * other
    return logits - np.log(np.exp(logits).sum())


def log_probs_of(response, drift):
    return np.array([log_policy((*PROMPT, *response[:i]), drift)[token] for i, token in enumerate(response)])


@cache
def distribution(drift):
    """Each response of up to LIMIT tokens, and its probability under the policy."""
    whole = {
        r
        for n in range(1, LIMIT + 1)
        for r in product(range(TOKENS), repeat=n)
        if END not in r[:-1] and (r[-1] == END or n == LIMIT)
    }
    return {r: float(np.exp(log_probs_of(r, drift).sum())) for r in sorted(whole)}


class Server:
    """verl's client over a vLLM server: same keys, answers and defaults, and a policy that is a table."""

    def __init__(self, drift=0.0, processed=True, seed=0):
        self.drift, self.processed, self.asked, self.step = drift, processed, [], 0
        self.random = np.random.default_rng(seed)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **further):
        self.asked.append((request_id, list(prompt_ids), dict(sampling_params), further))
        await asyncio.sleep(0)
        tokens, log_probs = [], []
        for _ in range(sampling_params.get("max_tokens", LIMIT)):
            raw = log_policy((*prompt_ids, *tokens), self.drift)
            biased = raw.copy()
            for token, bias in sampling_params.get("logit_bias", {}).items():
                biased[token] += bias
            biased -= np.log(np.exp(biased).sum())
            tokens.append(int(self.random.choice(TOKENS, p=np.exp(biased))))
            log_probs.append(float(np.float32((biased if self.processed else raw)[tokens[-1]])))
            if tokens[-1] == END:
                break
        fields = {"global_steps": self.step, "num_cached_tokens": 0} | self._scores(prompt_ids, sampling_params)
        return Answer(
            token_ids=tokens,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            extra_fields=fields,
        )

    def _scores(self, prompt, params):
        """As verl's `extract_prompt_logprobs`: rows for the second token and later ones, and one without a meaning."""
        if (count := params.get("prompt_logprobs")) is None:
            return {}
        rows = [log_policy(tuple(prompt[:i]), self.drift).astype(np.float32) for i in range(1, len(prompt))]
        ids = [[t] if not count else np.argsort(-row)[:count].tolist() for row, t in zip(rows, prompt[1:], strict=True)]
        scores = [row[i].tolist() for row, i in zip(rows, ids, strict=True)]
        width = max(count, 1)
        return {"prompt_ids": [*ids, [0] * width], "prompt_logprobs": [*scores, [0.0] * width]}


class Remote:
    """Ray's handle of an actor that is in this process."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        async def call(*args):
            return getattr(self._target, name)(*args)

        return SimpleNamespace(remote=call)


def a_plan(reuse, **fields):
    defaults = Plan(reuse, "", frozenset({END}), 8, LIMIT, 64, USUAL, True, False, 0, 10**6, None, {})
    return replace(defaults, **fields)


def roll_out(store, server, step, samples=PASS, prompt=PROMPT, sampling=SAMPLING, **further):
    """Answers of all samples of a step."""
    store.begin(step)
    server.step = step - 1

    async def all_of_them():
        clients = (DraftingClient(server, store.plan, Remote(store), s, step) for s in range(samples))
        requests = (
            c.generate("id", prompt_ids=list(prompt), sampling_params=dict(sampling), **further) for c in clients
        )
        return await asyncio.gather(*requests)

    return asyncio.run(all_of_them())


def g_test_of(answers, drift):
    """Test of responses against the policy's distribution."""
    expected = distribution(drift)
    responses = [tuple(answer.token_ids) for answer in answers]
    assert set(responses) <= set(expected)
    return g_test(np.array([responses.count(r) for r in expected]), np.array(list(expected.values())))


def name_of(method):
    return f"{method.kind}-{method.retention.top}"


@pytest.mark.parametrize("method", EXACT, ids=name_of)
def test_an_exact_rule_samples_from_the_current_policy_and_reports_its_log_probabilities(method):
    store = DraftStore(a_plan(method))
    roll_out(store, Server(0.0), 1)
    answers = roll_out(store, Server(NEW, seed=1), 2)
    metrics = store.metrics(2)
    assert metrics["redraft/with_draft"] == 1
    assert 0.15 < metrics["redraft/kept_share"] < 0.9
    assert g_test_of(answers, NEW).p_value > FAR
    for answer in answers[:200]:
        np.testing.assert_allclose(answer.log_probs, log_probs_of(answer.token_ids, NEW), atol=2e-5)
    assert abs(metrics["redraft/drift"]) < 1e-9
    # of responses that were drafts twice, too
    assert g_test_of(roll_out(store, Server(-0.4, seed=2), 3), -0.4).p_value > FAR


def test_one_hot_is_exact_for_any_draft():
    store = DraftStore(a_plan(OneHotReuse()))
    answers = roll_out(store, Server(0.0), 1)
    likely = max(distribution(NEW), key=distribution(NEW).get)
    drafts = [
        r for r in (store.memory.drafts(key_of(PROMPT, s)).get(0) for s in range(PASS)) if tuple(r.tokens) == likely
    ]
    assert drafts
    assert len(answers) == PASS
    for sample in range(PASS):
        store.put(key := key_of(PROMPT, sample), replace(drafts[0], prompt=key), Outcome(1))
    assert g_test_of(roll_out(store, Server(NEW, seed=1), 2), NEW).p_value > FAR


def test_each_step_accepts_by_numbers_of_its_own_and_each_sample_too():
    kept = {}
    for step in (2, 3):
        store = DraftStore(a_plan(OneHotReuse()))
        roll_out(store, Server(), 1, 60)
        draft = store.memory.drafts(key_of(PROMPT, 0))[0]
        for sample in range(60):
            store.put(key := key_of(PROMPT, sample), replace(draft, prompt=key), Outcome(1))
        kept[step] = [answer.extra_fields["redraft"]["kept"] for answer in roll_out(store, Server(seed=step), step, 60)]
    assert kept[2] != kept[3]
    assert len(set(kept[2])) > 1


@pytest.mark.parametrize("method", [Speculative(lenience=1.5), RandomReuse()], ids=name_of)
def test_other_rules_are_found_out_and_say_how_far_they_are_off(method):
    store = DraftStore(a_plan(method))
    roll_out(store, Server(0.0), 1)
    answers = roll_out(store, Server(NEW, seed=1), 2)
    assert g_test_of(answers, NEW).p_value < FAR
    metrics = store.metrics(2)
    if method.kind == "random":
        assert "redraft/drift" not in metrics, "nothing was scored"
    else:
        assert metrics["redraft/drift"] > 0.01


def test_raw_log_probabilities_need_no_correction():
    store = DraftStore(a_plan(OneHotReuse(), biased=False))
    roll_out(store, Server(processed=False), 1, 300)
    for answer in roll_out(store, Server(NEW, processed=False), 2, 300):
        np.testing.assert_allclose(answer.log_probs, log_probs_of(answer.token_ids, NEW), atol=2e-5)


def test_an_unchanged_policy_with_drafts_it_is_sure_of_is_asked_to_score_alone():
    store = DraftStore(a_plan(Speculative(lenience=1)))
    before = roll_out(store, Server(), 1, 50)
    server = Server(seed=1)
    after = roll_out(store, server, 2, 50)
    assert [a.token_ids for a in after] == [b.token_ids for b in before]
    assert all(params["max_tokens"] == 1 and params["prompt_logprobs"] == 0 for _, _, params, _ in server.asked)
    assert len(server.asked) == 50
    assert store.metrics(2)["redraft/kept_whole"] == 1
    assert all(
        a.extra_fields == {"global_steps": 1, "num_cached_tokens": 0, "redraft": a.extra_fields["redraft"]}
        for a in after
    )
    assert after[0].extra_fields["redraft"] == {
        "draft": len(n := after[0].token_ids),
        "kept": len(n),
        "verified": len(n),
    }


def test_with_several_servers_each_response_stays_on_one_and_has_its_own_sample_s_draft():
    store, servers = DraftStore(a_plan(Speculative(lenience=1.2))), [Server(seed=seed) for seed in range(2)]

    class Balancer:
        """As verl's: the first request of an id chooses a server, the others follow."""

        async def generate(self, request_id, **request):
            return await servers[int(request_id) % 2].generate(request_id, **request)

    def rolled_out(step, first_id):
        store.begin(step)
        clients = (DraftingClient(Balancer(), store.plan, Remote(store), s, step) for s in range(50))
        requests = (
            c.generate(str(first_id + s), prompt_ids=list(PROMPT), sampling_params=dict(SAMPLING))
            for s, c in enumerate(clients)
        )

        async def together():
            return await asyncio.gather(*requests)

        return [answer.token_ids for answer in asyncio.run(together())]

    before = rolled_out(1, 0)
    # the other server than the one that sampled the draft; an unchanged policy keeps it whole
    assert rolled_out(2, 1) == before
    assert store.metrics(2)["redraft/kept_whole"] == 1
    assert [len(server.asked) for server in servers] == [50, 50]


def test_without_reuse_verl_s_server_gets_verl_s_own_requests():
    store, server, plain = DraftStore(a_plan(Vanilla())), Server(), Server()
    roll_out(store, server, 1, 5, priority=3)
    for _ in range(5):
        asyncio.run(plain.generate("id", prompt_ids=PROMPT, sampling_params=SAMPLING, priority=3))
    assert server.asked == plain.asked
    assert store.metrics(1)["redraft/own_response/no_reuse"] == 5


@pytest.mark.parametrize("rule", [OneHotReuse(), RandomReuse()], ids=["one_hot", "random"])
@pytest.mark.parametrize(
    ("sampling", "further", "why"),
    [
        (SAMPLING | {"temperature": 0}, {}, "other_sampling"),
        (SAMPLING | {"top_k": 5}, {}, "other_sampling"),
        (SAMPLING, {"image_data": ["an image"]}, "images"),
    ],
)
def test_what_cannot_be_scored_gets_verl_s_own_response_and_is_counted(rule, sampling, further, why):
    store, server = DraftStore(a_plan(rule)), Server()
    roll_out(store, server, 1, 5, sampling=sampling, **further)
    assert [(prompt, params, more) for _, prompt, params, more in server.asked] == [(PROMPT, sampling, further)] * 5
    metrics = store.metrics(1)
    assert metrics[f"redraft/own_response/{why}"] == metrics["redraft/responses"] == 5
    assert metrics["redraft/memory/drafts"] == 0


@pytest.mark.parametrize(("configured", "top_k", "drafts"), [(5, 5, 5), (5, -1, 0), (0, -1, 5), (-1, 0, 5)])
def test_a_rule_that_scores_nothing_has_drafts_for_requests_as_they_are_configured(configured, top_k, drafts):
    plan = a_plan(RandomReuse(), sampling=USUAL | {"temperature": 0.7, "top_k": configured})
    store = DraftStore(plan)
    roll_out(store, Server(), 1, 5, sampling=SAMPLING | {"temperature": 0.7, "top_k": top_k})
    assert store.metrics(1)["redraft/memory/drafts"] == drafts


class Broken(Server):
    """A server that does not do what it should."""

    def __init__(self, fault):
        super().__init__(NEW)
        self.fault = fault

    async def generate(self, request_id, *, prompt_ids, sampling_params, **further):
        answer = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **further)
        if "prompt_logprobs" in sampling_params:
            if self.fault == "no scores":
                del answer.extra_fields["prompt_logprobs"]
            if self.fault == "other tokens":
                answer.extra_fields["prompt_ids"] = [[1]] * len(answer.extra_fields["prompt_ids"])
            if self.fault == "NaN":
                answer.extra_fields["prompt_logprobs"] = [[np.nan]] * len(answer.extra_fields["prompt_logprobs"])
            if self.fault == "new weights":
                answer.extra_fields["global_steps"] += 1
            if self.fault == "aborted":
                answer.stop_reason = "aborted"
            if self.fault == "died":
                raise ConnectionError  # as Ray's errors, no RuntimeError
        return answer


@pytest.mark.parametrize("fault", ["no scores", "other tokens", "NaN", "new weights", "aborted", "died"])
def test_a_server_that_fails_to_score_costs_the_draft_and_nothing_else(fault):
    store = DraftStore(a_plan(OneHotReuse()))
    roll_out(store, Server(), 1, 300)
    answers = roll_out(store, Broken(fault), 2, 300)
    metrics = store.metrics(2)
    whole = sum(not a.extra_fields["redraft"]["draft"] for a in answers)
    assert metrics["redraft/own_response/restarted"] == whole > 200
    if fault in ("no scores", "NaN", "aborted", "died"):  # in the others, some drafts fail and others do not
        assert g_test_of(answers, NEW).p_value > FAR


@pytest.mark.parametrize("stops", [{1}, {END, 1}, set()])
def test_another_end_than_the_servers_costs_the_drafts_and_not_the_distribution(stops):
    store = DraftStore(a_plan(OneHotReuse(), stops=frozenset(stops)))
    # Were the responses that end otherwise sampled again, they would be too rare.
    assert g_test_of(roll_out(store, Server(), 1, 4 * PASS), 0.0).p_value > FAR
    assert store.metrics(1)["redraft/own_response/other_end"] > 150
    assert g_test_of(roll_out(store, Server(NEW), 2), NEW).p_value > FAR
    assert store.metrics(2)["redraft/with_draft"] == 0


def test_a_response_without_a_draft_is_not_sampled_again_if_its_scores_fail():
    store, server = DraftStore(a_plan(BlockReuse(top=2))), Broken("no scores")
    answers = roll_out(store, server, 1, 20, sampling=SAMPLING | {"logprobs": False})
    assert sum("prompt_logprobs" not in params for _, _, params, _ in server.asked) == 20
    assert all(answer.token_ids and answer.log_probs is None for answer in answers)
    assert store.metrics(1)["redraft/own_response/restarted"] == 20
    assert not store.memory.prompts()


def test_a_draft_above_the_limit_of_the_request_is_cut_to_it():
    store = DraftStore(a_plan(Speculative(lenience=1)))
    before = roll_out(store, Server(), 1, 50)
    after = roll_out(store, Server(), 2, 50, sampling=SAMPLING | {"max_tokens": 2})
    assert max(len(answer.token_ids) for answer in before) == LIMIT
    assert [answer.token_ids for answer in after] == [answer.token_ids[:2] for answer in before]


def test_a_response_that_ends_after_its_step_was_logged_does_not_stop_the_saving_of_drafts(tmp_path):
    store = DraftStore(a_plan(OneHotReuse(), folder=tmp_path))
    store.begin(1)
    store.find(1)
    store.metrics(1)
    store.put(1, None, Outcome(1))
    roll_out(store, Server(), 2, 3)
    assert list(files_of(tmp_path)) == [2]


def test_drafts_as_long_as_the_model_allows_are_stored_without_their_last_token():
    for method in (OneHotReuse(), BlockReuse(top=2)):
        store = DraftStore(a_plan(method, max_model_len=len(PROMPT) + LIMIT))
        longest = roll_out(store, Server(), 1)
        drafts = [store.memory.drafts(key_of(PROMPT, s))[0] for s in range(PASS)]
        assert max(len(a.token_ids) for a in longest) == LIMIT
        assert max(d.length for d in drafts) == LIMIT - 1
        assert g_test_of(roll_out(store, Server(NEW, seed=1), 2), NEW).p_value > FAR


def test_a_draft_is_given_once_and_of_two_equal_prompts_to_the_first():
    store = DraftStore(a_plan(OneHotReuse()))
    roll_out(store, Server(), 1, 2)
    store.begin(2)
    (draft, becomes), (other, becomes_too) = store.find(key_of(PROMPT, 0)), store.find(key_of(PROMPT, 0))
    assert (draft is not None, becomes, other, becomes_too) == (True, True, None, False)
    assert store.find(key_of([2, 2], 0)) == (None, True), "another prompt"
    assert store.find(key_of(PROMPT, 2)) == (None, True), "another sample"


def test_the_oldest_drafts_are_dropped_first_whatever_their_length():
    store = DraftStore(a_plan(OneHotReuse(), capacity=5))
    for step in (1, 2, 3):
        roll_out(store, Server(), step, 4, prompt=[step, 1])
    store.begin(4)
    left = {step: sum(bool(store.memory.drafts(key_of([step, 1], s))) for s in range(4)) for step in (1, 2, 3)}
    assert left == {1: 0, 2: 1, 3: 4}
    assert store.metrics(3)["redraft/memory/evicted"] == 3


def saved_tokens(store, step, samples=6, prompt=PROMPT):
    store.begin(step)
    return [store.memory.drafts(key_of(prompt, s)).get(0) for s in range(samples)]


@pytest.mark.parametrize("method", [OneHotReuse(), BlockReuse(top=2)], ids=name_of)
def test_a_run_that_goes_on_from_a_checkpoint_has_the_drafts_of_its_step(method, tmp_path):
    decided = a_plan(method, folder=tmp_path / "drafts", setup={"model": "m"})
    prepare_folder(decided)
    store, tokens = DraftStore(decided), {}
    for step in (1, 2, 3):
        answers = roll_out(store, Server(0.2 * step, seed=step), step, 6)
        tokens[step] = [answer.token_ids for answer in answers]
    assert list(files_of(decided.folder)) == [1, 2, 3]
    assert all(len(files) == 1 for files in files_of(decided.folder).values())
    # killed in step 3, after the checkpoint of step 2
    again = DraftStore(decided)
    drafts = saved_tokens(again, 3)
    assert [d.tokens.tolist() for d in drafts] == tokens[2]
    assert (drafts[0].top is None) == (method.retention.top == 0)
    assert list(files_of(decided.folder)) == [1, 2]
    repeated = roll_out(again, Server(0.6, seed=3), 3, 6)
    assert [a.token_ids for a in repeated] == tokens[3], "a repeated step accepts the same tokens"
    # from the beginning
    assert saved_tokens(DraftStore(decided), 1) == [None] * 6
    assert not files_of(decided.folder)


def test_files_are_removed_once_a_checkpoint_needs_none_of_their_drafts(tmp_path):
    decided = a_plan(OneHotReuse(), folder=tmp_path / "drafts")
    prepare_folder(decided)
    store = DraftStore(decided)
    for step in range(1, 5):
        roll_out(store, Server(), step, 3)
    assert list(files_of(decided.folder)) == [1, 2, 3, 4], "verl has no checkpoint yet"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    store.begin(5)
    assert list(files_of(decided.folder)) == [3, 4], "step 3 is in use in the checkpoint of step 3 alone"


def test_damaged_and_foreign_drafts_are_errors_before_anything_is_sampled(tmp_path):
    decided = a_plan(OneHotReuse(), folder=tmp_path / "drafts", setup={"model": "m", "reuse": {"kind": "one_hot"}})
    prepare_folder(decided)
    roll_out(DraftStore(decided), Server(), 1, 3)
    prepare_folder(decided)
    with pytest.raises(UserError, match="another model") as error:
        prepare_folder(replace(decided, setup=decided.setup | {"model": "n"}))
    assert (error.value.key, error.value.value) == ("model", "n")
    setup = decided.folder / "setup.json"
    setup.write_text("[]")  # as by another version
    with pytest.raises(UserError, match="another model"):
        prepare_folder(decided)
    setup.unlink()
    with pytest.raises(UserError, match="missing"):
        prepare_folder(decided)
    ((file,),) = files_of(decided.folder).values()
    file.write_bytes(pack_groups([]))  # whole, and not what was written
    with pytest.raises(UserError, match="damaged"):
        DraftStore(decided).begin(2)
    file.unlink()
    other = b"the format of another version"
    (decided.folder / f"step-1-{hashlib.sha256(other).hexdigest()[:16]}.arrow").write_bytes(other)
    with pytest.raises(UserError, match="damaged"):
        DraftStore(decided).begin(2)


def test_a_model_has_one_identity_whatever_the_order_of_its_vocabulary():
    assert identity("m", {"a": 1, "b": 2}) == identity("m", {"b": 2, "a": 1})
    assert identity("m", {"a": 1, "b": 2}) != identity("m", {"a": 2, "b": 1})


def test_every_shipped_agent_loop_is_read():
    kinds = {
        name: settings_in(AGENT_LOOPS, f"redraft_{name}").reuse.kind
        for name in ("reuse", "none", "block", "residual", "published", "random", "tools")
    }
    assert list(kinds.values()) == ["one_hot", "vanilla", "block", "residual", "speculative", "random", "one_hot"]


@pytest.mark.parametrize(
    ("loop", "key"),
    [
        ("- {name: mine, settings: {reuse: {kind: one_hot}, memory: 3}}", "settings.memory"),
        ("- {name: mine, settings: {reuse: {kind: gumbel}}}", "settings.reuse"),
        ("- {name: mine, settings: {reuse: {kind: one_hot, fresh_every: 3}}}", "settings.reuse"),
        ("- {name: other, settings: {}}", "default_agent_loop"),
        ("name: mine", "default_agent_loop"),
    ],
)
def test_wrong_settings_are_errors(loop, key, tmp_path):
    file = tmp_path / "loops.yaml"
    file.write_text(loop)
    with pytest.raises(UserError) as error:
        settings_in(file, "mine")
    assert key.split(".")[-1] in error.value.key


def to_vllm(**settings):
    return {"engine_kwargs": {"vllm": settings}}


ROLLOUT = {
    "name": "vllm",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "logprobs_mode": "processed_logprobs",
    "prompt_length": 8,
    "response_length": LIMIT,
}


@pytest.mark.parametrize(
    ("method", "change", "kind", "word"),
    [
        (OneHotReuse(), {}, "one_hot", ""),
        (BlockReuse(top=20), {}, "block", ""),
        (BlockReuse(top=21), {}, "one_hot", "max_logprobs"),
        (BlockReuse(top=21), to_vllm(max_logprobs=32), "block", ""),
        (OneHotReuse(), {"temperature": 0.7}, "vanilla", "temperature"),
        (RandomReuse(), {"temperature": 0.7}, "random", ""),
        (OneHotReuse(), {"top_p": 0.9}, "vanilla", "top_p"),
        (OneHotReuse(), {"name": "sglang"}, "vanilla", "sglang"),
        (OneHotReuse(), to_vllm(speculative_config={"method": "ngram"}), "vanilla", "biases"),
        (OneHotReuse(), to_vllm(logits_processors=["mine"]), "vanilla", "logits_processors"),
        (OneHotReuse(), to_vllm(logprobs_mode="raw_logits"), "vanilla", "raw_logits"),
        (OneHotReuse(), to_vllm(worker_cls=None), "one_hot", ""),
        (OneHotReuse(), {"enable_rollout_routing_replay": True}, "vanilla", "experts"),
        (Vanilla(), {"temperature": 0.7}, "vanilla", ""),
    ],
    ids=str,
)
def test_a_rule_that_the_servers_cannot_serve_is_replaced_with_a_reason(method, change, kind, word):
    found, why = served(method, ROLLOUT | change)
    assert found.kind == kind
    assert (word in why) if word else not why


def config(**trainer):
    trainer = {"use_v1": True, "v1": {"trainer_mode": "sync"}, "default_local_dir": "c", "save_freq": 1} | trainer
    return OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}, "trainer": trainer})


def test_the_plan_follows_verl_s_configuration():
    decided = plan(config(), ReuseSettings(memory_gib=0.001), frozenset({END}), 64, "m")
    assert decided.capacity == 2**30 // 1000 // (LIMIT * 12 + 2048)
    assert decided.sampling == USUAL
    assert decided.folder.is_absolute()
    assert decided.folder.parts[-2:] == ("c", "redraft_drafts")
    assert plan(config(save_freq=-1), ReuseSettings(), frozenset(), 64, "m").folder is None
    assert [decided.limit(2, None), decided.limit(62, None), decided.limit(2, 1), decided.limit(9, None)] == [
        3,
        1,
        1,
        2,
    ]
    given = config()
    given.actor_rollout_ref.rollout.update(to_vllm(max_model_len=32, logprobs_mode="raw_logprobs"))
    replaced = plan(given, ReuseSettings(), frozenset(), 64, "m")
    assert (replaced.max_model_len, replaced.biased, decided.biased) == (32, False, True), "vLLM's own settings win"
    with pytest.raises(UserError, match="changes it"):
        plan(config(v1={"trainer_mode": "separate_async"}), ReuseSettings(), frozenset(), 64, "m")


def test_each_turn_of_a_dialogue_may_have_a_draft_and_tools_are_called_again():
    """Two turns with a tool between them, whose answer depends on the first; the pair's distribution is enumerated."""
    called = []

    def tool(response):
        called.append(tuple(response))
        return [1 + sum(response) % 3]

    def second(response):
        return (*PROMPT, *response, *tool(response))

    def turn(prompt, drift):
        """Each response of up to two tokens to a prompt, and its probability."""
        found = {}
        for response in ((END,), *product(range(1, TOKENS), range(TOKENS))):
            logs = [log_policy((*prompt, *response[:i]), drift)[token] for i, token in enumerate(response)]
            found[response] = np.exp(sum(logs))
        return found

    async def dialogue(client):
        one = await client.generate("id", prompt_ids=list(PROMPT), sampling_params=SAMPLING | {"max_tokens": 2})
        prompt = list(second(one.token_ids))
        two = await client.generate("id", prompt_ids=prompt, sampling_params=SAMPLING | {"max_tokens": 2})
        return tuple(one.token_ids), tuple(two.token_ids)

    async def dialogues(store, server, step):
        store.begin(step)
        clients = (DraftingClient(server, store.plan, Remote(store), s, step) for s in range(2 * PASS))
        return await asyncio.gather(*(dialogue(client) for client in clients))

    store = DraftStore(a_plan(OneHotReuse(), prompt_length=16))
    for step, drift in ((1, 0.0), (2, NEW)):
        called.clear()
        pairs = asyncio.run(dialogues(store, Server(drift, seed=step), step))
        assert len(called) == 2 * PASS, "the tool answers each time"
    expected = {(one, two): p * q for one, p in turn(PROMPT, NEW).items() for two, q in turn(second(one), NEW).items()}
    counts = np.array([pairs.count(pair) for pair in expected])
    assert counts.sum() == 2 * PASS
    assert g_test(counts, np.array(list(expected.values()))).p_value > FAR
    metrics = store.metrics(2)
    assert 0.5 < metrics["redraft/with_draft"] < 1, "a second turn has one if the first was kept whole"
    assert metrics["redraft/kept_share"] > 0.1
