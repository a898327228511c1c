"""Mistakes in tables, claims and figures are reported when they are read, with the key and the closest names."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from redraft.analysis.data.prompt_frames import PROMPT_QUANTITIES
from redraft.analysis.data.quantities import REDUCTIONS, RUN_QUANTITIES, STEP_QUANTITIES
from redraft.analysis.data.timing import KINDS
from redraft.analysis.tables.table_columns import expand
from redraft.cli.app import main
from redraft.config import Experiments, TableWithoutRuns, quantities
from redraft.config.figures import LINES, Figure
from redraft.config.quantities import check_run
from redraft.data_dictionary import definitions
from redraft.errors import UserError
from redraft.methods.schedule import ScheduleMethod
from redraft.ops.workflow.plan import check_paper

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path


def message(folder, part, edit, paper="spec_rl"):
    """The error after a change of a paper's tables, claims or figures."""
    file = folder / "experiments" / paper / f"{part}.yaml"
    content = yaml.safe_load(file.read_text())
    edit(content)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(UserError) as error:
        getattr(Experiments(folder), part)(paper)
    assert str(error.value.file) == str(file)
    return error.value


def column(**fields):
    return lambda content: content["tables"][0]["columns"][0].update(fields)


def test_of(kind, **fields):
    return lambda content: next(c for c in content["claims"] if c["test"]["kind"] == kind)["test"].update(fields)


def panel(**fields):
    return lambda content: content["figures"][0]["panels"][0].update(fields)


