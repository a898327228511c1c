"""vLLM in this process, with the interface of a client: for tests, benchmarks and evaluation on one machine.

vLLM reads environment variables on import, so they are set here first; variables that are already set keep their value.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch._dynamo

from redraft.engines.torch.loop import Outside, run_to_end
from redraft.engines.vllm.engine import WORKER
from redraft.errors import UserError

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # otherwise vLLM's engine is another process
for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # `WORKER` scores in the first
}.items():
    os.environ.setdefault(_name, _value)
if not torch.cuda.is_available():
    # vLLM compiles a few small functions of its sampler at first use, which takes up to 20 s. The environment variable
    # against it is read when transformers is imported, which may have happened already.
    torch._dynamo.config.disable = True

from vllm import EngineArgs, SamplingParams  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402
from vllm.inputs.engine import tokens_input  # noqa: E402
from vllm.logprobs import FlatLogprobs  # noqa: E402
from vllm.outputs import RequestOutput  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: E402
from vllm.v1.engine.llm_engine import LLMEngine  # noqa: E402

T = TypeVar("T")


def check_head_size(model: Path | str) -> None:
    """Check that vLLM's CPU build has attention for a model in transformers' format; nothing is checked on GPUs.

    Raises:
        UserError: if it has none for heads of this size. vLLM itself fails only at the first token.
    """
    if torch.cuda.is_available():
        return
    size = EngineArgs(model=str(model), skip_tokenizer_init=True).create_model_config().get_head_size()
    if size not in (sizes := CPUAttentionBackend.get_supported_head_sizes()):
        raise UserError(
            "vLLM's CPU build does not support attention heads of this size",
            file=Path(model),
            key="head_dim",
            value=size,
            allowed=", ".join(map(str, sizes)),
        )


@dataclass
class LocalOutput:
    """An answer in the form of verl's servers; see `redraft.engines.vllm.engine.Output`."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class LocalVLLM:
    """A vLLM engine for coroutines on this process's event loop, in float32 by default.

    Only one may exist at a time: vLLM keeps global state, which `close` removes.

    Args:
        model: folder in transformers' format; no tokenizer is needed.
        max_length: longest prompt and response together; for scoring drafts, with one token to spare.
        max_rows: requests at once; further ones wait.
        settings: further arguments of vLLM's engine; they replace the defaults here.
    """

    def __init__(
        self, model: Path | str, max_length: int, max_rows: int = 256, cache_bytes: int = 2**29, **settings: Any
    ) -> None:
        check_head_size(model)
        set_num_threads = torch.set_num_threads
        arguments: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            # The CPU build's default of 128 would leave the prefix of a short response uncached.
            "block_size": 32,
            "enable_prefix_caching": True,
            "max_model_len": max_length,
            "max_num_seqs": max_rows,
            "kv_cache_memory_bytes": cache_bytes,
            # A chunked prefill rewinds the request's random numbers, which fails on a CPU.
            "enable_chunked_prefill": False,
            # Without chunked prefill a whole prompt has to fit into one pass.
            "max_num_batched_tokens": max(max_length, 16384),
            "worker_cls": WORKER,
            "max_logprobs": -1,  # as many as the model has tokens
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        arguments |= settings
        self._worker = arguments["worker_cls"]
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=str(model), **arguments))
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op
        self._numbers = itertools.count()
        self._answers: dict[str, asyncio.Future[RequestOutput]] = {}

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine to their ends, concurrently; return their results in order.

        Raises:
            RuntimeError: if they wait for each other, or for something unknown to `outside`.
        """
        standstill = "vLLM has no requests, but not all coroutines have ended"
        try:
            return asyncio.run(run_to_end(coroutines, self._step, lambda: standstill, outside))
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
        """Serve one request as a verl server does; `logprobs` is true to return those of sampled tokens.

        Raises:
            UserError: for log-probabilities at a temperature other than 1 by vLLM's own worker.
        """
        settings = sampling_params | {"logprobs": 0 if sampling_params.get("logprobs") else None}
        params = SamplingParams(**settings, output_kind=RequestOutputKind.FINAL_ONLY)
        wants_log_probs = {params.logprobs, params.prompt_logprobs} != {None}
        if wants_log_probs and params.temperature != 1 and self._worker != WORKER:
            raise UserError(
                "vLLM's own worker returns log-probabilities at temperature 1 only",
                key="worker_cls",
                value=self._worker,
                allowed=WORKER,
            )
        # Requests of a session share an id, for a balancer of servers; vLLM itself needs a name for each.
        name = f"{request_id}-{next(self._numbers)}"
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        self.engine.add_request(name, tokens_input(prompt_ids), params)
        return to_output(await answer)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load all weights by their names in transformers' format, and drop the prefix cache."""
        if self.engine.model_config.hf_text_config.tie_word_embeddings:
            raise UserError(
                "vLLM on a CPU keeps old embeddings where they are tied",
                key="tie_word_embeddings",
                value=True,
                allowed="false",
            )
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        # Cached keys and values are those of the old weights.
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("weights were loaded while requests were running")

    def close(self) -> None:
        """Free the memory and vLLM's global state, so that another engine can be created."""
        self.engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


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
    """One field of a prompt's log-probabilities by position: of the token, or of the most probable ones if any."""
    # vLLM has nothing for the first token, and puts the prompt's own token before the most probable ones.
    values, spans = getattr(prompt, name), zip(prompt.start_indices[1:], prompt.end_indices[1:], strict=True)
    return [values[begin + 1 if end - begin > 1 else begin : end] for begin, end in spans] + [[0]]
