"""Plan of draft reuse in a run of verl: its settings, and the rule that verl's servers can serve."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from redraft.config.base import Config
from redraft.config.read import parse, read_yaml
from redraft.config.reuse import Reuse
from redraft.engines.vllm.stock import MAX_LOGPROBS
from redraft.errors import UserError
from redraft.files import json_text
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.reuse import ReuseMethod
from redraft.methods.vanilla import Vanilla

KINDS = ("vanilla", "one_hot", "block", "residual", "speculative", "random")
"""Methods that decide about each response separately, and whose responses need no change of verl's losses."""
FOLDER = "redraft_drafts"
"""Folder of the drafts, next to verl's `global_step_N`."""


class ReuseSettings(Config):
    """`settings` of an agent loop in `agent_loops.yaml`."""

    reuse: Reuse = Field(default_factory=OneHotReuse)
    memory_gib: float = Field(default=4.0, gt=0, le=2**20)
    """Memory for all drafts in GiB, at most. Each draft counts as if it had the longest length, so that its own length
    does not decide whether it is kept."""
    seed: int = Field(default=0, ge=0)
    """Seed of the uniform numbers that accept draft tokens."""


@dataclass(frozen=True)
class Plan:
    """Decisions for a run, made once in verl's driver process.

    Attributes:
        reuse: the method that runs.
        replaced: why it is not the configured method; empty if it is.
        stops: tokens that end a response on verl's servers.
        prompt_length, response_length, max_model_len: verl's limits, tokens.
        sampling: configured parameters; a request with others, such as for a greedy baseline, gets no draft.
        biased: whether the servers report log-probabilities of sampled tokens after a request's biases.
        seeded: whether requests need seeds, as with verl's `full_determinism`.
        capacity: largest number of responses in memory.
        folder: of the saved drafts; None if verl saves no checkpoints.
        setup: model, tokenizer, limits and rule of the drafts; saved drafts of another setup are rejected.
    """

    reuse: ReuseMethod
    replaced: str
    stops: frozenset[int]
    prompt_length: int
    response_length: int
    max_model_len: int
    sampling: Mapping[str, float]
    biased: bool
    seeded: bool
    seed: int
    capacity: int
    folder: Path | None
    setup: Mapping[str, Any]

    def limit(self, prompt: int, max_tokens: int | None) -> int:
        """Longest response of a request, tokens, as verl's vLLM server computes it (`vLLMHttpServer.generate`)."""
        if max_tokens is None:
            max_tokens = min(self.response_length, self.prompt_length + self.response_length - prompt)
        return max(1, min(max_tokens, self.max_model_len - prompt))

    def room(self, prompt: int) -> int:
        """Longest draft that can be scored, tokens: the servers sample one token after it."""
        return max(0, self.max_model_len - prompt - 1)


def loops_in(file: Path) -> dict[str, Mapping[str, Any]]:
    """Entries of verl's file of agent loops, by name."""
    content = read_yaml(file)
    loops = content if isinstance(content, list) else []
    return {loop["name"]: loop for loop in loops if isinstance(loop, dict) and "name" in loop}


def settings_in(file: Path, name: str) -> ReuseSettings:
    """Settings of the agent loop `name` in verl's file of agent loops.

    Raises:
        UserError: if there is no such loop, or a setting is wrong.
    """
    found = loops_in(file)
    if "settings" not in found.get(name, {}):
        raise UserError(
            "verl's default agent loop is not one that reuses drafts",
            file=file,
            key="actor_rollout_ref.rollout.agent.default_agent_loop",
            value=name,
            allowed=[each for each, loop in found.items() if "settings" in loop],
        )
    settings = parse(ReuseSettings, found[name]["settings"], file)
    if settings.reuse.kind not in KINDS or getattr(settings.reuse, "fresh_every", None):
        raise UserError(
            "under stock verl this method has no reuse of drafts",
            file=file,
            key="settings.reuse",
            value=settings.reuse.model_dump(mode="json"),
            allowed=f"kind {', '.join(KINDS)}, without fresh_every",
        )
    return settings


