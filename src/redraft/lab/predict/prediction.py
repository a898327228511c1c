"""Predicted kept tokens, savings and costs of every rule, by the rules' own distributions over kept lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import UserError
from redraft.lab.predict.jackknife import IntervalEstimate, Sums, by_prompt, estimate, ratio
from redraft.lab.predict.saved_rollouts import SavedRollouts
from redraft.methods.acceptance.positions import Positions
from redraft.methods.reuse import Candidate, ReuseMethod

LENIENCES = (1.0, math.exp(0.2), math.exp(0.5))
"""Leniences of SPEC-RL's published rule."""
TOP = 32
"""Most probable tokens of q that a rule stores, unless it stores all (`redraft.methods.reuse`)."""
MAX_MEAN_ERROR_NATS = 0.05
"""Largest mean error of stored log-probabilities that rounding explains."""
NO_DISTRIBUTION = "needs the drafter's full distribution, and its policy is not known"


@dataclass(frozen=True, eq=False)
class ExpectedKept:
    """Expected kept tokens of each draft, and the probability that all of it is kept, float64 (drafts,)."""

    tokens: np.ndarray
    whole: np.ndarray


def candidates(leniences: Sequence[float] = LENIENCES, top: int = TOP) -> list[Candidate]:
    """All rules; the published one once for each lenience. `top`: see `read_positions`."""
    return [rule for method in ReuseMethod.registered() for rule in method.candidates(top, leniences)]


def chosen(rules: Sequence[Candidate], kinds: Sequence[str]) -> list[Candidate]:
    """The rules of these kinds; all rules if `kinds` is empty.

    Raises:
        UserError: for a kind that no rule has.
    """
    known = dict.fromkeys(rule.kind for rule in rules)
    for kind in kinds:
        if kind not in known:
            raise UserError("no such rule", key="--rules", value=kind, allowed=known)
    return [rule for rule in rules if not kinds or rule.kind in kinds]


def expected_kept(rule: Candidate, positions: Sequence[Positions]) -> ExpectedKept:
    """Expectations over each draft's distribution over kept lengths."""
    distributions = [rule.distribution_of_kept(at) for at in positions]
    tokens = [float(each @ np.arange(len(each))) for each in distributions]
    return ExpectedKept(np.array(tokens), np.array([float(each[-1]) for each in distributions]))


@dataclass(frozen=True)
class Throughputs:
    """Tokens/s of an engine, both above 0."""

    scoring: float
    decoding: float


@dataclass(frozen=True)
class Prediction:
    """Prediction for a rule, with the responses of the previous epoch pass as drafts.

    Attributes:
        unknown: why there is no prediction; empty if there is one. If not empty, all fields below are None.
        kept: kept tokens of a draft.
        share: kept tokens over draft tokens.
        whole: share of drafts that are kept in full.
        saved: kept tokens of a draft over the tokens of a new response.
        break_even: smallest ratio of scoring to decoding throughput at which time is saved; 0 for a rule that scores
            nothing, infinite if nothing is kept.
        scoring_seconds: time to score a draft.
        decoding_seconds: decoding time that a draft saves.
        time_saved: their difference over the decoding time of a new response; negative if time is lost.
    """

    rule: Candidate
    unknown: str = ""
    kept: IntervalEstimate | None = None
    share: IntervalEstimate | None = None
    whole: IntervalEstimate | None = None
    saved: IntervalEstimate | None = None
    break_even: IntervalEstimate | None = None
    scoring_seconds: float | None = None
    decoding_seconds: float | None = None
    time_saved: IntervalEstimate | None = None

    def row(self) -> dict[str, Any]:
        """Row of the JSON document; interval ends have the suffixes `_low` and `_high`."""
        row: dict[str, Any] = {"rule": self.rule.name, "exact": self.rule.exact, "unknown": self.unknown or None}
        for name in ("kept", "share", "whole", "saved", "break_even", "time_saved"):
            value = getattr(self, name) or IntervalEstimate(math.nan, math.nan, math.nan)
            row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        return row | {name: getattr(self, name) for name in ("scoring_seconds", "decoding_seconds")}