test_of.__test__ = False
MISTAKES = {
    "scale of 0": ("tables", column(scale=0), "tables.0.columns.0.scale", "at least", ""),
    "negative scale": ("tables", column(scale=-1), "tables.0.columns.0.scale", "at least", ""),
    "NaN scale": ("tables", column(scale=float("nan")), "tables.0.columns.0.scale", "finite", ""),
    "infinite scale": ("tables", column(scale=float("inf")), "tables.0.columns.0.scale", "finite", ""),
    "decimals": ("tables", column(decimals=1e9), "tables.0.columns.0.decimals", "at most 12", ""),
    "true for a number": ("tables", column(decimals=True), "tables.0.columns.0.decimals", "not true or false", ""),
    "window": ("tables", column(quantity="mean@2-1:reward"), "tables.0.columns.0.quantity", "range of steps", ""),
    "window from 0": ("tables", column(quantity="mean@0-1:reward"), "tables.0.columns.0.quantity", "count from 1", ""),
    "quantity": (
        "tables",
        column(quantity="tokens_decodd"),
        "tables.0.columns.0.quantity",
        "no such",
        "tokens_decoded",
    ),
    "step": ("tables", column(quantity="mean:rewrd"), "tables.0.columns.0.quantity", "quantity of a step", "reward"),
    "benchmark": ("tables", column(quantity="accuracy:math50"), "tables.0.columns.0.quantity", "benchmark", "math500"),
    "speedup": (
        "tables",
        column(quantity="speedup:onest"),
        "tables.0.columns.0.quantity",
        "speedup",
        "speedup:printed",
    ),
    "group": ("tables", column(in_groups={"x": "reward"}), "tables.0.columns.0.in_groups.x", "group of rows", ""),
    "headline's table": (
        "tables",
        lambda c: c["headlines"][0].update(table=77),
        "headlines.0.table",
        "no table 77",
        "1",
    ),
    "headline's column": (
        "tables",
        lambda c: c["headlines"][0].update(column="tokens_relativ"),
        "headlines.0.column",
        "no relative column",
        "tokens_relative",
    ),
    "claim": ("claims", test_of("compare", quantity="fresh_rewrd"), "test.quantity", "no such", "fresh_reward"),
    "claim's baseline": ("claims", test_of("compare", over="sum:rewardd"), "test.over", "no such", "reward"),
    "claim's threshold": ("claims", test_of("compare", threshold=float("nan")), "test.threshold", "finite", ""),
    "printed number": (
        "claims",
        lambda c: next(c for c in c["claims"] if c.get("printed"))["printed"][0].update(scale=0),
        "printed.0.scale",
        "not be 0",
        "",
    ),
    "figure": ("figures", panel(quantity="rewrd"), "figures.0.panels.0.quantity", "quantity of a run", "reward"),
    "explanation": (
        "tables",
        lambda c: c["headlines"][-1]["see"].update(paper="spec_rl"),
        "headlines.2.see.paper",
        "no such experiments",
        "",
    ),
    "explanation's words": ("tables", lambda c: c["headlines"][-1]["see"].update(words=" "), "see.words", "", ""),
    "figure's label": ("figures", panel(labels=["x"]), "figures.0.panels.0.labels", "1 labels for", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_key_and_the_closest_name(folder, name):
    part, edit, key, words, allowed = MISTAKES[name]
    error = message(folder, part, edit)
    assert error.key.endswith(key)
    assert words in error.message
    assert (error.allowed or "").split(", ")[0] == allowed or not allowed


def test_axes_of_a_surface_need_a_number_in_each_cell(folder):
    surface = {
        "number": 150,
        "title": "t",
        "x": "surface",
        "panels": [
            {"quantity": "reward", "title": "r", "cells": ["grpo-spec-l0"], "axes": ["reuse.lenience", "reuse.kind"]}
        ],
    }
    error = message(folder, "figures", lambda content: content.update(figures=[surface]))
    assert (error.key, error.value) == ("figures.0.panels.0.axes.1", "reuse.kind")


@pytest.mark.parametrize(
    ("quantity", "words"),
    [
        ("bin@0.5-0.2:pass_rate:responses", "must be below"),
        ("bin@0.2.1-1:pass_rate:responses", "no such bin"),
        ("bin@0-1:pas_rate:responses", "quantity of a prompt"),
        ("bin@0-1:pass_rate:share", None),
        ("hours_to:x:accuracy:all", "no value to reach"),
        ("hours_to:inf:reward", "no value to reach"),
        ("hours_to:30", "incomplete"),
        ("hours_to:+30:accuracy:all", None),
        ("hours_to:+0:accuracy:all", "before the first step"),
        ("steps_to:+0.3:reward", "must be an accuracy"),
        ("steps_to:0.3:rewad", "quantity of a step"),
        ("correlation:entropy", "incomplete"),
        ("correlation:entropy:kl", None),
        ("at_equal:tokens_decoded:a+c:accuracy:all", "no such cell: c"),
        ("at_equal:tokens_decoded:a+b:accuracy:all", None),
        ("at_equal:tokens_decoded:a+b:reward", "not an accuracy"),
        ("accuracy:", "no such benchmark"),
        ("accuracy:all+", "no such benchmark"),
        ("median:reward", "no such quantity"),
        ("mean@2:reward", "range of steps"),
        ("max@3-9:prompts_qualified", None),
        ("x" * 100_000, "no such quantity"),
    ],
)
def test_forms_of_quantities(quantity, words):
    arguments = (quantity, ["all", "math500"], ["a", "b"])
    if words is None:
        check_run(*arguments)
    else:
        with pytest.raises(ValueError, match=words):
            check_run(*arguments)


def test_the_names_are_those_that_are_measured():
    assert set(quantities.RUN_QUANTITIES) == set(RUN_QUANTITIES)
    assert set(quantities.DERIVED) == set(STEP_QUANTITIES)
    assert set(quantities.PROMPT_QUANTITIES) == set(PROMPT_QUANTITIES)
    assert set(quantities.REDUCTIONS) == set(REDUCTIONS)
    assert set(quantities.KINDS_OF_SPEEDUP) == set(KINDS)


def test_the_fields_are_the_defined_columns_of_steps():
    named = definitions("steps").keys() - {"cell", "seed", "step"}
    families = {re.sub(r"<\w+>", "", name) for name in named if "<" in name}
    fields = quantities.fields()
    assert {name for name in fields if not name.startswith(tuple(families))} == {n for n in named if "<" not in n}
    assert families == {"kept_at.", "kept_from.", "proposed_from.", "predicted_seconds."}


@pytest.mark.parametrize("kind", ScheduleMethod.registered())
def test_a_schedule_declares_what_it_counts(kind):
    from tests.trainers import make_trainer

    for settings in kind.examples():
        trainer = make_trainer(prompts_per_step=3, group_size=3, prompts_per_update=3)
        schedule = settings.schedule(trainer, 12, 0)
        schedule.finished([])
        assert set(schedule.counts()) <= set(settings.counted)


def test_relative_columns_are_those_that_a_table_has_at_a_preset():
    for paper in EXPERIMENTS.papers:
        spec = EXPERIMENTS.reported(paper)
        for table in EXPERIMENTS.tables(paper).tables:
            if not isinstance(table, TableWithoutRuns):
                columns = expand(table, {}, spec, "paper").columns
                speedups = [c.name for c in columns if c.relative or c.quantity.startswith("speedup:")]
                assert list(table.relations) == speedups


def test_a_panel_over_epochs_has_no_accuracy():
    content = {"number": 1, "title": "t", "x": "epoch", "panels": [{"quantity": "accuracy:all", "title": "a"}]}
    content["panels"][0]["cells"] = ["a"]
    with pytest.raises(ValueError, match="not by epoch"):
        TypeAdapter(Figure).validate_python(content)
    for x in set(LINES) - {"epoch"}:
        TypeAdapter(Figure).validate_python(content | {"x": x})


def called(folder, monkeypatch, capsys, *arguments):
    """Exit code, standard output and standard error of a command in a folder."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    printed = capsys.readouterr()
    return end.value.code or 0, printed.out, printed.err


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("ar3po/reported.yaml", "staged: ar3po", "staged: ar3p0", ["key.method.names.staged", "ar3p0", "ar3po"]),
        ("ar3po/reported/table01.csv", ",ar3po,", ",ar3po ,", ["a blank begins or ends a text"]),
        ("spec_rl/reported/table01.csv", ",math500,", ",math500,-", ["math500", "0 to 100"]),
        ("ar3po/reported/table01.csv", ",math500,", ",math500,9", ["math500", "0 to 100"]),
    ],
)
def test_a_mistake_in_what_names_a_paper_s_rows_is_no_missing_row(folder, monkeypatch, capsys, file, old, new, words):
    """Claims on the paper's numbers would be judged without them."""
    path = folder / "experiments" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    code, _, err = called(folder, monkeypatch, capsys, "validate", file.partition("/")[0])
    assert code == 2
    assert all(word in err for word in words), err


def test_check_prints_the_first_mistake_of_each_paper(folder, monkeypatch, capsys):
    code, out, err = called(folder, monkeypatch, capsys, "validate")
    assert (code, err) == (0, "")
    assert "no mistake in" in out
    for paper, old, new in (
        ("spec_rl", "quantity: tokens_decoded", "quantity: tokens_decodd"),
        ("speed_rl", "reported: [", "reported: [x"),
    ):
        file = folder / f"experiments/{paper}/tables.yaml"
        file.write_text(file.read_text().replace(old, new, 1))
    code, out, err = called(folder, monkeypatch, capsys, "validate")
    assert (code, out, err.count("error:")) == (2, "", 2)
    assert "spec_rl/tables.yaml: no such quantity of a run" in err
    assert "speed_rl/tables.yaml: table 1 of the paper has no such column" in err
    code, out, _ = called(folder, monkeypatch, capsys, "validate", "--json")
    assert code == 2
    rows = {row["paper"]: row["mistake"] for row in json.loads(out)["rows"]}
    assert [paper for paper, mistake in rows.items() if mistake] == ["spec_rl", "speed_rl"]


SOURCES = {
    "models.qwen3-1.7b-base.path": lambda p, path: p.update(
        blocks=1, models=p["models"] | {"qwen3-1.7b-base": {"kind": "pretrained", "path": path}}
    ),
    "data.deepmath-6k.path": lambda p, path: p["data"].update(
        {"deepmath-6k": {"kind": "file", "path": path, "size": p["data"]["deepmath-6k"]["size"]}}
    ),
    "benchmarks.mine.data.path": lambda p, path: p.update(
        protocol="", protocols={}, benchmarks={"mine": {"data": {"kind": "file", "path": path, "size": 9}}}
    ),
}


@pytest.mark.parametrize("key", SOURCES)
def test_a_missing_file_of_a_model_or_of_problems_is_named_before_work_starts(folder, monkeypatch, key):
    monkeypatch.chdir(folder)
    file = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(file.read_text())
    SOURCES[key](content, str(folder / "nowhere"))
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(UserError, match="no such file or folder") as error:
        check_paper(Experiments(folder), Experiments(folder).preset("smoke"), "spec_rl")
    assert (error.value.file, error.value.key, error.value.value) == (file, key, str(folder / "nowhere"))
    (folder / "nowhere").touch()
    check_paper(Experiments(folder), Experiments(folder).preset("smoke"), "spec_rl")
