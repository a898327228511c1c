"""Verdicts on what a paper asserts: each claim is a declared test on the reproduced runs.

Beside it, and labelled apart, stands whether the paper's own tables support the claim (`analysis.reported_claims`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.claim_tests import Part, Question, cells_of, question
from analysis.collect import Runs
from analysis.quantities import ACCURACY, by_seed
from analysis.reported_claims import ReportedTables, check
from analysis.statistics import Estimate, corrected, estimate
from analysis.timing import Agreement, first_epoch_agreement
from redraft.config import Claim

REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "reproduced", "contradicted", "inconclusive", "not run"

LEVEL = 0.05
"""Level of significance, before and after the correction."""


@dataclass(frozen=True)
class RunValues:
    """Values of the finished runs; a source of `analysis.claim_tests`.

    Attributes:
        runs: all of a paper.
        lenient: whether a benchmark that the preset does not have is absent instead of an error.
    """

    runs: Runs
    lenient: bool = False
    _known: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, repr=False)

    def values(self, quantity: str, cell: str) -> dict[int, float]:
        """A quantity of a cell by seed, no NaN; computed once, since many claims share cells."""
        key = (quantity, cell)
        if key not in self._known:
            self._known[key] = {} if self._unknown(quantity) else _finite(by_seed(self.runs, quantity, cell))
        return self._known[key]

    def trajectory(self, quantity: str, cell: str) -> dict[int, list[float]]:
        """A quantity of each kept policy of a cell in the order of training, by seed."""
        scores = self.runs.scores
        if self._unknown(quantity):
            return {}
        found: dict[int, list[float]] = {}
        for step in sorted(scores.loc[scores["cell"] == cell, "step"].unique()):
            for seed, value in _finite(by_seed(self.runs, quantity, cell, at=int(step))).items():
                found.setdefault(seed, []).append(value)
        return found

    def _unknown(self, quantity: str) -> bool:
        if not self.lenient or not quantity.startswith(ACCURACY):
            return False
        scores = self.runs.scores
        return quantity.removeprefix(ACCURACY) not in {"all", *scores["benchmark"].unique(), *scores["role"].unique()}


@dataclass(frozen=True)
class Compared:
    """A part of a claim with its estimate; `p` is NaN where too few seeds allow no test."""

    part: Part
    found: Estimate
    p: float

    def verdict(self, p: float) -> str:
        """On which side of the threshold the part lies, if `p` is significant."""
        if not p <= LEVEL:
            return INCONCLUSIVE
        above = self.found.mean > self.part.threshold
        return REPRODUCED if above == (self.part.expected == "above") else CONTRADICTED


def judge(
    claims: Sequence[Claim], runs: Runs, paper_scale: bool, tables: ReportedTables | None = None
) -> list[dict[str, Any]]:
    """The verdict on each claim, with its evidence as text and the manifests it rests on.

    A claim about seconds is decided only where equal work took about equal time (`analysis.timing`).

    Each part of a claim is a two-sided t-test over seeds against its threshold, which is the same as asking whether
    the 95 % Student interval leaves the threshold out. The p-values of all parts of all claims that can be decided at
    this scale are corrected together (Benjamini and Hochberg); a claim is `reproduced` if as many parts as it needs
    lie significantly where the paper says, `contradicted` if so many lie elsewhere that it cannot hold, else
    `inconclusive`.

    Args:
        claims: of one paper, all of them: the correction is over the family.
        runs: the paper's finished runs.
        paper_scale: whether these are the paper's models, data and benchmarks.
        tables: the paper's reported tables; without them that check is left out.
    """
    timing = first_epoch_agreement(runs)
    reasons = [_undecidable(claim, paper_scale, timing) for claim in claims]
    decidable = [reason is None for reason in reasons]
    sources = {here: RunValues(runs, lenient=not here) for here in (True, False)}
    at_scale = [paper_scale or claim.scale == "any" for claim in claims]
    questions = [question(claim.test, sources[here]) for claim, here in zip(claims, at_scale, strict=True)]
    compared = [[_test(part) for part in asked.parts] for asked in questions]
    counted = [here and asked.answerable for asked, here in zip(questions, decidable, strict=True)]
    family = [each.p for parts, counts in zip(compared, counted, strict=True) if counts for each in parts]
    following = iter(corrected(family))
    adjusted = [
        [next(following) if counts else math.nan for _ in parts]
        for parts, counts in zip(compared, counted, strict=True)
    ]
    size = sum(not math.isnan(p) for p in family)
    manifests = {str(cell): list(part["manifest"]) for cell, part in runs.runs.sort_values("seed").groupby("cell")}
    return [
        _describe(claim, manifests, here)
        | _decide(asked, parts, ps, size, reason)
        | (check(claim, tables) if tables else {})
        for claim, asked, parts, ps, reason, here in zip(
            claims, questions, compared, adjusted, reasons, decidable, strict=True
        )
    ]


def _test(part: Part) -> Compared:
    found = estimate(part.values)
    return Compared(part, found, found.p_value(part.threshold))


def _undecidable(claim: Claim, paper_scale: bool, timing: Agreement | None) -> str | None:
    """Why a claim cannot be decided from these runs; None if it can."""
    if claim.scale == "paper" and not paper_scale:
        return "this cannot be decided at a scale other than the paper's"
    if timing and not timing.comparable and _is_timed(claim.test.model_dump(mode="json")):
        return f"not decided: equal work took up to {timing.largest:.2f} times as long in one run as in another"
    return None


def _is_timed(content: Any) -> bool:
    """Test for a quantity of seconds or hours in a test's dump."""
    if isinstance(content, dict):
        return any(_is_timed(value) for value in content.values())
    if isinstance(content, list):
        return any(_is_timed(value) for value in content)
    return isinstance(content, str) and ("seconds" in content or content == "hours")


