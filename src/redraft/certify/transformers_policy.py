"""A transformers model as policy: log-probabilities from plain forward passes; and its `generate` as a sampler."""

from collections.abc import Iterator
from typing import Any

import torch

from redraft.certify.protocol import Known, Sampled, length_to_end
from redraft.errors import UserError

BATCH_TOKENS = 4096
"""Padded tokens in one forward pass."""


class TransformersPolicy:
    """The distribution of a causal language model, in the model's dtype; softmax in float32.

    Args:
        model: a transformers causal language model.
        end_tokens: tokens that end a response.
        name: for the certificate.
    """

    def __init__(self, model: Any, end_tokens: frozenset[int], name: str = "the model") -> None:
        self.model, self.end_tokens, self.name = model.eval(), end_tokens, name

    def log_probs(self, prompts: list[list[int]], responses: list[list[int]]) -> Iterator[Known]:
        """Log-probabilities of the whole vocabulary.

        Raises:
            UserError: if a token is not in the vocabulary.
        """
        rows = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if (largest := max(map(max, rows))) >= vocabulary:
            raise UserError(
                "a token is not in the policy's vocabulary", value=largest, allowed=f"0 to {vocabulary - 1}"
            )
        begin = 0
        while begin < len(rows):
            width, end = 0, begin
            while end < len(rows) and (end == begin or max(width, len(rows[end])) * (end - begin + 1) <= BATCH_TOKENS):
                width, end = max(width, len(rows[end])), end + 1
            logits = self._logits(rows[begin:end], width)
            for i in range(begin, end):
                first = len(prompts[i]) - 1
                chosen = logits[i - begin, first : first + len(responses[i])].float()
                yield Known(chosen.log_softmax(-1).cpu().numpy())
            begin = end

    def _logits(self, rows: list[list[int]], width: int) -> torch.Tensor:
        # Padded on the right: causal attention keeps padding away from all that is read.
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            return self.model(
                input_ids=torch.tensor(padded, device=device), attention_mask=torch.tensor(mask, device=device)
            ).logits


class Generate:
    """transformers' `generate` as a sampler.

    Args:
        policy: model and end tokens.
        parameters: of `generate`. Sampling is on; all else is left to the model's generation config, since a top-k or
            top-p in it is what a caller gets (transformers' default is top-k 50).
    """

    def __init__(self, policy: TransformersPolicy, **parameters: Any) -> None:
        self.policy, self.parameters, self.name = policy, parameters, "transformers generate"

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses, one prompt after another."""
        model, ends = self.policy.model, sorted(self.policy.end_tokens)
        device, found = next(model.parameters()).device, []
        for prompt in prompts:
            with torch.inference_mode():
                tokens = model.generate(
                    torch.tensor([prompt], device=device),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=device),
                    do_sample=True,
                    num_return_sequences=samples,
                    max_new_tokens=max_tokens,
                    eos_token_id=ends or None,
                    pad_token_id=ends[0] if ends else 0,
                    **self.parameters,
                )[:, len(prompt) :].tolist()
            found.append([Sampled(row[: length_to_end(row, self.policy.end_tokens)]) for row in tokens])
        return found


def load(folder: str, dtype: str = "float32") -> tuple[TransformersPolicy, Any]:
    """Policy of a folder in transformers' format, and its tokenizer.

    Raises:
        UserError: if the folder has no model that can be loaded.
    """
    from redraft.train import models

    model, tokenizer = models.load(folder, dtype=getattr(torch, dtype))
    return TransformersPolicy(model, models.ends(folder, tokenizer), folder), tokenizer
