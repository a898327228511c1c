"""Speculative decoding in the in-process engine: a drafter proposes tokens, and the policy verifies them.

In a speculated pass the drafter proposes tokens, and then one forward pass of the policy computes a block of each
decoding session: its last token and n proposals. The keys and values of a block occupy the slots of its positions.
Slots after a rejected proposal are never attended to, and later blocks overwrite them. The controller sets the number
of proposals; a pass without proposals is a plain one. There are two kinds of verification, both exact:

- *By rejection*, if the drafter samples its proposals from a distribution q (`redraft.engines.torch.drafter`). A
  proposal x is kept with probability min(1, p(x) / q(x)), where p is the policy's distribution at the same position.
  The token after the last kept proposal is sampled from max(p - q, 0), normalised, if a proposal was rejected, and else
  from the policy's distribution. The tokens then have the policy's distribution, whatever q is (Leviathan, Kalman and
  Matias, 2023, arXiv 2211.17192, Appendix A.1; Chen et al., 2023, arXiv 2302.01318, Theorem 1). Sessions with
  inverse-CDF sampling use other random numbers in these passes than in plain ones, all derived from the session's first
  uniform number. Sessions with Gumbel noise are verified by agreement and get the tokens of plain decoding.
- *By agreement*, if the proposals are tokens without a distribution (`redraft.engines.torch.matched`,
  `redraft.engines.torch.draft_head`). The policy samples a token at each position of the block with the random number
  of plain decoding at that position, and the proposals before the first different token are kept. The tokens are those
  of plain decoding, whatever is proposed, so truncated distributions (top-p, temperature 0) need no special treatment.
  Random numbers of positions after the first rejection are used again in later passes: so far no token depends on them.

Shapes: B rows, n proposals of a row, T = n + 1 tokens of a block, V vocabulary, H hidden size.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from redraft.config.decoding import BLOCK_STARTS
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.loop import Outside, now
from redraft.engines.torch.row_table import DecodeRequest, RowTable
from redraft.engines.torch.sampling import gumbel, invert, keys_of, log_probs_of, sample, sample_specially, uniform
from redraft.selfspec.controller import extend

T = TypeVar("T")

PROPOSE, KEEP, NEXT = -1, -2, -3
"""Purposes of a position's uniform numbers: sampling a proposal, verifying it, and sampling the token after the kept
proposals."""


class Controller(Protocol):
    """Decides before each pass how many tokens are proposed."""

    def begin(self) -> None:
        """Start a rollout."""
        ...

    def draft_length(self, active: int, mean_length: float) -> int:
        """Number of proposals per response in the next pass; 0 for a plain pass.

        Args:
            active: number of decoding responses.
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
        blocks: number of blocks: one for each response with proposals in each speculated pass.
        proposed: number of proposed tokens.
        kept: number of kept tokens, including those after the response's limit or end token, which are dropped.
        kept_at: kept tokens by position in the block.
        proposed_at: proposed tokens by position in the block.
        kept_from: kept tokens by the part of the response (`BLOCK_STARTS`) in which their block begins.
        proposed_from: proposed tokens by the part of the response in which their block begins.
        drafting_seconds: time of drafting, seconds.
        verification_seconds: time of the policy's passes over blocks, seconds.
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
        """Mean tokens per block: the kept proposals and the token after them (τ); None without a block."""
        return 1 + self.kept / self.blocks if self.blocks else None

    def add(self, kept_B: torch.Tensor, positions_B: torch.Tensor, proposed_B: torch.Tensor) -> None:
        """Count a speculated pass.

        Args:
            kept_B: int64, number of kept proposals of each response.
            positions_B: int64, number of tokens of each response before its block.
            proposed_B: int64, number of proposals of each response.
        """
        self.passes += 1
        has = proposed_B > 0
        kept_B, positions_B, proposed_B = kept_B[has], positions_B[has], proposed_B[has]
        self.blocks += len(kept_B)
        self.proposed += int(proposed_B.sum())
        self.kept += int(kept_B.sum())
        self.kept_at = _sum(self.kept_at, _reaching(kept_B, proposed_B))
        self.proposed_at = _sum(self.proposed_at, _reaching(proposed_B, proposed_B))
        parts = torch.bucketize(positions_B, torch.tensor(BLOCK_STARTS), right=True) - 1
        self.kept_from = _sum(self.kept_from, parts.bincount(kept_B).long().tolist())
        self.proposed_from = _sum(self.proposed_from, parts.bincount(proposed_B).long().tolist())


