"""A second paper, made up here, goes through the whole workflow beside SPEC-RL; only experiments/ gets new files.

It has two cells, words of its own for them, and a reported table whose columns no other paper has. A third one has
nothing but a cell: no table, figure, claim or reported value.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[1]
COPIED = ("Snakefile", "workflows", "profiles", "experiments", "envs")

CELLS = {
    "title": "Half of it kept: rollouts begin with what was there",
    "source": "made up",
    "grids": [{
        "name": "both",
        "cell": {"model": "qwen3-1.7b-base", "data": "deepmath-6k", "algorithm": {"kind": "grpo"}},
        "axes": {"approach": {"fresh": {"reuse": {"kind": "vanilla"}}, "halved": {"reuse": {"kind": "random"}}}},
    }],
}  # fmt: skip
VOCABULARY = {
    "key": {
        "backbone": {"of": "model", "names": {"qwen3-1.7b-base": "Small"}},
        "approach": {"of": "reuse.kind", "names": {"vanilla": "from scratch", "random": "half kept"}},
    },
    "base": {"approach": "untrained"},
    "quantities": {"tokens_decoded": {"columns": ["effort"]}, "accuracy:all": {"columns": ["score"]}},
}
REPORTED = """backbone,approach,column,value
Small,untrained,score,20.0
Small,from scratch,effort,400
Small,from scratch,score,50.0
Small,half kept,effort,300
Small,half kept,score,48.0
"""
TABLES = {"tables": [
    {
        "number": 1, "kind": "cells", "title": "What is saved", "baseline": "fresh",
        "columns": [
            {"name": "effort", "title": "Effort / fresh", "quantity": "sum:tokens_decoded", "relative": "ratio",
             "reported": ["effort"]},
            {"name": "score", "title": "Score (%)", "quantity": "accuracy:all", "reported": ["score"], "decimals": 1},
        ],
        "rows": [
            {"label": "Untrained", "cell": "fresh", "at": "start"},
            {"label": "From scratch", "cell": "fresh"},
            {"label": "Half kept", "cell": "halved"},
        ],
    },
    {
        "number": 101, "kind": "targets", "title": "Steps to a length", "baseline": "fresh", "clock": "steps",
        "targets": [
            {"name": "some", "title": "one token", "quantity": "response_length", "at_least": 1},
            {"name": "never", "title": "more than the limit", "quantity": "response_length", "at_least": 1000},
        ],
        "rows": [{"label": "From scratch", "cell": "fresh"}, {"label": "Half kept", "cell": "halved"}],
    },
    {
        "number": 102, "kind": "published", "title": "Their own curves", "folder": "nowhere", "time": "t",
        "targets": [{"name": "some", "title": "some", "at_least": 1, "field": "score"}],
        "rows": [{"label": "From scratch", "file": "curve.json"}],
    },
]}  # fmt: skip
FIGURES = {"figures": [
    {"number": 1, "title": "length over hours", "x": "hours",
     "panels": [{"quantity": "response_length", "title": "length", "cells": ["fresh", "halved"], "smoothing": 0.5}]},
    {"number": 2, "title": "pass rates of prompts", "x": "bins",
     "panels": [{"quantity": "share", "by": "pass_rate", "bins": [0, 0.5, 1], "title": "share of prompts",
                 "cells": ["fresh", "halved"]}]},
]}  # fmt: skip
CLAIMS = {"claims": [
    {"id": "less-effort", "quotation": "less effort", "section": "1",
     "test": {"kind": "compare", "quantity": "tokens_decoded", "cell": "halved", "baseline": "fresh",
              "relative": "ratio", "expected": "below", "threshold": 1.0},
     "printed": [{"number": "0.75"}]},
    {"id": "as-good", "quotation": "as good", "section": "1",
     "test": {"kind": "compare", "quantity": "accuracy:all", "cell": "halved", "baseline": "fresh",
              "expected": "above", "threshold": -1.0}},
]}  # fmt: skip
HYPERPARAMETERS = {
    "trainer": {
        name: {"value": value, "source": "ours: made up"}
        for name, value in {"epochs": 15, "prompts_per_step": 1024, "group_size": 8, "prompts_per_update": 256,
                            "learning_rate": 1e-4, "weight_decay": 0.01, "gradient_clip": 1.0,
                            "max_prompt_tokens": 1024, "max_response_tokens": 4096, "evaluate_every": 10}.items()
    }
}  # fmt: skip
BARE = {
    "title": "Nothing but a cell",
    "source": "made up too",
    "grids": [{"name": "one", "axes": {"a": {"alone": {}}},
               "cell": {"model": "qwen3-1.7b-base", "data": "deepmath-6k", "algorithm": {"kind": "grpo"},
                        "reuse": {"kind": "vanilla"}}}],
}  # fmt: skip


def write_papers(experiments):
    """The files of the two papers; everything that they add."""
    files = {"second/cells": CELLS, "second/reported": VOCABULARY, "second/tables": TABLES, "second/figures": FIGURES,
             "second/claims": CLAIMS, "second/hyperparameters": HYPERPARAMETERS, "bare/cells": BARE,
             "bare/hyperparameters": HYPERPARAMETERS}  # fmt: skip
    for name, content in files.items():
        file = experiments / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(content, sort_keys=False))
    (experiments / "second/reported").mkdir()
    (experiments / "second/reported/table01.csv").write_text(REPORTED)


def shorten(experiments):
    """Leave one table, figure, claim and cell of SPEC-RL, which is run too."""
    for kind in ("tables", "figures", "claims"):
        file = experiments / "spec_rl" / f"{kind}.yaml"
        content = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(content | {kind: content[kind][2:3]}, sort_keys=False))
    file = experiments / "spec_rl/cells.yaml"
    content = yaml.safe_load(file.read_text())
    smoke = next(grid for grid in content["grids"] if grid["name"] == "smoke")
    del smoke["axes"]["method"]["grpo-spec-linf"]
    file.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A finished campaign of three papers."""
    folder = tmp_path_factory.mktemp("papers")
    for name in COPIED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    shorten(folder / "experiments")
    write_papers(folder / "experiments")
    preset = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(preset.read_text())
    content["default"] = {"second": ["both"], "spec_rl": ["smoke"], "bare": ["one"]}
    preset.write_text(yaml.safe_dump(content, sort_keys=False))
    result = subprocess.run(["snakemake", "--config", "preset=smoke"], cwd=folder, capture_output=True, text=True,
                            timeout=1800, check=False)  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return folder / "results/smoke"


