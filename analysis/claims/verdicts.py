"""Verdicts on what a paper asserts: each claim is a declared test on the reproduced runs.

Beside it, and labelled apart, is whether the paper's own tables support the claim
(`redraft.analysis.claims.reported_claims`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from redraft.analysis.claims.reported_claims import ReportedTables, check
from redraft.analysis.claims.tests import BySeed, Comparison, ComparisonSet, comparison_set
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.power import blocks_needed, can_still_show, detectable
from redraft.analysis.data.quantities import of_accuracy
from redraft.analysis.data.statistics import LEVEL, Blocks, Estimate, Families, GainKept, estimate
from redraft.analysis.data.timing import is_timed, timed_unevenly
from redraft.analysis.data.words import number
from redraft.config import Claim, Compare, Several, Test, Unmeasured
from redraft.config.claims import cells_of, compared_in, margin_of
from redraft.config.quantities import ACCURACY
from redraft.messages import counted

REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "reproduced", "contradicted", "inconclusive", "not run"
REASONS = {
    "seeds": "too few seeds",
    "plan": "no further look would decide it",
    "times": "times uneven",
    "cells": "too few cells",
    "ends": "at an end of the scale",
    "variance": "without variance",
    "never": "a target was not reached",
    "declared": "declared after these runs were judged",
    "scale": "not decidable at this scale",
}
"""Why a claim with runs is inconclusive."""
DECLARED_LATER = "declared", "this comparison is not among those whose p-values were corrected together"
"""Reason for a claim that was declared, or changed, after the runs were judged."""
SIDES = {REPRODUCED: "required side", CONTRADICTED: "other side", INCONCLUSIVE: "not significant"}
"""Outcome of one comparison of a claim, in words that do not read as the claim's verdict, which is corrected."""


@dataclass(frozen=True)
class RunValues:
    """Values of the finished runs of a paper; a source of `redraft.analysis.claims.tests`.

    A benchmark that the preset does not sample has no values.
    """

    measured: Measured

    @property
    def blocks(self) -> Blocks:
        """Blocks of the seeds."""
        return self.measured.runs.blocks

    def values(self, quantity: str, cell: str) -> dict[int, float]:
        """A quantity of a cell by seed, no NaN."""
        return {} if self._unsampled(quantity) else _finite(self.measured.values(quantity, cell))

    def trajectory(self, quantity: str, cell: str) -> dict[int, list[float]]:
        """A quantity of each kept policy of a cell in the order of training, by seed."""
        if self._unsampled(quantity):
            return {}
        scores = self.measured.runs.scores
        found: dict[int, list[float]] = {}
        for step in sorted(scores.loc[scores["cell"] == cell, "step"].unique()):
            for seed, value in _finite(self.measured.values(quantity, cell, at=int(step))).items():
                found.setdefault(seed, []).append(value)
        return found

    def _unsampled(self, quantity: str) -> bool:
        scores = self.measured.runs.scores
        return not {"all", *scores["benchmark"], *scores["role"]}.issuperset(of_accuracy(quantity))


@dataclass(frozen=True)
class Compared:
    """A part of a claim with its estimate; `p` is NaN where too few seeds allow no test."""

    part: Comparison
    found: Estimate
    p: float

    @property
    def untested(self) -> str:
        """Reason why the part is not tested: one of `bound_of` or `constant`; empty if it is, or has one block."""
        return self.part.bound or ("constant" if self.found.is_constant_pair else "")

    @property
    def has_few_units(self) -> bool:
        """True if more blocks may allow a test: there is one, or there are two with the same value."""
        found = self.found
        return not self.part.bound and (found.is_constant_pair or (len(found.units) == 1 and math.isfinite(found.mean)))

    @property
    def distance(self) -> float:
        """Distance of the mean from the threshold; 0 if either is not a number."""
        distance = abs(self.found.mean - self.part.threshold)
        return 0.0 if math.isnan(distance) else distance

    def is_earlier(self, outcome: str) -> bool:
        """True if the outcome is that of an earlier look of a sequential campaign than the interval."""
        return bool(self.found.looks) and outcome != INCONCLUSIVE and self.part.threshold in self.found.interval

    def verdict(self, p: float) -> str:
        """On which side of the threshold the part lies, if `p` is significant."""
        # Not `p > LEVEL`: without a test p is NaN, which decides nothing.
        if not p <= LEVEL:
            return INCONCLUSIVE
        above = self.found.mean > self.part.threshold
        return REPRODUCED if above == (self.part.expected == "above") else CONTRADICTED


