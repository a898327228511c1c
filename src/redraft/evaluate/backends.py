"""The choice of a backend by its name: the in-process engine, transformers' `generate`, or vLLM in this process."""

from pathlib import Path

from redraft.config.trainer import EngineSettings
from redraft.evaluate.backend import Backend


def open_backend(kind: str, policy: Path | str, settings: EngineSettings, length: int = 0) -> Backend:
    """Open a backend for a policy in transformers' format.

    Args:
        kind: `torch`, `transformers` or `vllm` (`Evaluation.backend`).
        policy: folder or hub id.
        settings: device, threads and batch sizes.
        length: longest prompt plus response, in tokens; 0 if unknown. It spares vLLM a second start.
    """
    if kind == "vllm":
        from redraft.evaluate.vllm_backend import VLLMBackend

        return VLLMBackend(policy, settings, length)
    if kind == "transformers":
        from redraft.evaluate.transformers_backend import TransformersBackend

        return TransformersBackend(policy, settings)
    from redraft.evaluate.torch_backend import TorchBackend

    return TorchBackend(policy, settings)
