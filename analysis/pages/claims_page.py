"""Claims as the report shows them: grouped by theme, decided ones first, each with a plot and its evidence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, model_validator

from redraft.analysis.claims.reported_claims import ReportedTables, check
from redraft.analysis.claims.tests import requirement
from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REASONS, REPRODUCED, quantities_of
from redraft.analysis.data.sequential import MOST_BLOCKS
from redraft.analysis.data.words import number, with_minus, words
from redraft.analysis.pages.cell_labels import with_labels
from redraft.analysis.pages.forest import claim_plot
from redraft.config import Experiments, Test
from redraft.layout import Layout
from redraft.result_files import Typed, read_with_hash

LARGE_FACTOR = 1000.0
"""Factors above this one are shown as infinite: they say that a spread is not known."""
ORDER = (CONTRADICTED, REPRODUCED, INCONCLUSIVE, NOT_RUN)
"""Order of claims by verdict: the decided ones first."""


class _Power(Typed):
    effect: float | None
    low: float | None
    high: float | None
    is_ratio: bool
    units: int
    needed: int | None
    next_look: int | None = None


class _Part(Typed):
    label: str
    mean: float | None
    threshold: float
    power: _Power | None = None


class _Claim(Typed):
    id: str
    verdict: Literal["contradicted", "reproduced", "inconclusive", "not run"]
    evidence: str
    same_as: str
    test: dict[str, Any]
    parts: list[_Part]
    deciding: int | None = None
    why: str = ""
    manifests: dict[str, Any]

    @model_validator(mode="after")
    def _check_deciding(self) -> Self:
        """Refuse a reason that does not exist, and a deciding comparison that does not exist or has no power."""
        if self.why and self.why not in REASONS:
            raise ValueError(f"why is {self.why!r}, not one of {', '.join(REASONS)}")
        if self.deciding is not None and not 0 <= self.deciding < len(self.parts):
            raise ValueError(f"deciding is {self.deciding}, and there are {len(self.parts)} comparisons")
        if self.why in ("seeds", "plan") and (self.deciding is None or not self.parts[self.deciding].power):
            raise ValueError(f"why is {self.why!r}, but no comparison with a power decides")
        return self


CLAIMS: TypeAdapter[Any] = TypeAdapter(list[_Claim])
"""Types of what is read of a paper's file of judged claims."""
_TEST: TypeAdapter[Test] = TypeAdapter(Test)


def read_claims(file: Path, labels: Mapping[str, str], blocks: int) -> list[dict[str, Any]]:
    """Judged claims with theme, plot and evidence as HTML, sorted by `ORDER` and then in the order of the paper.

    Args:
        file: a paper's claims.
        labels: names of cells to their labels (`redraft.analysis.pages.cell_labels`).
        blocks: number of blocks of the preset.
    """
    views = []
    for claim in read_with_hash(file, CLAIMS):
        test = _TEST.validate_python(claim["test"])
        quantities = quantities_of(test)
        own = {name: labels[name] for name in claim["manifests"] if name in labels}  # others may be words of a sentence
        views.append(
            claim
            | {
                "theme": words(quantities[0]).theme,
                "plot": claim_plot(claim["parts"]),
                "words": with_labels(with_minus(claim["evidence"]), own),
                "sees": with_minus(seen_text(claim)),
                "power_words": power_text(claim, blocks),
                "margin_words": margin_text(claim),
                "requirement": with_labels(with_minus(requirement(test)), own),
                "reported_words": with_labels(with_minus(claim.get("reported_evidence", "")), labels),
                "cells": {name: (labels.get(name, name), files) for name, files in claim["manifests"].items()},
                "without_runs": sum(not files for files in claim["manifests"].values()),
            }
        )
    # Stable, so that claims of one verdict stay in the order of the paper.
    return sorted(views, key=lambda claim: ORDER.index(claim["verdict"]))


