"""Reuse in stock verl: the parts that are subclasses of verl's, without its processes."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.experimental.agent_loop import AgentLoopManager, SingleTurnAgentLoop
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils
from verl.utils.tracking import Tracking

from redraft.errors import UserError
from redraft.integrations.verl import AGENT_LOOPS, loop, manager
from redraft.integrations.verl.client import DraftingClient
from redraft.integrations.verl.store import NAME
from redraft.methods.one_hot import OneHotReuse
from tests.test_use_in_verl import ROLLOUT, a_plan


@pytest.fixture
def ran(monkeypatch):
    """Calls of verl's own loop, each with the client that it would use."""
    calls = []

    async def run(self, sampling_params, **kwargs):
        calls.append((self.server_manager, sampling_params, kwargs))

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)
    monkeypatch.setitem(loop._of_run, NAME, ("store", a_plan(OneHotReuse())))
    return calls


def run(**kwargs):
    reuse = object.__new__(loop.ReuseLoop)
    reuse.server_manager = "verl's client"
    asyncio.run(reuse.run({"top_p": 1.0}, **kwargs))


@pytest.mark.parametrize("sample", [{"session_id": 3}, {loop.SAMPLE: np.int64(3)}], ids=["V1", "V0"])
def test_a_loop_is_verl_s_own_with_another_client(ran, sample):
    run(**{loop.STEP: 7}, **sample, raw_prompt="p")
    ((client, sampling, kwargs),) = ran
    assert isinstance(client, DraftingClient)
    assert (client.client, client.sample, client.step) == ("verl's client", 3, 7)
    assert (sampling, kwargs["raw_prompt"]) == ({"top_p": 1.0}, "p")


def test_validation_is_verl_s_own(ran):
    run(**{loop.STEP: 0}, session_id=0)
    assert ran[0][0] == "verl's client"


def test_without_the_manager_a_loop_names_the_missing_line(ran):
    with pytest.raises(UserError) as error:
        run(session_id=0)
    assert error.value.key.endswith("agent_loop_manager_class")
    assert not ran


class Begun:
    """Handle of a store that notes the steps."""

    def __init__(self):
        self.steps, self.elsewhere = [], []
        self.begin = SimpleNamespace(remote=lambda *step: (self.steps.append(step[0]), self.elsewhere.append(step[1])))
        self.metrics = SimpleNamespace(remote=lambda step: {"redraft/x": step} if step in self.steps else {})


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(manager.ray, "get", lambda value: value)
    return Begun()


def managed(kind, store):
    made = object.__new__(kind)
    made.store, made.config = store, config("a model")
    return made


def test_prompts_whose_data_name_a_loop_without_reuse_are_counted(monkeypatch, store, caplog):
    monkeypatch.setattr(AgentLoopManagerTQ, "generate_sequences", lambda self, prompts: None)
    names = np.array(["redraft_block", "tool_agent", "tool_agent"], dtype=object)
    batch = tensordict_utils.get_tensordict({"agent_name": names})
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 4)
    managed(manager._ManagerV1, store).generate_sequences(batch)
    assert store.elsewhere == [2]
    assert "tool_agent" in caplog.text


def test_a_run_has_one_rule():
    agent = config("a model").actor_rollout_ref.rollout.agent
    with pytest.raises(UserError) as error:
        manager.elsewhere(["redraft_block", "redraft_reuse"], agent)
    assert (error.value.key, error.value.value) == ("agent_name", "redraft_reuse")
    agent.default_agent_loop = "redraft_reuse"
    assert manager.elsewhere(["redraft_tools"], agent) == 0, "tools with the default's rule"


