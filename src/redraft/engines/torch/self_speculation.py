"""Self-speculative decoding in the in-process engine: the policy's quantised copy proposes, the policy verifies.

A speculated pass of the decoding sessions is n passes of the drafter, one token each, and one pass of the policy over a
block of n + 1 tokens per session. Both use one cache: the drafter attends to the policy's keys and values, and its own
occupy the slots of its proposals until verification overwrites them. Slots after a rejected proposal are never attended
to. The controller sets the number of proposals; with none a pass is a plain one.

A proposal x from the drafter's distribution q is kept with probability min(1, p(x) / q(x)), where p is the policy's
distribution at the same position. The token after the last kept proposal is sampled from max(p - q, 0), normalised, if
a proposal was rejected, and else from the policy's distribution. The tokens then have the policy's distribution,
whatever q is (Leviathan, Kalman and Matias, 2023, arXiv 2211.17192, Appendix A.1; Chen et al., 2023, arXiv 2302.01318,
Theorem 1).

Sessions with inverse-CDF sampling use other random numbers in speculated passes, all derived from the session's first
uniform; sessions with Gumbel noise get the very tokens of plain decoding.

Shapes: B rows, n proposals of a row, T = n + 1 tokens of a block, V vocabulary.
"""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from redraft.config.decoding import BLOCK_STARTS
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.loop import Outside, now
from redraft.engines.torch.row_table import DecodeRequest
from redraft.engines.torch.sampling import gumbel, invert, keys_of, sample_specially, uniform

T = TypeVar("T")

PROPOSE, KEEP, NEXT = -1, -2, -3
"""Uses of a position's uniform numbers: sampling a proposal, verifying it, and sampling the token after the kept
ones."""


class Controller(Protocol):
    """Decides before each pass how many tokens are proposed."""

    def begin(self) -> None:
        """Start a rollout."""
        ...

    def draft_length(self, active: int, mean_length: float) -> int:
        """Number of proposals per response in the next pass; 0 for a plain one.

        Args:
            active: number of responses that decode.
            mean_length: mean length of prompt and response so far, tokens.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """Proposes the same number of tokens in every pass."""

    count: int

    def begin(self) -> None:
        """Do nothing."""

    def draft_length(self, active: int, mean_length: float) -> int:
        """The fixed number."""
        return self.count


@dataclass
class Speculated:
    """Counts and times of speculation in a rollout.

    Attributes:
        passes: speculated decoding passes.
        plain_passes: decoding passes without speculation.
        blocks: blocks of all responses: one per response and speculated pass.
        proposed: proposed tokens.
        kept: kept tokens, including those that a limit or stop of the response then cuts off.
        kept_at: kept tokens by position in the block.
        proposed_at: proposed tokens by position in the block.
        kept_from: kept tokens by the part of the response (`BLOCK_STARTS`) in which their block begins.
        proposed_from: proposed tokens by that part.
        drafting_seconds: time of the drafter's passes.
        verification_seconds: time of the policy's passes over the blocks.
    """

    passes: int = 0
    plain_passes: int = 0
    blocks: int = 0
    proposed: int = 0
    kept: int = 0
    kept_at: list[int] = field(default_factory=list)
    proposed_at: list[int] = field(default_factory=list)
    kept_from: list[int] = field(default_factory=list)
    proposed_from: list[int] = field(default_factory=list)
    drafting_seconds: float = 0.0
    verification_seconds: float = 0.0

    @property
    def block_efficiency(self) -> float | None:
        """Mean tokens per block, the kept ones and the one after them (τ); None without a block."""
        return 1 + self.kept / self.blocks if self.blocks else None

    def add(self, kept_B: torch.Tensor, positions_B: torch.Tensor, most: int) -> None:
        """Count a speculated pass.

        Args:
            kept_B: int64, proposals that each response keeps.
            positions_B: int64, tokens of each response before its block.
            most: proposals of each response.
        """
        rows, histogram = len(kept_B), torch.bincount(kept_B, minlength=most + 1)
        at_least = histogram.flip(0).cumsum(0).flip(0)[1:].tolist()  # responses that kept this position or a later one
        self.passes += 1
        self.blocks += rows
        self.proposed += rows * most
        self.kept += sum(at_least)
        self.kept_at = _sum(self.kept_at, at_least)
        self.proposed_at = _sum(self.proposed_at, [rows] * most)
        parts = torch.bucketize(positions_B, torch.tensor(BLOCK_STARTS), right=True) - 1
        self.kept_from = _sum(self.kept_from, parts.bincount(kept_B).long().tolist())
        self.proposed_from = _sum(self.proposed_from, (most * parts.bincount()).tolist())


def _sum(one: list[int], other: list[int]) -> list[int]:
    """Elementwise sum of lists whose lengths may differ."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