def _power(claim: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Power of the comparison that decides a claim; None where none is tested."""
    # Claims that an earlier version judged have none.
    return None if claim.get("deciding") is None else claim["parts"][claim["deciding"]].get("power")


def is_untested(power: Mapping[str, Any]) -> bool:
    """True if the comparison has too few seeds or blocks for a test."""
    return power["effect"] is None and power["low"] is None and power["needed"] is not None


def about_text(claim: Mapping[str, Any]) -> str:
    """Subject of a claim's quotation, or the part of it that is tested, as the words before it; empty without one."""
    return f"{claim['about']}: " if claim.get("about") else ""


def seen_text(claim: Mapping[str, Any]) -> str:
    """The smallest effect that the comparison which decides a claim can show; empty where none is tested."""
    power = _power(claim)
    return (
        ""
        if not power or is_untested(power)
        else f"{'a factor of ' * power['is_ratio']}{size_text(power['effect'], power['is_ratio'])}"
    )


def size_text(value: float | None, is_ratio: bool) -> str:
    """A detectable effect; ∞ for None, which is infinite, and for factors above `LARGE_FACTOR`."""
    return "∞" if value is None or (is_ratio and value > LARGE_FACTOR) else number(value)


def power_text(claim: Mapping[str, Any], blocks: int) -> str:
    """What the comparison that decides a claim can show, in sentences; empty where none is tested.

    Args:
        claim: a judged claim.
        blocks: number of blocks of the preset; with one, each seed is a unit.
    """
    if not (power := _power(claim)):
        return ""
    unit, is_ratio, needed = "block" if blocks > 1 else "seed", power["is_ratio"], power["needed"]
    if is_untested(power):
        return f"A test needs at least {needed} {unit}s."
    ends = " to ".join(size_text(power[end], is_ratio) for end in ("low", "high"))
    seen = seen_text(claim) if is_ratio else f"a difference of {seen_text(claim)}"
    which = "comparison that decides" if len(claim["parts"]) > 1 else "test"
    text = (
        f"With {power['units']} {unit}s the {which} shows {seen} from the required value in four of five "
        f"campaigns (by the uncertainty of the spread, {ends})."
    )
    if claim.get("why") == "plan":
        return f"{text} No further look of this sequential campaign would decide it."
    if claim.get("why") != "seeds":
        return text
    if needed is None:
        more = f"An effect as small as measured needs more than {MOST_BLOCKS:,} {unit}s"
    elif needed <= power["units"]:
        more = f"{needed} {unit}s decide an effect as measured in four of five campaigns; this is one of the others"
    elif unit == "block" and needed > blocks:
        more = f"An effect as measured needs {needed} blocks, and the preset has {blocks}"
    else:
        more = f"An effect as measured needs {needed} {unit}s, {needed - power['units']} more"
    return f"{text} {more}."


def margin_text(claim: Mapping[str, Any]) -> str:
    """What a verdict on "without loss" shows (a non-inferiority test), in a sentence; empty for other claims."""
    margin = claim.get("margin")
    outcomes = {
        REPRODUCED: "shown to be within the margin",
        CONTRADICTED: "shown to be beyond the margin",
        INCONCLUSIVE: "open: these runs show neither",
    }
    if margin is None or claim["verdict"] not in outcomes:
        return ""
    what = "difference" if claim["test"]["expected"] == "within" else "loss"
    return f"A {what} of up to {number(margin)} counts as none (margin): {outcomes[claim['verdict']]}."


def counts(claims: Sequence[Mapping[str, Any]], key: str = "verdict") -> dict[str, int]:
    """Number of claims by verdict, most frequent first."""
    return dict(Counter(claim[key] for claim in claims if key in claim).most_common())


def verdicts(layout: Layout, paper: str, experiments: Experiments, reported: bool) -> list[dict[str, Any]]:
    """Verdicts on a paper's claims with evidence in words, one row per judged claim in the order of the paper.

    With `reported` the verdicts are those of the paper's own tables, which need no run.
    """
    declared = {claim.id: claim for claim in experiments.claims(paper).claims}
    if reported:
        tables = ReportedTables.of(experiments, paper)
        found = {name: check(claim, tables) for name, claim in declared.items()} if tables else {}
        shown = {name: (each["reported_verdict"], each["reported_evidence"]) for name, each in found.items()}
    else:
        file = layout.claims(paper)
        judged = read_with_hash(file, CLAIMS) if file.exists() else []
        shown = {claim["id"]: (claim["verdict"], claim["evidence"]) for claim in judged}
    first: dict[str, str] = {}
    return [
        {
            "paper": paper,
            "id": name,
            "verdict": verdict,
            "section": claim.section,
            "about": claim.about,
            "quotation": claim.quotation,
            "evidence": with_minus(evidence),
            "weak": claim.weak,
            "same_as": "" if (other := first.setdefault(claim.test.model_dump_json(), name)) == name else other,
        }
        for name, (verdict, evidence) in shown.items()
        # A judged claim may have been removed from claims.yaml since.
        if (claim := declared.get(name))
    ]
