"""The prediction: what rules keep of drafts, by the rules that are trained with, and what that saves and costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import UserError
from redraft.lab.predict.drafts import Saved
from redraft.lab.predict.estimates import Estimate, Sums, by_prompt, estimate, ratio
from redraft.methods.acceptance.positions import Positions
from redraft.methods.reuse import Candidate, ReuseMethod

LENIENCES = (1.0, math.exp(0.2), math.exp(0.5))
"""Of the published rule."""
TOP = 32
"""Most probable tokens of q that a rule stores, if not all (`redraft.methods.reuse`)."""
FAR = 0.05
"""Mean distance of stored log-probabilities from the drafter's, nats, that no rounding explains."""
NO_DISTRIBUTION = "needs the drafter's whole distribution, and its policy is not known"


@dataclass(frozen=True, eq=False)
class Kept:
    """Expected kept tokens of each draft, and probability that it is kept whole, float64 (drafts,)."""

    tokens: np.ndarray
    whole: np.ndarray


def candidates(leniences: Sequence[float] = LENIENCES, top: int = TOP) -> list[Candidate]:
    """All rules, the published one with each lenience; `top` as of `read_positions`."""
    return [rule for method in ReuseMethod.registered() for rule in method.candidates(top, leniences)]


def chosen(rules: Sequence[Candidate], kinds: Sequence[str]) -> list[Candidate]:
    """The rules of some kinds, all if none is named.

    Raises:
        UserError: for a kind that no rule has.
    """
    known = dict.fromkeys(rule.kind for rule in rules)
    for kind in kinds:
        if kind not in known:
            raise UserError("no such rule", key="--rules", value=kind, allowed=known)
    return [rule for rule in rules if not kinds or rule.kind in kinds]


def kept(rule: Candidate, positions: Sequence[Positions]) -> Kept:
    """Sums over the distribution of kept tokens of each draft."""
    distributions = [rule.distribution_of_kept(at) for at in positions]
    tokens = [float(each @ np.arange(len(each))) for each in distributions]
    return Kept(np.array(tokens), np.array([float(each[-1]) for each in distributions]))


@dataclass(frozen=True)
class Throughputs:
    """Tokens/s of an engine, both above 0."""

    scoring: float
    decoding: float


@dataclass(frozen=True)
class Predicted:
    """A rule on drafts of one visit before.

    Attributes:
        unknown: why nothing is known of it; empty if it is, and all below is None if it is not.
        kept: tokens of a draft that are kept.
        share: of all draft tokens.
        whole: share of drafts that are kept whole.
        saved: kept tokens over the tokens of a new response.
        break_even: scoring throughput over decoding throughput from which time is saved; 0 where nothing is scored,
            infinite where nothing is kept.
        scoring_seconds: of a response.
        decoding_seconds: saved of a response.
        time_saved: the difference over the decoding seconds of a new response; below 0 where time is lost.
    """

    rule: Candidate
    unknown: str = ""
    kept: Estimate | None = None
    share: Estimate | None = None
    whole: Estimate | None = None
    saved: Estimate | None = None
    break_even: Estimate | None = None
    scoring_seconds: float | None = None
    decoding_seconds: float | None = None
    time_saved: Estimate | None = None

    def row(self) -> dict[str, Any]:
        """The row of the JSON document; ends of intervals are `_low` and `_high`."""
        row: dict[str, Any] = {"rule": self.rule.name, "exact": self.rule.exact, "unknown": self.unknown or None}
        for name in ("kept", "share", "whole", "saved", "break_even", "time_saved"):
            found = getattr(self, name) or Estimate(math.nan, math.nan, math.nan)
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        return row | {name: getattr(self, name) for name in ("scoring_seconds", "decoding_seconds")}


def predict(
    saved: Saved, positions: Sequence[Positions], rules: Sequence[Candidate], speed: Throughputs | None = None
) -> list[Predicted]:
    """What each rule saves of a new response.

    `positions` are of the drafts, in their order. Seconds need `speed`.
    """
    known = all(at.both is not None for at in positions)
    return [
        _predicted(rule, saved, kept(rule, positions), speed)
        if known or not rule.of_both
        else Predicted(rule, NO_DISTRIBUTION)
        for rule in rules
    ]


def _predicted(rule: Candidate, saved: Saved, kept: Kept, speed: Throughputs | None) -> Predicted:
    sums = _sums(saved, kept)
    share = estimate(sums, ratio("kept", "draft_tokens"))
    found = Predicted(
        rule,
        kept=estimate(sums, ratio("kept", "drafts")),
        share=share,
        whole=estimate(sums, ratio("whole", "drafts")),
        saved=estimate(sums, lambda of: of["kept"] / of["drafts"] / (of["response_tokens"] / of["responses"])),
        break_even=_inverse(share) if rule.scores else Estimate(0.0, 0.0, 0.0),
    )
    return found if speed is None else _timed(found, sums, speed)


def _sums(saved: Saved, kept: Kept) -> dict[str, np.ndarray]:
    """Sums of each prompt over its drafts, and over its later responses."""
    tokens = np.array([len(draft.tokens) for draft in saved.drafts])
    lengths = np.array([length for _, length in saved.later])
    of_drafts = {"drafts": np.ones(len(tokens)), "draft_tokens": tokens, "kept": kept.tokens, "whole": kept.whole}
    of_later = {"responses": np.ones(len(lengths)), "response_tokens": lengths}
    columns = {name: np.append(values, np.zeros(len(lengths))) for name, values in of_drafts.items()} | {
        name: np.append(np.zeros(len(tokens)), values) for name, values in of_later.items()
    }
    return by_prompt([*(draft.prompt for draft in saved.drafts), *(prompt for prompt, _ in saved.later)], columns)


def _inverse(share: Estimate) -> Estimate:
    """Draft tokens a kept one."""
    value, high, low = (1 / part if part > 0 else math.inf for part in (share.value, share.low, share.high))
    return Estimate(value, low, high)


def _timed(found: Predicted, sums: Sums, speed: Throughputs) -> Predicted:
    """With seconds of scoring and of decoding."""
    scoring = found.rule.scores / speed.scoring

    def time_saved(of: Sums) -> np.ndarray:
        net = (of["kept"] / speed.decoding - of["draft_tokens"] * scoring) / of["drafts"]
        return net * speed.decoding / (of["response_tokens"] / of["responses"])

    return replace(
        found,
        scoring_seconds=float(sums["draft_tokens"].sum() / sums["drafts"].sum() * scoring),
        decoding_seconds=float(sums["kept"].sum() / sums["drafts"].sum() / speed.decoding),
        time_saved=estimate(sums, time_saved),
    )


def distance(positions: Sequence[Positions], drafter: Path | None) -> float | None:
    """Mean distance, nats, of stored log-probabilities from those of the drafter's policy; None if that is not known.

    Raises:
        UserError: if it is larger than rounding explains.
    """
    far = [np.abs(at.both.drafter - at.drawn_from) for at in positions if at.both]
    if not far:
        return None
    mean = float(np.concatenate(far).mean())
    if mean > FAR:
        raise UserError(
            "the stored log-probabilities are not those of the drafter's policy: it is another policy, or the drafts "
            "were sampled at another temperature or from other prompts",
            file=drafter,
            key="log_probs",
            value=round(mean, 4),
            allowed=f"a mean distance of at most {FAR} nats",
        )
    return mean