def keep(
    policy_BTV: torch.Tensor,
    drafter_BnV: torch.Tensor,
    proposals_Bn: torch.Tensor,
    keep_uniforms_Bn: torch.Tensor,
    next_uniforms_BT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep proposals from the left, and sample one token after the last kept one.

    Args:
        policy_BTV: log-probabilities at each proposal's position and after the last one.
        drafter_BnV: log-probabilities from which the proposals were sampled.
        proposals_Bn: int64.
        keep_uniforms_Bn: on (0, 1), for the verification of each proposal.
        next_uniforms_BT: on (0, 1), for the token after the kept ones, by its position in the block.

    Returns:
        Number of kept proposals, int64 (B,), and the token after them, int64 (B,).
    """
    rows_B, most = torch.arange(len(proposals_Bn), device=proposals_Bn.device), proposals_Bn.shape[1]
    log_p_Bn, log_q_Bn = (
        log_probs.gather(2, proposals_Bn[..., None])[..., 0] for log_probs in (policy_BTV[:, :most], drafter_BnV)
    )
    # The product is 1 up to the first rejection.
    kept_B = (keep_uniforms_Bn < (log_p_Bn - log_q_Bn).double().exp()).long().cumprod(1).sum(1)
    p_BV = policy_BTV[rows_B, kept_B].double().exp()
    rejected_B = kept_B < most
    # Nothing is subtracted where all proposals were kept: the token after them has the policy's distribution.
    q_BV = drafter_BnV[rows_B, kept_B.clamp(max=most - 1)].double().exp() * rejected_B[:, None]
    residual_BV = (p_BV - q_BV).clamp_(min=0.0)
    # Only by rounding is the residual empty: both distributions are equal, and a rejection there is as improbable as
    # the rounding error.
    residual_BV = torch.where(residual_BV.sum(1, keepdim=True) > 0, residual_BV, p_BV)
    return kept_B, invert(residual_BV, next_uniforms_BT[rows_B, kept_B])  # which normalises


def agree(sampled_BT: torch.Tensor, proposals_Bn: torch.Tensor) -> torch.Tensor:
    """Number of leading proposals, int64 (B,), that equal the tokens which the policy samples by the same Gumbel noise.

    The response is then, token by token, the one of plain decoding with that noise.
    """
    return (sampled_BT[:, :-1] == proposals_Bn).long().cumprod(1).sum(1)


class SelfSpeculativeEngine(TorchEngine):
    """The in-process engine with a quantised drafter.

    Args:
        model: the policy, as of `TorchEngine`; call `drafter.refresh` after its weights have changed.
        controller: sets the number of proposals before each pass.
        longest: most proposals of a pass.
        bits: of a quantised weight.
        group: weights that share a scale.
        options: of `TorchEngine`, except temperature 0 and top-p, whose distributions have no ratios, and bursts, since
            the controller is called before each pass.

    Attributes:
        speculated: counts and times of the last run.

    Raises:
        UserError: for a model without projections to quantise.
        ValueError: if the policy's distribution is truncated.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        controller: Controller,
        longest: int,
        *,
        bits: int = 4,
        group: int = 128,
        **options: Any,
    ) -> None:
        super().__init__(model, lookahead=longest, burst=1, **options)
        if self.truncates:
            raise ValueError("self-speculation needs the policy's full distribution: a temperature above 0 and top-p 1")
        self.controller, self._longest = controller, longest
        self.drafter = QuantisedDrafter(model, bits, group)
        self.speculated = Speculated()

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine to their ends, as one rollout; see `TorchEngine.run`."""
        self.controller.begin()
        self.speculated = Speculated()
        return super().run(*coroutines, outside=outside)

    def _decode(self) -> list[int]:
        """One token of every decoding session, or a block of them; see `TorchEngine._decode`."""
        active = self.rows.decoding
        rows = slice(0, active)
        mean_length = float(self.rows.positions[rows].double().mean()) + 1
        count = min(self.controller.draft_length(active, mean_length), self._longest)
        if count < 1:
            self.speculated.plain_passes += 1
            return super()._decode()
        began = now(self.device)
        sampler = _BlockSampler(self.rows.live, self.rows.positions[rows], self.rows.uniforms[rows, 0])
        proposals_Bn, drafter_BnV = self._propose(count, sampler)
        drafted = now(self.device)
        block_BT = torch.cat((self.rows.tokens[rows, None], proposals_Bn), 1)
        policy_BTV = self._distributions(block_BT, self.rows.positions[rows], sampler.longest + count)
        kept_B, next_B = sampler.verify(policy_BTV, drafter_BnV, proposals_Bn)
        # The kept proposals and the token after them; the rest of a row is padding.
        tokens_BT = torch.cat((proposals_Bn, next_B[:, None]), 1).scatter(1, kept_B[:, None], next_B[:, None])
        self.speculated.add(kept_B.cpu(), sampler.positions_B.cpu(), count)
        self.speculated.drafting_seconds += drafted - began
        self.speculated.verification_seconds += now(self.device) - drafted
        self.rows.advance(tokens_BT, policy_BTV, kept_B + 1, any(request.top for request in self.rows.live))
        self._answer_ended()
        return [active]

    def _propose(self, count: int, sampler: "_BlockSampler") -> tuple[torch.Tensor, torch.Tensor]:
        """Proposals, int64 (B, n), and the drafter's log-probabilities, float32 (B, n, V)."""
        rows = slice(0, self.rows.decoding)
        tokens_B, tokens, log_probs = self.rows.tokens[rows], [], []
        with self.drafter.drafting():
            for i in range(count):
                positions_B = self.rows.positions[rows] + i
                log_probs_BV = self._distributions(tokens_B[:, None], positions_B, sampler.longest + i)[:, 0]
                tokens_B = sampler.propose(log_probs_BV, i)
                tokens.append(tokens_B)
                log_probs.append(log_probs_BV)
        return torch.stack(tokens, 1), torch.stack(log_probs, 1)


