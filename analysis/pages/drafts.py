"""Drafts of a run without reuse, under a later policy of it: a part of the bias laboratory's page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.pages.by_rule import ByRule, by_rule, of_seeds, seeds_of, shares, with_interval
from redraft.analysis.pages.multiples import Panel, number, said
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.part import Part, Question, lines, listed, percent, points, short
from redraft.files import read_json

OWN, HELD_OUT = "own", "held_out"
DRAFTS = Question(
    "drafts",
    "How far do policies of a training run drift, and what would be kept of its drafts?",
    "Rollouts of a run without reuse are judged by a later policy of it, rule by rule and without drawing, since what "
    "is kept is a sum. The run was trained on its own drafts. Held-out ones were drawn from the same policy for the "
    "same prompts, and nothing was trained on them.",
)


def files(paper: Paper) -> dict[int, Path]:
    """What was observed of a paper's runs, by seed."""
    found = {seed: paper.layout.observed(paper.name, seed) for seed in paper.preset.seeds}
    return {seed: file for seed, file in found.items() if file.exists()}


def observed(paper: Paper) -> pd.DataFrame:
    """A row for each seed, pair of policies, kind of drafts and rule; `epoch` is that of the later policy."""
    return pd.DataFrame(row for seed, file in files(paper).items() for row in _rows(seed, read_json(file)["pairs"]))


def _rows(seed: int, pairs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    epoch = 0.0
    for pair in pairs:
        epoch += pair["epochs_between"]
        about = {name: pair[name] for name in ("from", "to", "epochs_between", "prompts")}
        about |= {"seed": seed, "epoch": epoch, "tv": pair["tv"]["mean"], "beta": pair["beta_mean"]}
        about |= {f"tv {name}": value for name, value in pair["tv"]["quantiles"].items()}
        for kind in (OWN, HELD_OUT):
            for row in pair[kind]:
                yield about | {"kind": kind} | row


def part(paper: Paper, pairs: pd.DataFrame) -> Part:
    """Distance of policies, and kept shares of own and of held-out drafts."""
    cell = f"{paper.name}/{paper.experiments.cell_file(paper.name).laboratory}"
    if pairs.empty:
        return Part(DRAFTS, missing=f"{cell} was not observed; `snakemake laboratory` does it.")
    own, held = (pairs[pairs["kind"] == kind] for kind in (OWN, HELD_OUT))
    key = ["seed", "from", "to", "epoch", "rule"]
    both = own.merge(held[[*key, "share"]], on=key, how="left", suffixes=("", " held"))
    both = both.assign(gap=both["share"] - both["share held"])
    absent = [str(seed) for seed in paper.preset.seeds if seed not in set(own["seed"])]
    note = (
        f"Means over all pairs of neighbouring policies of {cell}, with 95 % Student intervals over "
        f"{seeds_of(paper, own)}. A share is the mean over drafts of kept tokens over tokens."
    )
    return Part(
        DRAFTS,
        answers=list(_answers(paper, both)),
        panels=_panels(both),
        table=_table(paper, both),
        data=pairs,
        note=note,
        missing=f"Seed {', '.join(absent)} of {cell}." if absent else "",
    )


def _answers(paper: Paper, both: pd.DataFrame) -> Iterator[str]:
    pairs = both.drop_duplicates(["seed", "from"])
    apart, tv = pairs["epochs_between"], of_seeds(paper, pairs.groupby("seed")["tv"].mean())
    kept, gaps = by_rule(paper, both, "share"), by_rule(paper, both, "gap")
    exact = list(dict.fromkeys(both.loc[both["exact"], "rule"]))
    low, high = apart.min(), apart.max()
    epochs = f"{short(low)} epochs" if low == high else f"{short(low)} to {short(high)} epochs"
    epochs = "an epoch" if low == high == 1 else epochs
    yield (
        f"Policies {epochs} apart are at a total variation of {with_interval(tv, short)} at "
        f"the positions of drafts; β, the sum of min(p, q), is {number(1 - tv.mean)} there."
    )
    yield (
        f"Of its drafts exact rules would keep {shares(kept, exact)}; others "
        f"{shares(kept, [rule for rule in kept if rule not in exact])}."
    )
    yield from _own_or_held_out({rule: gaps[rule] for rule in exact if rule in gaps})


def _own_or_held_out(gaps: ByRule) -> Iterator[str]:
    """Whether exact rules keep another share of own drafts: those whose interval says so, and all others."""
    if not gaps:
        yield "No held-out drafts were drawn."
        return
    decided = [rule for rule, gap in gaps.items() if gap.interval.low > 0 or gap.interval.high < 0]
    for rule in decided:
        size, word = short(100 * abs(gaps[rule].mean)), "more" if gaps[rule].mean > 0 else "less"
        yield f"Of own drafts {said(rule)} would keep {size} points {word} than of held-out ones."
    if open_ := [rule for rule in gaps if rule not in decided]:
        largest = max(open_, key=lambda rule: abs(gaps[rule].mean))
        yield (
            f"Whether {listed(open_)} would keep another share of own drafts than of held-out ones is undecided: the "
            f"largest difference is {with_interval(gaps[largest], _in_points)} points ({said(largest)})."
        )


def _panels(both: pd.DataFrame) -> list[Panel]:
    means = both.groupby(["rule", "epoch"], sort=False)[["share", "gap"]].mean().reset_index()
    apart = both.drop_duplicates(["seed", "from"]).groupby("epoch").mean(numeric_only=True).reset_index()
    quantiles = {f"{100 * float(name[3:]):.0f} % quantile": name for name in apart if str(name).startswith("tv ")}
    drift = {label: points(apart, "epoch", name) for label, name in ({"mean": "tv"} | quantiles).items()}
    return [
        Panel("TV of two policies, at positions of drafts", "epoch of the later policy", drift),
        Panel("share kept of own drafts", "epoch of the later policy", lines(means, "epoch", "share")),
        Panel("share kept, own less held-out", "epoch of the later policy", lines(means, "epoch", "gap")),
    ]


def _table(paper: Paper, both: pd.DataFrame) -> pd.DataFrame:
    own, held, gap, whole = (by_rule(paper, both, name) for name in ("share", "share held", "gap", "whole"))
    exact = dict(zip(both["rule"], both["exact"], strict=True))
    return pd.DataFrame(
        {
            "rule": said(rule),
            "distribution": "exact" if exact[rule] else "not exact",
            "own drafts": with_interval(own[rule], percent),
            "held-out drafts": with_interval(held.get(rule), percent),
            "own − held-out (points)": with_interval(gap.get(rule), _in_points),
            "own kept whole": with_interval(whole[rule], percent),
        }
        for rule in own
    )


def _in_points(share: float) -> str:
    return short(100 * share)