def cell(table, row, column):
    return table[(table["row"] == row) & (table["column"] == column)].iloc[0]


def test_reproduced_stands_beside_reported_with_a_verdict(campaign):
    table = pd.read_csv(campaign / "tables/second/table01.csv")
    effort = cell(table, "Half kept", "effort")
    assert (effort["reported"], effort["n_seeds"]) == (0.75, 2)
    assert 0 < effort["reproduced"] < 1
    assert effort["deviation"] == pytest.approx(effort["reproduced"] - 0.75)
    assert effort["verdict"] in {"agrees", "same direction", "inconclusive"}
    assert cell(table, "From scratch", "effort")["verdict"] == "baseline"
    score = cell(table, "Half kept", "score")
    assert score["verdict"] == "not comparable", "an absolute value of another scale"
    assert "(paper 0.75)" in (campaign / "tables/second/table01.md").read_text()


def test_a_target_that_was_never_reached_is_a_dagger_and_missing_data_are_said(campaign):
    targets = (campaign / "tables/second/table101.md").read_text()
    line = next(line for line in targets.splitlines() if line.startswith("| Half kept"))
    assert [part.strip() for part in line.split("|")[2:4]] == ["1.0 [1.0, 1.0] (1.0 ×)", "† (†)"]
    assert "no data" in (campaign / "tables/second/table102.md").read_text()


def test_claims_have_verdicts_on_the_runs_and_on_the_paper_s_own_table(campaign):
    claims = json.loads((campaign / "claims/second.json").read_text())
    assert [claim["id"] for claim in claims] == ["less-effort", "as-good"]
    assert claims[0]["verdict"] in {"reproduced", "inconclusive"}
    assert claims[0]["reported_verdict"] == "supported"
    assert "printed 0.75, the tables give 0.75" in claims[0]["reported_evidence"]
    assert claims[1]["reported_verdict"] == "not supported", "48 is two points below 50"


def test_rows_of_its_table_without_a_counterpart_are_listed_in_its_own_columns(campaign):
    listed = pd.read_csv(campaign / "tables/second/without_counterpart.csv")
    assert list(listed) == ["table", "backbone", "approach", "cell", "reason"]
    assert listed.empty


def test_a_figure_over_hours_and_a_histogram_have_their_points(campaign):
    lines = pd.read_csv(campaign / "figures/second/figure01.csv")
    by_cell = lines.groupby("cell")["x"]
    assert dict(by_cell.size()) == {"fresh": 6, "halved": 6}
    assert by_cell.is_monotonic_increasing.all()
    bins = pd.read_csv(campaign / "figures/second/figure02.csv")
    assert list(bins.loc[bins["cell"] == "fresh", "upper"]) == [0.5, 1.0]
    assert bins.groupby("cell")["reproduced"].sum().tolist() == pytest.approx([1.0, 1.0])


def test_the_page_has_all_papers_and_no_heading_over_nothing(campaign):
    page = (campaign / "report.html").read_text()
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {"second-table1", "second-table101", "second-figure2", "second-claim-less-effort"} <= set(ids)
    assert {"spec_rl-table3", "spec_rl-claims", "second-main-result"} <= set(ids)
    assert not [name for name in ids if name.startswith("second-") and "reported" in name], "it reports no seconds"
    assert "second-cases" not in ids
    bare = page[page.index('<section id="bare">') : page.index('<section id="evaluation">')]
    assert re.findall(r"<h\d>", bare) == ["<h2>"]
    assert [name for name in ids if name.startswith("bare")] == ["bare"]
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(ids)


def test_a_paper_without_tables_costs_hours_only_once_it_has_run(campaign):
    folder = campaign.parents[1]
    result = subprocess.run(["redraft", "cost", "bare", "second", "--preset", "smoke"], cwd=folder,
                            capture_output=True, text=True, check=False)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("measured (2 of 2 runs)") == 3


def test_nothing_outside_experiments_names_a_paper():
    """The report's code, templates and rules hold no word of a paper's transcription, and no number of a table."""
    words = r"spec.?rl|deepmath|simplerl|\bamc23|\baime|olympiad|minerva|random.reuse|tokens_m|_table0|table04|Table \d"
    files = [*ROOT.glob("analysis/**/*.py"), *ROOT.glob("analysis/templates/*"), *ROOT.glob("workflows/rules/*.smk")]
    found = {
        (file.name, match[0])
        for file in files
        for match in re.finditer(words, file.read_text(encoding="utf-8"), flags=re.IGNORECASE)
    }
    assert found == set()
