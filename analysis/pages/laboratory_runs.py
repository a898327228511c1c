"""Parts of the bias laboratory's page that are measured on training runs: drift of policies and rules in training."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.pages.laboratory_parts import (
    ByRule,
    LaboratoryPart,
    LaboratoryQuestion,
    by_rule,
    lines,
    listed,
    of_seeds,
    percent,
    points,
    rule_of,
    seeds_of,
    shares,
    short,
    with_interval,
)
from redraft.analysis.pages.multiples import Diagram, number, rule_label
from redraft.analysis.pages.paper import Paper
from redraft.result_files import OBJECT, read_with_hash

OWN, HELD_OUT = "own", "held_out"
DRAFTS = LaboratoryQuestion(
    "drafts",
    "How far do policies drift in training, and how much of a draft would be kept?",
    "Rollouts of a run without reuse are scored under a later policy of the run. The expected kept share of each rule "
    "is a sum over kept lengths, so nothing is sampled. The run was trained on its own drafts. Held-out drafts were "
    "sampled from the same policy for the same prompts, but not trained on.",
)


def observation_files(paper: Paper) -> dict[int, Path]:
    """Files of a paper's observed runs (`redraft audit`), by seed."""
    found = {seed: paper.layout.observed(paper.name, seed) for seed in paper.preset.seeds}
    return {seed: file for seed, file in found.items() if file.exists()}


def observed(paper: Paper) -> pd.DataFrame:
    """One row per seed, pair of policies, kind of drafts and rule; `epoch` belongs to the later policy."""
    return pd.DataFrame(
        row
        for seed, file in observation_files(paper).items()
        for row in _rows(seed, read_with_hash(file, OBJECT, "pairs")["pairs"])
    )


