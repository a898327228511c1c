"""Configuration: what is shipped parses, what is wrong is said in one message, identity holds still."""

import math
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from redraft.config import Experiments, Run, Speculative, Trainer, fingerprint, format_lenience, parse_lenience
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
        names = {cell.name for cell in experiments.cells(paper)}
        for table in experiments.tables(paper).tables:
            assert {row.cell for row in table.rows} | {table.baseline} <= names
        for figure in experiments.figures(paper).figures:
            assert {cell for panel in figure.panels for cell in panel.cells} <= names
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
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named_with_file_key_and_value(experiments, name):
    file, edit, words = WRONG[name]
    path = change(experiments, file, edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).cells("spec_rl")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


WRONG_PRESET = {
    "a seed twice": (lambda p: p.update(seeds=[0, 1, 0]), ["seeds", "twice"]),
    "a negative seed": (lambda p: p.update(seeds=[-1]), ["seeds", ">= 0"]),
    "an unknown key": (lambda p: p["trainer"].update(epoch=3), ["trainer.epoch", "epochs"]),
    "a value out of range": (
        lambda p: p["trainer"].update(learning_rate=0),
        ["trainer.learning_rate", "greater than 0"],
    ),
    "batches that do not divide": (lambda p: p["trainer"].update(prompts_per_update=5), ["trainer", "divide"]),
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


def test_fingerprints_are_stable_over_order_and_refuse_what_has_no_single_text():
    assert fingerprint({"a": 1, "b": [1.5, None]}) == fingerprint({"b": [1.5, None], "a": 1})
    for value in ({1, 2}, float("nan"), float("inf"), object(), {1: 2}):
        with pytest.raises(TypeError):
            fingerprint({"x": value})


def test_the_fingerprint_of_a_shipped_run_is_the_recorded_one():
    """If this fails, every finished run of that cell would be run again: change it only on purpose."""
    assert fingerprint(tiny_run().identity) == "4a9ec604e098e4b6"
