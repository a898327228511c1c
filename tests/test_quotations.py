"""Quotations from the papers, in claims and as sources of hyperparameters, occur in the papers' texts."""

import re

import pytest

from redraft.config import Experiments
from tests.checkout import ROOT

EXPERIMENTS = Experiments(ROOT)
NOT_OF_THE_PAPER = "(not in the paper)"
"""The beginning of a claim that this project adds to a paper's own."""


def letters(text):
    """Letters only: the texts lost formulas, so numbers and symbols cannot be compared."""
    return re.sub("[^a-z]", "", re.sub(r"e\^[\d.]+|\\[a-z]+", "", text).lower())


def text_of(paper):
    return ROOT.parent / "shared/papers" / f"{paper.replace('_', '-')}.txt"


@pytest.mark.parametrize("paper", ["spec_rl", "speed_rl", "ar3po", "efficient_rollout"])
def test_every_quotation_occurs_in_the_paper(paper):
    if not text_of(paper).exists():
        pytest.skip("the paper's text is not beside the repository")
    text = letters(text_of(paper).read_text(encoding="utf-8"))
    stated = EXPERIMENTS.hyperparameters(paper).trainer.values()
    quotations = [words for value in stated for words in re.findall('"([^"]+)"', value.source)]
    claims = [claim.quotation for claim in EXPERIMENTS.claims(paper).claims]
    quotations += [quotation for quotation in claims if not quotation.startswith(NOT_OF_THE_PAPER)]
    assert len(quotations) > 10
    assert not [part for quotation in quotations for part in quotation.split("…") if letters(part) not in text]
