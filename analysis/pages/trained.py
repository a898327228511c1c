"""What rules did when runs were trained with them, beside what was to be expected: a part of the bias laboratory."""

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from redraft.analysis.pages.by_rule import ByRule, by_rule, rule_of, seeds_of, shares, with_interval
from redraft.analysis.pages.drafts import HELD_OUT, OWN
from redraft.analysis.pages.multiples import Panel, said
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.part import Part, Question, lines, percent, short

TRAINED = Question(
    "trained",
    "What did the rules do in training?",
    "Each cell was trained with its rule. The share of a draft that it kept stands beside the one that the run without "
    "reuse lets expect, and the reward that it was trained on beside that of fresh samples of the same policies.",
)
RECORDS = {"kept": "prefix_share", "age": "token_age_epochs", "reward": "reward", "fresh": "fresh_reward"}
"""Records of a step that are shown."""


def part(paper: Paper, pairs: pd.DataFrame) -> Part:
    """What the cells did; `pairs` were observed of the paper's runs (`redraft.analysis.pages.drafts`)."""
    reuse = {cell.name: cell.reuse for cell in paper.experiments.cells(paper.name)}
    there = [name for name in reuse if not paper.runs.steps_of(name).empty]
    absent = [name for name in reuse if name not in there]
    missing = f"{', '.join(absent)}." if absent else ""
    if not there:
        return Part(TRAINED, missing=missing)
    expected = {
        kind: by_rule(paper, pairs[pairs["kind"] == kind], "share") if len(pairs) else {} for kind in (OWN, HELD_OUT)
    }
    rules = {name: rule_of(reuse[name], expected[OWN]) for name in there}
    data = pd.concat([_by_epoch(paper, name).assign(cell=name, rule=rules[name]) for name in there], ignore_index=True)
    later = data[data["epoch"] > 1]
    found = {
        "kept": by_rule(paper, later, "kept"),
        "age": by_rule(paper, later, "age"),
        "gap": by_rule(paper, data, "gap"),
    }
    note = (
        "Kept shares and ages are of epoch 2 and later, rewards of all epochs; 95 % Student intervals over "
        f"{seeds_of(paper, data)}. What was expected is of drafts of the run without reuse. A cell's policies are "
        "others, and tokens of its drafts are older."
    )
    return Part(
        TRAINED,
        answers=list(_answers(found, expected[OWN])),
        panels=_panels(data),
        table=_table(rules, found, expected),
        data=data,
        note=note,
        missing=missing,
    )


def _by_epoch(paper: Paper, cell: str) -> pd.DataFrame:
    """Means over the steps of each epoch, which count from 1, by seed."""
    steps = paper.runs.steps_of(cell)
    frame = steps[["seed", "epoch"]].assign(**{name: steps.get(record, math.nan) for name, record in RECORDS.items()})
    means = frame.groupby(["seed", "epoch"]).mean().reset_index()
    return means.assign(epoch=means["epoch"] + 1, gap=means["reward"] - means["fresh"])


def _answers(found: Mapping[str, ByRule], expected: ByRule) -> Iterator[str]:
    if gaps := found["gap"]:
        yield f"The reward that is trained on is above that of fresh samples by {shares(gaps, gaps, short)}."
    reusing = [rule for rule in found["kept"] if rule in found["age"]]
    if reusing:
        yield f"Tokens that are trained on are {shares(found['age'], reusing, short)} epochs old on average."
    if both := [rule for rule in reusing if rule in expected]:
        told = [
            f"{percent(found['kept'][rule].mean)}, expected {percent(expected[rule].mean)} ({said(rule)})"
            for rule in both
        ]
        yield f"Of a draft training kept {'; '.join(told)}."


def _panels(data: pd.DataFrame) -> list[Panel]:
    means = data.groupby(["rule", "epoch"], sort=False)[["kept", "age", "gap"]].mean().reset_index()
    return [
        Panel("share of a draft that was kept", "epoch", lines(means, "epoch", "kept")),
        Panel("age of tokens, epochs", "epoch", lines(means, "epoch", "age")),
        Panel("reward trained on less fresh reward", "epoch", lines(means, "epoch", "gap")),
    ]


def _table(rules: Mapping[str, str], found: Mapping[str, ByRule], expected: Mapping[str, ByRule]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "cell": cell,
            "rule": said(rule),
            "kept of a draft": with_interval(found["kept"].get(rule), percent),
            "expected, own drafts": with_interval(expected[OWN].get(rule), percent),
            "expected, held-out drafts": with_interval(expected[HELD_OUT].get(rule), percent),
            "age of tokens (epochs)": with_interval(found["age"].get(rule), short),
            "reward − fresh reward": with_interval(found["gap"].get(rule), short),
        }
        for cell, rule in rules.items()
    )
