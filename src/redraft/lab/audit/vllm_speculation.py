"""Part four of the audit: vLLM's own speculative sampling, tested against the enumerated distribution of a small model.

Speculative sampling must not change any token's distribution (Leviathan et al., arXiv 2211.17192; EfficientRollout,
section 2). For each mode, many responses to one prompt are sampled at temperature 1. G-tests compare the counts of the
first three tokens with their exact probabilities. The prefill samples the first token, so it is never speculated.
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
"""Tested positions in the response, from 1 on; the exact distribution of the third takes V² rows of a forward pass."""


def draft_model(folder: Path, sampling: str) -> dict[str, Any]:
    """vLLM's `speculative_config` for a draft model, here the policy with noise on its weights."""
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
"""By mode, a function from the draft model's folder to vLLM's `speculative_config`."""


@dataclass(frozen=True)
class SpeculationTest:
    """p-values of a mode's G-tests, in the order of `TESTED`, or the error with which vLLM failed to start or serve."""

    p_values: tuple[float, ...] = ()
    error: str = ""

    @property
    def verdict(self) -> str:
        """Outcome of the tests."""
        if self.error:
            return "not supported by vLLM"
        return "wrong" if min(self.p_values) < LEVEL else "not rejected"


def models() -> tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]:
    """A policy with random weights, and a draft model that often but not always agrees with it."""
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
            # Close to the policy: a drafter that always or never agrees would hide a fault.
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
    # All pairs of first tokens in one forward pass.
    third = distribution([after(i, j) for i, j in itertools.product(range(VOCABULARY), repeat=2)])
    return np.stack([first, pairs.sum(0), pairs.reshape(-1) @ third])


def sample(policy: Path, drafter: Path, mode: str) -> np.ndarray:
    """Responses of a new engine, token ids (RESPONSES, LENGTH)."""
    from redraft.engines.vllm.local import LocalVLLM  # takes seconds, also when tests are collected

    # A new engine for each mode: its speculation is fixed when it starts.
    engine = LocalVLLM(policy, 64, max_rows=64, speculative_config=MODES[mode](drafter))
    request = {"temperature": 1.0, "top_p": 1.0, "max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}

    async def one(number: int) -> list[int]:
        return (await engine.generate(str(number), prompt_ids=PROMPT, sampling_params=dict(request))).token_ids

    try:
        return np.array(engine.run(*map(one, range(RESPONSES))))
    finally:
        engine.close()


def audit(mode: str) -> SpeculationTest:
    """Test the distribution of a mode of the installed vLLM."""
    policy, drafter = models()
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "policy"), Path(folder, "drafter")
        for model, path in zip((policy, drafter), paths, strict=True):
            model.save_pretrained(path)
        try:
            responses = sample(*paths, mode)
        except Exception as error:  # vLLM has no common base class for unsupported features
            return SpeculationTest(error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    counts = (np.bincount(responses[:, at - 1], minlength=VOCABULARY) for at in TESTED)
    tests = map(g_test, counts, distributions(policy))
    return SpeculationTest(tuple(test.p_value for test in tests))
