"""Passes of an update and its optimiser, against their minimum work and against a plain implementation.

`python -m benchmarks updates`. The limit is the trunk forward and backward, and the head's products: logits of the
response tokens, and the gradients of hidden states and weights. Seconds are processor seconds of one thread.
"""

import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.head import Head, hidden_states

ROWS, PROMPT, RESPONSE, ROUNDS = 8, 45, 110, 5


def model() -> LlamaForCausalLM:
    """Random weights of SmolLM2-135M's shape with a fifth of its layers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49_152,
            hidden_size=576,
            num_hidden_layers=6,
            num_attention_heads=9,
            num_key_value_heads=3,
            intermediate_size=1536,
            max_position_embeddings=512,
            tie_word_embeddings=True,
        )
    )


def passes(policy: LlamaForCausalLM) -> dict[str, Callable[[], None]]:
    """A forward and backward pass over a micro-batch."""
    tokens = torch.randint(2, policy.config.vocab_size, (ROWS, PROMPT + RESPONSE))
    chosen = tokens[:, PROMPT:].flatten()

    def hidden() -> torch.Tensor:
        policy.zero_grad(set_to_none=True)
        return hidden_states(policy, input_ids=tokens)[:, PROMPT - 1 : -1].flatten(0, 1)

    def limit() -> None:
        logits = policy.lm_head(hidden())
        logits.backward(torch.ones_like(logits))

    def chunks() -> None:
        Head(policy).log_probs(hidden(), chosen)[0].mean().backward()

    def whole() -> None:
        distribution = policy.lm_head(hidden()).log_softmax(-1)
        distribution.gather(1, chosen[:, None]).mean().backward()

    return {"limit: trunk and head's products": limit, "trainer": chunks, "distribution of all positions": whole}


def steps(policy: LlamaForCausalLM) -> dict[str, Callable[[], object]]:
    """A step of AdamW."""
    passes(policy)["trainer"]()
    kernels = {"one kernel": {"fused": True}, "tensor by tensor": {"foreach": False}}
    return {name: torch.optim.AdamW(policy.parameters(), 1e-6, **how).step for name, how in kernels.items()}


def main() -> None:
    """Print both tables."""
    policy = model()
    size = sum(parameter.numel() for parameter in policy.parameters())
    for title, work in (
        (
            f"update: {ROWS} x {RESPONSE} tokens after {PROMPT}, vocabulary {policy.config.vocab_size:,}",
            passes(policy),
        ),
        (f"AdamW: {size:,} parameters", steps(policy)),
    ):
        measured = seconds(title, work, ROUNDS, time.process_time)
        print(f"{title}, processor seconds")
        for name, values in measured.items():
            print(f"{line(name, values)}  {ratio(values, next(iter(measured.values()))):5.2f} x")
