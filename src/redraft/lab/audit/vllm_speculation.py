"""Part four of the audit: the installed vLLM's own speculative sampling, against the enumerated distribution of a small
model.

Speculation must not change the distribution of a single token (EfficientRollout, section 2). For each mode many
responses to one prompt are sampled at temperature 1; the counts of their first three tokens are compared with exact
probabilities by G-tests. The first token is the prefill's and is never speculated.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.lab.audit.goodness import LEVEL, g_test

VOCABULARY, PROMPT, LENGTH, RESPONSES = 16, [1, 2, 3], 6, 4000
TESTED = (1, 2, 3)
"""Positions in the response, from 1 on; the distribution of the third needs V² forward rows."""


def draft_model(folder: Path, sampling: str) -> dict[str, Any]:
    """Configuration of vLLM's speculation by a smaller model, here a disturbed copy of the policy."""
    return {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3, "draft_sample_method": sampling}


MODES: Mapping[str, Callable[[Path], dict[str, Any] | None]] = {
    "without speculation": lambda folder: None,
    "draft model, drafts sampled": lambda folder: draft_model(folder, "probabilistic"),
    "draft model, drafts by argmax": lambda folder: draft_model(folder, "greedy"),
    "ngram": lambda folder: {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
    },
}
"""Mode to the value of vLLM's `speculative_config`, from the folder of the drafter."""


@dataclass(frozen=True)
class Verdict:
    """p-values of a mode's G-tests, in the order of `TESTED`, or why vLLM did not start or serve."""

    p_values: tuple[float, ...] = ()
    refused: str = ""

    @property
    def word(self) -> str:
        """What the tests say of the distribution."""
        if self.refused:
            return "refused by vLLM"
        return "wrong" if min(self.p_values) < LEVEL else "not told from right"


def models() -> tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]:
    """A policy with random weights, and a drafter that it often but not always agrees with."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    policy, drafter = Qwen3ForCausalLM(config), Qwen3ForCausalLM(config)
    with torch.no_grad():
        for own, other in zip(policy.parameters(), drafter.parameters(), strict=True):
            if own.dim() > 1:
                own.normal_(0, 0.15)
            other.copy_(own + 0.08 * torch.randn_like(own))
    return policy, drafter


def distributions(policy: Qwen3ForCausalLM) -> np.ndarray:
    """Exact marginal distributions of the tested positions, (3, V) float64."""

    def after(*tokens: int) -> list[int]:
        return [*PROMPT, *tokens]

    def distribution(rows: list[list[int]]) -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(policy(torch.tensor(rows)).logits[:, -1].double(), -1).numpy()

    first = distribution([after()])[0]
    pairs = first[:, None] * distribution([after(i) for i in range(VOCABULARY)])
    third = distribution([after(i, j) for i, j in itertools.product(range(VOCABULARY), repeat=2)])
    return np.stack([first, pairs.sum(0), pairs.reshape(-1) @ third])


def sample(policy: Path, drafter: Path, mode: str) -> np.ndarray:
    """Responses, (RESPONSES, LENGTH) token ids, of a new engine."""
    from redraft.engines.vllm.local import LocalVLLM  # seconds, which the collection of tests need not wait for

    engine = LocalVLLM(policy, 64, max_rows=64, speculative_config=MODES[mode](drafter))
    request = {"temperature": 1.0, "top_p": 1.0, "max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}

    async def one(number: int) -> list[int]:
        return (await engine.generate(str(number), prompt_ids=PROMPT, sampling_params=dict(request))).token_ids

    try:
        return np.array(engine.run(*map(one, range(RESPONSES))))
    finally:
        engine.close()


def audit(mode: str) -> Verdict:
    """Test the distribution of a mode of the installed vLLM."""
    policy, drafter = models()
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "policy"), Path(folder, "drafter")
        for model, path in zip((policy, drafter), paths, strict=True):
            model.save_pretrained(path)
        try:
            responses = sample(*paths, mode)
        except Exception as error:  # whatever vLLM raises for what it does not have
            return Verdict(refused=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    counts = (np.bincount(responses[:, at - 1], minlength=VOCABULARY) for at in TESTED)
    return Verdict(
        tuple(
            g_test(count, distribution).p_value
            for count, distribution in zip(counts, distributions(policy), strict=True)
        )
    )
