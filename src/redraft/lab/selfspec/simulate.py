"""Simulated decoding time of a rollout, from a calibrated roofline, response lengths and acceptance.

An engine decodes in passes. A plain pass generates one token of every active response in time T_T; a block of
speculation generates τ tokens on average in time γ T_D + T_V. A finished response leaves, and a waiting one takes its
slot. Acceptance is not sampled: every response advances by its expected tokens per block. Between two events (a
response ends, or reaches a position with another acceptance) the batch is constant, and its passes are summed at once.

Not modelled: prefill, sampling, scheduling, verl's work around the engine, and randomness of acceptance. Times are
therefore predictions of decoding alone, and reports label them as such next to measured ones.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, StringConstraints, TypeAdapter, model_validator

from redraft.config.base import MOST_TOKENS
from redraft.config.decoding import LONGEST_DRAFT
from redraft.errors import UserError
from redraft.result_files import Typed, check_record, read_steps
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.controller import OFF, RAMP, START, Ladder, Roofline, SwitchRule, Threshold, Toggle, ToggleState
from redraft.selfspec.roofline import MARGIN, block_efficiency, block_seconds, target_seconds, token_acceptance

Mode = Literal["off", "always", "threshold", "roofline"]
MODES: tuple[Mode, ...] = ("off", "always", "threshold", "roofline")
WANTED = "shares in percent from 0 to 100 and lengths in tokens, both ascending, such as 0:100,50:600,99:2500,100:8192"


@dataclass(frozen=True)
class Quantiles:
    """A distribution of lengths, log-linear between its quantiles.

    Attributes:
        shares: cumulative shares of the responses, ascending from 0 to 1.
        tokens: lengths at these shares, ascending.

    Raises:
        ValueError: if they are not.
    """

    shares: tuple[float, ...]
    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        paired = len(self.shares) == len(self.tokens) >= 2 and (self.shares[0], self.shares[-1]) == (0, 1)
        rising = all(a < b for a, b in pairwise(self.shares)) and all(a <= b for a, b in pairwise(self.tokens))
        if not (paired and rising and self.tokens[0] >= 1 and np.isfinite(self.tokens[-1])):
            raise ValueError(f"shares must rise from 0 to 1 and lengths from 1 token, got {self}")

    def lengths(self, count: int) -> np.ndarray:
        """`count` lengths at evenly spaced shares, both ends included; integers as float64 (count,), ascending.

        Raises:
            ValueError: for fewer than 2.
        """
        if count < 2:
            raise ValueError(f"both ends need 2 lengths, got {count}")
        # Lengths spread over orders of magnitude, so quantiles are joined on a logarithmic scale.
        return np.round(np.exp(np.interp(np.linspace(0, 1, count), self.shares, np.log(self.tokens))))


def parse_quantiles(text: str) -> Quantiles:
    """A distribution from text such as `0:100,50:600,99:2500,100:8192`.

    Raises:
        UserError: if the text has another format.
    """
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        return Quantiles(tuple(share / 100 for share, _ in pairs), tuple(tokens for _, tokens in pairs))
    except ValueError:
        raise UserError("invalid distribution of lengths", key="--lengths", value=text, allowed=WANTED) from None


def read_lengths(file: Path) -> np.ndarray:
    """Lengths from a file with one whole number per line; float64 (n,).

    Raises:
        UserError: if the file is missing or empty, or a line is not a whole number from 1 to `MOST_TOKENS`.
    """
    try:
        # At any white space, also the carriage returns of other systems.
        lines = file.read_text(encoding="utf-8").split()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        raise UserError(
            "this file of lengths cannot be read", file=file, allowed=f"one whole number per line; or {WANTED}"
        ) from None
    for number, line in enumerate(lines, start=1):
        # Digits first: Python converts no number of thousands of them.
        if not line.isdecimal() or len(line) > 9 or not 1 <= int(line) <= MOST_TOKENS:
            allowed = f"1 to {MOST_TOKENS}"
            raise UserError("invalid length", file=file, key=f"line {number}", value=line, allowed=allowed)
    if not lines:
        raise UserError("this file has no lengths", file=file, allowed="one whole number per line")
    return np.array(lines, dtype=float)


@dataclass(frozen=True)
class Acceptance:
    """Acceptance probability of a drafted token given that those before it are accepted, by position in the response.

    Attributes:
        alpha: α from each of `starts` on.
        starts: ascending positions; the first is 0.

    Raises:
        ValueError: if they are not, or an α is outside [0, 1].
    """

    alpha: tuple[float, ...]
    starts: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        rising = self.starts[:1] == (0,) and sorted(set(self.starts)) == list(self.starts)
        if not rising or len(self.alpha) != len(self.starts) or not all(0 <= a <= 1 for a in self.alpha):
            raise ValueError(f"needs an alpha in [0, 1] for each start, rising from 0, got {self}")

    def tau(self, position: np.ndarray, gamma: int) -> np.ndarray:
        """Mean tokens of a block that begins at these positions."""
        return block_efficiency(np.array(self.alpha), gamma)[self._part(position)]

    def end(self, position: np.ndarray) -> np.ndarray:
        """Next positions at which acceptance changes; infinity after the last."""
        return np.array([*self.starts[1:], np.inf])[self._part(position)]

    def mean_tau(self, lengths: np.ndarray, gamma: int) -> float:
        """Mean tokens per block if speculation generates all responses of these lengths; from 1 to γ + 1."""
        ends = np.array([*self.starts[1:], np.inf])
        tokens = np.clip(lengths[:, None], self.starts, ends) - np.array(self.starts)
        # Tokens over blocks, and not a mean of τ over tokens, in which long blocks would count too much.
        mean = np.sum(tokens) / np.sum(tokens / block_efficiency(np.array(self.alpha), gamma))
        return float(np.clip(mean, 1, gamma + 1))  # rounding may exceed the range

    def _part(self, position: np.ndarray) -> np.ndarray:
        # `right`, since an α holds from its start on.
        return np.searchsorted(self.starts, position, side="right") - 1


class BlockCounts(Typed):
    """Types of the fields of a step's record that have the blocks of speculation by position."""

    draft_length: Annotated[int, Field(ge=1, le=LONGEST_DRAFT)]
    # One spelling of each position, since two keys of one position would be two ranges.
    proposed_from: dict[Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")], PositiveFloat]
    kept_from: dict[str, NonNegativeFloat]

    @model_validator(mode="after")
    def _of_the_same_blocks(self) -> Self:
        if any(self.kept_from.get(start, math.inf) > proposed for start, proposed in self.proposed_from.items()):
            raise ValueError("for each key of proposed_from a number in kept_from that is no larger")
        return self


BLOCK_COUNTS: TypeAdapter[Any] = TypeAdapter(BlockCounts)


def check_selfspec(record: Mapping[str, Any], file: Path) -> None:
    """Raise a UserError if another drafter speculated in this step.

    Blocks of other drafters may have fewer proposals than the draft length, so equation 1 does not hold for them.
    """
    if "quantisation_error" not in record:
        raise UserError(
            "these records are of another drafter than self-speculation",
            file=file,
            key="step",
            value=record["step"],
            allowed="steps.jsonl of a run with self-speculation",
        )


def measured_acceptance(file: Path) -> Acceptance:
    """Acceptance over all steps of a run, by position, from its `steps.jsonl`.

    For each range of positions it is the α whose expected tokens (equation 1 of EfficientRollout, summed over steps
    with their draft lengths) equal the measured tokens of the blocks that began there. A range in which no block began
    has the acceptance of the range before, and of the first measured one if there is none before.

    Raises:
        UserError: if the file is missing or damaged, records no block, or lacks a field that belongs to blocks.
    """
    by_start: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for record in read_steps(file):
        if "proposed_from" not in record:
            continue
        check_selfspec(record, file)
        check_record(record, BLOCK_COUNTS, file)
        gamma = record["draft_length"]
        for start, proposed in record["proposed_from"].items():
            by_start[int(start)].append((gamma, proposed / gamma, record["kept_from"][start]))
    if not by_start:
        raise UserError(
            "these records have no speculated block",
            file=file,
            key="proposed_from",
            allowed="steps.jsonl of a run with self-speculation",
        )
    alphas = []
    for _, steps in sorted(by_start.items()):
        gammas, blocks, kept = np.array(steps, float).T
        alphas.append(float(token_acceptance(kept, gammas, blocks)))
    # The first range begins at 0, whatever the first measured one is; others begin where blocks did.
    _, *starts = sorted(by_start)
    return Acceptance(tuple(alphas), (0.0, *map(float, starts)))


@dataclass(frozen=True)
class Speculation:
    """Control of speculation with drafts of `gamma` tokens.

    Attributes:
        mode: never, always, at `threshold` or fewer active responses, or if the roofline predicts a speedup of 1 + δ.
        margin: δ, for the mode `roofline`.
        ramp: active responses that must be exceeded before a toggle may switch on.
    """

    mode: Mode
    gamma: int
    acceptance: Acceptance
    threshold: int = RAMP
    margin: float = MARGIN
    ramp: int = RAMP


@dataclass(frozen=True)
class EngineTime:
    """Simulated work of one engine until its last response ends.

    Attributes:
        passes: number of plain passes.
        blocks: number of speculated blocks.
        plain_seconds: time before speculation is switched on; `plain_tokens` are generated in it.
        turned_on_at: active responses when speculation is switched on; None if it never is.
    """

    seconds: float
    passes: int
    blocks: int
    plain_seconds: float
    plain_tokens: float
    tokens: float
    turned_on_at: int | None


@dataclass(frozen=True)
class RolloutTime:
    """Times of the engines that share a rollout; `tau` is the mean tokens per block, None without speculation."""

    engines: tuple[EngineTime, ...]
    tau: float | None

    @property
    def slowest(self) -> EngineTime:
        """The engine that ends last."""
        return max(self.engines, key=lambda engine: engine.seconds)

    @property
    def seconds(self) -> float:
        """Time of the rollout, which ends with its slowest engine."""
        return self.slowest.seconds

    @property
    def speculated(self) -> float:
        """Share of tokens generated by speculation."""
        return 1 - sum(engine.plain_tokens for engine in self.engines) / sum(engine.tokens for engine in self.engines)


@dataclass(frozen=True)
class SimulatedEngine:
    """`count` equal engines that share a rollout, with `slots` responses at once each; `prompt` is the mean prompt
    length."""

    calibration: Calibration
    prompt: float = 0.0
    slots: int = 256
    count: int = 1


def simulate_rollout(lengths: np.ndarray, engine: SimulatedEngine, speculation: Speculation) -> RolloutTime:
    """Simulate a rollout of n responses, whose lengths (n,) are distributed to the engines round-robin.

    The toggle's τ is the mean over these responses, as if the previous rollout had measured it.

    Raises:
        ValueError: without responses, slots or engines, or for a response without tokens.
    """
    if not len(lengths) or np.min(lengths) < 1 or engine.slots < 1 or engine.count < 1:
        raise ValueError("needs responses of 1 token or more, and 1 or more slots and engines")
    # A roofline decides by the τ of the last rollout; here as if that had speculated throughout.
    tau = speculation.acceptance.mean_tau(lengths, speculation.gamma)
    rules: dict[Mode, SwitchRule] = {
        "threshold": Threshold(speculation.threshold),
        "roofline": Roofline(engine.calibration, speculation.gamma, tau, speculation.margin),
    }
    # A value without state, so engines can share it; each starts from `OFF`.
    toggle = Toggle(rules[speculation.mode], speculation.ramp) if speculation.mode in rules else None
    # In turn, as the rollout manager distributes tasks (`train.verl.manager`).
    by_engine = [lengths[i :: engine.count] for i in range(min(engine.count, len(lengths)))]
    times = tuple(_EngineRun(part, engine, speculation, toggle).finish() for part in by_engine)
    # Without a block nothing was measured, and a ladder stays where it is.
    return RolloutTime(times, tau if any(time.blocks for time in times) else None)


def simulate_training(
    lengths: np.ndarray, engine: SimulatedEngine, speculation: Speculation, alphas: Sequence[float], ladder: Ladder
) -> list[tuple[int, RolloutTime]]:
    """Simulate one rollout of the same lengths for each α; the ladder adapts the draft length between rollouts.

    Returns:
        Draft length and times of each rollout.
    """
    rollouts, position = [], START
    for alpha in alphas:
        gamma = ladder.gamma(position)
        time = simulate_rollout(lengths, engine, replace(speculation, gamma=gamma, acceptance=Acceptance((alpha,))))
        rollouts.append((gamma, time))
        position = ladder.after(position, time.tau)
    return rollouts


class _EngineRun:
    """State of one engine while it decodes its responses."""

    def __init__(
        self, lengths: np.ndarray, engine: SimulatedEngine, speculation: Speculation, toggle: Toggle | None
    ) -> None:
        self.engine, self.speculation, self.toggle = engine, speculation, toggle
        self.waiting = lengths[engine.slots :]
        self.total = lengths[: engine.slots].astype(float)
        self.done = np.zeros_like(self.total)
        self.tokens = float(np.sum(lengths))
        # Always-on speculation passes the ramp guard, which is a part of toggles.
        self.state = ToggleState(on=True) if speculation.mode == "always" else OFF
        self.seconds = self.plain_seconds = self.plain_tokens = 0.0
        self.passes = self.blocks = 0
        self.turned_on_at = len(self.total) if self.state.on else None

    def finish(self) -> EngineTime:
        """Decode all responses."""
        while len(self.total):
            if self.state.on:
                self._speculate()
            else:
                self._decode()
            going = self.done < self.total - 1e-9  # blocks advance by fractions of tokens
            # Waiting responses take the free slots at once, as in an engine with continuous batching.
            free = len(going) - int(np.sum(going))
            self.total = np.concatenate([self.total[going], self.waiting[:free]])
            self.done = np.concatenate([self.done[going], np.zeros(min(free, len(self.waiting)))])
            self.waiting = self.waiting[free:]
        return EngineTime(
            self.seconds,
            self.passes,
            self.blocks,
            self.plain_seconds,
            self.plain_tokens,
            self.tokens,
            self.turned_on_at,
        )

    def _decode(self) -> None:
        """Plain passes until a response ends or the toggle switches speculation on, at once."""
        # A whole number: blocks, which add fractions of tokens, come only after the switch.
        count = int(np.min(self.total - self.done))
        lengths = self._lengths(count, 1.0)
        if self.toggle:
            count, self.state = self.toggle.over(self.state, len(self.total), lengths)
            self.turned_on_at = len(self.total) if self.state.on else None
        seconds = float(np.sum(target_seconds(self.engine.calibration, len(self.total), lengths[:count])))
        self.done += count
        self.passes += count
        self.seconds += seconds
        self.plain_seconds += seconds
        self.plain_tokens += count * len(self.total)

    def _speculate(self) -> None:
        """Blocks until a response ends or its acceptance changes, at once."""
        acceptance, gamma = self.speculation.acceptance, self.speculation.gamma
        rates = acceptance.tau(self.done, gamma)
        # Up to the next event only: the end of a response, or of a range of positions with one α.
        left = np.minimum(self.total, acceptance.end(self.done)) - self.done
        # At least one block, also where rounding leaves less than a token's 10⁻⁹.
        count = max(int(np.ceil(np.min(left / rates) - 1e-9)), 1)
        lengths = self._lengths(count, float(np.mean(rates)))
        self.seconds += float(np.sum(block_seconds(self.engine.calibration, len(self.total), lengths, gamma)))
        # The last block of a response may be longer than what is left of it.
        self.done = np.minimum(self.done + count * rates, self.total)
        self.blocks += count

    def _lengths(self, count: int, rate: float) -> np.ndarray:
        """Mean length of active responses, with prompts, before each of `count` passes; `rate` tokens per pass."""
        return self.engine.prompt + np.mean(self.done) + rate * np.arange(count)