@pytest.mark.parametrize(("validate", "told"), [(None, 4), (True, 0)])
def test_the_v1_manager_tells_each_prompt_the_step_and_nothing_of_validation(monkeypatch, store, validate, told):
    monkeypatch.setattr(AgentLoopManagerTQ, "generate_sequences", lambda self, prompts: None)
    batch = TensorDict({}, batch_size=3)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 4)
    if validate:
        tensordict_utils.assign_non_tensor_data(batch, "validate", True)
    managed(manager._ManagerV1, store).generate_sequences(batch)
    assert tensordict_utils.get_non_tensor_data(batch, loop.STEP, None) == told
    assert store.steps == [4] * (told > 0)


def test_the_v0_manager_numbers_the_samples_of_each_group(monkeypatch, store):
    monkeypatch.setattr(AgentLoopManager, "generate_sequences", lambda self, prompts: None)

    class Batch(SimpleNamespace):
        def __len__(self):
            return 5

    uid = np.array(["a", "a", "b", "b", "a"], dtype=object)
    batch = Batch(meta_info={"global_steps": 2}, non_tensor_batch={"uid": uid})
    managed(manager._ManagerV0, store).generate_sequences(batch)
    assert batch.non_tensor_batch[loop.SAMPLE].tolist() == [0, 1, 0, 1, 2]
    assert batch.non_tensor_batch[loop.STEP].tolist() == [2] * 5
    assert store.steps == [2]


def test_metrics_of_a_step_are_logged_with_verl_s_own(monkeypatch, store):
    logged = []
    monkeypatch.setattr(Tracking, "log", lambda self, data, step, backend=None: logged.append((data, step)))
    manager.log_metrics(store)
    store.steps.append(2)
    tracking = object.__new__(Tracking)
    tracking.log(data={"a": 1}, step=1)
    tracking.log(data={"a": 1}, step=2)
    assert logged == [({"a": 1}, 1), ({"a": 1, "redraft/x": 2}, 2)]


def config(model, **agent):
    agent = {"default_agent_loop": "redraft_block", "agent_loop_config_path": str(AGENT_LOOPS)} | agent
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": ROLLOUT | {"max_model_len": None, "agent": agent},
                "model": {"path": str(model)},
            },
            "trainer": {"use_v1": True, "v1": {"trainer_mode": "sync"}, "default_local_dir": "c", "save_freq": -1},
        }
    )


def test_the_plan_of_a_run_knows_the_model_s_ends_and_length(tiny_model):
    decided = manager.plan_of(config(tiny_model))
    tokenizer = manager.AutoTokenizer.from_pretrained(tiny_model)
    assert decided.stops == {tokenizer.eos_token_id}
    assert decided.max_model_len == manager.AutoConfig.from_pretrained(tiny_model).max_position_embeddings
    assert decided.reuse.kind == "block"


def test_the_ends_are_those_of_the_generation_s_configuration_that_vllm_reads(tiny_model, tmp_path):
    given = config(tiny_model)
    given.actor_rollout_ref.rollout.engine_kwargs = {"vllm": {"generation_config": str(tmp_path)}}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert manager.plan_of(given).stops >= {5, 6}


def test_more_tokens_of_a_distribution_than_the_model_knows_are_an_error(tiny_model, tmp_path):
    (file := tmp_path / "loops.yaml").write_text("- {name: mine, settings: {reuse: {kind: block, top: 900}}}")
    given = config(tiny_model, default_agent_loop="mine", agent_loop_config_path=str(file))
    given.actor_rollout_ref.rollout.engine_kwargs = {"vllm": {"max_logprobs": -1}}
    with pytest.raises(UserError) as error:
        manager.plan_of(given)
    assert (error.value.key, error.value.value) == ("reuse.top", 900)


@pytest.mark.parametrize(
    ("agent", "key"),
    [
        ({"agent_loop_config_path": None}, "agent_loop_config_path"),
        ({"default_agent_loop": "single_turn_agent"}, "default_agent_loop"),
    ],
)
def test_missing_lines_are_named(tiny_model, agent, key):
    with pytest.raises(UserError) as error:
        manager.plan_of(config(tiny_model, **agent))
    assert error.value.key.endswith(key)
