"""A model in two halves: the trunk, and the head that computes logits from the trunk's hidden states.

Most positions of a pass need no logits: those of a prompt none, those of a draft one number each. So logits are
computed for the requested positions only, a chunk at a time, and a whole batch's vocabulary is never in memory.

Shapes: N positions (rows and tokens flattened), V vocabulary, K top tokens, H hidden size.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from redraft.engines.torch.sampling import log_probs_of
from redraft.errors import UserError

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Logits in memory at once: with a vocabulary of 152k those of 110 (CPU) or 441 positions (GPU), for one read of the
head's weights."""
NORMALISED_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Logits normalised at once: few enough to stay in a CPU's cache, and to leave memory on a GPU for noise in float64."""
MAX_LOGIT_ERROR = 1e-2
"""Largest difference between logits of the two halves and of the whole model, relative to the largest logit; bfloat16
rounds by 2^-8."""

LogitsOf = Callable[[torch.Tensor], torch.Tensor]
"""A model's head: logits (N, V) of hidden states (N, H)."""


def distributions(
    head: LogitsOf, vocabulary: int, hidden_NH: torch.Tensor, temperature: float = 1.0
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Log-probabilities of all tokens, a few positions at a time.

    Args:
        temperature: above 0.

    Yields:
        A slice of the positions, and float32 (positions, V), without gradients valid until the next one; once also for
        N = 0.
    """
    device, first = hidden_NH.device.type, 0
    chunk, piece = (max(1, limit[device] // vocabulary) for limit in (LOGITS_AT_ONCE, NORMALISED_AT_ONCE))
    if not (differentiable := torch.is_grad_enabled()):
        # Memory of this size goes back to the operating system when it is freed. A new tensor for each piece would
        # fault in every page again, which takes as long as the head's product.
        shape = (2, min(piece, len(hidden_NH)), vocabulary)
        scaled_NV, normalised_NV = torch.empty(shape, dtype=torch.float32, device=hidden_NH.device)
    # `split`, as the gradient of each slice is a tensor of zeros as large as the whole.
    for hidden in hidden_NH.split(chunk):
        for logits in head(hidden).split(piece):
            if differentiable:
                log_probs = log_probs_of(logits, temperature)
            else:
                scaled = scaled_NV[: len(logits)].copy_(logits)
                scaled = scaled if temperature == 1 else scaled.div_(temperature)
                log_probs = torch.log_softmax(scaled, -1, out=normalised_NV[: len(logits)])
            yield slice(first, first + len(log_probs)), log_probs
            first += len(log_probs)
        del logits  # else the next chunk's logits could not take its memory


def chunks(count: int, logits: int, vocabulary: int) -> Iterator[slice]:
    """Slices of `count` positions with at most `logits` logits each: one position at least, and one slice for none."""
    at_once = max(1, logits // vocabulary)
    return (slice(first, first + at_once) for first in range(0, max(count, 1), at_once))


def given_log_probs(
    head: LogitsOf,
    vocabulary: int,
    hidden_NH: torch.Tensor,
    tokens_N: torch.Tensor,
    top: int = 0,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of a given token and of the `top` most probable ones at each position.

    Returns:
        Tokens, int64, and their log-probabilities, float32, both (N, 1 + top): the given one, then the most probable
        ones in descending order.
    """
    ids, log_probs = [], []
    for part, log_probs_NV in distributions(head, vocabulary, hidden_NH, temperature):
        given, largest = tokens_N[part, None], log_probs_NV.topk(top)
        ids.append(torch.cat([given, largest.indices], 1))
        log_probs.append(torch.cat([log_probs_NV.gather(1, given), largest.values], 1))
    return torch.cat(ids), torch.cat(log_probs)


class Head:
    """The head of a causal language model.

    Args:
        model: a transformers model whose head is one linear layer, with or without scaled or soft-capped logits.
        temperature: of its distributions, above 0; a call gives logits at temperature 1.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        self._linear, config, self.temperature = model.get_output_embeddings(), model.config, temperature
        self.vocabulary: int = config.vocab_size
        # Cohere's models multiply logits, Granite's divide them, and some of Gemma's cap them.
        self._factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (..., V), in the model's precision, of hidden states (..., H)."""
        logits = self._linear(hidden)
        if self._factor != 1:
            logits = logits * self._factor
        if self._cap is not None:
            logits = self._cap * torch.tanh(logits / self._cap)
        return logits

    def log_probs(
        self, hidden_NH: torch.Tensor, tokens_N: torch.Tensor, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability of a token at each position, and on request the distribution's entropy, both float32 (N,).

        Differentiable; with more than one chunk, the backward pass recomputes the logits.
        """
        at_once = max(1, LOGITS_AT_ONCE[hidden_NH.device.type] // self.vocabulary)
        recompute = len(hidden_NH) > at_once and torch.is_grad_enabled()
        read = partial(checkpoint, self._read, use_reentrant=False) if recompute else self._read
        chunks_N = zip(hidden_NH.split(at_once), tokens_N.split(at_once), strict=True)
        columns = zip(*(read(hidden, tokens, entropy) for hidden, tokens in chunks_N), strict=True)
        log_probs_N, entropies_N = (torch.cat(column) for column in columns)
        return log_probs_N, entropies_N if entropy else None

    def _read(self, hidden_NH: torch.Tensor, tokens_N: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, ...]:
        """`log_probs` of one chunk."""
        # One tensor without entries, since `cat` rejects an empty list.
        log_probs, entropies = [], [torch.empty(0, device=hidden_NH.device)]
        for part, log_probs_NV in distributions(self, self.vocabulary, hidden_NH, self.temperature):
            log_probs.append(log_probs_NV.gather(1, tokens_N[part, None])[:, 0])
            if entropy:
                entropies.append(-(log_probs_NV.exp() * log_probs_NV).sum(-1))
        return torch.cat(log_probs), torch.cat(entropies)

    def divergences(self, hidden_NH: torch.Tensor, other: "Head", other_hidden_NH: torch.Tensor) -> torch.Tensor:
        """KL divergence of this head's distribution from another's at each position, float32 (N,), nats.

        Args:
            hidden_NH: from this head's trunk.
            other_hidden_NH: from the other head's trunk.
        """
        own = distributions(self, self.vocabulary, hidden_NH, self.temperature)
        others = distributions(other, other.vocabulary, other_hidden_NH, other.temperature)
        return torch.cat([(p.exp() * (p - q)).sum(-1) for (_, p), (_, q) in zip(own, others, strict=True)])


def hidden_states(model: PreTrainedModel, **inputs: Any) -> torch.Tensor:
    """Hidden states (B, T, H) that a model's head reads, of the inputs of its `forward`."""
    return model.base_model(**inputs).last_hidden_state


def check_heads(model: PreTrainedModel) -> None:
    """Raise a UserError for a model whose logits differ from what `Head` computes from its hidden states."""
    # Two tokens, as the hidden states of a padding token may be 0.
    inputs = {"input_ids": torch.arange(2, device=model.device)[None], "use_cache": False}
    training = model.training
    model.eval()  # without dropout, which would differ between the two passes
    try:
        with torch.inference_mode():
            # The method of the class: accelerate's mixed precision gives the instance another one, under autocast.
            whole = type(model).forward(model, **inputs).logits.float()
            halves = Head(model)(hidden_states(model, **inputs)).float()
    finally:
        model.train(training)
    if float((whole - halves).abs().max()) > MAX_LOGIT_ERROR * float(whole.abs().max()):
        raise UserError(
            "the torch engine does not know how this model makes logits of its hidden states",
            key="model_type",
            value=model.config.model_type,
            allowed="models with one linear layer to the vocabulary",
        )


def check_constant_rotation(config: Any, positions: int, file: Path | str | None = None) -> None:
    """Reject rotary embeddings that change within `positions` positions: `longrope` (the Phi-3 family) and `dynamic`.

    Beyond the model's original length they use other frequencies, chosen by the longest sequence of a pass. Cached keys
    keep the earlier ones, and a short sequence changes with its neighbours; vLLM chooses once for all sequences.

    Raises:
        UserError: with the number of positions that are unaffected.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # by type of layer in some models
        kind = (parameters.get("rope_type") or "") if isinstance(parameters, dict) else ""
        if kind != "longrope" and "dynamic" not in kind:
            continue
        whole = config.max_position_embeddings
        original = parameters.get("original_max_position_embeddings", whole) if kind == "longrope" else whole
        if positions > original:
            raise UserError(
                f"the rotary embeddings of this {config.model_type} model change with the length of a sequence",
                file=file,
                key="rope_parameters.rope_type",
                value=f"{kind}, with {positions} positions",
                allowed=f"at most {original} positions, prompt and response together",
            )


def check_supported(model: PreTrainedModel, max_length: int, lookahead: int = 0) -> None:
    """Reject a model that the engine would compute wrongly, for prompts and responses of `max_length` tokens.

    Args:
        lookahead: further positions that a pass may compute and drop.

    Raises:
        UserError: for attention that is windowed, soft-capped or has sinks, rotary embeddings that change with the
            length, more tokens than the model has positions, or another head; it names the model's type and the key of
            its configuration.
    """
    config = model.config
    check_constant_rotation(config, max_length + lookahead)
    kinds = set(getattr(config, "layer_types", None) or ())
    windowed = getattr(config, "use_sliding_window", not kinds)  # some models have only the window's length
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
    check_heads(model)
