"""What fewer blocks would have decided: the same verdicts as a campaign that has only these blocks."""

import json
import random
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from redraft.analysis import decided
from redraft.analysis.claims.files import write_claims
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measuring
from redraft.analysis.decided import SIZES, FirstBlocks, decided_claims
from redraft.analysis.measuring import measure
from redraft.analysis.pages.claims_page import CLAIMS
from redraft.cli import report
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import read_with_hash
from tests.checkout import ROOT
from tests.test_report import step_of

CELLS = {"grpo-vanilla": 1.0, "grpo-spec-l0": 0.4, "grpo-spec-l0.5": 0.3, "grpo-spec-linf": 0.1}
STEPS, EPOCH, SECONDS = 30, 6, 36.0


def runs_of(blocks, seeds=6):
    """Runs of SPEC-RL's core, six seeds in so many blocks, each of 36 seconds."""
    random.seed(3)
    lines, steps, scores = [], [], []
    for cell, share in CELLS.items():
        for seed in range(seeds):
            lines.append({"cell": cell, "seed": seed, "block": seed % blocks, "fingerprint": "f", "seconds": SECONDS})
            lines[-1] |= {"manifest": f"results/tiny/runs/spec_rl/{cell}/seed{seed}/manifest.json"}
            lines[-1] |= {"initial": f"initial{seed}", "probe": ""}
            for number in range(STEPS):
                step = step_of(cell, seed, number, EPOCH, share)
                steps.append(step | {"tokens_decoded": step["tokens_decoded"] * random.uniform(0.9, 1.1)})
            for step in (0, STEPS):
                for name, role in (("arithmetic", "in-distribution"), ("arithmetic-longer", "out-of-distribution")):
                    correct = 20 + (step > 0) * (30 - 8 * (share < 1)) + random.randint(0, 6)
                    scores.append({"cell": cell, "seed": seed, "step": step, "benchmark": name, "role": role})
                    scores[-1] |= {"correct": correct, "total": 100}
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


@pytest.fixture
def layout(tmp_path, monkeypatch):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    return Layout("tiny")


BLOCKS = 3
"""Blocks of the whole campaign, of two seeds each."""


decided_of_whole = cache(decided_claims)
"""For calls in the folder of `whole`, so that the lines are made once for all tests."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a campaign's measurements, and the counts of its verdicts; measuring takes seconds."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        counts, _, _ = verdicts(Layout("tiny"), runs_of(BLOCKS))
    return folder, counts


def verdicts(layout, runs):
    """Counts of verdicts on the claims with runs, judged by the workflow's own stages."""
    runs.save(layout.collected("spec_rl"))
    measure("tiny", "spec_rl")
    write_claims("tiny", "spec_rl")
    judged = read_with_hash(layout.claims("spec_rl"), CLAIMS)
    primary = [claim["verdict"] != "inconclusive" for claim in judged if claim["primary"]]
    run = [claim["primary"] for claim in judged if claim["verdict"] != "not run"]
    words = ("reproduced", "contradicted", "inconclusive")
    counts = tuple(sum(claim["verdict"] == word for claim in judged) for word in words)
    return counts, sum(primary), sum(map(bool, run))


def test_a_line_has_the_verdicts_of_a_campaign_with_these_blocks_alone(whole, layout, monkeypatch):
    folder, counts_of_whole = whole
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        found = {row.units: row for row in decided_of_whole("tiny", "spec_rl")}
    assert list(found) == [size for size in SIZES if size < BLOCKS] + [BLOCKS]
    runs = runs_of(BLOCKS)
    for units, row in found.items():
        kept = [seed for seed in range(6) if seed % BLOCKS < units]
        part = {name: getattr(runs, name) for name in ("runs", "steps", "scores")}
        part = {name: frame[frame["seed"].isin(kept)].reset_index(drop=True) for name, frame in part.items()}
        counts = counts_of_whole if units == BLOCKS else verdicts(layout, replace(runs, **part))[0]
        assert (row.reproduced, row.contradicted, row.inconclusive) == counts
        assert row.runs == len(kept) * len(CELLS)
        assert row.hours == pytest.approx(row.runs * SECONDS / 3600)
    assert found[BLOCKS].reproduced + found[BLOCKS].contradicted > found[2].reproduced + found[2].contradicted


def test_an_accuracy_at_an_equal_budget_does_not_depend_on_later_blocks(layout):
    """The last block decodes a tenth, which is the budget of its own seed alone."""
    runs = runs_of(3, seeds=3)
    less = runs.steps["tokens_decoded"].where(runs.steps["seed"] != 2, runs.steps["tokens_decoded"] / 10)
    middle = runs.scores.assign(step=STEPS // 2, correct=35)
    runs = replace(runs, steps=runs.steps.assign(tokens_decoded=less), scores=pd.concat([runs.scores, middle]))
    quantity = "at_equal:tokens_decoded:grpo-vanilla+grpo-spec-l0.5:accuracy:all"
    measured = Measuring(runs)
    whole = measured.values(quantity, "grpo-vanilla")
    found = FirstBlocks(measured, 2).values(quantity, "grpo-vanilla")
    kept = {name: getattr(runs, name)[lambda frame: frame["seed"] < 2] for name in ("runs", "steps", "scores")}
    assert found == Measuring(replace(runs, **kept)).values(quantity, "grpo-vanilla")
    assert found == {seed: whole[seed] for seed in (0, 1)}


def test_the_command_prints_a_line_for_each_number_of_blocks(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole[0])
    monkeypatch.setattr(decided, "decided_claims", decided_of_whole)
    report.seeds("spec_rl", "tiny")
    header, _, *lines = capsys.readouterr().out.splitlines()[:4]
    assert header.split()[:4] == ["blocks", "runs", "hours", "reproduced"]
    report.seeds("spec_rl", "tiny", as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["units"] for row in rows] == [2, 3]
    assert rows[-1]["primary"] <= rows[-1]["of_primary"] <= 3
    counts = [str(rows[-1][name]) for name in ("reproduced", "contradicted", "inconclusive")]
    columns = [header.split().index(name) for name in ("reproduced", "contradicted", "inconclusive")]
    assert [lines[-1].split()[column] for column in columns] == counts


def test_a_paper_without_collected_runs_is_refused(layout):
    with pytest.raises(UserError, match=r"collected/spec_rl/measured\.json: this file is missing"):
        decided_claims("tiny", "spec_rl")
