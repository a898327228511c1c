"""A model in two halves: the trunk, and the head that makes logits of the trunk's hidden states.

Most positions of a pass need no logits: those of a prompt never, those of a draft one number each. So logits are made
of the positions that are asked for, a chunk at a time, and the vocabulary of a whole batch is never in memory.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from redraft.engines.distributions import LOGITS_AT_ONCE, distributions, positions_of
from redraft.errors import UserError

NEAR = 1e-2
"""Largest difference of the logits of the halves and the whole, as a share of the largest; bfloat16 rounds by 2^-8."""


class Head:
    """The head of a causal language model.

    Args:
        model: a transformers model whose head is one linear layer, with or without scaled or soft-capped logits.
        temperature: of its distributions, above 0; logits are as the model makes them.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        self._linear, config, self.temperature = model.get_output_embeddings(), model.config, temperature
        self.vocabulary: int = config.vocab_size
        self._factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, (..., vocabulary) in the model's precision, of hidden states (..., size)."""
        logits = self._linear(hidden)
        if self._factor != 1:
            logits = logits * self._factor
        if self._cap is not None:
            logits = self._cap * torch.tanh(logits / self._cap)
        return logits

    def distributions(self, hidden: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Positions, and log-probabilities of all tokens there; see `redraft.engines.distributions.distributions`."""
        return distributions(self, self.vocabulary, hidden, self.temperature)

    def log_probs(
        self, hidden: torch.Tensor, tokens: torch.Tensor, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability of a token at each position, and on request the entropy of the distribution, both float32
        (n,).

        Gradients pass through; where there is more than one chunk, its logits are computed again for them.

        Args:
            hidden: (n, size).
            tokens: int64 (n,).
        """
        at_once = positions_of(LOGITS_AT_ONCE[hidden.device.type], self.vocabulary)
        anew = len(hidden) > at_once and torch.is_grad_enabled()
        parts = zip(hidden.split(at_once), tokens.split(at_once), strict=True)
        read = partial(checkpoint, self._read, use_reentrant=False) if anew else self._read
        found = [read(*part, entropy) for part in parts]
        log_probs, entropies = (torch.cat(part) for part in zip(*found, strict=True))
        return log_probs, entropies if entropy else None

    def _read(self, hidden: torch.Tensor, tokens: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, entropies = [], [torch.empty(0, device=hidden.device)]
        for places, distribution in self.distributions(hidden):
            log_probs.append(distribution.gather(1, tokens[places, None])[:, 0])
            if entropy:
                entropies.append(-(distribution.exp() * distribution).sum(-1))
        return torch.cat(log_probs), torch.cat(entropies)

    def divergences(self, hidden: torch.Tensor, other: "Head", others: torch.Tensor) -> torch.Tensor:
        """KL divergence of this distribution from another at each position, float32 (n,), nats.

        Args:
            hidden: (n, size), of this head's trunk.
            others: (n, size), of its trunk.
        """
        pairs = zip(self.distributions(hidden), other.distributions(others), strict=True)
        return torch.cat([(own.exp() * (own - its)).sum(-1) for (_, own), (_, its) in pairs])


def hidden_states(model: PreTrainedModel, **inputs: Any) -> torch.Tensor:
    """What a model's head makes logits of, (rows, width, size), of the inputs of its `forward`."""
    return model.base_model(**inputs).last_hidden_state


def refuse_other_heads(model: PreTrainedModel) -> None:
    """Raise a UserError for a model whose logits are not what `Head` makes of its hidden states."""
    # Two tokens, since the hidden states of a padding token may be 0.
    tokens = torch.arange(2, device=model.device)[None]
    with torch.inference_mode():
        whole = model(input_ids=tokens, use_cache=False).logits.float()
        halves = Head(model)(hidden_states(model, input_ids=tokens, use_cache=False)).float()
    if float((whole - halves).abs().max()) > NEAR * float(whole.abs().max()):
        raise UserError(
            "the torch engine does not know how this model makes logits of its hidden states",
            key="model_type",
            value=model.config.model_type,
            allowed="models with one linear layer to the vocabulary",
        )


def refuse_unsupported(model: PreTrainedModel, max_length: int) -> None:
    """Refuse a model that the engine would compute wrongly, for prompts and responses of `max_length` tokens.

    Raises:
        UserError: for attention that is windowed, soft-capped or has sinks, more tokens than the model has positions,
            or another head; it names the model's type and the key of its configuration.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    windowed = getattr(config, "use_sliding_window", not kinds)  # some only say how large their window is
    unsupported = {
        "layer_types": sorted(kinds - {"full_attention"}),
        "sliding_window": getattr(config, "sliding_window", None) if windowed else None,
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "sinks": [name for name, _ in model.named_parameters() if name.endswith("sinks")],
    }
    for key, value in unsupported.items():
        if value:
            raise UserError(
                f"the torch engine cannot run this {config.model_type} model",
                key=key,
                value=value,
                allowed="full attention in every layer, without soft-capping and sinks",
            )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise UserError(
            f"prompt and response are longer than this {config.model_type} model's positions",
            key="max_position_embeddings",
            value=positions,
            allowed=f"at least {max_length}, or shorter responses",
        )
    refuse_other_heads(model)
