"""The advice: methods by predicted seconds, and a sentence that says which to use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from redraft.lab.advise.ranking import MethodSeconds, ranked
from redraft.lab.advise.recorded import read_recorded
from redraft.lab.advise.replayed import Drafters
from redraft.lab.advise.sample import NGRAM, ONE_HOT, PLAIN, SUFFIX, work_of
from redraft.lab.advise.unmeasured import DrafterSavings, savings
from redraft.lab.advise.work import Device
from redraft.lab.predict.jackknife import IntervalEstimate
from redraft.lab.predict.saved_run import SavedRun

UNKNOWN = IntervalEstimate(np.nan, np.nan, np.nan)
REPLAYED = {PLAIN, NGRAM, SUFFIX, ONE_HOT}
"""Methods whose work follows from tokens exactly."""


@dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        exact: whether its responses have the policy's distribution.
        source: where its numbers come from: `tokens` (replayed exactly), `policies`, `agreement`, `measured` or
            `unknown`.
        tied: whether its seconds may be those of the fastest exact method, by their intervals.
        seconds, saved, passes: as of `MethodSeconds`; NaN where unknown.
    """

    method: str
    exact: bool
    source: str
    tied: bool
    seconds: IntervalEstimate
    saved: IntervalEstimate
    passes: float


@dataclass(frozen=True)
class Advice:
    """The advice for a run.

    Attributes:
        rows: fastest first, then those whose seconds are unknown.
        unknown: sentences with the reasons.
        batch: prompts that decode at once.
        text: what was known.
    """

    rows: list[Row]
    sentence: str
    unknown: list[str]
    batch: int
    text: str


def advice(
    run: SavedRun,
    device: Device,
    drafters: Drafters,
    lenience: float,
    epoch: int | None = None,
    batch: int | None = None,
    policies_on: str = "auto",
    *,
    with_policies: bool = True,
) -> Advice:
    """Advice from an epoch of a run and the one before.

    Args:
        epoch: see `read_recorded`.
        batch: prompts whose responses decode at once; those of a step if None.
        policies_on: device that computes acceptance.

    Raises:
        UserError: as `read_recorded`.
    """
    batch = batch or run.configuration.trainer.prompts_per_step
    recorded = read_recorded(run, epoch, lenience, policies_on, with_policies=with_policies)
    times = ranked(work_of(recorded.samples, drafters), device, batch)
    exact = {rule.name: rule.exact for rule in recorded.rules}
    best = fastest(times, exact)
    rows = [
        Row(
            one.method,
            exact.get(one.method, True),
            "tokens" if one.method in REPLAYED else "policies" if recorded.pairs else "agreement",
            one.tied(best),
            one.seconds,
            one.saved,
            one.passes,
        )
        for one in times
    ]
    trained = savings(run, recorded.samples, device, batch, drafters)
    plain = next(one.seconds.value for one in times if one.method == PLAIN)
    rows += [_of_drafter(one, plain, best) for one in trained]
    rows += [Row(name, exact[name], "unknown", False, UNKNOWN, UNKNOWN, np.nan) for name in recorded.unknown]
    # Stable, so that rows without seconds stay at the end in their order.
    rows.sort(key=lambda row: row.seconds.value if np.isfinite(row.seconds.value) else np.inf)
    reasons = {one.method: one.unknown for one in trained if one.unknown} | dict(recorded.unknown)
    unknown = [f"Unknown: {name}: {why}." for name, why in reasons.items()]
    return Advice(rows, sentence(rows), unknown, batch, recorded.text)


def fastest(times: Sequence[MethodSeconds], exact: Mapping[str, bool]) -> MethodSeconds:
    """The fastest of the methods that are exact; those that are not named are."""
    return next(one for one in times if exact.get(one.method, True))


def _of_drafter(one: DrafterSavings, plain: float, best: MethodSeconds) -> Row:
    if one.unknown:
        return Row(one.method, True, "unknown", False, UNKNOWN, one.saved, np.nan)
    seconds = IntervalEstimate(*(plain * (1 - share) for share in (one.saved.value, one.saved.high, one.saved.low)))
    return Row(one.method, True, "measured", seconds.low <= best.seconds.high, seconds, one.saved, np.nan)


def sentence(rows: Sequence[Row]) -> str:
    """What to use: the fastest exact method, those that may be as fast, and a faster one that is not exact."""
    known = [row for row in rows if np.isfinite(row.seconds.value)]
    best = next(row for row in known if row.exact)
    others = [row for row in known if row.tied and row.exact and row is not best]
    if best.method == PLAIN:
        text = "Advice: plain decoding; no exact method is predicted to save time here"
    else:
        text = f"Advice: {best.method}, which saves {_share(best)} of a rollout's seconds"
    if others:
        text += "; within the intervals of the comparison: " + ", ".join(
            f"{row.method} {_share(row)}" for row in others
        )
    faster = [row for row in known if not row.exact and row.seconds.value < best.seconds.value]
    if faster:
        text += f". Not exact, and faster: {faster[0].method} {_share(faster[0])}"
    return f"{text}."


def _share(row: Row) -> str:
    ends = f" [{100 * row.saved.low:.0f}, {100 * row.saved.high:.0f}]" if np.isfinite(row.saved.low) else ""
    return f"{100 * row.saved.value:.0f} %{ends}"
