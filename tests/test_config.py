"""Configuration: what is shipped parses, what is wrong is said in one message, identity holds still."""

import math
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from redraft.config import (
    Benchmark,
    Experiments,
    Run,
    Speculative,
    Trainer,
    benchmarks_fingerprint,
    fingerprint,
    format_lenience,
    parse_lenience,
)
from redraft.config.load import merge
from redraft.config.schema import write_schemas
from redraft.errors import UserError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def experiments(tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path


def change(root, file, edit):
    """Apply `edit` to the parsed YAML of one experiment file."""
    path = root / "experiments" / file
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_every_shipped_file_parses_and_every_cell_resolves_in_every_preset():
    experiments = Experiments(ROOT)
    presets = [file.stem for file in (ROOT / "experiments/presets").glob("*.yaml")]
    assert {"tiny", "smoke"} <= set(presets)
    for paper in experiments.papers:
        assert experiments.tables(paper).tables
        assert experiments.figures(paper).figures
        assert experiments.claims(paper).claims
        for cell in experiments.cells(paper):
            assert all(experiments.run(cell.id, 0, preset).cell == cell.name for preset in presets)


def test_the_lenience_of_a_name_is_that_of_its_cell():
    for cell in Experiments(ROOT).cells("spec_rl"):
        if isinstance(cell.method, Speculative):
            label = cell.name.rpartition("-l")[2]
            assert cell.method.lenience == math.exp(float(label))


def test_schemas_and_reference_are_those_of_the_models():
    assert write_schemas(ROOT / "docs", check=True) == []


@given(st.one_of(st.floats(min_value=0, allow_nan=False), st.sampled_from([0.0, 1.0, math.inf])))
def test_a_lenience_survives_being_written(lenience):
    assert parse_lenience(format_lenience(lenience)) == lenience


@pytest.mark.parametrize("value", [-1, "-0.5", float("nan"), "nan", "e^x", "much", None, True, [], "-inf"])
def test_a_lenience_that_means_nothing_is_refused(value):
    with pytest.raises(ValueError, match="must be a number"):
        parse_lenience(value)


def test_lenience_is_written_as_the_papers_do():
    assert [format_lenience(parse_lenience(x)) for x in ("e^0.5", "inf", 1, "0", "e^2")] == [
        "e^0.5",
        "inf",
        "1",
        "0",
        "e^2",
    ]


WRONG = {
    "unknown method": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["reuse"]["vanilla"]["method"].update(kind="psychic"),
        ["method", "psychic", "speculative"],
    ),
    "unknown algorithm": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["algorithm"]["grpo"]["algorithm"].update(kind="sarsa"),
        ["algorithm", "sarsa", "grpo"],
    ),
    "unknown key": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["reuse"]["spec"]["method"].update(leniency=2),
        ["leniency", "lenience"],
    ),
    "negative lenience": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["lenience"]["l2"]["method"].update(lenience=-2),
        ["lenience", "-2", ">= 0"],
    ),
    "NaN lenience": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["lenience"]["l2"]["method"].update(lenience=".nan"),
        ["lenience", "nan"],
    ),
    "exclusion of no axis": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["exclude"][0]["when"].update(colour=["red"]),
        ["colour", "reuse"],
    ),
    "exclusion of no label": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["exclude"][0]["when"].update(reuse=["spek"]),
        ["spek", "vanilla"],
    ),
    "a label that is no name": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["lenience"].update({"../l3": {}}),
        ["grids.0.axes.lenience", "../l3"],
    ),
    "a role that is no name": ("spec_rl/cells.yaml", lambda c: c["grids"][0]["cell"].update(model="a b"), ["a b"]),
    "a cell that names itself": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["cell"].update(name="mine"),
        ["grids.0", "name", "mine"],
    ),
    "a label that sets the paper": (
        "spec_rl/cells.yaml",
        lambda c: c["grids"][0]["axes"]["lenience"]["l2"].update(paper="other"),
        ["grids.0", "paper", "other"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named_with_file_key_and_value(experiments, name):
    file, edit, words = WRONG[name]
    path = change(experiments, file, edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).cells("spec_rl")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


WRONG_PRESET = {
    "a scale that its models are not of": (lambda p: p.update(paper_scale=True), ["paper_scale", "qwen3-1.7b-base"]),
    "a seed twice": (lambda p: p.update(seeds=[0, 1, 0]), ["seeds", "twice"]),
    "a negative seed": (lambda p: p.update(seeds=[-1]), ["seeds", ">= 0"]),
    "an unknown key": (lambda p: p["trainer"].update(epoch=3), ["trainer.epoch", "epochs"]),
    "a value out of range": (
        lambda p: p["trainer"].update(learning_rate=0),
        ["trainer.learning_rate", "greater than 0"],
    ),
    "batches that do not divide": (
        lambda p: p["trainer"].update(prompts_per_update=5),
        ["trainer", "divide", "5", "64"],
    ),
    "terms out of order": (
        lambda p: p["data"]["deepmath-6k"].update(min_terms=9, max_terms=8),
        ["data.deepmath-6k", "min_terms", "9", "8"],
    ),
    "a benchmark that is no name": (
        lambda p: p["benchmarks"].update({"my bench": p["benchmarks"]["arithmetic"]}),
        ["benchmarks", "my bench"],
    ),
    "a benchmark that is a number": (
        lambda p: p["benchmarks"].update({"24": p["benchmarks"]["arithmetic"]}),
        ["benchmarks", "24", "number"],
    ),
    "a model that leaves its folder": (lambda p: p["models"].update({"..": {"kind": "tiny"}}), ["models", ".."]),
    "data that leaves its folder": (lambda p: p["data"].update({"a..b": {"kind": "arithmetic"}}), ["data", "a..b"]),
    "a paper that is no folder": (lambda p: p["default"].update({"SPEC-RL": ["core"]}), ["default", "SPEC-RL"]),
    "a name that is none": (lambda p: p.update(name="tiny/er"), ["name", "tiny/er", "pattern"]),
    "an unknown data kind": (lambda p: p["data"]["deepmath-6k"].update(kind="oracle"), ["oracle", "arithmetic"]),
    "another name": (lambda p: p.update(name="huge"), ["name", "huge", "tiny"]),
    "an unknown engine": (lambda p: p["engine"].update(kind="steam"), ["engine.kind", "steam", "torch"]),
}


@pytest.mark.parametrize("name", WRONG_PRESET)
def test_a_wrong_preset_is_named_with_file_key_and_value(experiments, name):
    edit, words = WRONG_PRESET[name]
    path = change(experiments, "presets/tiny.yaml", edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).preset("tiny")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_a_key_that_stands_twice_is_refused(experiments):
    path = experiments / "experiments/presets/tiny.yaml"
    path.write_text(path.read_text() + "\nname: tiny\n")
    with pytest.raises(UserError, match="'name' stands twice"):
        Experiments(experiments).preset("tiny")


def test_cells_that_are_not_there_are_named_with_neighbours_or_a_reason():
    experiments = Experiments(ROOT)
    with pytest.raises(UserError, match="excluded: a vanilla rollout has no draft"):
        experiments.cell("spec_rl/grpo-vanilla-l0.5")
    with pytest.raises(UserError, match="no such cell(.|\n)*spec_rl/grpo-spec-l0.5"):
        experiments.cell("spec_rl/grpo-spec-0.5")
    with pytest.raises(UserError, match="no such paper(.|\n)*spec_rl"):
        experiments.cell("spek_rl/grpo-vanilla")
    with pytest.raises(UserError, match=r"no such file(.|\n)*tiny"):
        experiments.preset("tyny")


WRONG_REPORT = {
    "a baseline that is no row": (
        "tables",
        lambda c: c["tables"][0].update(baseline="grpo-spec-l2", rows=c["tables"][0]["rows"][:3]),
        ["tables.0", "baseline", "grpo-spec-l2", "grpo-vanilla"],
    ),
    "a row twice": ("tables", lambda c: c["tables"][0]["rows"][1].update(label="GRPO"), ["tables.0", "GRPO", "twice"]),
    "a column twice": (
        "tables",
        lambda c: c["tables"][0]["columns"][1].update(name="tokens_m"),
        ["tables.0", "tokens_m", "twice"],
    ),
    "a table twice": ("tables", lambda c: c["tables"].append(c["tables"][0]), ["tables", "3", "twice"]),
    "a figure twice": ("figures", lambda c: c["figures"].append(c["figures"][0]), ["figures", "2", "twice"]),
    "a claim twice": ("claims", lambda c: c["claims"].append(c["claims"][0]), ["reuse-saves-tokens", "twice"]),
    "a row of no cell": (
        "tables",
        lambda c: c["tables"][0]["rows"][3].update(cell="grpo-spec-0.5"),
        ["tables.0.rows.3.cell", "no such cell", "grpo-spec-0.5", "grpo-spec-l0.5"],
    ),
    "a baseline of no cell": (
        "tables",
        lambda c: c["tables"][0].update(baseline="grpo"),
        ["tables.0.baseline", "grpo"],
    ),
    "a line of no cell": (
        "figures",
        lambda c: c["figures"][0]["panels"][0]["cells"].append("grpo-vanila"),
        ["figures.0.panels.0.cells.1", "grpo-vanila", "grpo-vanilla"],
    ),
    **{
        f"a {kind} claim about no cell": (
            "claims",
            lambda c, test={"kind": kind, "quantity": "kl", **fields}: c["claims"][0].update(test=test),
            ["claims.0.test", "grpo-vanila", "grpo-vanilla"],
        )
        for kind, fields in {
            "compare": {"cell": "grpo-spec-l0", "baseline": "grpo-vanila", "expected": "above", "threshold": 0},
            "monotone": {"cells": ["grpo-spec-l0", "grpo-vanila"], "expected": "rises"},
            "bound": {"cell": "grpo-vanila", "expected": "above", "threshold": 0},
        }.items()
    },
}


@pytest.mark.parametrize("name", WRONG_REPORT)
def test_a_wrong_table_figure_or_claim_is_named_with_file_key_and_value(experiments, name):
    kind, edit, words = WRONG_REPORT[name]
    path = change(experiments, f"spec_rl/{kind}.yaml", edit)
    with pytest.raises(UserError) as error:
        getattr(Experiments(experiments), kind)("spec_rl")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_a_paper_s_folder_must_fit_paths_and_rules(experiments):
    (experiments / "experiments/spec_rl").rename(experiments / "experiments/SPEC-RL")
    with pytest.raises(UserError, match="folder(.|\n)*SPEC-RL(.|\n)*a-z, 0-9 and _"):
        Experiments(experiments).cells("SPEC-RL")


def test_a_file_that_is_not_utf_8_is_one_message(experiments):
    file = experiments / "experiments/presets/tiny.yaml"
    file.write_bytes(b"name: tiny\ndescription: caf\xe9\n")
    with pytest.raises(UserError, match="tiny.yaml: not UTF-8(.|\n)*line 2"):
        Experiments(experiments).preset("tiny")


def test_two_grids_must_not_define_one_cell_differently(experiments):
    def edit(content):
        content["grids"][1]["axes"]["method"]["grpo-spec-l0"]["method"]["lenience"] = 3

    change(experiments, "spec_rl/cells.yaml", edit)
    with pytest.raises(UserError, match="two grids define this cell differently"):
        Experiments(experiments).cells("spec_rl")


def tiny_run(**changes):
    run = Experiments(ROOT).run("spec_rl/grpo-spec-l0.5", 0, "tiny")
    return Run.model_validate(merge(run.model_dump(), changes))


def test_identity_is_what_defines_the_experiment_and_nothing_else():
    reference = fingerprint(tiny_run().identity)
    same = [{"engine": {"threads": 2, "max_rows": 8, "checkpoint_every": 1}}]
    other = [
        {"seed": 1}, {"trainer": {"epochs": 7}}, {"method": {"lenience": "e^0.6"}},
        {"algorithm": {"kl_loss_coef": 0.5}},
        {"data": {"size": 128}}, {"model": {"layers": 3}}, {"model": {"warm_start": {"seed": 1}}},
    ]  # fmt: skip
    assert all(fingerprint(tiny_run(**changes).identity) == reference for changes in same)
    fingerprints = [fingerprint(tiny_run(**changes).identity) for changes in other]
    assert reference not in fingerprints
    assert len(set(fingerprints)) == len(other)


def test_a_new_field_with_a_default_changes_no_fingerprint():
    class WiderTrainer(Trainer):
        patience: int = Field(default=3)

    class WiderRun(Run):
        trainer: WiderTrainer

    run = tiny_run()
    wider = WiderRun.model_validate(run.model_dump())
    assert wider.trainer.patience == 3
    assert fingerprint(wider.identity) == fingerprint(run.identity)


def benchmarks(**changes):
    names = Experiments(ROOT).preset("tiny").benchmarks
    return {name: Benchmark.model_validate(merge(b.model_dump(), changes)) for name, b in names.items()}


def test_a_benchmark_is_what_is_sampled_and_its_scores_also_their_role():
    def both(**changes):
        return [benchmarks_fingerprint(benchmarks(**changes), graded) for graded in (False, True)]

    sampled, graded = both()
    assert both(description="other words") == [sampled, graded]
    generations, scores = both(role="out-of-distribution")
    assert generations == sampled
    assert scores != graded
    for changes in ({"samples": 9}, {"top_p": 0.5}, {"data": {"seed": 1}}):
        assert not {sampled, graded} & set(both(**changes))


def test_a_new_field_of_a_benchmark_with_a_default_changes_no_fingerprint():
    class WiderBenchmark(Benchmark):
        top_k: int = 0

    wider = {name: WiderBenchmark.model_validate(b.model_dump()) for name, b in benchmarks().items()}
    assert benchmarks_fingerprint(wider, graded=True) == benchmarks_fingerprint(benchmarks(), graded=True)


def test_fingerprints_are_stable_over_order_and_refuse_what_has_no_single_text():
    assert fingerprint({"a": 1, "b": [1.5, None]}) == fingerprint({"b": [1.5, None], "a": 1})
    for value in ({1, 2}, float("nan"), float("inf"), object(), {1: 2}):
        with pytest.raises(TypeError):
            fingerprint({"x": value})


def test_the_fingerprint_of_a_shipped_run_is_the_recorded_one():
    """If this fails, every finished run of that cell would be run again: change it only on purpose."""
    assert fingerprint(tiny_run().identity) == "4a9ec604e098e4b6"
