"""The engine that a run's decoding asks for, over the policy that is trained."""

from typing import Any

from redraft.config.decoding import Plain
from redraft.config.experiment import Run
from redraft.engines.torch_engine import TorchEngine
from redraft.train.models import stop_tokens


def open_engine(run: Run, policy: Any, tokenizer: Any, longest_prompt: int) -> TorchEngine:
    """An in-process engine; it decodes with the policy's weights as they are at each call.

    Args:
        run: whose decoding and engine settings.
        policy: a transformers causal language model.
        tokenizer: the policy's.
        longest_prompt: tokens.
    """
    match run.decoding:
        case Plain():
            return TorchEngine(
                policy, stops=stop_tokens(policy, tokenizer),
                max_length=longest_prompt + run.trainer.max_response_tokens, max_rows=run.engine.max_rows,
                max_batched_tokens=run.engine.max_batched_tokens,
            )  # fmt: skip