@dataclass(frozen=True)
class ClaimOnRuns:
    """A claim put to runs.

    Attributes:
        comparisons: its question, with values.
        undecidable: why these runs cannot decide it, as one of `REASONS` and in words; None if they can.
        kept: share of the baseline's gain, where the question is one difference in an accuracy.
    """

    claim: Claim
    comparisons: ComparisonSet
    undecidable: tuple[str, str] | None
    kept: GainKept | None = None

    @property
    def counts(self) -> bool:
        """True if its comparisons belong to the family."""
        return self.undecidable is None and self.comparisons.answerable


def pose(claims: Sequence[Claim], measured: Measured, paper_scale: bool) -> list[ClaimOnRuns]:
    """Each claim's question. One about seconds is decided only where equal work took about equal time."""
    values, found = RunValues(measured), []
    for claim in claims:
        comparisons, test = comparison_set(claim.test, values), claim.test
        kept = None
        of_accuracy = comparisons.answerable and quantities_of(test)[0].startswith(ACCURACY)
        if of_accuracy and isinstance(test, Compare) and test.relative == "difference" and not test.over:
            kept = measured.gain_kept(test.quantity, (test.cell, test.baseline))
        found.append(ClaimOnRuns(claim, comparisons, _undecidable(claim, paper_scale, measured.runs), kept))
    return found


def comparisons(posed: Iterable[ClaimOnRuns], *, primary: bool) -> Iterator[tuple[BySeed, float, bool]]:
    """Values and threshold of every part of the claims that can be decided, and whether the values are ratios.

    `primary` selects the claims that are declared so, or the others.
    """
    parts = (p for each in posed if each.counts and each.claim.primary == primary for p in each.comparisons.parts)
    # A comparison that no result could decide would only weaken the correction of the others.
    return ((part.values, part.threshold, part.is_ratio) for part in parts if not part.bound)


def judge(
    claims: Sequence[Claim],
    measured: Measured,
    paper_scale: bool,
    tables: ReportedTables | None = None,
    families: Families | None = None,
) -> list[dict[str, Any]]:
    """The verdict on each claim, with its evidence as text and the manifests it rests on.

    Each part of a claim is a two-sided t-test over blocks against its threshold, which is the same as asking whether
    the 95 % Student interval leaves the threshold out (of a sequential campaign, that of one of its looks). The
    p-values are corrected over their family (Benjamini and Hochberg); a claim is `reproduced` if as many parts as it
    needs lie significantly where the paper says, `contradicted` if so many lie elsewhere that it cannot hold, else
    `inconclusive`.

    Without the paper's reported tables, that check is left out. The families are by default those of these claims.
    """
    posed, runs = pose(claims, measured, paper_scale), measured.runs
    if families is None:
        families = Families(comparisons(posed, primary=True), comparisons(posed, primary=False), runs.blocks)
    manifests = {str(cell): list(part["manifest"]) for cell, part in runs.runs.sort_values("seed").groupby("cell")}
    # Claims may have the same test; later ones then point to the first.
    first: dict[str, str] = {}
    return [
        _describe(each, manifests, first.setdefault(each.claim.test.model_dump_json(), each.claim.id))
        | _decide(each, families, runs.blocks, manifests)
        | (check(each.claim, tables) if tables else {})
        for each in posed
    ]


def _undecidable(claim: Claim, paper_scale: bool, runs: Runs) -> tuple[str, str] | None:
    """Why a claim cannot be decided from these runs; None if it can."""
    if isinstance(claim.test, Unmeasured):
        return "scale", f"not measured here: {claim.test.because}"
    if claim.scale == "paper" and not paper_scale:
        return "scale", "only runs at the paper's scale can decide this"
    quantities = quantities_of(claim.test)
    if any(map(is_timed, quantities)) and (uneven := timed_unevenly(runs, compared_in(claim.test), quantities)):
        return "times", f"times cannot be compared: {uneven.text}"
    return None