def _reaching(counts_B: torch.Tensor, proposed_B: torch.Tensor) -> list[int]:
    """Number of responses whose count reaches each position of a block, from 1 to the most proposals."""
    most = int(proposed_B.max()) if len(proposed_B) else 0
    return torch.bincount(counts_B, minlength=most + 1).flip(0).cumsum(0).flip(0)[1:].tolist()


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
        policy_BTV: the policy's log-probabilities at each proposal's position and after the last proposal.
        drafter_BnV: the drafter's log-probabilities, from which the proposals were sampled.
        proposals_Bn: int64.
        keep_uniforms_Bn: uniform on (0, 1), for the verification of each proposal.
        next_uniforms_BT: uniform on (0, 1), for the token after the kept proposals, by its position in the block.

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


def agree(sampled_BT: torch.Tensor, proposals_Bn: torch.Tensor, proposed_B: torch.Tensor | None = None) -> torch.Tensor:
    """Number of leading proposals, int64 (B,), that equal the policy's samples.

    Keeping these gives, token by token, the response of plain decoding with the same random numbers.

    Args:
        sampled_BT: int64, the policy's samples.
        proposals_Bn: int64.
        proposed_B: int64, number of proposals of each row, the rest of which is padding; None without padding.
    """
    same_Bn = sampled_BT[:, :-1] == proposals_Bn
    if proposed_B is not None:
        same_Bn = same_Bn & (torch.arange(proposals_Bn.shape[1], device=same_Bn.device) < proposed_B[:, None])
    return same_Bn.long().cumprod(1).sum(1)


@dataclass(frozen=True, eq=False)
class Proposals:
    """Proposals of a drafter for one pass.

    Attributes:
        tokens_Bn: int64, padded on the right with arbitrary tokens.
        proposed_B: int64, number of proposals of each row.
        log_probs_BnV: float32, log-probabilities from which the proposals were sampled; None for verification by
            agreement.
    """

    tokens_Bn: torch.Tensor
    proposed_B: torch.Tensor
    log_probs_BnV: torch.Tensor | None = None


class Drafter:
    """Proposes tokens in the speculated passes of an engine.

    Attributes:
        has_distribution: whether proposals have log-probabilities, and so are verified by rejection.
        reads_hidden: whether `observe` is called after each pass. If so, no pass is captured as a CUDA graph.
    """

    has_distribution = reads_hidden = False

    def begin(self) -> None:
        """Start a rollout; all sessions of earlier rollouts have ended."""

    def propose(self, engine: "SpeculativeEngine", block: "Block", count: int) -> Proposals | None:
        """Up to `count` proposals of each decoding row; None if no row has any."""
        raise NotImplementedError

    def observe(self, requests: Sequence[DecodeRequest], hidden_BH: torch.Tensor) -> None:
        """Receive the policy's hidden state at the last token but one of each decoding row."""

    def ended(self, request: DecodeRequest, tokens: list[int]) -> None:
        """Receive the tokens of a request that has ended."""


