"""Exact speculative sampling: which proposals of a drafter are kept, and what is drawn behind them.

A proposal x from the drafter's law q is kept with probability min(1, p(x) / q(x)), where p is the policy's law at the
same place. Behind the first one that is not kept, a token is drawn from max(p - q, 0), normalised; if all are kept,
from the policy's law behind them. The tokens then have the policy's law, whatever q is (Leviathan, Kalman and Matias,
2023, arXiv 2211.17192, Appendix A.1; Chen et al., 2023, arXiv 2302.01318, Theorem 1).
"""

import torch

from redraft.engines.torch.sampling import invert


def keep(
    policy: torch.Tensor, drafter: torch.Tensor, proposals: torch.Tensor, chances: torch.Tensor, draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep proposals from the left, and draw one token behind the last kept one.

    Args:
        policy: log-probabilities, (rows, n + 1, vocabulary), at the place of each proposal and behind the last.
        drafter: log-probabilities, (rows, n, vocabulary), that the proposals were drawn from.
        proposals: int64 (rows, n).
        chances: (rows, n) on (0, 1), uniform.
        draws: (rows, n + 1) on (0, 1), uniform, for the token behind.

    Returns:
        number of proposals that are kept, int64 (rows,), and the token drawn behind them, int64 (rows,).
    """
    rows, most = torch.arange(len(proposals), device=proposals.device), proposals.shape[1]
    ratios = (_at(policy[:, :most], proposals) - _at(drafter, proposals)).double().exp()
    kept = (chances < ratios).long().cumprod(1).sum(1)
    law = policy[rows, kept].double().exp()
    rejected = kept < most
    accepted = drafter[rows, kept.clamp(max=most - 1)].double().exp() * rejected[:, None]
    rest = (law - accepted).clamp_(min=0.0)
    # Only rounding leaves nothing, where both laws are equal; a rejection there is as improbable as the rounding error.
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, law)
    return kept, invert(rest, draws[rows, kept])


def _at(laws: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return laws.gather(2, tokens[..., None])[..., 0]


def agree(drawn: torch.Tensor, proposals: torch.Tensor) -> torch.Tensor:
    """Number of leading proposals that are the tokens which the policy draws by the same Gumbel noise.

    The response is then, token by token, the one of plain decoding with that noise.

    Args:
        drawn: int64 (rows, n + 1), the policy's tokens.
        proposals: int64 (rows, n).
    """
    return (drawn[:, :-1] == proposals).long().cumprod(1).sum(1)