def predict(
    saved: SavedRollouts, positions: Sequence[Positions], rules: Sequence[Candidate], speed: Throughputs | None = None
) -> list[Prediction]:
    """Predictions for each rule; `positions` are those of the drafts, in order. Without `speed` there are no times."""
    # Distributions of q come from a model, which is known for all drafts or for none.
    known = all(at.both is not None for at in positions)
    return [
        _predicted(rule, saved, expected_kept(rule, positions), speed)
        if known or not rule.of_both
        else Prediction(rule, NO_DISTRIBUTION)
        for rule in rules
    ]


def _predicted(rule: Candidate, saved: SavedRollouts, kept: ExpectedKept, speed: Throughputs | None) -> Prediction:
    sums = _sums(saved, kept)
    share = estimate(sums, ratio("kept", "draft_tokens"))
    prediction = Prediction(
        rule,
        kept=estimate(sums, ratio("kept", "drafts")),
        share=share,
        whole=estimate(sums, ratio("whole", "drafts")),
        saved=estimate(sums, lambda of: of["kept"] / of["drafts"] / (of["response_tokens"] / of["responses"])),
        break_even=_inverse(share) if rule.scores else IntervalEstimate(0.0, 0.0, 0.0),
    )
    if speed is None:
        return prediction
    # `scores` is false, and the time 0, for a rule that scores no draft.
    seconds_per_draft_token = rule.scores / speed.scoring

    def time_saved(of: Sums) -> np.ndarray:
        net = (of["kept"] / speed.decoding - of["draft_tokens"] * seconds_per_draft_token) / of["drafts"]
        return net * speed.decoding / (of["response_tokens"] / of["responses"])

    return replace(
        prediction,
        scoring_seconds=float(sums["draft_tokens"].sum() / sums["drafts"].sum() * seconds_per_draft_token),
        decoding_seconds=float(sums["kept"].sum() / sums["drafts"].sum() / speed.decoding),
        time_saved=estimate(sums, time_saved),
    )


def _sums(saved: SavedRollouts, kept: ExpectedKept) -> dict[str, np.ndarray]:
    """Column sums of each prompt over its drafts and over its later responses."""
    tokens = np.array([len(draft.tokens) for draft in saved.drafts])
    lengths = np.array([length for _, length in saved.later])
    of_drafts = {"drafts": np.ones(len(tokens)), "draft_tokens": tokens, "kept": kept.tokens, "whole": kept.whole}
    of_later = {"responses": np.ones(len(lengths)), "response_tokens": lengths}
    # one table for both kinds of rows: each kind has zeros in the other's columns
    columns = {name: np.append(values, np.zeros(len(lengths))) for name, values in of_drafts.items()} | {
        name: np.append(np.zeros(len(tokens)), values) for name, values in of_later.items()
    }
    return by_prompt([*(draft.prompt for draft in saved.drafts), *(prompt for prompt, _ in saved.later)], columns)


def _inverse(share: IntervalEstimate) -> IntervalEstimate:
    """Draft tokens per kept token; inversion swaps the interval's ends, which are NaN for a single prompt."""
    # The lower end of an interval may be below 0, at which no ratio of throughputs breaks even.
    value, high, low = (math.inf if part <= 0 else 1 / part for part in (share.value, share.low, share.high))
    return IntervalEstimate(value, low, high)


def log_prob_error(positions: Sequence[Positions], drafter: Path | None) -> float | None:
    """Mean absolute error of stored log-probabilities against the drafter's policy, nats; None if that is unknown.

    Raises:
        UserError: if it is above `MAX_MEAN_ERROR_NATS`.
    """
    errors = [np.abs(at.both.drafter - at.log_q_T) for at in positions if at.both]
    if not errors:
        return None
    mean = float(np.concatenate(errors).mean())
    if mean > MAX_MEAN_ERROR_NATS:
        raise UserError(
            "the stored log-probabilities are not those of the drafter's policy: it is another policy, or the drafts "
            "were sampled at another temperature or from other prompts",
            file=drafter,
            key="log_probs",
            value=round(mean, 4),
            allowed=f"a mean distance of at most {MAX_MEAN_ERROR_NATS} nats",
        )
    return mean
