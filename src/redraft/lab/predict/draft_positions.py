"""Distributions of two policies at every position of drafts, reduced to the numbers that rules need.

A vocabulary of 150,000 makes whole distributions too large to keep, so they are read in pieces and reduced at once.
Shapes: m positions of a piece, V vocabulary, k stored tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from redraft.engines.requests import checked
from redraft.engines.torch.head import Head, check_heads, chunks, hidden_states
from redraft.errors import UserError
from redraft.lab.predict.saved_rollouts import Draft
from redraft.methods.acceptance.block import joint_acceptance, joint_weights
from redraft.methods.acceptance.positions import BothDistributions, Positions

MAX_TOKENS_PER_PASS = 1 << 13
"""Padded tokens of one forward pass."""
MAX_VALUES_PER_PIECE = 1 << 22
"""Float64 values of distributions that are compared at once; bounds memory."""


def read_positions(
    drafts: Sequence[Draft],
    prompts: dict[int, list[int]],
    policy: Any,
    drafter: Any = None,
    top: int = 32,
    temperature: float = 1.0,
) -> list[Positions]:
    """Distributions at the positions of each draft, in the drafts' order, from transformers causal language models.

    Args:
        drafts: with at least one token each.
        prompts: token ids of their prompts, at least one each.
        policy: model of the current policy.
        drafter: model of the policy that sampled the drafts; None if unknown.
        top: most probable tokens of q that a rule would store.
        temperature: temperature of both distributions, above 0.

    Raises:
        UserError: if log-probabilities are NaN, the models' vocabularies differ, or a model's head is not supported by
            `Head`.
    """
    models = [policy] if drafter is None else [policy, drafter]
    sizes = [model.config.vocab_size for model in models]
    # Token ids of one model mean nothing to the other.
    if len(set(sizes)) > 1:
        raise UserError("policy and drafter have different vocabularies", key="vocab_size", value=sizes)
    readers = [_Reader(draft, prompts[draft.prompt], top) for draft in drafts]
    for model in models:
        model.eval()
        check_heads(model)
    with torch.inference_mode():
        for batch in _batches(readers):
            _read(batch, models, temperature)
    return [reader.positions() for reader in readers]


class _Reader:
    """Reduces the distributions of a draft's positions, which it receives in order, piece by piece."""

    def __init__(self, draft: Draft, prompt: list[int], top: int) -> None:
        self.draft, self.top = draft, top
        self.sequence = [*prompt, *draft.tokens.tolist()]
        # The state of the prompt's last token gives the distribution of the first response token.
        self.first = len(prompt) - 1
        self._tokens = torch.as_tensor(draft.tokens.astype(np.int64))
        self._log_q_T = draft.log_probs.astype(np.float64)
        self._read = 0
        self._weights = (1.0, 1.0)
        self._columns: dict[str, list[np.ndarray]] = {}

    def add(self, distributions: Sequence[torch.Tensor]) -> None:
        """Add the next m positions: log p, and log q if it is known, float64 (m, V) each."""
        here = slice(self._read, self._read + len(distributions[0]))
        self._read = here.stop
        tokens = self._tokens[here, None].to(distributions[0].device)
        log_p_T = checked(distributions[0].gather(1, tokens)[:, 0].cpu().numpy())
        self._keep(log_p_T=log_p_T)
        if len(distributions) > 1:
            self._compare(distributions[0], distributions[1], tokens, log_p_T, self._log_q_T[here])

    def _keep(self, **columns: np.ndarray) -> None:
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def _compare(
        self, log_p: torch.Tensor, log_q: torch.Tensor, tokens: torch.Tensor, log_p_T: np.ndarray, log_q_T: np.ndarray
    ) -> None:
        """Keep the quantities that need both distributions."""
        # Of q, since the tokens were stored when the draft was sampled.
        largest = log_q.topk(min(self.top, log_q.shape[1])).indices
        in_top = (largest == tokens).any(1).cpu().numpy()
        p, q = log_p.exp(), log_q.exp()
        # block verification's joint weights run over the whole draft: once with all of q stored, once with its top k
        stored = (np.ones_like(in_top), in_top)
        weights = [joint_weights(log_p_T, log_q_T, *each) for each in zip(stored, self._weights, strict=True)]
        before = [np.append(first, w[:-1]) for first, w in zip(self._weights, weights, strict=True)]
        self._weights = (float(weights[0][-1]), float(weights[1][-1]))
        self._keep(
            drafter=checked(log_q.gather(1, tokens)[:, 0].cpu().numpy()),
            overlap=torch.minimum(p, q).sum(1).cpu().numpy(),
            same=_same(log_p, log_q, tokens, q),
            in_top=in_top,
            weights=weights[0],
            rest=_rest(p, q, before[0]),
            weights_top=weights[1],
            rest_top=_rest(p.gather(1, largest), q.gather(1, largest), before[1], outside=True),
        )

    def positions(self) -> Positions:
        """All positions of the draft."""
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        # All other columns need both distributions.
        log_p_T, both = columns.pop("log_p_T"), None
        if columns:
            block = joint_acceptance(columns.pop("weights"), columns.pop("rest")[1:])
            block_top = joint_acceptance(columns.pop("weights_top"), columns.pop("rest_top")[1:])
            both = BothDistributions(**columns, block=block, block_top=block_top)
        return Positions(self.draft.tokens, log_p_T, self._log_q_T, both)