def quantities_of(test: Test) -> list[str]:
    """The quantities that a test is about."""
    if isinstance(test, Several):
        return list(dict.fromkeys(quantity for each in test.tests for quantity in quantities_of(each)))
    content = test.model_dump()
    named = [content.get(name) for name in ("quantity", "over", "other")]
    return [name for name in [*named, *content.get("quantities", [])] if name]


def _decide(
    posed: ClaimOnRuns, families: Families, blocks: Blocks, manifests: Mapping[str, list[str]]
) -> dict[str, Any]:
    """Verdict, evidence and p-values of one claim; `manifests` has those of each cell with runs."""
    comparisons = posed.comparisons
    if not comparisons.answerable:
        unmeasured = posed.undecidable[1] if posed.undecidable and isinstance(posed.claim.test, Unmeasured) else None
        # Apart, since more runs help the first kind only.
        without_runs = [cell for cell in comparisons.absent if cell not in manifests]
        without_value = [cell for cell in comparisons.absent if cell in manifests]
        missing = f"missing: {'; '.join(without_runs)}" if without_runs else ""
        unsampled = f"not measured in the runs of {'; '.join(without_value)}" if without_value else ""
        reason = unmeasured or ", and ".join(filter(None, (missing, unsampled))) or "no seed has values of all cells"
        without: dict[str, Any] = {"p": None, "p_corrected": None, "parts": [], "deciding": None, "why": ""}
        return {"verdict": NOT_RUN, "evidence": reason} | without
    estimates = [estimate(part.values, blocks, part.is_ratio) for part in comparisons.parts]
    parts = [
        Compared(p, found, math.nan if p.bound else found.p_value(p.threshold))
        for p, found in zip(comparisons.parts, estimates, strict=True)
    ]
    # Sides without correction first: the evidence says which verdicts the correction takes back.
    sides = [each.verdict(each.p) for each in parts]
    before, p = overall(comparisons, sides, [each.p for each in parts])
    evidence = comparisons.summary + _sentence(parts, before, posed.claim.printed_of_test) + _untested(parts)
    if posed.kept:
        evidence += f"; of its baseline's gain the method keeps {posed.kept.text}"
    keys = [(part.values, part.threshold, part.is_ratio) for part in comparisons.parts]
    found_in = [families.of(*key, primary=posed.claim.primary) for key in keys]
    powers = [_power(each, family.level(*key)) for each, family, key in zip(parts, found_in, keys, strict=True)]
    shown = {"parts": [_plotted(each) | {"power": power} for each, power in zip(parts, powers, strict=True)]}
    adjusted = [
        math.nan if part.part.bound else family.corrected(*key)
        for part, family, key in zip(parts, found_in, keys, strict=True)
    ]
    corrects = all(math.isnan(each.p) or not math.isnan(q) for each, q in zip(parts, adjusted, strict=True))
    if undecidable := posed.undecidable or (None if corrects else DECLARED_LATER):
        why, reason = undecidable
        found = {"verdict": INCONCLUSIVE, "evidence": f"{reason}; {evidence}", "p": _number(p), "p_corrected": None}
        return found | shown | {"deciding": _position(p, [each.p for each in parts]), "why": why}
    # By the same sides, so that the corrected p-value is of the comparison that the uncorrected verdict depends on.
    _, p_corrected = overall(comparisons, sides, adjusted)
    outcomes = [each.verdict(q) for each, q in zip(parts, adjusted, strict=True)]
    after, _ = overall(comparisons, outcomes, adjusted)
    # Corrected p-values are often equal: of them the comparison that has the uncorrected one too, if there is one.
    both = (i for i, part in enumerate(parts) if part.p == p and adjusted[i] == p_corrected)
    deciding, why = next(both, _position(p_corrected, adjusted)), ""
    p = math.nan if deciding is None else parts[deciding].p
    if deciding is not None and after != before:
        count = len(found_in[deciding])
        evidence += f"; not significant after correction for {count} comparisons (p = {p_corrected:.2g})"
    if after == INCONCLUSIVE:
        deciding, why = _undecided(comparisons, parts, outcomes, powers)
        if deciding is not None:
            p, p_corrected = parts[deciding].p, adjusted[deciding]
    if any(each.is_earlier(outcome) for each, outcome in zip(parts, outcomes, strict=True)):
        evidence += "; an earlier look decided, and intervals are those of the latest one"
    found = {"verdict": after, "evidence": evidence, "p": _number(p), "p_corrected": _number(p_corrected)}
    return found | shown | {"deciding": deciding, "why": why}


