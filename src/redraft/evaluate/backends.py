"""The choice of a backend by its name: the in-process engine, transformers' `generate`, or vLLM in this process."""

from pathlib import Path

from redraft.config.trainer import EngineSettings
from redraft.evaluate.backend import Backend


def open_backend(kind: str, policy: Path | str, settings: EngineSettings, length: int = 0) -> Backend:
    """Open a backend of a kind of `Evaluation.backend` for a policy in transformers' format.

    `length` is the longest prompt plus response, in tokens; 0 if unknown. It spares vLLM a second start.
    """
    if kind == "vllm":
        from redraft.evaluate.vllm_backend import VLLMBackend

        return VLLMBackend(policy, settings, length)
    from redraft.evaluate.torch_backend import TorchBackend, TransformersBackend

    return (TransformersBackend if kind == "transformers" else TorchBackend)(policy, settings)
