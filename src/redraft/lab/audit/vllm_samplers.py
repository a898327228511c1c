"""Part three of the audit: responses that vLLM samples, tested against the enumerated distribution.

One vLLM engine loads the weights of each pass's policy in turn, as a trainer's servers do.
"""

import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel

from redraft.engines.vllm.engine import VLLMEngine
from redraft.lab.audit.context_faults import LEFT_OUT
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.samplers import SPACE, AuditedSampler, Planted, context_fault, half_residual_fault, samplers_of
from redraft.lab.audit.tiny_models import PROMPT
from redraft.methods.acceptance.residual import ResidualRule

if TYPE_CHECKING:
    from redraft.engines.vllm.local import LocalVLLM

T = TypeVar("T")


class PassEngine(VLLMEngine):
    """Engine of one pass; loads the pass's policy before it runs sessions."""

    def __init__(self, local: "LocalVLLM", model: PreTrainedModel, longest: int, temperature: float = 1.0) -> None:
        super().__init__(local, {0}, len(PROMPT) + longest + 1, temperature=temperature)
        self._local, self._model = local, model

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines that use this engine to completion; return their results in order."""
        # All passes share one vLLM; the weights are those of the last pass until here.
        self._local.load(self._model.state_dict().items())
        return self._local.run(*coroutines)


def samplers() -> Iterator[AuditedSampler]:
    """All samplers of vLLM, and planted faults."""
    yield from samplers_of("vllm", VLLMEngine.capabilities)
    yield half_residual_fault("vllm")
    yield context_fault("residual", Planted(ResidualRule(), LEFT_OUT), "vllm")


@contextmanager
def serving(
    models: Sequence[PreTrainedModel], space: Space = SPACE, temperature: float = 1.0
) -> Iterator[list[PassEngine]]:
    """Engines of the passes at a temperature, over one vLLM engine that is closed at the end."""
    from redraft.engines.vllm.local import LocalVLLM  # takes seconds, also when tests are collected

    with tempfile.TemporaryDirectory() as folder:
        # vLLM starts from a folder only; `PassEngine` then loads other weights.
        models[0].save_pretrained(folder)
        local = LocalVLLM(folder, len(PROMPT) + space.longest + 1)
        try:
            yield [PassEngine(local, model, space.longest, temperature) for model in models]
        finally:
            local.close()