def _position(p: float, p_values: Sequence[float]) -> int | None:
    """Index of a p-value; None for NaN."""
    return next((i for i, each in enumerate(p_values) if each == p), None)


def _undecided(
    comparisons: ComparisonSet, parts: Sequence[Compared], outcomes: Sequence[str], powers: Sequence[dict | None]
) -> tuple[int | None, str]:
    """The open comparison that takes the most blocks until an inconclusive claim is decided, and what the claim lacks.

    The second is one of `REASONS`. A claim is decided once enough comparisons are on the required side, or too many on
    the other one, if each open comparison keeps its sign. Comparisons that are decided do not become another
    verdict's by more blocks.
    """
    ending = {i for i, power in enumerate(powers) if power and parts[i].found.looks and not power["next_look"]}
    blocks = [(i in ending, (power or {}).get("needed") or math.inf) for i, power in enumerate(powers)]
    able = [i for i, outcome in enumerate(outcomes) if outcome == INCONCLUSIVE and powers[i]]
    ways = []
    for side, needed in ((REPRODUCED, comparisons.needed), (CONTRADICTED, comparisons.total - comparisons.needed + 1)):
        missing = needed - outcomes.count(side)
        on_side = sorted((i for i in able if parts[i].verdict(0.0) == side), key=lambda i: blocks[i])
        ways += [on_side[missing - 1]] if len(on_side) >= missing else []
    if ways:  # at most one: enough comparisons on one side leave too few for the other
        deciding = ways[0]
        return deciding, "plan" if deciding in ending else "seeds"
    if comparisons.total > len(parts):
        return None, "cells"
    reasons = {each.part.bound for each in parts}
    return None, "never" if "never" in reasons else "ends" if any(reasons) else "variance"


def _untested(parts: Sequence[Compared]) -> str:
    """The comparisons that are not tested, with the reasons."""
    reasons = {
        "floor": "both sides are 0 in every seed",
        "ceiling": "both sides are the largest possible in every seed",
        "never": "a value is infinite, since a run did not reach the target",
        "constant": "both seeds or blocks have the same value, which leaves no variance to test",
    }
    tolerated = ", or no further from it than the claim tolerates"
    shown = [
        reasons[bound]
        + tolerated * (tie and bound in ("floor", "ceiling"))
        + f" in {n} of {len(parts)} comparisons" * (len(parts) > 1)
        for (bound, tie), n in Counter((each.untested, each.part.tie) for each in parts if each.untested).items()
    ]
    return f"; not tested: {' and '.join(shown)}" if shown else ""


def _plotted(compared: Compared) -> dict[str, Any]:
    """What a plot of a part shows: its mean with the interval that decides, the threshold, and the asserted side."""
    part, interval = compared.part, compared.found.interval
    values = {"mean": compared.found.mean, "low": interval.low, "high": interval.high}
    # JSON has neither NaN nor infinity.
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {"label": part.label, "expected": part.expected, "threshold": part.threshold} | finite


def _power(compared: Compared, level: float) -> dict[str, Any] | None:
    """What a comparison can show, with p-values that the correction lets count; None where it is not tested."""
    found, against = compared.found, compared.part.threshold
    further = next((n for n in found.looks if n > len(found.units)), None)
    if compared.has_few_units:
        unknown = {"effect": None, "low": None, "high": None, "is_ratio": found.log, "units": len(found.units)}
        return unknown | {"needed": further or len(found.units) + 1, "next_look": further}
    if compared.untested or not (smallest := detectable(found, level)):
        return None
    values = asdict(smallest)
    # JSON has no infinity: two blocks may say nothing about the upper end.
    return {name: value if math.isfinite(value) else None for name, value in values.items()} | {
        "is_ratio": found.has_logs,
        "units": len(found.units),
        "needed": _from_first_look(blocks_needed(found, against, level), found),
        # Of a sequential campaign; None where none could decide the comparison.
        "next_look": further if can_still_show(found, against, level) else None,
    }


