"""Tiny transformers models as policies, so that engines sample from the same distributions that are enumerated."""

from copy import deepcopy
from functools import cached_property
from itertools import product

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from redraft.lab.audit.enumeration import Policy, Response, Space

PROMPT = [1, 2, 1]


def drifting(space: Space, count: int, drift: float, seed: int = 0) -> list[PreTrainedModel]:
    """Models with random weights. Each adds noise of standard deviation `drift` to the matrices of the one before."""
    config = Qwen3Config(
        vocab_size=space.vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=64,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    generator = torch.Generator().manual_seed(seed)
    models = [Qwen3ForCausalLM(config).eval()]
    with torch.no_grad():
        for weights in _matrices(models[0]):
            weights.copy_(0.15 * torch.randn(weights.shape, generator=generator))
        while len(models) < count:
            models.append(deepcopy(models[-1]))
            for weights in _matrices(models[-1]):
                weights.add_(drift * torch.randn(weights.shape, generator=generator))
    return models


def _matrices(model: PreTrainedModel) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.dim() > 1]


class ModelPolicy(Policy):
    """Policy of a model after `PROMPT`. The model's vocabulary must be the space's."""

    def __init__(self, space: Space, model: PreTrainedModel, temperature: float = 1.0) -> None:
        super().__init__(space)
        self._model, self._temperature = model, temperature

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of the token after a prefix, float64 (V,)."""
        return self._distributions[prefix]

    @cached_property
    def _distributions(self) -> dict[Response, np.ndarray]:
        """Distributions after all prefixes, by one forward pass for each length."""
        by_prefix: dict[Response, np.ndarray] = {}
        for length in range(self.space.longest):
            prefixes = list(product(range(1, self.space.vocabulary), repeat=length))
            with torch.no_grad():
                logits = self._model(torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])).logits[:, -1].double()
            by_prefix |= dict(zip(prefixes, (logits / self._temperature).softmax(-1).numpy(), strict=True))
        return by_prefix
