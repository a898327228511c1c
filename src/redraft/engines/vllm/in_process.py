"""Client of a vLLM engine in this process: `run` alternates coroutines that send requests with the engine's passes."""

import asyncio
import itertools
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from redraft.engines.torch.loop import Outside, in_new_loop, run_to_end
from redraft.errors import UserError

T = TypeVar("T")


@dataclass
class LocalOutput:
    """An answer in the form of verl's servers; see `redraft.engines.vllm.engine.Output`."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class InProcessClient:
    """A vLLM engine with the interface of verl's client (`redraft.engines.vllm.engine.Client`)."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._numbers = itertools.count()
        self._answers: dict[str, asyncio.Future[RequestOutput]] = {}

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine to their ends, concurrently; return their results in order.

        Raises:
            RuntimeError: if they wait for each other, or for something unknown to `outside`.
        """
        standstill = "vLLM has no requests, but not all coroutines have ended"
        try:
            return in_new_loop(lambda: run_to_end(coroutines, self._step, lambda: standstill, outside))
        finally:
            self.engine.abort_request(list(self._answers))
            self._answers.clear()

    def _step(self) -> bool:
        """One pass of the engine; False without a request."""
        if not self.engine.has_unfinished_requests():
            return False
        for output in self.engine.step():
            answer = self._answers.pop(output.request_id, None)
            if answer and not answer.done():
                answer.set_result(output)
        return True

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> LocalOutput:
        """Serve one request as a verl server does; `logprobs` is true to return those of sampled tokens."""
        settings = sampling_params | {"logprobs": 0 if sampling_params.get("logprobs") else None}
        params = SamplingParams(**settings, output_kind=RequestOutputKind.FINAL_ONLY)
        # Requests of a session share an id, for a balancer of servers; vLLM itself needs a name for each.
        name = f"{request_id}-{next(self._numbers)}"
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        self.engine.add_request(name, tokens_input(prompt_ids), params)
        return to_output(await answer)


def check_untied(engine: LLMEngine) -> None:
    """Reject models whose weights `reload_weights` cannot replace.

    Raises:
        UserError: for a model with tied embeddings on a CPU.
    """
    if current_platform.is_cpu() and engine.model_config.hf_text_config.tie_word_embeddings:
        raise UserError(
            "vLLM on a CPU keeps old embeddings where they are tied",
            key="tie_word_embeddings",
            value=True,
            allowed="false",
        )


def reload_weights(engine: LLMEngine, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Load copies of all weights by their names in transformers' format, and drop the prefix cache.

    vLLM's CPU build packs linear weights for its matrix products. This undoes the packing, loads the weights and packs
    them again.

    Raises:
        UserError: for a model with tied embeddings on a CPU.
        RuntimeError: while requests are running.
    """
    check_untied(engine)
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    # Cached keys and values are those of the old weights.
    if not engine.reset_prefix_cache():
        raise RuntimeError("weights were loaded while requests were running")


def to_output(output: RequestOutput) -> LocalOutput:
    """An answer in verl's form, with a dummy row at the end of a prompt's log-probabilities."""
    (sampled,) = output.outputs
    extra: dict[str, Any] = {"num_cached_tokens": output.num_cached_tokens}
    if output.prompt_logprobs is not None:
        extra |= {
            "prompt_logprobs": _rows(output.prompt_logprobs, "logprobs"),
            "prompt_ids": _rows(output.prompt_logprobs, "token_ids"),
        }
    log_probs = None
    if sampled.logprobs is not None:
        log_probs = [row[token].logprob for token, row in zip(sampled.token_ids, sampled.logprobs, strict=True)]
    stop_reason = "aborted" if sampled.finish_reason == "abort" else "completed"
    return LocalOutput(list(sampled.token_ids), log_probs, stop_reason, extra)


def _rows(prompt: FlatLogprobs, name: str) -> list[list[Any]]:
    """One field by position: the value of the prompt's token, or those of the most probable tokens if requested."""
    # vLLM has nothing for the first token, and puts the prompt's own token before the most probable ones.
    values, spans = getattr(prompt, name), zip(prompt.start_indices[1:], prompt.end_indices[1:], strict=True)
    return [values[begin + 1 if end - begin > 1 else begin : end] for begin, end in spans] + [[0]]