def _from_first_look(needed: int | None, found: Estimate) -> int | None:
    """A number of blocks, at least that of a sequential campaign's first look, before which nothing is tested."""
    first = found.looks[0] if found.looks else 0
    return max(needed, first) if needed and first > len(found.units) else needed


def overall(comparisons: ComparisonSet, verdicts: list[str], p_values: list[float]) -> tuple[str, float]:
    """The verdict on a claim from those on its parts, and the p-value it hangs on.

    That is the largest of the parts that must hold; for a contradicted claim, the largest of the fewest parts that
    contradict it; for one that is neither, the largest it would have needed of those that do not contradict it.
    """
    # If so many are on the other side, too few are left to hold.
    enough = comparisons.total - comparisons.needed + 1
    for verdict, needed in ((REPRODUCED, comparisons.needed), (CONTRADICTED, enough)):
        ps = sorted(p for p, v in zip(p_values, verdicts, strict=True) if v == verdict)
        if len(ps) >= needed:
            return verdict, ps[needed - 1]
    # NaN compares with nothing, so that plain sorting would leave it anywhere.
    others = (p for p, v in zip(p_values, verdicts, strict=True) if v != CONTRADICTED)
    ps = sorted(others, key=lambda p: (math.isnan(p), p))
    return INCONCLUSIVE, ps[min(comparisons.needed, len(ps)) - 1] if ps else math.nan


def _sentence(parts: list[Compared], verdict: str, printed: str) -> str:
    """The parts of a claim in words; of several, first how many are significant on each side, without correction.

    `printed` is the paper's number of what is tested, if it prints one.

    Parts with the claim's verdict come first, those far from their threshold before others. Parts with one label and
    one verdict, such as the two limits of a range, are shown once.
    """
    texts: dict[tuple[str, str], list[str]] = {}
    for part in sorted(parts, key=lambda each: (each.verdict(each.p) != verdict, -each.distance)):
        text = f"{part.part.label}: {show(part.found)}"
        texts.setdefault((text, part.verdict(part.p)), []).append(part.part.limit)
    paper = f" (the paper prints {printed})" if printed else ""
    several = len(parts) > 1
    shown = [
        f"{text}; required: {' and '.join(limits)}" + (f" ({SIDES[side]})" if several else "")
        for (text, side), limits in texts.items()
    ]
    if not several:
        return shown[0] + paper
    sides = Counter(part.verdict(part.p) for part in parts)
    held = f"before the correction, {sides[REPRODUCED]} of {len(parts)} comparisons significantly support the claim"
    against = f" and {sides[CONTRADICTED]} significantly contradict it" if sides[CONTRADICTED] else ""
    return f"{held}{against}{paper}: {'; '.join(shown)}"


def show(mean: Estimate) -> str:
    """`0.31, 95 % interval [0.28, 0.34], 10 seeds in 5 blocks`, with the interval that is tested.

    Of a sequential campaign also how many of its looks there were.
    """
    count, units = len(mean.seeds), len(mean.units)
    seeds = counted(count, "seed") + (f" in {counted(units, 'block')}" if units < count else "")
    if mean.looks:
        seeds += f" (look {sum(n <= units for n in mean.looks)} of {len(mean.looks)})"
    low, high = mean.interval.low, mean.interval.high
    finite = math.isfinite(low) and math.isfinite(high)
    interval = f"95 % interval [{number(low)}, {number(high)}]" if finite else "without an interval"
    return f"{number(mean.mean)}, {interval}, {seeds}"


def _describe(posed: ClaimOnRuns, manifests: Mapping[str, list[str]], first: str) -> dict[str, Any]:
    """Fields that do not depend on the verdict; `first` is the first claim with this test."""
    claim = posed.claim
    return {
        "id": claim.id,
        "quotation": claim.quotation,
        "about": claim.about,
        "section": claim.section,
        "test": claim.test.model_dump(mode="json"),
        "note": claim.note,
        "weak": claim.weak,
        "primary": claim.primary,
        "margin": margin_of(claim.test),
        "same_as": "" if first == claim.id else first,
        "manifests": {cell: manifests.get(cell, []) for cell in cells_of(claim.test)},
        "decidable": posed.undecidable is None,
    }


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def _number(p: float) -> float | None:
    return None if math.isnan(p) else p
