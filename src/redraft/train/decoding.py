"""A run's decoding: the engine that it asks for, over the policy that is trained."""

from typing import Any, Protocol

from redraft.config.decoding import Plain
from redraft.config.experiment import Run
from redraft.engines.torch_engine import TorchEngine
from redraft.train.models import stop_tokens


class Decoding(Protocol):
    """Owns the engine of the local trainer."""

    engine: TorchEngine

    def publish(self) -> None:
        """Take in that the policy's weights have changed, before anything is rolled out with them."""
        ...


class PlainDecoding:
    """An engine that computes with the policy's own weights.

    Args:
        run: whose engine settings and longest response.
        policy: a transformers causal language model.
        tokenizer: the policy's.
        longest_prompt: tokens.
    """

    def __init__(self, run: Run, policy: Any, tokenizer: Any, longest_prompt: int) -> None:
        self.engine = TorchEngine(
            policy, stops=stop_tokens(policy, tokenizer), max_length=longest_prompt + run.trainer.max_response_tokens,
            max_rows=run.engine.max_rows, max_batched_tokens=run.engine.max_batched_tokens,
        )  # fmt: skip

    def publish(self) -> None:
        """Do nothing: there is no second copy of the weights."""


def open_decoding(run: Run, policy: Any, tokenizer: Any, longest_prompt: int) -> Decoding:
    """The decoding of a run; arguments as of `PlainDecoding`."""
    match run.decoding:
        case Plain():
            return PlainDecoding(run, policy, tokenizer, longest_prompt)
