"""Part three of the audit: responses that vLLM draws by the methods it can do, against the policy's enumerated
distribution.

One vLLM takes over the weights of each visit's policy, as the servers of a trainer do.
"""

import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel

from redraft.engines.vllm.engine import VLLMEngine
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.models import PROMPT
from redraft.lab.audit.samplers import SPACE, Sampler, half_a_residual, of_engine

if TYPE_CHECKING:
    from redraft.engines.vllm.local import LocalVLLM

T = TypeVar("T")


class Served(VLLMEngine):
    """Engine of a visit: its policy is loaded when its sessions are run."""

    def __init__(self, local: "LocalVLLM", model: PreTrainedModel, longest: int, temperature: float = 1.0) -> None:
        super().__init__(local, {0}, len(PROMPT) + longest + 1, temperature=temperature)
        self._local, self._model = local, model

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines that use this engine to their ends; return their results in order."""
        self._local.load(self._model.state_dict().items())
        return self._local.run(*coroutines)


def samplers() -> Iterator[Sampler]:
    """All samplers of vLLM, and a planted fault."""
    yield from of_engine("vllm", VLLMEngine.capabilities)
    yield half_a_residual("vllm")


@contextmanager
def serving(
    models: Sequence[PreTrainedModel], space: Space = SPACE, temperature: float = 1.0
) -> Iterator[list[Served]]:
    """Engines of the visits at a temperature, over one vLLM that is closed at the end."""
    from redraft.engines.vllm.local import LocalVLLM  # seconds, which the collection of tests need not wait for

    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)
        local = LocalVLLM(folder, len(PROMPT) + space.longest + 1)
        try:
            yield [Served(local, model, space.longest, temperature) for model in models]
        finally:
            local.close()
