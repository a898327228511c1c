"""Part three of the audit: responses that vLLM draws by the methods it can do, against the policy's enumerated law.

One vLLM takes over the weights of each visit's policy, as the servers of a trainer do.
"""

import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel

from redraft.engines.vllm.engine import VLLMEngine
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import g_test
from redraft.lab.audit.models import PROMPT, ModelPolicy
from redraft.lab.audit.samplers import DRAWS, SPACE, Drawn, Sampler, half_a_residual, of_engine
from redraft.lab.audit.sampling import counts, last_visit

if TYPE_CHECKING:
    from redraft.engines.vllm.local import LocalVLLM

T = TypeVar("T")


class Served(VLLMEngine):
    """Engine of a visit: its policy is loaded when its sessions are run.

    Args:
        local: vLLM in this process.
        model: the policy.
        longest: tokens of a response.
        temperature: as of `VLLMEngine`.
    """

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


def audit(
    sampler: Sampler, engines: Sequence[Served], policy: ModelPolicy, draws: int = DRAWS, space: Space = SPACE
) -> Drawn:
    """Draw with a sampler over visits of these engines, and test the last visit's responses against its policy."""
    drawn = last_visit(sampler.strategy, sampler.retention, engines, space, draws, sampler.streams)
    found, kept = counts(drawn, space)
    return Drawn(sampler, g_test(found, policy.responses()), kept)