def _decide(
    asked: Question, parts: list[Compared], adjusted: list[float], size: int, undecidable: str | None
) -> dict[str, Any]:
    """Verdict, evidence and p-values of one claim."""
    if not asked.answerable:
        reason = (
            f"no finished run with this quantity: {', '.join(asked.absent)}"
            if asked.absent
            else "the cells share no seed"
        )
        return {"verdict": NOT_RUN, "evidence": reason, "p": None, "p_corrected": None}
    sides = [each.verdict(each.p) for each in parts]
    before, p = overall(asked, sides, [each.p for each in parts])
    evidence = asked.summary + _show_parts(parts)
    if undecidable:
        evidence += f"; {undecidable}"
        return {"verdict": INCONCLUSIVE, "evidence": evidence, "p": _number(p), "p_corrected": None}
    _, p_corrected = overall(asked, sides, adjusted)
    after, _ = overall(asked, [each.verdict(q) for each, q in zip(parts, adjusted, strict=True)], adjusted)
    if after != before:
        evidence += f"; not significant after correction for {size} comparisons (p = {p_corrected:.2g})"
    return {"verdict": after, "evidence": evidence, "p": _number(p), "p_corrected": _number(p_corrected)}


def overall(asked: Question, verdicts: list[str], p_values: list[float]) -> tuple[str, float]:
    """The verdict on a claim from those on its parts, and the p-value it hangs on.

    That is the largest of the parts that must hold; for a contradicted claim, the largest of the fewest parts that
    contradict it; for one that is neither, the largest it would have needed.
    """
    enough = asked.total - asked.needed + 1
    for verdict, needed in ((REPRODUCED, asked.needed), (CONTRADICTED, enough)):
        ps = sorted(p for p, v in zip(p_values, verdicts, strict=True) if v == verdict)
        if len(ps) >= needed:
            return verdict, ps[needed - 1]
    ps = sorted(p_values, key=lambda p: (math.isnan(p), p))
    return INCONCLUSIVE, ps[min(asked.needed, len(ps)) - 1]


def _show_parts(parts: list[Compared]) -> str:
    """Each label with its estimate, and what is asserted of it; how each part came out, where there are several."""
    shown: dict[tuple[str, str], list[str]] = {}
    for each in parts:
        text = f"{each.part.label}: {show(each.found)}"
        shown.setdefault((text, each.verdict(each.p)), []).append(f"{each.part.expected} {each.part.threshold:g}")
    several = len(parts) > 1
    return "; ".join(
        f"{text}; asserted {' and '.join(asserted)}" + (f" ({verdict})" if several else "")
        for (text, verdict), asserted in shown.items()
    )


def show(found: Estimate) -> str:
    """`0.31 [0.28, 0.34], 3 seeds`, with the interval that is tested."""
    plural = "s" if len(found.seeds) != 1 else ""
    return f"{found.mean:.4g} [{found.tested.low:.4g}, {found.tested.high:.4g}], {len(found.seeds)} seed{plural}"


def _describe(claim: Claim, manifests: Mapping[str, list[str]], here: bool) -> dict[str, Any]:
    """Fields that do not depend on the verdict."""
    return {
        "id": claim.id,
        "quotation": claim.quotation,
        "section": claim.section,
        "test": claim.test.model_dump(mode="json"),
        "note": claim.note,
        "manifests": {cell: manifests.get(cell, []) for cell in cells_of(claim.test)},
        "decidable": here,
    }


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def _number(p: float) -> float | None:
    return None if math.isnan(p) else p