def given_to_vllm(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's settings that replace verl's own in `actor_rollout_ref.rollout`; verl leaves out those without a value."""
    given = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    return {name: value for name, value in given.items() if value is not None}


def served(reuse: ReuseMethod, rollout: Mapping[str, Any]) -> tuple[ReuseMethod, str]:
    """The method that verl's unmodified servers can serve, and why it is not `reuse`; empty if it is.

    Args:
        rollout: verl's `actor_rollout_ref.rollout`.
    """
    if isinstance(reuse, Vanilla):
        return reuse, ""
    scores = reuse.scores
    vllm = given_to_vllm(rollout)
    most, mode = vllm.get("max_logprobs", MAX_LOGPROBS), vllm.get("logprobs_mode", rollout.get("logprobs_mode"))
    obstacles: Sequence[tuple[bool, str]] = (
        (rollout["name"] != "vllm", f"rollout.name is {rollout['name']}, and only vllm scores a draft"),
        (
            scores and rollout["temperature"] != 1,
            f"rollout.temperature is {rollout['temperature']}, and vLLM scores a draft at temperature 1 only",
        ),
        (
            scores and (rollout["top_p"] != 1 or rollout["top_k"] not in (-1, 0)),
            "rollout.top_p or rollout.top_k truncates the distribution, and vLLM scores a draft under the whole one",
        ),
        (
            scores and mode not in ("processed_logprobs", "raw_logprobs"),
            f"rollout.logprobs_mode is {mode}, which gives no log-probabilities",
        ),
        (
            scores and "speculative_config" in vllm,
            "engine_kwargs.vllm.speculative_config speculates, and vLLM then ignores the biases of a first token",
        ),
        (
            scores and "logits_processors" in vllm,
            "engine_kwargs.vllm.logits_processors changes what is sampled, and not the scores of a draft",
        ),
        ("worker_cls" in vllm, "engine_kwargs.vllm.worker_cls names another worker than vLLM's"),
        (
            bool((rollout.get("disaggregation") or {}).get("enabled")),
            "rollout.disaggregation does not return the scores of a prompt",
        ),
        (
            bool((rollout.get("mtp") or {}).get("enable_rollout")),
            "rollout.mtp speculates, and biases of a first token are not known to hold then",
        ),
        (
            bool(rollout.get("enable_rollout_routing_replay")),
            "rollout.enable_rollout_routing_replay needs the experts of kept tokens, which are not stored",
        ),
    )
    for wrong, why in obstacles:
        if wrong:
            return Vanilla(), f"{why}; responses are sampled without drafts"
    if most != -1 and reuse.retention.top > most:
        why = f"reuse.top is {reuse.retention.top}, above vLLM's max_logprobs of {most} (engine_kwargs.vllm)"
        return OneHotReuse(), f"{why}; the rule is one_hot instead"
    return reuse, ""


def plan(config: Any, settings: ReuseSettings, stops: frozenset[int], max_model_len: int, model: str) -> Plan:
    """The plan of a run.

    Args:
        config: verl's configuration.
        stops: tokens that end a response.
        max_model_len: the servers' limit, tokens.
        model: identity of model and tokenizer.

    Raises:
        UserError: for a trainer that changes weights while responses are sampled.
    """
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    mode = trainer.v1.trainer_mode if trainer.get("use_v1") else "sync"
    if mode != "sync":
        raise UserError(
            "drafts are verified by one policy, and this trainer changes it while responses are sampled",
            key="trainer.v1.trainer_mode",
            value=mode,
            allowed="sync",
        )
    reuse, replaced = served(settings.reuse, rollout)
    vllm = given_to_vllm(rollout)
    max_model_len = min(max_model_len, vllm.get("max_model_len", max_model_len))
    # A token: id, log-probability and step, and 8 bytes for each of the top; a response: about two kilobytes.
    most_bytes = rollout.response_length * (12 + 8 * reuse.retention.top) + 2048
    limits = {name: rollout[name] for name in ("prompt_length", "response_length", "temperature", "top_p", "top_k")}
    return Plan(
        reuse=reuse,
        replaced=replaced,
        stops=frozenset() if rollout.get("ignore_eos") else stops,
        prompt_length=rollout.prompt_length,
        response_length=rollout.response_length,
        max_model_len=max_model_len,
        # verl has no other penalty than 1 in training.
        sampling={name: rollout[name] for name in ("temperature", "top_p", "top_k")} | {"repetition_penalty": 1.0},
        biased=vllm.get("logprobs_mode", rollout.get("logprobs_mode")) == "processed_logprobs",
        seeded=bool(rollout.get("full_determinism")),
        seed=settings.seed,
        capacity=max(1, int(settings.memory_gib * 2**30 / most_bytes)),
        folder=Path(trainer.default_local_dir).absolute() / FOLDER if trainer.save_freq > 0 else None,
        setup={
            **limits,
            "max_model_len": max_model_len,
            "reuse": reuse.model_dump(mode="json"),
            "model": model,
            "stops": sorted(stops),
        },
    )


def identity(*contents: Any) -> str:
    """Hash of JSON-like contents, 16 hexadecimal digits. Keys are sorted, since the order of a vocabulary varies."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True, default=str).encode()).hexdigest()[:16]


def setup_text(setup: Mapping[str, Any]) -> Any:
    """A setup as JSON reads it back, for comparison."""
    return json.loads(json_text(dict(setup)))