class SpeculativeEngine(TorchEngine):
    """The in-process engine with a drafter.

    Args:
        model: the policy, as of `TorchEngine`.
        drafter: proposes tokens; code that changes the policy's weights must refresh it.
        controller: sets the number of proposals before each pass.
        longest: largest number of proposals of a response in a pass.
        options: of `TorchEngine`, except bursts, since the controller is called before each pass. A drafter with a
            distribution does not support temperature 0 and top-p, since truncated distributions have zeros.

    Attributes:
        speculated: counts and times of the last run.

    Raises:
        ValueError: if the policy's distribution is truncated and the drafter has one.
    """

    def __init__(
        self, model: PreTrainedModel, drafter: Drafter, controller: Controller, longest: int, **options: Any
    ) -> None:
        super().__init__(model, lookahead=longest, burst=1, **options)
        if self.truncates and drafter.has_distribution:
            raise ValueError("self-speculation needs the policy's full distribution: a temperature above 0 and top-p 1")
        self.drafter, self.controller, self._longest = drafter, controller, longest
        self.speculated = Speculated()

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine until they end, as one rollout; see `TorchEngine.run`."""
        self.controller.begin()
        self.drafter.begin()
        self.speculated = Speculated()
        return super().run(*coroutines, outside=outside)

    def _decode(self) -> list[int]:
        """One token of every decoding session, or a block of them; see `TorchEngine._decode`."""
        active = self.rows.decoding
        mean_length = float(self.rows.positions[:active].double().mean()) + 1
        count = min(self.controller.draft_length(active, mean_length), self._longest)
        proposals = block = None
        if count >= 1 or self.drafter.reads_hidden:
            began = now(self.device)
            block = Block(self.rows, self.temperature, self.top_p)
            proposals = self.drafter.propose(self, block, count) if count >= 1 else None
            drafted = now(self.device)
            self.speculated.drafting_seconds += drafted - began
        width = 0 if proposals is None else proposals.tokens_Bn.shape[1]
        if not width:
            self.speculated.plain_passes += 1
        if block is None or (proposals is None and not self.drafter.reads_hidden):
            return super()._decode()
        extend(self.activity.trace, active, width, mean_length)
        self._verify(block, proposals)
        if width:
            self.speculated.verification_seconds += now(self.device) - drafted
        self._answer_ended()
        return [active]

    def _verify(self, block: "Block", proposals: Proposals | None) -> None:
        """Pass the rows' last tokens and their proposals through the policy, and append what is kept and one token."""
        last_B1 = self.rows.tokens[: self.rows.decoding, None]
        if proposals is None:
            proposals = Proposals(last_B1[:, :0], torch.zeros_like(last_B1[:, 0]))
        block_BT = torch.cat((last_B1, proposals.tokens_Bn), 1)
        hidden_BTH = self._hidden_of_block(
            block_BT, self.rows.positions[: len(last_B1)], block.longest + len(block_BT[0]) - 1
        )
        policy_BTV = log_probs_of(self.head(hidden_BTH), self.head.temperature)
        if proposals.log_probs_BnV is None:
            tokens_BT = block.sample(policy_BTV)
            kept_B = agree(tokens_BT, proposals.tokens_Bn, proposals.proposed_B)
        else:
            kept_B, next_B = block.verify(policy_BTV, proposals.log_probs_BnV, proposals.tokens_Bn)
            # The kept proposals and the token after them; the rest of a row is padding.
            tokens_BT = torch.cat((proposals.tokens_Bn, next_B[:, None]), 1).scatter(
                1, kept_B[:, None], next_B[:, None]
            )
        if proposals.tokens_Bn.shape[1]:
            self.speculated.add(kept_B.cpu(), block.positions_B.cpu(), proposals.proposed_B.cpu())
        self.rows.advance(tokens_BT, policy_BTV, kept_B + 1, any(request.top for request in block.requests))
        if self.drafter.reads_hidden:
            self.drafter.observe(block.requests, hidden_BTH[torch.arange(len(kept_B), device=self.device), kept_B])

    def _answer_ended(self) -> list[int]:
        """Answer the requests of finished responses, and show these to the drafter; see `TorchEngine._answer_ended`."""
        live = self.rows.live
        counts = super()._answer_ended()
        for request in live:
            if request.session.request is None:
                row = request.session.row
                self.drafter.ended(request, self.rows.out_tokens[row, : counts[row]].tolist())
        return counts