def _rows(seed: int, pairs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    epoch = 0.0
    for pair in pairs:
        # Pairs are neighbours in the order of training, so that distances add up to the later policy's epoch.
        epoch += pair["epochs_between"]
        about = {name: pair[name] for name in ("from", "to", "epochs_between", "prompts")}
        about |= {"seed": seed, "epoch": epoch, "tv": pair["tv"]["mean"], "beta": pair["beta_mean"]}
        about |= {f"tv {name}": value for name, value in pair["tv"]["quantiles"].items()}
        for kind in (OWN, HELD_OUT):
            for row in pair[kind]:
                yield about | {"kind": kind} | row


def draft_part(paper: Paper, pairs: pd.DataFrame) -> LaboratoryPart:
    """Distance of policies, and kept shares of own and of held-out drafts."""
    cell = f"{paper.name}/{paper.experiments.cell_file(paper.name).laboratory}"
    if pairs.empty:
        return LaboratoryPart(DRAFTS, missing=f"{cell} was not observed. `snakemake laboratory` does so.")
    own, held = (pairs[pairs["kind"] == kind] for kind in (OWN, HELD_OUT))
    key = ["seed", "from", "to", "epoch", "rule"]
    # Left, since held-out drafts are optional; without them the gap is NaN.
    both = own.merge(held[[*key, "share"]], on=key, how="left", suffixes=("", " held"))
    both = both.assign(gap=both["share"] - both["share held"])
    absent = [str(seed) for seed in paper.preset.seeds if seed not in set(own["seed"])]
    note = (
        f"Means over all pairs of neighbouring policies of {cell}, with 95 % Student intervals over "
        f"{seeds_of(paper, own)}. A share is the mean over drafts of kept tokens over tokens."
    )
    means = both.groupby(["rule", "epoch"], sort=False)[["share", "gap"]].mean().reset_index()
    # Distances belong to a pair of policies, and each rule's row repeats them.
    apart = both.drop_duplicates(["seed", "from"]).groupby("epoch").mean(numeric_only=True).reset_index()
    quantiles = {f"{100 * float(name[3:]):.0f} % quantile": name for name in apart if str(name).startswith("tv ")}
    drift = {label: points(apart, "epoch", name) for label, name in ({"mean": "tv"} | quantiles).items()}
    diagrams = [
        Diagram("TV of two policies at positions of drafts", "epoch of the later policy", drift),
        Diagram("kept share of own drafts", "epoch of the later policy", lines(means, "epoch", "share")),
        Diagram("kept share, own − held-out", "epoch of the later policy", lines(means, "epoch", "gap")),
    ]
    own_share, held_share, gap, whole = (by_rule(paper, both, name) for name in ("share", "share held", "gap", "whole"))
    exact = dict(zip(both["rule"], both["exact"], strict=True))
    table = pd.DataFrame(
        {
            "rule": rule_label(rule),
            "distribution": "exact" if exact[rule] else "not exact",
            "own drafts": with_interval(own_share[rule], percent),
            "held-out drafts": with_interval(held_share.get(rule), percent),
            "own − held-out (points)": with_interval(gap.get(rule), _in_points),
            "own kept whole": with_interval(whole[rule], percent),
        }
        for rule in own_share
    )
    return LaboratoryPart(
        DRAFTS,
        answers=list(_draft_answers(paper, both)),
        diagrams=diagrams,
        table=table,
        data=pairs,
        note=note,
        missing=f"Seed {', '.join(absent)} of {cell}." if absent else "",
    )


def _draft_answers(paper: Paper, both: pd.DataFrame) -> Iterator[str]:
    pairs = both.drop_duplicates(["seed", "from"])
    apart, tv = pairs["epochs_between"], of_seeds(paper, pairs.groupby("seed")["tv"].mean())
    kept, gaps = by_rule(paper, both, "share"), by_rule(paper, both, "gap")
    exact = list(dict.fromkeys(both.loc[both["exact"], "rule"]))
    low, high = apart.min(), apart.max()
    epochs = f"{short(low)} epochs" if low == high else f"{short(low)} to {short(high)} epochs"
    epochs = "an epoch" if low == high == 1 else epochs
    yield (
        f"Policies that are {epochs} apart have a TV of {with_interval(tv, short)} at the token positions of drafts. "
        f"The overlap β, the sum of min(p, q) over the vocabulary, is {number(1 - tv.mean)}."
    )
    yield (
        f"Exact rules would keep these shares of the run's drafts: {shares(kept, exact)}. Other rules would keep "
        f"{shares(kept, [rule for rule in kept if rule not in exact])}."
    )
    yield from _kept_share_answers({rule: gaps[rule] for rule in exact if rule in gaps})


def _kept_share_answers(gaps: ByRule) -> Iterator[str]:
    """Differences between own and held-out drafts: rules whose interval excludes 0, then all others."""
    if not gaps:
        yield "No held-out drafts were sampled."
        return
    # With one seed both ends are NaN, which compares as false: undecided.
    decided = [r for r, gap in gaps.items() if math.isfinite(gap.interval.low) and 0 not in gap.interval]
    for rule in decided:
        size, word = short(100 * abs(gaps[rule].mean)), "more" if gaps[rule].mean > 0 else "less"
        yield f"The rule {rule_label(rule)} would keep {size} points {word} of own drafts than of held-out drafts."
    if open_ := [rule for rule in gaps if rule not in decided]:
        largest = max(open_, key=lambda rule: abs(gaps[rule].mean))
        yield (
            f"It is undecided whether {listed(open_)} would keep different shares of own and held-out drafts: the "
            f"largest difference is {with_interval(gaps[largest], _in_points)} points ({rule_label(largest)})."
        )


def _in_points(share: float) -> str:
    return short(100 * share)


TRAINED = LaboratoryQuestion(
    "trained",
    "What did the rules do in training?",
    "Each cell was trained with its rule. Its kept share of a draft is compared with the share expected from the run "
    "without reuse, and its training reward with the reward of fresh samples of the same policies.",
)
RECORDS = {"kept": "prefix_share", "age": "token_age_epochs", "reward": "reward", "fresh": "fresh_reward"}
"""Column of the data to the field of a step record."""


def training_part(paper: Paper, pairs: pd.DataFrame) -> LaboratoryPart:
    """What the cells did; `pairs` were observed on the paper's runs (`observed`)."""
    reuse = {cell.name: cell.reuse for cell in paper.experiments.cells(paper.name)}
    # Cells without a finished run have no steps.
    there = [name for name in reuse if not paper.runs.steps_of(name).empty]
    absent = [name for name in reuse if name not in there]
    missing = f"{', '.join(absent)}." if absent else ""
    if not there:
        return LaboratoryPart(TRAINED, missing=missing)
    expected = {
        kind: by_rule(paper, pairs[pairs["kind"] == kind], "share") if len(pairs) else {} for kind in (OWN, HELD_OUT)
    }
    rules = {name: rule_of(reuse[name], expected[OWN]) for name in there}
    data = pd.concat([_by_epoch(paper, name).assign(cell=name, rule=rules[name]) for name in there], ignore_index=True)
    # The first epoch has no drafts.
    later = data[data["epoch"] > 1]
    found = {
        "kept": by_rule(paper, later, "kept"),
        "age": by_rule(paper, later, "age"),
        "gap": by_rule(paper, data, "gap"),
    }
    note = (
        "Kept shares and ages cover epoch 2 and later, rewards all epochs; 95 % Student intervals over "
        f"{seeds_of(paper, data)}. Expected shares are computed from drafts of the run without reuse. A cell's own "
        "policies differ from that run's, and the tokens of its drafts are older."
    )
    means = data.groupby(["rule", "epoch"], sort=False)[["kept", "age", "gap"]].mean().reset_index()
    diagrams = [
        Diagram("kept share of a draft", "epoch", lines(means, "epoch", "kept")),
        Diagram("age of tokens, epochs", "epoch", lines(means, "epoch", "age")),
        Diagram("training reward − fresh reward", "epoch", lines(means, "epoch", "gap")),
    ]
    table = pd.DataFrame(
        {
            "cell": cell,
            "rule": rule_label(rule),
            "kept share": with_interval(found["kept"].get(rule), percent),
            "expected, own drafts": with_interval(expected[OWN].get(rule), percent),
            "expected, held-out drafts": with_interval(expected[HELD_OUT].get(rule), percent),
            "age of tokens (epochs)": with_interval(found["age"].get(rule), short),
            "reward − fresh reward": with_interval(found["gap"].get(rule), short),
        }
        for cell, rule in rules.items()
    )
    return LaboratoryPart(
        TRAINED,
        answers=list(_training_answers(found, expected[OWN])),
        diagrams=diagrams,
        table=table,
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


def _training_answers(found: Mapping[str, ByRule], expected: ByRule) -> Iterator[str]:
    if gaps := found["gap"]:
        yield f"The training reward minus the reward of fresh samples is {shares(gaps, gaps, short)}."
    reusing = [rule for rule in found["kept"] if rule in found["age"]]
    if reusing:
        yield f"The mean age of training tokens, in epochs, is {shares(found['age'], reusing, short)}."
    if both := [rule for rule in reusing if rule in expected]:
        kept = [
            f"{percent(found['kept'][rule].mean)}, expected {percent(expected[rule].mean)} ({rule_label(rule)})"
            for rule in both
        ]
        yield f"Kept shares of a draft in training: {'; '.join(kept)}."
