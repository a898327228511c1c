"""The hash of a rule's code changes with that code, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from redraft.ops.workflow import code_hash

SOURCE = Path(__file__).parents[1] / "src"
GRADE, DIVERSITY, TABLES = (
    "redraft.evaluate.grade:grade_policies",
    "redraft.evaluate.diversity:measure_run",
    "redraft.analysis.tables.files:write_tables",
)
REPORT, CLAIMS = "redraft.analysis.pages.report_pages:report", "redraft.analysis.claims.files:write_claims"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A copy of the package, in place of the one that is imported."""
    shutil.copytree(SOURCE / "redraft", tmp_path / "redraft", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    forget()
    yield tmp_path / "redraft"
    forget()


def forget():
    code_hash.code_of.cache_clear()
    code_hash._read.cache_clear()
    code_hash._templates.cache_clear()


def hashes():
    forget()
    return {stage: code_hash.code_of(stage) for stage in (GRADE, DIVERSITY, TABLES)}


def changed(before):
    return {stage for stage, found in hashes().items() if found != before[stage]}


@pytest.mark.parametrize(
    ("file", "old", "new", "stages"),
    [
        ("tasks/grading.py", "import ", "import math\nimport ", {GRADE}),
        ("evaluate/metrics.py", "return ", "return 0 + ", {GRADE}),
        ("evaluate/diversity.py", "return ", "return 0 + ", {DIVERSITY}),
        ("rollout/streams.py", "return ", "return 0 or ", {GRADE, DIVERSITY}),
        ("analysis/data/statistics.py", "return ", "return 0 or ", {TABLES}),
        ("train/losses.py", "return ", "return 0 + ", set()),
        ("config/tables.py", "return ", "return 0 or ", set()),
        ("ops/locking/lease.py", "return ", "return 0 or ", set()),
    ],
)
def test_an_edit_changes_the_hash_of_what_runs_the_code(source, file, old, new, stages):
    before, text = hashes(), (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new, 1) if old != "return " else text.replace(old, new))
    assert changed(before) & {GRADE, DIVERSITY} == stages & {GRADE, DIVERSITY}
    assert stages <= changed(before)
    assert stages or not changed(before)


def test_docstrings_comments_and_formatting_change_nothing(source):
    before = hashes()
    for file in ("tasks/grading.py", "evaluate/grade.py", "evaluate/diversity.py", "train/losses.py"):
        text = (source / file).read_text()
        first = text.index('"""') + 3
        (source / file).write_text(text[:first] + "Other words. " + text[first:] + "\n\n# a comment\n")
    assert changed(before) == set()


def test_an_edited_template_changes_the_hash_of_what_fills_it(source):
    before = {stage: code_hash.code_of(stage) for stage in (REPORT, TABLES, CLAIMS)}
    with (source / "analysis/templates/table.css").open("a") as file:
        file.write("td { color: red }")
    forget()
    after = {stage: code_hash.code_of(stage) for stage in before}
    assert {stage for stage in before if after[stage] != before[stage]} == {REPORT, TABLES}
