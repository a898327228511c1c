"""Self-speculative decoding in the in-process engine: the policy's quantised copy proposes, the policy verifies.

A speculated pass of the decoding sessions is n passes of the drafter, a token each, and one pass of the policy over the
n + 1 tokens of each session. Both use one cache: the drafter attends to the policy's keys and values, its own stand in
the places of its proposals until verification overwrites them, and what is behind a rejected proposal is never attended
to. How many tokens are proposed is the controller's; with none a pass is a plain one.

The tokens have the policy's distribution. Sessions that draw by inversion use other random numbers where a pass
speculates, all of them made from the session's first; those that draw by Gumbel noise get the very tokens of plain
decoding.

A proposal x from the drafter's distribution q is kept with probability min(1, p(x) / q(x)), where p is the policy's
distribution at the same place. After the first one that is not kept, a token is drawn from max(p - q, 0), normalised;
if all are kept, from the policy's distribution after them. The tokens then have the policy's distribution, whatever q
is (Leviathan, Kalman and Matias, 2023, arXiv 2211.17192, Appendix A.1; Chen et al., 2023, arXiv 2302.01318, Theorem 1).
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
from redraft.engines.torch.rows import Row
from redraft.engines.torch.sampling import gumbel, invert, keys_of, sample_specially
from redraft.rollout.streams import uniform

T = TypeVar("T")

PROPOSE, KEEP, BEHIND = -1, -2, -3
"""Uses of a position's uniform numbers: a proposal's draw, its verification, and the draw behind what is kept."""


class Controller(Protocol):
    """Decides before each pass how many tokens are proposed."""

    def begin(self) -> None:
        """Hear that a rollout begins."""
        ...

    def draft_length(self, active: int, mean_length: float) -> int:
        """Proposals of each response in the next pass; 0 for a plain one.

        Args:
            active: responses that decode.
            mean_length: mean length of prompt and response so far, tokens.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """Proposes equally many tokens in every pass."""

    count: int

    def begin(self) -> None:
        """Do nothing."""

    def draft_length(self, active: int, mean_length: float) -> int:
        """The fixed number."""
        return self.count


@dataclass
class Speculated:
    """What speculation did in a rollout.

    Attributes:
        passes: decoding passes that speculated.
        plain_passes: those that did not.
        blocks: blocks of all responses: one a response and speculated pass.
        proposed: tokens.
        kept: tokens, of blocks that an end of the response did not cut too.
        kept_at: kept tokens by place in the block.
        proposed_at: proposed tokens by place in the block.
        kept_from: kept tokens by the part of the response (`BLOCK_STARTS`) in which their block begins.
        proposed_from: proposed tokens by that part.
        drafting_seconds: busy with the drafter.
        verification_seconds: busy with the policy's pass over the blocks.
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
        """Mean tokens of a block: those kept and the one behind them (τ); None without a block."""
        return 1 + self.kept / self.blocks if self.blocks else None

    def add(self, kept: torch.Tensor, positions: torch.Tensor, most: int) -> None:
        """Count a speculated pass.

        Args:
            kept: int64 (rows,), proposals that each response keeps.
            positions: int64 (rows,), tokens of each response before its block.
            most: proposals of each response.
        """
        rows, by_place = len(kept), torch.bincount(kept, minlength=most + 1)
        at_least = by_place.flip(0).cumsum(0).flip(0)[1:].tolist()  # responses that kept this place or a later one
        self.passes += 1
        self.blocks += rows
        self.proposed += rows * most
        self.kept += sum(at_least)
        self.kept_at = _sum(self.kept_at, at_least)
        self.proposed_at = _sum(self.proposed_at, [rows] * most)
        parts = torch.bucketize(positions, torch.tensor(BLOCK_STARTS), right=True) - 1
        self.kept_from = _sum(self.kept_from, parts.bincount(kept).long().tolist())
        self.proposed_from = _sum(self.proposed_from, (most * parts.bincount()).tolist())


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


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
    distribution = policy[rows, kept].double().exp()
    rejected = kept < most
    accepted = drafter[rows, kept.clamp(max=most - 1)].double().exp() * rejected[:, None]
    rest = (distribution - accepted).clamp_(min=0.0)
    # Only rounding leaves nothing, where both distributions are equal; a rejection there is as improbable as the
    # rounding error.
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, distribution)
    return kept, invert(rest, draws[rows, kept])


def _at(distributions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return distributions.gather(2, tokens[..., None])[..., 0]


def agree(drawn: torch.Tensor, proposals: torch.Tensor) -> torch.Tensor:
    """Number of leading proposals (rows, n) that are the tokens which the policy draws (rows, n + 1) by the same noise.

    The response is then, token by token, the one of plain decoding with that Gumbel noise.
    """
    return (drawn[:, :-1] == proposals).long().cumprod(1).sum(1)


class SelfSpeculativeEngine(TorchEngine):
    """The in-process engine with a quantised drafter.

    Args:
        model: the policy, as of `TorchEngine`; the drafter is to be refreshed after its weights have changed.
        longest: most of them.
        group: weights that share a scale.
        options: of `TorchEngine`, except temperature 0 and top-p, whose distributions have no ratios, and bursts: the
            controller
            is asked before each pass.

    Attributes:
        speculated: counts and seconds of the last run.

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
            raise ValueError(
                "self-speculation needs the policy's whole distribution: a temperature above 0 and top-p 1"
            )
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
        draws = _Draws(self.rows.live, self.rows.positions[rows], self.rows.uniforms[rows, 0])
        proposals, drafted = self._propose(count, draws)
        proposed = now(self.device)
        block = torch.cat((self.rows.tokens[rows, None], proposals), 1)
        distributions = self._distributions(block, self.rows.positions[rows], draws.longest + count)
        kept, behind = draws.keep(distributions, drafted, proposals)
        tokens = torch.cat((proposals, behind[:, None]), 1).scatter(1, kept[:, None], behind[:, None])
        self.speculated.add(kept.cpu(), draws.positions.cpu(), count)
        self.speculated.drafting_seconds += proposed - began
        self.speculated.verification_seconds += now(self.device) - proposed
        self._take(tokens, distributions, kept + 1, any(row.decoding.top for row in self.rows.live))
        self._answer_ended()
        return [active]

    def _propose(self, count: int, draws: "_Draws") -> tuple[torch.Tensor, torch.Tensor]:
        """Proposals, int64 (rows, n), and the drafter's distributions, float32 (rows, n, vocabulary)."""
        rows = slice(0, self.rows.decoding)
        tokens, distributions = [self.rows.tokens[rows]], []
        with self.drafter.drafting():
            for place in range(count):
                distribution = self._distributions(
                    tokens[-1][:, None], self.rows.positions[rows] + place, draws.longest + place
                )[:, 0]
                distributions.append(distribution)
                tokens.append(draws.propose(distribution, place))
        return torch.stack(tokens[1:], 1), torch.stack(distributions, 1)