class _BlockSampler:
    """Samples the tokens of a speculated pass, with random numbers that depend on session and position alone.

    Args:
        requests: of the decoding sessions, by row.
        positions_B: int64, absolute position of the last token of each.
        firsts_B: float64, each session's first uniform; its bits are the key of the session's further numbers.

    Attributes:
        longest: slots in use once the last token of each session is fed.
        positions_B: int64, tokens of each response before the block.
    """

    def __init__(self, requests: list[DecodeRequest], positions_B: torch.Tensor, firsts_B: torch.Tensor) -> None:
        self._requests, device = requests, positions_B.device
        self.longest = int(positions_B.max()) + 1
        prompts_B = torch.tensor([len(request.session.prompt) for request in requests], device=device)
        self.positions_B = positions_B + 1 - prompts_B
        self._keys_B = firsts_B.clone().view(torch.int64)
        noisy = {row: request.key for row, request in enumerate(requests) if request.key is not None}
        self._noisy = torch.tensor(list(noisy), dtype=torch.long, device=device)
        self._noise_keys = keys_of(list(noisy.values()), device)
        self._residual = [row for row, request in enumerate(requests) if request.first is not None]

    def propose(self, log_probs_BV: torch.Tensor, i: int) -> torch.Tensor:
        """Proposals, int64 (B,), at position i of the block, from the drafter's log-probabilities."""
        tokens_B = invert(log_probs_BV.exp(), self._uniforms(self.positions_B[:, None] + i, PROPOSE)[:, 0])
        if len(self._noise_keys):
            # The drafter samples by the noise that the policy will use, so that similar distributions agree.
            tokens_B[self._noisy] = self._by_noise(log_probs_BV[self._noisy, None], i)[:, 0]
        return tokens_B

    def verify(
        self, policy_BTV: torch.Tensor, drafter_BnV: torch.Tensor, proposals_Bn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Number of kept proposals, and the token after them, both int64 (B,)."""
        positions_BT = self.positions_B[:, None] + torch.arange(policy_BTV.shape[1], device=policy_BTV.device)
        keep_uniforms_Bn = self._uniforms(positions_BT[:, :-1], KEEP)
        next_uniforms_BT = self._uniforms(positions_BT, NEXT)
        kept_B, next_B = keep(policy_BTV, drafter_BnV, proposals_Bn, keep_uniforms_Bn, next_uniforms_BT)
        if len(self._noise_keys):
            sampled = self._by_noise(policy_BTV[self._noisy], 0)
            agreed = agree(sampled, proposals_Bn[self._noisy])
            kept_B[self._noisy], next_B[self._noisy] = agreed, sampled.gather(1, agreed[:, None])[:, 0]
        if self._residual:
            # The first token has a residual distribution, which the drafter does not know: keep no proposal.
            rows, requests = self._residual, [self._requests[row] for row in self._residual]
            firsts, keys = [request.first for request in requests], [request.key for request in requests]
            for request in requests:
                request.first = None
            kept_B[rows] = 0
            next_B[rows] = sample_specially(
                policy_BTV[rows, 0], firsts, next_uniforms_BT[rows, 0], keys, self.positions_B[rows]
            )
        return kept_B, next_B

    def _uniforms(self, positions: torch.Tensor, use: int) -> torch.Tensor:
        """Uniform numbers, float64, for one use at positions (B, n)."""
        uses = torch.full((1, 1), use, device=positions.device)
        return uniform(self._keys_B[:, None], positions, uses)

    def _by_noise(self, log_probs: torch.Tensor, first: int) -> torch.Tensor:
        """Tokens of the noisy rows, int64 (rows, n), from log-probabilities (rows, n, V) at positions `first` on."""
        tokens = []
        for i in range(log_probs.shape[1]):
            noise = gumbel(self._noise_keys, self.positions_B[self._noisy] + first + i, log_probs.shape[2])
            tokens.append((log_probs[:, i].double() + noise).argmax(1))
        return torch.stack(tokens, 1)
