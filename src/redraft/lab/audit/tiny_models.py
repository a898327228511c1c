"""Tiny transformers models as policies, so that engines sample from the same distributions that are enumerated."""

from copy import deepcopy
from itertools import product

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from redraft.lab.audit.enumeration import Policy, Response, Space

PROMPT = [1, 2, 1]


def drifting(
    space: Space, count: int, drift: float, seed: int = 0, scale: float = 0.15, head_scale: float | None = None
) -> list[PreTrainedModel]:
    """Models with random weights. Each adds noise of standard deviation `drift` to the matrices of the one before.

    Args:
        scale: standard deviation of the first model's weights. At 0.15 the next token hardly depends on those before
            it; at 0.6 it does.
        head_scale: that of the head, `scale` by default; the larger it is, the less random the tokens are.
    """
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
            # The head decides how random tokens are, the other matrices how much they depend on context.
            deviation = scale if head_scale is None or weights is not models[0].lm_head.weight else head_scale
            weights.copy_(deviation * torch.randn(weights.shape, generator=generator))
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
        self._after: dict[tuple[int, int | None], dict[Response, np.ndarray]] = {}

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of the token after a prefix, float64 (V,)."""
        return self.after(prefix)

    def after(self, tokens: Response, late_from: int | None = None) -> np.ndarray:
        """Distribution of the token after `PROMPT` and any tokens, float64 (V,).

        Args:
            tokens: may contain the end of sequence, which no prefix of a response does.
            late_from: index in `tokens` from which positions are one too high, and also that of the token before it;
                None if all are right.
        """
        key = len(tokens), late_from
        if key not in self._after:
            self._after[key] = self._forward(*key)
        return self._after[key][tokens]

    def _forward(self, length: int, late_from: int | None) -> dict[Response, np.ndarray]:
        """Distributions after all sequences of a length, by one forward pass."""
        sequences = list(product(range(self.space.vocabulary), repeat=length))
        positions_T = torch.arange(len(PROMPT) + length)
        if late_from is not None:
            # From the token before on, since the engine feeds the last kept token again when it continues.
            positions_T[len(PROMPT) + late_from - 1 :] += 1
        input_ids = torch.tensor([[*PROMPT, *tokens] for tokens in sequences])
        with torch.no_grad():
            logits = self._model(input_ids, position_ids=positions_T[None].expand(input_ids.shape)).logits
        distributions = (logits[:, -1].double() / self._temperature).softmax(-1).numpy()
        return dict(zip(sequences, distributions, strict=True))