class _Draws:
    """Random numbers of a speculated pass, and what is drawn by them.

    Args:
        positions: int64 (rows,), absolute position of the last token of each.
        firsts: float64 (rows,), each session's first uniform, whose bits are the key of its further numbers.

    Attributes:
        longest: slots that are in use when the last token of each has been fed.
        positions: int64 (rows,), tokens of each response before the block.
    """

    def __init__(self, live: list[Row], positions: torch.Tensor, firsts: torch.Tensor) -> None:
        self._live, device = live, positions.device
        self.longest = int(positions.max()) + 1
        prompts = torch.tensor([len(row.prompt) for row in live], device=device)
        self.positions = positions + 1 - prompts
        self._keys = firsts.clone().view(torch.int64)
        noisy = {i: key for i, row in enumerate(live) if (key := row.decoding.key) is not None}
        self._noisy = torch.tensor(list(noisy), dtype=torch.long, device=device)
        self._noise = keys_of(list(noisy.values()), device)
        self._special = [i for i, row in enumerate(live) if row.decoding.first is not None]

    def propose(self, distribution: torch.Tensor, place: int) -> torch.Tensor:
        """Proposals, int64 (rows,), for one place, from the drafter's log-probabilities (rows, vocabulary)."""
        tokens = invert(distribution.exp(), self._uniforms(self.positions[:, None] + place, PROPOSE)[:, 0])
        if len(self._noise):
            tokens[self._noisy] = self._by_noise(distribution[self._noisy, None], place)[:, 0]
        return tokens

    def keep(
        self, distributions: torch.Tensor, drafted: torch.Tensor, proposals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Number of proposals that are kept, and the token behind them, both int64 (rows,)."""
        places = self.positions[:, None] + torch.arange(distributions.shape[1], device=distributions.device)
        chances, draws = self._uniforms(places[:, :-1], KEEP), self._uniforms(places, BEHIND)
        kept, behind = keep(distributions, drafted, proposals, chances, draws)
        if len(self._noise):
            drawn = self._by_noise(distributions[self._noisy], 0)
            agreed = agree(drawn, proposals[self._noisy])
            kept[self._noisy], behind[self._noisy] = agreed, drawn.gather(1, agreed[:, None])[:, 0]
        if self._special:
            # A first token out of a residual, which no drafter knows.
            chosen, requests = self._special, [self._live[i].decoding for i in self._special]
            keys = [request.key for request in requests]
            firsts = [request.first for request in requests]
            for request in requests:
                request.first = None
            kept[chosen] = 0
            behind[chosen] = sample_specially(
                distributions[chosen, 0], firsts, draws[chosen, 0], keys, self.positions[chosen]
            )
        return kept, behind

    def _uniforms(self, positions: torch.Tensor, use: int) -> torch.Tensor:
        """Uniform numbers, float64, of positions (rows, n)."""
        uses = torch.full((1, 1), use, device=positions.device)
        return uniform(self._keys[:, None], positions, uses)

    def _by_noise(self, distributions: torch.Tensor, place: int) -> torch.Tensor:
        """Tokens that Gumbel noise draws, int64 (rows, n), of distributions (rows, n, vocabulary) from a place on."""
        each = []
        for i in range(distributions.shape[1]):
            noise = gumbel(self._noise, self.positions[self._noisy] + place + i, distributions.shape[2])
            each.append((distributions[:, i].double() + noise).argmax(1))
        return torch.stack(each, 1)
