"""Each column that is written has one definition, which Parquet files, `columns.json` and pages repeat."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from redraft import data_dictionary
from redraft.analysis.data import measured, statistics
from redraft.analysis.data.timing import KINDS
from redraft.analysis.figures import points
from redraft.analysis.tables import comparison
from redraft.config.data import Benchmark, ProblemFile
from redraft.data_dictionary import (
    TABLES,
    definition,
    definitions,
    described_files,
    write_descriptions,
    write_pages,
    write_parquet,
)
from redraft.errors import UserError
from redraft.evaluate import grade
from redraft.evaluate.generation_parts import SCHEMA
from redraft.evaluate.metrics import score
from redraft.lab.selfspec import sweep
from tests.columns import same

ROOT = Path(__file__).parents[1]


def rows():
    with data_dictionary.FILE.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_each_definition_has_a_unit_and_a_meaning_and_is_unique_in_its_table():
    defined = [(table, row["column"]) for row in rows() for table in row["tables"].split()]
    assert len(defined) == len(set(defined))
    assert {table for table, _ in defined} == {*TABLES, "records"}
    assert all(row["unit"] and len(row["meaning"]) > 8 for row in rows())


def test_each_line_has_all_fields_and_no_further_one():
    rows = list(csv.reader(data_dictionary.FILE.open(encoding="utf-8", newline="")))
    assert {len(row) for row in rows} == {5}


def test_pages_and_published_results_repeat_the_definitions():
    """`redraft schema` renews both."""
    assert write_pages(ROOT / "docs", check=True) == []
    assert write_descriptions(ROOT / "results/reference", check=True) == []
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    assert {match[2] for page in pages for match in data_dictionary.MARK.finditer(page)} == {*TABLES, "records"}


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """A copy of the definitions in which one word differs."""
    text = data_dictionary.FILE.read_text().replace("updates from a batch so far", "updates so far")
    (tmp_path / "changed.csv").write_text(text)
    monkeypatch.setattr(data_dictionary, "FILE", tmp_path / "changed.csv")
    definitions.cache_clear()
    yield
    definitions.cache_clear()


def test_a_changed_definition_makes_pages_and_packages_outdated(changed, tmp_path):
    for name in ("docs", "results/reference"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert write_pages(tmp_path / "docs", check=True) == [tmp_path / "docs/metrics.md"]
    assert write_descriptions(tmp_path / "results/reference", check=True) != []
    write_pages(tmp_path / "docs", check=False)
    assert "| updates so far, this step included |" in (tmp_path / "docs/metrics.md").read_text()
    (tmp_path / "docs/tables.md").write_text("<!-- columns of tabels -->\n<!-- end of columns -->\n")
    with pytest.raises(UserError, match="nothing is defined"):
        write_pages(tmp_path / "docs", check=True)


SCORED = {
    "math": pd.DataFrame({"outcome": ["correct", "wrong"], "extracted": ["1", ""]}),
    "instructions": pd.DataFrame({"outcome": ["correct", "wrong"], "strict": [[True], [False]], "loose": [[True]] * 2}),
}


def scores():
    """Keys of scores of two problems, by both kinds of graders, with a note."""
    for grading, graded in SCORED.items():
        benchmark = Benchmark(data=ProblemFile(path="p.jsonl", size=2), samples=1, grading=grading)
        yield from score(graded.assign(length=3, truncated=False, seconds=1.0), benchmark, "a note")


WRITTEN = {
    "scores": ["cell", "seed", "step", "benchmark", *dict.fromkeys(scores())],
    "measured": measured.COLUMNS,
    "family": statistics.FAMILY,
    "generations": SCHEMA.names,
    "grades": grade.GRADES.names,
    "tables": [*comparison.COLUMNS, "stand_in"],
    "figures": [*points.COLUMNS, *points.FURTHER, "stand_in"],
    "reported_speedups": ["model", *KINDS],
    "sweeps": [*sweep.COLUMNS],
}


@pytest.mark.parametrize("table", WRITTEN)
def test_the_written_columns_are_the_defined_ones(table):
    """Those of steps: tests/test_declarations.py and tests/test_metrics_page.py; others: `ELSEWHERE`."""
    assert same(table, WRITTEN[table])


ELSEWHERE = {
    "timing": "test_side_by_side",
    "lighteval": "test_lighteval",
    "sensitivity": "test_sensitivity",
    **dict.fromkeys((name for name in TABLES if name.startswith("laboratory")), "test_laboratory_page"),
    "costs": "test_cost",
    "prompts": "test_staged",
    "advice": "test_advise",
    "problems": "test_verl_data",
}
"""Test file that writes such a file anyway, and compares its columns."""
IN_A_CAMPAIGN = {"runs", "steps", "rollouts", "diversity", "without_counterpart"}


def test_each_table_has_a_test_of_its_columns():
    assert {*WRITTEN, *ELSEWHERE, *IN_A_CAMPAIGN} == set(TABLES)
    for table, name in ELSEWHERE.items():
        assert f'same("{table}", ' in (ROOT / f"tests/{name}.py").read_text(), table


WRITER = re.compile(r"to_csv\(|to_parquet\(|write_parquet\(|csv\.writer\(|pq\.write_table\(|ParquetWriter\(")
WRITERS = {
    "redraft/data_dictionary.py": set(),
    "redraft/cli/advise.py": {"advice"},
    "redraft/cli/runs.py": {"prompts"},
    "redraft/evaluate/diversity.py": {"diversity"},
    "redraft/evaluate/generation_parts.py": {"generations"},
    "redraft/evaluate/grade.py": {"grades"},
    "redraft/evaluate/sensitivity.py": {"sensitivity"},
    "redraft/lab/selfspec/sweep.py": {"sweeps"},
    "redraft/train/local/side_by_side.py": {"timing"},
    "redraft/train/records.py": {"rollouts"},
    "redraft/train/verl/problem_files.py": {"problems"},
    "analysis/cost/cost_text.py": {"costs"},
    "analysis/data/collect.py": {"runs", "steps", "scores"},
    "analysis/data/measured.py": {"measured"},
    "analysis/data/statistics.py": {"family"},
    "analysis/figures/figure_files.py": {"figures"},
    "analysis/pages/laboratory_page.py": {name for name in TABLES if name.startswith("laboratory")},
    "analysis/reference/published.py": set(),
    "analysis/tables/files.py": {"tables", "reported_speedups", "without_counterpart"},
    "analysis/tables/render.py": set(),
    "workflows/lighteval/grade.py": {"lighteval"},
}
"""Code that writes CSV or Parquet, and the tables of its files; none where it copies or prints others."""


def test_code_that_writes_a_table_has_definitions_of_it():
    folders = [ROOT / "src/redraft", ROOT / "analysis", ROOT / "workflows"]
    files = {file for folder in folders for file in folder.rglob("*.py") if file.parts.count("analysis") < 2}
    found = {
        file.relative_to(ROOT).as_posix().removeprefix("src/") for file in files if WRITER.search(file.read_text())
    }
    assert found == set(WRITERS)
    assert set().union(*WRITERS.values()) == set(TABLES)


def test_a_column_without_a_definition_and_a_definition_without_a_column_are_found():
    names = list(definitions("grades"))
    assert same("grades", names)
    assert not same("grades", [*names, "lenght"])
    assert not same("grades", names[1:])
    assert definition("scores", "pass_at_16") == definitions("scores")["pass_at_<k>"]
    assert definition("scores", "pass_at_") is None


def test_a_file_has_the_definitions_and_the_same_content(tmp_path):
    frame = pd.DataFrame({"step": [0, 1], "own_count": [1, 2], "kept_at.3": [0.5, None], "cell": ["a", None]})
    write_parquet(frame, tmp_path / "steps.parquet", "steps")
    schema = pq.read_schema(tmp_path / "steps.parquet")
    assert schema.field("step").metadata == {b"unit": b"index", b"description": b"number of the step, from 0"}
    assert schema.field("kept_at.3").metadata[b"unit"] == b"share"
    assert schema.field("own_count").metadata is None, "a user's schedule counts what it wants"
    frame.to_parquet(tmp_path / "plain.parquet", index=False)
    both = [pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("steps", "plain")]
    pd.testing.assert_frame_equal(*both)
    assert pq.read_schema(tmp_path / "plain.parquet").equals(schema)


@pytest.fixture(scope="module")
def files(campaign):
    """All files of the campaign by name."""
    root = campaign / "results"
    return {file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()}


def test_a_campaign_writes_no_file_and_no_column_without_a_definition(files):
    tables = described_files(files)["tables"]
    packed = {name: table for table in tables for name in table["files"]}
    assert {table["name"] for table in tables} >= {*WRITTEN, *IN_A_CAMPAIGN} - {"sweeps"}
    data = (name for name in files if name.endswith((".csv", ".parquet")) and "/code/" not in name)
    # Parts of generations are only read to resume.
    written = {name for name in data if ".parts/" not in name}
    assert written == set(packed)
    for described in tables:
        assert [column for column in described["columns"] if not column.get("description")] == []
    for table in IN_A_CAMPAIGN - {"steps"}:
        names = [name for name in packed if packed[name]["name"] == table]
        columns = {column for name in names for column in columns_of(files[name])}
        assert same(table, columns), table


def columns_of(file):
    return list(pd.read_csv(file, nrows=0)) if file.suffix == ".csv" else pq.read_schema(file).names


def test_all_parquet_files_of_a_campaign_but_rollouts_are_described(files):
    """Rollouts are not: `redraft check` compares their hashes with those of published runs."""
    for table in described_files(files)["tables"]:
        for name in (name for name in table["files"] if name.endswith(".parquet")):
            for field in pq.read_schema(files[name]):
                found = definition(table["name"], field.name)
                expected = {b"unit": found.unit.encode(), b"description": found.meaning.encode()}
                assert field.metadata == (None if table["name"] == "rollouts" else expected), name
