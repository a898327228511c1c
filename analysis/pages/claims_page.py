"""Claims as the report shows them: grouped by theme, decided ones first, each with a plot and its evidence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.analysis.claims.reported_claims import ReportedTables, check
from redraft.analysis.claims.tests import requirement
from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REPRODUCED, quantities_of
from redraft.analysis.data.words import with_minus, words
from redraft.analysis.pages.cell_labels import with_labels
from redraft.analysis.pages.forest import claim_plot
from redraft.config import Experiments, Test
from redraft.layout import Layout
from redraft.result_files import Typed, read_with_hash

ORDER = (CONTRADICTED, REPRODUCED, INCONCLUSIVE, NOT_RUN)
"""Order of claims by verdict: the decided ones first."""


class _Claim(Typed):
    id: str
    verdict: str
    evidence: str
    same_as: str
    test: dict[str, Any]
    parts: list[dict[str, Any]]
    manifests: dict[str, Any]


CLAIMS: TypeAdapter[Any] = TypeAdapter(list[_Claim])
"""Types of what is read of a paper's file of judged claims."""
_TEST: TypeAdapter[Test] = TypeAdapter(Test)


def read_claims(file: Path, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Judged claims with theme, plot and evidence as HTML, sorted by `ORDER` and then in the order of the paper.

    `labels` maps names of cells to their labels (`redraft.analysis.pages.cell_labels`).
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
                "requirement": with_labels(with_minus(requirement(test)), own),
                "reported_words": with_labels(with_minus(claim.get("reported_evidence", "")), labels),
                "cells": {name: (labels.get(name, name), files) for name, files in claim["manifests"].items()},
                "without_runs": sum(not files for files in claim["manifests"].values()),
            }
        )
    # Stable, so that claims of one verdict stay in the order of the paper.
    return sorted(views, key=lambda claim: ORDER.index(claim["verdict"]))


def counts(claims: Sequence[Mapping[str, Any]], key: str = "verdict") -> dict[str, int]:
    """Number of claims by verdict, most frequent first."""
    return dict(Counter(claim[key] for claim in claims if key in claim).most_common())


def verdicts(layout: Layout, paper: str, experiments: Experiments, reported: bool) -> list[dict[str, Any]]:
    """Verdicts on a paper's claims with evidence in words, one row per judged claim in the order of the paper.

    With `reported` the verdicts are those of the paper's own tables, which need no run.
    """
    declared = {claim.id: claim for claim in experiments.claims(paper).claims}
    if reported:
        spec = experiments.reported(paper)
        tables = ReportedTables(experiments.folder_of(paper), spec, experiments) if spec else None
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
            "quotation": claim.quotation,
            "evidence": with_minus(evidence),
            "same_as": "" if (other := first.setdefault(claim.test.model_dump_json(), name)) == name else other,
        }
        for name, (verdict, evidence) in shown.items()
        # A judged claim may have been removed from claims.yaml since.
        if (claim := declared.get(name))
    ]
