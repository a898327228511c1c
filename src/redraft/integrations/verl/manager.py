"""Manager of verl's agent loops that starts the store of drafts. verl creates it in its driver process."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils
from verl.utils.fs import copy_to_local
from verl.utils.import_utils import resolve_config_path
from verl.utils.tracking import Tracking
from verl.workers.rollout.utils import get_max_position_embeddings

from redraft.errors import UserError
from redraft.integrations.verl.client import say
from redraft.integrations.verl.loop import SAMPLE, STEP
from redraft.integrations.verl.plan import Plan, given_to_vllm, identity, loops_in, plan, settings_in
from redraft.integrations.verl.store import NAME, DraftStore, prepare_folder


def plan_of(config: Any) -> Plan:
    """The plan of a run with verl's configuration.

    Raises:
        UserError: for wrong or unsupported settings, before anything is sampled.
    """
    agent, model = config.actor_rollout_ref.rollout.agent, config.actor_rollout_ref.model
    if not agent.agent_loop_config_path:
        raise UserError(
            "verl does not know the agent loops that reuse drafts",
            key="actor_rollout_ref.rollout.agent.agent_loop_config_path",
            allowed="the path that `python -m redraft.integrations.verl` prints, or a file of your own like it",
        )
    settings = settings_in(_file_of(agent), agent.default_agent_loop)
    trusted = {"trust_remote_code": bool(model.get("trust_remote_code"))}
    path = copy_to_local(model.path)
    tokenizer = AutoTokenizer.from_pretrained(copy_to_local(model.get("tokenizer_path") or model.path), **trusted)
    hf_config = AutoConfig.from_pretrained(path, **trusted)
    known = identity(model.path, hf_config.to_dict(), tokenizer.get_vocab(), tokenizer.chat_template)
    rollout = config.actor_rollout_ref.rollout
    longest = rollout.max_model_len or get_max_position_embeddings(hf_config)
    source = given_to_vllm(rollout).get("generation_config", "auto")
    stops = stops_of(path if source in ("auto", "vllm") else source, hf_config, tokenizer)
    decided = plan(config, settings, stops, longest, known)
    decided.reuse.check_vocabulary(hf_config.get_text_config().vocab_size)
    return decided


def stops_of(path: str, hf_config: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens with which vLLM ends a response (its `SamplingParams.update_from_generation_config`).

    Args:
        path: of the folder with the generation's configuration.
    """
    try:
        named = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # there is no such file
        named = GenerationConfig.from_model_config(hf_config).eos_token_id
    return frozenset({tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None})


def elsewhere(names: Iterable[str], agent: Any) -> int:
    """Number of rows whose column `agent_name`, which has priority over verl's default, names a loop without reuse.

    Args:
        agent: verl's `actor_rollout_ref.rollout.agent`.

    Raises:
        UserError: if one has another rule than the default: a run has one.
    """
    counts, loops = Counter(names), loops_in(_file_of(agent))
    settings = {name: loops[name].get("settings") for name in counts if name in loops}
    default = loops[agent.default_agent_loop]["settings"]
    if wrong := sorted(name for name, its in settings.items() if its not in (None, default)):
        raise UserError(
            "the data name an agent loop with other settings than the default's, and a run has one rule",
            key="agent_name",
            value=wrong[0],
            allowed=agent.default_agent_loop,
        )
    without = sorted(name for name in counts if settings.get(name) is None)
    if without:
        say(f"prompts whose column agent_name has {', '.join(without)} are sampled without drafts")
    return sum(counts[name] for name in without)


def _file_of(agent: Any) -> Path:
    return Path(resolve_config_path(agent.agent_loop_config_path))


class _WithDrafts:
    """Mixin of verl's managers: starts the store, and passes the step to agent loops."""

    config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        decided = plan_of(self.config)
        prepare_folder(decided)
        if decided.replaced:
            say(decided.replaced)
        # On this node, whose paths are those of verl's checkpoints. The handle keeps the store alive.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"name": NAME, "num_cpus": 0, "scheduling_strategy": here}
        self.store: Any = ray.remote(DraftStore).options(**options).remote(decided)
        log_metrics(self.store)

    def _begin(self, step: int | None, validates: bool, loops: Iterable[str]) -> int:
        """Begin a step; returns the number of the step for the agent loops, 0 without drafts.

        Args:
            loops: agent loop that each row names, if the data have such a column.
        """
        if validates or not step:
            return 0
        agent = self.config.actor_rollout_ref.rollout.agent
        ray.get(self.store.begin.remote(int(step), elsewhere(loops, agent)))
        return int(step)


class _ManagerV1(_WithDrafts, AgentLoopManagerTQ):
    """The manager of the V1 trainers."""

    def generate_sequences(self, prompts: Any) -> None:
        """Dispatch a batch of prompts with the step."""
        step, validates = (tensordict_utils.get_non_tensor_data(prompts, k, None) for k in ("global_steps", "validate"))
        loops = list(prompts["agent_name"]) if "agent_name" in prompts else []
        tensordict_utils.assign_non_tensor_data(prompts, STEP, self._begin(step, bool(validates), loops))
        super().generate_sequences(prompts)


class _ManagerV0(_WithDrafts, AgentLoopManager):
    """The manager of the V0 trainer."""

    def generate_sequences(self, prompts: Any) -> Any:
        """Roll out a batch of samples, each with the step and its index within its group."""
        columns, about = prompts.non_tensor_batch, prompts.meta_info
        step = self._begin(about.get("global_steps"), bool(about.get("validate")), columns.get("agent_name", []))
        columns[STEP] = np.full(len(prompts), step)
        columns[SAMPLE] = occurrences(columns["uid"] if "uid" in columns else columns["index"])
        return super().generate_sequences(prompts)


class DraftManager:
    """Value of `agent_loop_manager_class` for verl's V0 and V1 trainers."""

    @classmethod
    def create(cls, config: Any, **kwargs: Any) -> Any:
        """Create the manager for the configured trainer; arguments as in verl's `AgentLoopManager.create`."""
        manager = _ManagerV1 if config.trainer.get("use_v1") else _ManagerV0
        return manager.create(config=config, **kwargs)


def occurrences(names: Any) -> np.ndarray:
    """Number of earlier occurrences of each name, int64 (n,)."""
    seen: Counter = Counter()
    numbers = []
    for name in names:
        numbers.append(seen[name])
        seen[name] += 1
    return np.array(numbers, dtype=np.int64)


def log_metrics(store: Any) -> None:
    """Add the store's metrics of a step to the metrics that verl's trainer logs in this process.

    verl passes no metrics of agent loops to its logger: V0 knows three names, V1 none.
    """
    log = Tracking.log

    def with_metrics(self: Tracking, data: dict[str, Any], step: int, backend: Any = None) -> None:
        log(self, {**data, **ray.get(store.metrics.remote(step))}, step, backend)

    Tracking.log = with_metrics