class Block:
    """Samples the tokens of a speculated pass, with random numbers that depend only on session and position.

    Args:
        rows: the engine's table; its decoding rows are in the pass.
        temperature: of the engine.
        top_p: of the engine.

    Attributes:
        requests: requests of the decoding sessions, by row.
        counts: number of tokens that each request has decoded.
        left: number of tokens that each request may still decode.
        longest: number of used slots after each session's last token is fed.
        positions_B: int64, number of tokens of each response before the block.
    """

    def __init__(self, rows: RowTable, temperature: float, top_p: float) -> None:
        self.requests = requests = rows.live
        self._rows, self._greedy, self._top_p = rows, temperature == 0, top_p
        positions_B, device = rows.positions[: rows.decoding], rows.device
        _, self.counts, limits = rows.numbers[:3, : rows.decoding].tolist()
        self.left = [limit - count for limit, count in zip(limits, self.counts, strict=True)]
        # A session's first uniform; its bits are the key of the session's further numbers.
        firsts_B = rows.uniforms[: rows.decoding, 0]
        self.longest = int(positions_B.max()) + 1
        prompts_B = torch.tensor([len(request.session.prompt) for request in requests], device=device)
        self.positions_B = positions_B + 1 - prompts_B
        self._keys_B = firsts_B.clone().view(torch.int64)
        noisy = {row: request.key for row, request in enumerate(requests) if request.key is not None}
        self._noisy = torch.tensor(list(noisy), dtype=torch.long, device=device)
        self._noise_keys = keys_of(list(noisy.values()), device)
        self._residual = [row for row, request in enumerate(requests) if request.first is not None]

    def propose(self, log_probs_BV: torch.Tensor, i: int) -> torch.Tensor:
        """Proposals, int64 (B,), at position i of the block, sampled from the drafter's log-probabilities."""
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
            kept_B[self._residual] = 0
            next_B[self._residual] = self._special(policy_BTV[:, 0], next_uniforms_BT[:, 0])
        return kept_B, next_B

    def sample(self, log_probs_BTV: torch.Tensor, first: int = 0, residual: bool = True) -> torch.Tensor:
        """Sample tokens, int64 (B, T), with the random numbers of plain decoding.

        Args:
            log_probs_BTV: log-probabilities at the block's positions from `first` on.
            first: position in the block.
            residual: whether to apply, once, the residual distribution of a session's first token, as plain decoding
                does.
        """
        rows, (B, T, V) = self._rows, log_probs_BTV.shape
        counts_B1 = rows.counts[:B, None] + first
        # Entries after a response's limit are of no use: `RowTable.advance` drops their tokens.
        uniforms_BT = rows.uniforms[:B].gather(1, counts_B1 + torch.arange(T, device=rows.device))
        flat_NV = log_probs_BTV.reshape(-1, V)
        tokens_BT = sample(flat_NV, uniforms_BT.reshape(-1), self._greedy, self._top_p).view(B, T)
        if len(self._noise_keys):
            tokens_BT[self._noisy] = self._by_noise(log_probs_BTV[self._noisy], first)
        if self._residual and residual:
            tokens_BT[self._residual, 0] = self._special(log_probs_BTV[:, 0], uniforms_BT[:, 0])
        return tokens_BT

    def _special(self, log_probs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
        """First tokens, int64 (rows,), of the rows with a residual distribution, which is gone afterwards."""
        rows, requests = self._residual, [self.requests[row] for row in self._residual]
        firsts, keys = [request.first for request in requests], [request.key for request in requests]
        for request in requests:
            request.first = None
        return sample_specially(log_probs_BV[rows], firsts, uniforms_B[rows], keys, self.positions_B[rows])

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