def _same(log_p: torch.Tensor, log_q: torch.Tensor, tokens: torch.Tensor, q: torch.Tensor) -> np.ndarray:
    """P(p samples v | q sampled v) under the same Gumbel noise: 1 / sum over w of max(q_v p_w / p_v, q_w).

    That is term v of the probability that both sample the same token (arXiv 2408.07978), divided by q_v.
    """
    at = log_p.gather(1, tokens)
    same = 1 / torch.maximum((log_p + (log_q.gather(1, tokens) - at)).exp(), q).sum(1)
    return same.clamp_(max=1.0).masked_fill_(at[:, 0].isneginf(), 0.0).cpu().numpy()


def _rest(p: torch.Tensor, q: torch.Tensor, weights: np.ndarray, outside: bool = False) -> np.ndarray:
    """Residual mass of block verification, sum of max(w p - q, 0), float64 (m,), for p and q on k tokens, (m, k).

    With `outside`, the k tokens are not the whole vocabulary. q counts as 0 on the others, where all of w p is left.
    """
    w = torch.as_tensor(weights, device=p.device)
    rest = (w[:, None] * p - q).clamp_(min=0.0).sum(1)
    if outside:
        rest += w * (1.0 - p.sum(1)).clamp_(min=0.0)
    return rest.cpu().numpy()


def _batches(readers: Sequence[_Reader]) -> Iterator[list[_Reader]]:
    """Drafts of similar length, as many as fit into a pass, longest first."""
    waiting = sorted(readers, key=lambda reader: len(reader.sequence))
    while waiting:
        rows = max(1, MAX_TOKENS_PER_PASS // len(waiting[-1].sequence))
        yield waiting[-rows:]
        del waiting[-rows:]


def _read(batch: Sequence[_Reader], models: Sequence[Any], temperature: float) -> None:
    """Run the models on a batch, and add the distributions at response positions to the readers."""
    width = max(len(reader.sequence) for reader in batch) - 1  # nothing follows the last token
    # Padding is on the right, where causal attention hides it from all tokens before.
    rows = [reader.sequence[:width] + [0] * (width - len(reader.sequence)) for reader in batch]
    tokens = torch.tensor(rows, device=models[0].device)
    heads = [Head(model) for model in models]
    states = [hidden_states(model, input_ids=tokens, use_cache=False) for model in models]
    for row, reader in enumerate(batch):
        hidden = [state[row, reader.first : len(reader.sequence) - 1] for state in states]
        for piece in chunks(len(hidden[0]), MAX_VALUES_PER_PIECE, heads[0].vocabulary):
            # float64, since residual masses are small differences of probabilities.
            logits = [head(each[piece]).double() for head, each in zip(heads, hidden, strict=True)]
            reader.add([(each / temperature).log_softmax(-1) for each in logits])
