"""A second paper, made up for tests, goes through the whole workflow beside SPEC-RL; only experiments/ gets new files.

It has two cells, words of its own for them, and a reported table whose columns no other paper has. A third one has
nothing but a cell: no table, figure, claim or reported value (tests/made_up_papers.py).
"""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from redraft.config import Experiments
from tests.checkout import called

ROOT = Path(__file__).parents[1]


def cell(table, row, column):
    return table[(table["row"] == row) & (table["column"] == column)].iloc[0]


def test_reproduced_stands_beside_reported_with_a_verdict(campaign):
    table = pd.read_csv(campaign / "results/smoke/tables/second/table01.csv")
    effort = cell(table, "Half kept", "effort")
    assert (effort["reported"], effort["n_seeds"]) == (0.75, 2)
    assert 0 < effort["reproduced"] < 1
    assert effort["deviation"] == pytest.approx(effort["reproduced"] - 0.75)
    assert effort["verdict"] in {"agrees", "same direction", "inconclusive"}
    assert cell(table, "From scratch", "effort")["verdict"] == "baseline"
    score = cell(table, "Half kept", "score")
    assert score["verdict"] == "not comparable", "an absolute value of another scale"
    lines = (campaign / "results/smoke/tables/second/table01.md").read_text().splitlines()
    headers, own = (next(line for line in lines if line.startswith(start)).split("|") for start in ("|  ", "| Half"))
    assert dict(zip(map(str.strip, headers), map(str.strip, own), strict=True))["paper"] == "0.75"


def test_a_target_that_was_never_reached_is_a_dagger_and_missing_data_are_said(campaign):
    targets = (campaign / "results/smoke/tables/second/table101.md").read_text()
    line = next(line for line in targets.splitlines() if line.startswith("| Half kept"))
    assert [part.strip() for part in line.split("|")[2:4]] == ["1.0 (1.0 ×)", "† (†)"], "two equal seeds"
    assert "no data" in (campaign / "results/smoke/tables/second/table102.md").read_text()


def test_claims_have_verdicts_on_the_runs_and_on_the_paper_s_own_table(campaign):
    claims = json.loads((campaign / "results/smoke/claims/second.json").read_text())
    assert [claim["id"] for claim in claims] == ["less-effort", "as-good"]
    assert claims[0]["verdict"] in {"reproduced", "inconclusive"}
    assert claims[0]["reported_verdict"] == "supported"
    assert "the paper prints 0.75, its tables give 0.75" in claims[0]["reported_evidence"]
    assert claims[1]["reported_verdict"] == "not supported", "48 is two points below 50"


def test_rows_of_its_table_without_a_counterpart_are_listed_in_its_own_columns(campaign):
    listed = pd.read_csv(campaign / "results/smoke/tables/second/without_counterpart.csv")
    assert list(listed) == ["table", "backbone", "approach", "cell", "reason"]
    assert listed.empty


def test_a_figure_over_hours_and_a_histogram_have_their_points(campaign):
    lines = pd.read_csv(campaign / "results/smoke/figures/second/figure01.csv")
    by_cell = lines.groupby("cell")["x"]
    assert dict(by_cell.size()) == {"fresh": 6, "halved": 6}
    assert by_cell.is_monotonic_increasing.all()
    bins = pd.read_csv(campaign / "results/smoke/figures/second/figure02.csv")
    assert list(bins.loc[bins["cell"] == "fresh", "upper"]) == [0.5, 1.0]
    assert bins.groupby("cell")["reproduced"].sum().tolist() == pytest.approx([1.0, 1.0])


def test_the_page_has_all_papers_and_no_heading_over_nothing(campaign):
    names = ("index", "tables", "figures", "runs", "audit")
    pages = {name: (campaign / f"results/smoke/report/{name}.html").read_text() for name in names}
    ids = {name: re.findall(r'id="([^"]+)"', page) for name, page in pages.items()}
    for name, page in pages.items():
        assert len(ids[name]) == len(set(ids[name]))
        assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids[name])
    assert {"second-table1", "second-table101", "spec_rl-table3", "second-main-result"} <= set(ids["tables"])
    assert "second-claim-less-effort" in ids["index"]
    assert "second-figure2" in ids["figures"]
    assert not [name for name in ids["tables"] if name.startswith("second-") and "reported" in name], "no seconds"
    assert "second-cases" not in ids["figures"]
    assert not [
        name for each in ("index", "tables", "figures", "audit") for name in ids[each] if name.startswith("bare")
    ]
    assert {"bare-alone", "second-fresh"} <= set(ids["runs"])


def test_a_paper_without_tables_costs_hours_only_once_it_has_run(campaign):
    result = called(campaign, "redraft", "cost", "bare", "second", "--preset", "smoke", "--wide")
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


def test_the_package_names_no_paper_but_in_an_example_of_a_command_line():
    names = "|".join(Experiments(ROOT).papers)
    files = [*ROOT.glob("src/redraft/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "Snakefile"]
    files += ROOT.glob("workflows/rules/*.smk")
    found = {
        file.relative_to(ROOT).as_posix(): re.findall(rf".*\b(?:{names})\b.*", text)
        for file in files
        if re.search(rf"\b(?:{names})\b", text := file.read_text(encoding="utf-8"))
    }
    assert found.keys() == {"src/redraft/cli/arguments.py"}
    assert all("help=" in line for line in found["src/redraft/cli/arguments.py"])
