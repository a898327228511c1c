"""The backends by name: the in-process engine, transformers' `generate`, vLLM in this process."""

from pathlib import Path

from redraft.config.trainer import EngineSettings
from redraft.evaluate.backend import Backend, Request, Response

__all__ = ["Backend", "Request", "Response", "open_backend"]


def open_backend(kind: str, policy: Path | str, settings: EngineSettings, length: int = 0) -> Backend:
    """A backend of a kind (`Evaluation.backend`) for a policy in transformers' format.

    Args:
        kind: which.
        policy: folder or hub id.
        settings: where it executes.
        length: longest prompt and response together, tokens, if it is known; spares vLLM a second start.
    """
    if kind == "vllm":
        from redraft.evaluate.vllm_backend import VLLMBackend

        return VLLMBackend(policy, settings, length)
    if kind == "transformers":
        from redraft.evaluate.transformers_backend import TransformersBackend

        return TransformersBackend(policy, settings)
    from redraft.evaluate.torch_backend import TorchBackend

    return TorchBackend(policy, settings)
