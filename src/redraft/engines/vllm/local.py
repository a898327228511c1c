"""vLLM in this process, with the interface of a client: for tests, benchmarks and evaluation on one machine.

vLLM reads environment variables on import, so they are set here first; variables that are already set keep their value.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

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

from vllm import EngineArgs  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: E402
from vllm.v1.engine.llm_engine import LLMEngine  # noqa: E402

from redraft.engines.vllm.in_process import InProcessClient, LocalOutput, reload_weights  # noqa: E402


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


class LocalVLLM(InProcessClient):
    """A vLLM engine of its own in this process, in float32 by default.

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
        super().__init__(LLMEngine.from_engine_args(EngineArgs(model=str(model), **arguments)))
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> LocalOutput:
        """Serve one request; see `InProcessClient.generate`.

        Raises:
            UserError: for log-probabilities at a temperature other than 1 by vLLM's own worker.
        """
        scores = sampling_params.get("logprobs") or sampling_params.get("prompt_logprobs") is not None
        if scores and sampling_params.get("temperature", 1.0) != 1 and self._worker != WORKER:
            raise UserError(
                "vLLM's own worker returns log-probabilities at temperature 1 only",
                key="worker_cls",
                value=self._worker,
                allowed=WORKER,
            )
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load all weights; see `reload_weights`."""
        reload_weights(self.engine, weights)

    def close(self) -> None:
        """Free the memory and vLLM's global state, so that another engine can be created."""
        self.engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
