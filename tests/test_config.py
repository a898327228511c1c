"""Configuration: what is shipped parses, what is wrong is said in one message, identity holds still."""

import itertools
import json
import math
import re
import shutil
from pathlib import Path
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError, create_model

from redraft.config import (
    DAPO,
    GRPO,
    PPO,
    RLOO,
    ArithmeticProblems,
    Benchmark,
    Capability,
    Cell,
    Config,
    Experiments,
    HubProblems,
    Preset,
    ProblemFile,
    Range,
    ReleaseVariant,
    Run,
    TrainerConfig,
    VerlEngine,
    benchmarks_fingerprint,
    fingerprint,
    format_lenience,
    parse_lenience,
    read,
    run_fingerprint,
    sampling_fingerprint,
)
from redraft.config.base import defining
from redraft.config.data import BOX
from redraft.config.read import merge
from redraft.config.schema import FILES, json_schema, write_reference, write_schemas
from redraft.errors import UserError
from tests.trainers import make_trainer

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


PRESETS = [file.stem for file in (ROOT / "experiments/presets").glob("*.yaml")]


def grid_of(content, name):
    """A grid in the parsed YAML of a cell file."""
    return next(grid for grid in content["grids"] if grid["name"] == name)


def test_every_shipped_file_parses_and_every_cell_resolves_in_every_preset():
    experiments = Experiments(ROOT)
    assert {"tiny", "smoke"} <= set(PRESETS)
    for paper in experiments.papers:
        assert experiments.tables(paper).tables
        assert experiments.figures(paper).figures
        assert experiments.claims(paper).claims
        for preset in PRESETS:
            for cell in fitting(experiments, paper, preset):
                assert experiments.run(cell.id, 0, preset).cell == cell.name


def fitting(experiments, paper, preset):
    """All cells of a paper that fit a preset, but where the preset has one model those of that model.

    The tiny preset alone has what `loss_by_scale` varies.
    """
    models = experiments.preset(preset).models
    cells = [cell for cell in experiments.cells(paper) if not experiments.misfit(cell.id, preset)]
    if preset != "tiny":
        cells = [cell for cell in cells if not (cell.model + cell.data).count("sums-")]
    return [cell for cell in cells if len(models) > 1 or cell.model in models]


def test_a_cell_that_asks_for_less_than_one_prompt_of_a_preset_is_left_out_and_no_other_is():
    experiments = Experiments(ROOT)
    found = {preset: experiments.misfit("spec_rl/grpo-vanilla-u16", preset) for preset in PRESETS}
    assert {preset for preset, reason in found.items() if reason} == {"smol", "verl-smol"}
    assert found["smol"] == "prompts_per_update would be 0.5 at preset smol"
    others = [cell.id for cell in experiments.cells("spec_rl") if "u16" not in cell.name]
    assert not any(experiments.misfit(cell, "smol") for cell in others)
    with pytest.raises(UserError, match="integer"):
        experiments.run("spec_rl/grpo-vanilla-u16", 0, "smol")


def test_a_cell_whose_factor_makes_a_fraction_of_the_preset_s_number_is_left_out(folder):
    file = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(file.read_text())
    content["trainer"]["evaluate_every"] = 3
    file.write_text(yaml.safe_dump(content))
    experiments = Experiments(folder)
    cells = [cell for cell in experiments.cells("spec_rl") if cell.trainer_factors.get("evaluate_every")]
    assert {experiments.misfit(cell.id, "smoke") for cell in cells} == {"evaluate_every would be 1.5 at preset smoke"}
    assert experiments.misfit("spec_rl/grpo-vanilla", "smoke") == ""


def every_run(preset):
    experiments = Experiments(ROOT)
    return {cell.name: experiments.run(cell.id, 0, preset) for cell in fitting(experiments, "spec_rl", preset)}


def test_a_validator_that_names_a_key_inside_shows_the_value_there():
    content = {"kind": "range", "quantity": "entropy", "cells": ["a"], "low": 2.0, "high": 1.0}
    with pytest.raises(UserError, match="must be below high") as error:
        read.parse(Range, content, "claims.yaml")
    assert (error.value.key, error.value.value) == ("low", 2.0)


def test_aliases_that_expand_to_too_many_values_are_an_error(tmp_path):
    (tmp_path / "preset.yaml").write_text(
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in itertools.pairwise("abcdefgh"))
    )
    with pytest.raises(UserError, match=r"aliases \(\*\) expand to more than [\d,]+ values") as error:
        read.read_yaml(tmp_path / "preset.yaml")
    assert error.value.file == tmp_path / "preset.yaml"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_drift_grid_changes_updates_a_step_or_the_learning_rate_and_nothing_else(preset):
    runs = every_run(preset)
    for method in ("grpo-vanilla", "grpo-spec-l0.5"):
        base = runs[method].trainer
        assert base.prompts_per_step == 4 * base.prompts_per_update, "4 updates a step, as in the paper"
        for label, updates in (("u1", 1), ("u16", 16)):
            if updates > base.prompts_per_step:
                continue  # such a cell is left out
            trainer = runs[f"{method}-{label}"].trainer
            assert trainer == base.model_copy(update={"prompts_per_update": base.prompts_per_step // updates})
            assert trainer.prompts_per_step == updates * trainer.prompts_per_update
        for label, factor in (("lr0.25", 0.25), ("lr4", 4)):
            trainer = runs[f"{method}-{label}"].trainer
            assert trainer == base.model_copy(update={"learning_rate": trainer.learning_rate})
            assert trainer.learning_rate == pytest.approx(factor * base.learning_rate, rel=1e-12)


# In the others an epoch has four steps at most, which cannot be cut in sixths.
@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset in ("paper", "tiny")])
def test_training_sets_of_all_sizes_are_trained_on_for_as_many_steps(preset):
    runs = every_run(preset)
    longest = runs["grpo-spec-l0.5"].steps
    assert {run.steps for run in runs.values() if run.data_role.startswith("deepmath-")} == {longest}
    assert len({run.data_role for run in runs.values()}) == 6
    assert [runs[f"{size}-grpo-spec-l0.5"].data.size for size in ("2k", "3k", "4k", "5k")] == [
        runs["grpo-spec-l0.5"].data.size * k // 6 for k in (2, 3, 4, 5)
    ]


def test_steps_are_the_papers_and_a_third_of_them_at_tiny():
    tiny = every_run("tiny")
    assert [tiny[name].steps for name in ("grpo-vanilla", "simplerl-grpo-vanilla")] == [30, 33]
    if "paper" in PRESETS:
        paper = every_run("paper")
        assert [paper[name].steps for name in ("grpo-vanilla", "simplerl-grpo-vanilla")] == [90, 100]


@pytest.mark.parametrize(
    ("settings", "problems", "steps", "evaluated"),
    [
        ({"epochs": 5, "evaluate_every": 10}, 48, 30, [10, 20, 30]),
        ({"epochs": 4.125, "evaluate_every": 10}, 64, 33, [10, 20, 30, 33]),
        ({"epochs": 1, "evaluate_every": 10}, 48, 6, [6]),
        ({"epochs": 1, "evaluate_every": 1}, 24, 3, [1, 2, 3]),
        ({"epochs": 0.5, "evaluate_every": 2}, 48, 3, [2, 3]),
        ({"epochs": 0.01, "evaluate_every": 2}, 48, 1, [1]),
    ],
)
def test_policies_are_evaluated_at_regular_steps_and_at_the_last(settings, problems, steps, evaluated):
    trainer = make_trainer(prompts_per_step=8, prompts_per_update=8, **settings)
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "tiny")
    run = run.model_copy(update={"trainer": trainer, "data": run.data.model_copy(update={"size": problems})})
    records = [{"step": i, "training_step": i + 1, "updated": True} for i in range(run.steps)]
    assert (run.steps, run.evaluated_steps(records)) == (steps, evaluated)
    assert run.most_evaluations == len(evaluated)


def test_policies_are_evaluated_by_training_steps_where_the_paper_counts_them():
    """Steps 1, 2, 4, 5 and 7 of eight have an update batch; the last policy is evaluated in any case."""
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "tiny")
    trainer = make_trainer(
        epochs=4, prompts_per_step=8, prompts_per_update=8, evaluate_every=2, evaluation_clock="training_steps"
    )
    run = run.model_copy(update={"trainer": trainer, "data": run.data.model_copy(update={"size": 16})})
    updated = [True, True, False, True, True, False, True, False]
    records = [{"step": i, "training_step": sum(updated[: i + 1]), "updated": u} for i, u in enumerate(updated)]
    assert run.evaluated_steps(records) == [2, 5, 8]
    assert run.evaluated_steps(records[:4]) == [2]


def with_factors(experiments, factors):
    """The trainer of a cell with these factors, at tiny."""

    def edit(content):
        grid_of(content, "core")["axes"]["method"]["grpo-other"] = {
            "reuse": {"kind": "vanilla"},
            "trainer_factors": factors,
        }

    change(experiments, "spec_rl/cells.yaml", edit)
    return Experiments(experiments).run("spec_rl/grpo-other", 0, "tiny").trainer


@pytest.mark.parametrize("factor", ["3/2", 1.5, "1.5"])
def test_a_factor_is_a_number_or_a_fraction_and_whole_results_stay_whole(experiments, factor):
    base = Experiments(experiments).run("spec_rl/grpo-vanilla", 0, "tiny").trainer
    trainer = with_factors(experiments, {"group_size": factor, "learning_rate": factor})
    assert (trainer.group_size, type(trainer.group_size)) == (base.group_size * 3 // 2, int)
    assert trainer.learning_rate == pytest.approx(1.5 * base.learning_rate)
    assert trainer.epochs == base.epochs


def test_a_whole_product_is_an_integer_also_where_a_fraction_is_allowed(experiments):
    """Else a run of 5 × 2 epochs would be another experiment than one of 10."""
    base = Experiments(experiments).run("spec_rl/grpo-vanilla", 0, "tiny").trainer
    epochs = with_factors(experiments, {"epochs": "2"}).epochs
    assert (epochs, type(epochs)) == (2 * base.epochs, int)


def test_a_fraction_is_not_rounded_before_it_is_multiplied(experiments):
    size = Experiments(experiments).run("spec_rl/grpo-vanilla", 0, "tiny").trainer.group_size
    assert size == 4
    assert with_factors(experiments, {"group_size": "49/4"}).group_size == 49
    assert with_factors(experiments, {"epochs": "1/3"}).epochs == pytest.approx(5 / 3)


def test_a_cell_may_name_another_schedule_than_its_algorithm_s_and_is_another_experiment_then(experiments):
    def edit(content):
        grid_of(content, "core")["axes"]["method"]["grpo-other"] = {
            "reuse": {"kind": "vanilla"},
            "schedule": {"kind": "dynamic"},
        }

    change(experiments, "spec_rl/cells.yaml", edit)
    own, usual = (Experiments(experiments).run(f"spec_rl/{name}", 0, "tiny") for name in ("grpo-other", "grpo-vanilla"))
    assert (own.schedule.kind, usual.schedule.kind) == ("dynamic", "epochs")
    assert own.identity["schedule"] == {"kind": "dynamic"}
    assert "schedule" not in usual.identity


def test_a_label_s_fields_count_before_the_grid_s_and_leave_the_others_as_they_are(experiments):
    def edit(content):
        core = grid_of(content, "core")
        core["cell"]["trainer"] = {"group_size": 8, "fresh_samples": 2}
        core["axes"]["method"]["grpo-other"] = {"reuse": {"kind": "vanilla"}, "trainer": {"group_size": 16}}
        core["axes"]["method"]["grpo-same"] = {"reuse": {"kind": "vanilla"}}
        content["grids"] = [core]  # others define cells of the same names

    change(experiments, "spec_rl/cells.yaml", edit)
    cells = {cell.name: cell.trainer for cell in Experiments(experiments).cells("spec_rl")}
    assert cells["grpo-other"] == {"group_size": 16, "fresh_samples": 2}
    assert cells["grpo-same"] == {"group_size": 8, "fresh_samples": 2}


WRONG_FACTORS = [
    ({"epoch": 2}, ["grpo-other.trainer_factors", "epoch", "epochs"]),
    ({"epochs": 0}, ["trainer_factors.epochs", "above 0"]),
    ({"epochs": -1}, ["trainer_factors.epochs", "-1", "above 0"]),
    ({"epochs": "1/0"}, ["trainer_factors.epochs", "1/0", "fraction"]),
    ({"epochs": "many"}, ["trainer_factors.epochs", "many", "fraction"]),
    ({"epochs": "nan"}, ["trainer_factors.epochs", "nan", "fraction"]),
    ({"group_size": "1/3"}, ["group_size", "integer"]),
    ({"prompts_per_update": "1/3"}, ["prompts_per_update", "integer"]),
    ({"prompts_per_update": 8}, ["prompts_per_update", "divide"]),
]


@pytest.mark.parametrize(("factors", "words"), WRONG_FACTORS, ids=str)
def test_a_wrong_factor_is_named_with_file_key_and_value(experiments, factors, words):
    with pytest.raises(UserError) as error:
        with_factors(experiments, factors)
    assert all(word in str(error.value) for word in ["cells.yaml", *words]), str(error.value)


def test_a_factor_of_one_changes_no_trainer(experiments):
    plain = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "tiny").trainer
    assert with_factors(experiments, {"epochs": 1, "learning_rate": "1"}) == plain


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"when": "threshold"}, ["most_active", "None", "when: threshold"]),
        ({"when": "always", "most_active": 8}, ["most_active", "8"]),
        ({"when": "never"}, ["when", "never", "roofline"]),
        ({"draft_lengths": [5, 7, 7]}, ["draft_lengths", "[5, 7, 7]", "rise"]),
        ({"draft_lengths": [7, 5]}, ["draft_lengths", "rise"]),
        ({"draft_lengths": [0, 5]}, ["draft_lengths", "1 or more"]),
        ({"draft_lengths": []}, ["draft_lengths", "at least 1"]),
        ({"raise_at": 0.8, "lower_at": 0.8}, ["lower_at", "below", "raise_at", "0.8"]),
        ({"bits": 3}, ["bits", "3", "8"]),
        ({"gamma": 7}, ["gamma"]),
    ],
    ids=str,
)
def test_a_decoding_that_cannot_be_is_named_with_file_and_value(experiments, wrong, words):
    def edit(content):
        grid_of(content, "core")["cell"]["decoding"] = {"kind": "self_speculation"} | wrong

    path = change(experiments, "efficient_rollout/cells.yaml", edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).cells("efficient_rollout")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "suffix", "window": 0}, ["window", "0", "1"]),
        ({"kind": "suffix", "shortest": 25}, ["shortest", "25", "longest", "24"]),
        ({"kind": "suffix", "least_share": 1.5}, ["least_share", "1.5"]),
        ({"kind": "suffix", "when": "roofline"}, ["when", "roofline", "threshold"]),
        ({"kind": "ngram", "window": 2}, ["window"]),
        ({"kind": "ngram", "shortest": 0}, ["shortest", "0"]),
        ({"kind": "ngram", "draft_lengths": [65]}, ["draft_lengths", "64"]),
        ({"kind": "ngram", "when": "threshold"}, ["most_active"]),
        ({"kind": "head", "learning_rate": 0}, ["learning_rate", "0"]),
        ({"kind": "head", "learning_rate": float("inf")}, ["learning_rate", "inf"]),
        ({"kind": "head", "updates": 0}, ["updates", "0"]),
        ({"kind": "eagle"}, ["eagle", "ngram", "suffix", "head", "self_speculation", "plain"]),
    ],
    ids=str,
)
def test_a_drafter_that_cannot_be_is_named_with_file_and_value(experiments, wrong, words):
    # A paper none of whose labels sets a decoding.
    path = change(experiments, "spec_rl/cells.yaml", lambda c: grid_of(c, "core")["cell"].update(decoding=wrong))
    with pytest.raises(UserError) as error:
        Experiments(experiments).cells("spec_rl")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


@pytest.mark.parametrize("name", ["", "spec-rl"])
def test_an_unknown_protocol_is_named_with_those_that_there_are(name):
    with pytest.raises(UserError, match=r"no such protocol(.|\n)*spec_rl"):
        Experiments(ROOT).protocol(name)


def test_grids_are_the_papers_or_go_beyond_it():
    experiments = Experiments(ROOT)
    ours, papers = (experiments.grids("spec_rl", beyond_paper=beyond) for beyond in (True, False))
    assert ours == ["rloo", "exact", "release", "drift"]
    assert not set(ours) & set(papers)
    assert len(ours) + len(papers) == len(experiments.cell_file("spec_rl").grids)
    algorithms = {cell.algorithm.kind for cell in experiments.cells("spec_rl", papers)}
    assert algorithms == {"grpo", "ppo", "dapo"}
    methods = {cell.reuse.kind for cell in experiments.cells("spec_rl", papers)}
    assert methods == {"vanilla", "speculative", "random", "delayed"}, "a variant of the release is never the paper's"


def test_defaults_of_algorithms_are_the_papers():
    grpo, ppo, dapo, rloo = (kind() for kind in (GRPO, PPO, DAPO, RLOO))
    assert [a.kl_loss_coef for a in (grpo, ppo, dapo, rloo)] == [1e-4, 0, 0, 0]
    assert {(a.clip_low, a.clip_high, a.clip_ratio_c) for a in (grpo, ppo, rloo)} == {(0.2, 0.2, 3.0)}
    assert (dapo.clip_low, dapo.clip_high, dapo.clip_ratio_c, dapo.overlong) == (0.2, 0.28, 10.0, None)
    with pytest.raises(ValueError, match="clip_high"):
        DAPO(clip_low=0.3)


def test_the_default_lenience_of_each_algorithm_is_the_papers():
    leniences = {}
    for cell in Experiments(ROOT).cells("spec_rl", ["main"]):
        if cell.reuse.kind == "speculative":
            leniences.setdefault(cell.algorithm.kind, set()).add(cell.reuse.lenience)
    assert leniences == {"grpo": {math.exp(0.5)}, "ppo": {math.exp(0.3)}, "dapo": {math.exp(0.15)}}


def test_the_release_variant_deviates_by_name_and_in_all_ways_unless_told_otherwise():
    deviations = ("fixed_uniforms", "refreshed_log_probs", "trainer_verification")
    found = {
        cell.name.removeprefix("grpo-release").removesuffix("l0.5").strip("-"): [
            name for name in deviations if getattr(cell.reuse, name)
        ]
        for cell in Experiments(ROOT).cells("spec_rl", ["release"])
    }
    assert found == {
        "": list(deviations),
        "uniforms": ["fixed_uniforms"],
        "logprobs": ["refreshed_log_probs"],
        "verification": ["trainer_verification"],
    }


def test_the_lenience_of_a_name_is_that_of_its_cell():
    lenient = [cell for cell in Experiments(ROOT).cells("spec_rl") if getattr(cell.reuse, "lenience", 1) != 1]
    lenient += [cell for cell in Experiments(ROOT).cells("spec_rl") if cell.name.endswith("-l0")]
    assert {cell.reuse.kind for cell in lenient} == {"speculative", "delayed", "release"}
    for cell in lenient:
        (label,) = re.findall(r"-l(inf|[\d.]+)(?=-|$)", cell.name)
        assert cell.reuse.lenience == math.exp(float(label))


def test_the_reference_is_that_of_the_models():
    assert write_reference(ROOT / "docs/configuration.md", check=True) == []


def test_written_schemas_are_valid_and_those_of_all_models(tmp_path):
    files = {file.stem: file for file in write_schemas(tmp_path / "schemas")}
    assert files.keys() == FILES.keys()
    for name, (model, _) in FILES.items():
        schema = json.loads(files[name].read_text())
        assert schema == json_schema(model)
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", [kind for kind, (_, place) in FILES.items() if place.startswith("experiments/")])
def test_every_file_of_the_repository_fits_its_schema(kind):
    model, place = FILES[kind]
    files = sorted(ROOT.glob(re.sub("<.*?>", "*", place)))
    assert files
    validator = Draft202012Validator(model.model_json_schema())
    for file in files:
        assert not list(validator.iter_errors(yaml.safe_load(file.read_text()))), file


@given(st.one_of(st.floats(min_value=0, allow_nan=False), st.sampled_from([0.0, 1.0, math.inf])))
def test_a_lenience_survives_being_written(lenience):
    assert parse_lenience(format_lenience(lenience)) == lenience


@pytest.mark.parametrize("text", ["e^1.234567", "e^-2.123456", "e^12.3457"])
def test_a_lenience_with_more_digits_than_are_written_survives_too(text):
    assert parse_lenience(format_lenience(parse_lenience(text))) == parse_lenience(text)


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
        lambda c: grid_of(c, "lenience")["axes"]["reuse"]["vanilla"]["reuse"].update(kind="psychic"),
        ["reuse", "psychic", "speculative"],
    ),
    "unknown algorithm": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["algorithm"]["grpo"]["algorithm"].update(kind="sarsa"),
        ["algorithm", "sarsa", "grpo"],
    ),
    "unknown key": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["reuse"]["spec"]["reuse"].update(leniency=2),
        ["key:     grids.1.axes.reuse.spec.reuse.leniency\n", "lenience"],
    ),
    "negative lenience": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["lenience"]["l2"]["reuse"].update(lenience=-2),
        ["lenience", "-2", ">= 0"],
    ),
    "NaN lenience": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["lenience"]["l2"]["reuse"].update(lenience=".nan"),
        ["lenience", "nan"],
    ),
    "exclusion of no axis": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["exclude"][0]["when"].update(colour=["red"]),
        ["colour", "reuse"],
    ),
    "exclusion of no label": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["exclude"][0]["when"].update(reuse=["spek"]),
        ["spek", "no such label", "allowed: spec"],
    ),
    "exclusion of everything": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["exclude"][0].update(when={}),
        ["exclude.0.when", "at least 1"],
    ),
    "exclusion of no value": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["exclude"][0]["when"].update(reuse=[]),
        ["exclude.0.when.reuse", "at least 1"],
    ),
    "a label that is no name": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["lenience"].update({"../l3": {}}),
        ["grids.1.axes.lenience", "../l3"],
    ),
    "a role that is no name": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["cell"].update(model="a b"),
        ["a b"],
    ),
    "a cell that names itself": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["cell"].update(name="mine"),
        ["grids.1", "name", "mine"],
    ),
    "a label that sets the paper": (
        "spec_rl/cells.yaml",
        lambda c: grid_of(c, "lenience")["axes"]["lenience"]["l2"].update(paper="other"),
        ["grids.1", "paper", "other"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named_with_file_key_and_value(experiments, name):
    file, edit, words = WRONG[name]
    path = change(experiments, file, edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).cells("spec_rl")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def models_in(annotation):
    """Configuration models that an annotation names, and those that their fields name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = {model for field in annotation.model_fields.values() for model in models_in(field.annotation)}
        return {annotation} | inner
    return {model for part in get_args(annotation) for model in models_in(part)}


def mistakes_in(annotation):
    """Contents with a wrong value or an unknown key inside an annotation, each with the path of the mistake."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from mistakes_in(arguments[0])
    elif get_origin(annotation) is list:
        yield from (([content], [0, *path]) for content, path in mistakes_in(arguments[0]))
    elif get_origin(annotation) is dict:
        yield from (({"name": content}, ["name", *path]) for content, path in mistakes_in(arguments[1]))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = {"kind": annotation.model_fields["kind"].default} if "kind" in annotation.model_fields else {}
        kind = {"kind": get_args(annotation.model_fields["kind"].annotation)[0]} if kind else {}
        for key in ("no_such_key", *kind.values()):  # also a key that has the name of the union's tag
            yield {**kind, key: 1}, [key]
    elif get_origin(annotation) in (Union, UnionType):
        yield object(), []
        for option in arguments:
            yield from mistakes_in(option)


FIELDS_WITH_UNIONS = {
    f"{model.__name__}.{name}": (model, name)
    for root, _ in FILES.values()
    for model in models_in(root)
    for name, field in model.model_fields.items()
    if "Union" in repr(field.annotation) or " | " in repr(field.annotation)
}


@pytest.mark.parametrize("where", sorted(FIELDS_WITH_UNIONS))
def test_the_key_of_an_error_in_a_union_is_a_path_in_the_file(where):
    model, name = FIELDS_WITH_UNIONS[where]
    field = model.model_fields[name]
    alone = create_model("Alone", __base__=Config, **{name: (field.annotation, field)})
    mistakes = list(mistakes_in(field.annotation))
    assert mistakes
    for content, path in mistakes:
        with pytest.raises(ValidationError) as error:
            alone.model_validate({name: content})
        keys = {
            ".".join(map(str, read.path_in_file(each, {name: content}))): each["type"] for each in error.value.errors()
        }
        assert ".".join(map(str, [name, *path])) in keys
        for key, kind in keys.items():
            node = {name: content}
            for part in key.split(".")[: -1 if kind in ("missing", "union_tag_not_found") else None]:
                node = node[int(part)] if isinstance(node, list) else node[part]


@pytest.mark.parametrize(
    ("model", "content", "key", "allowed"),
    [
        (Cell, {"reuse": {"kind": "speculative", "leniency": 2}}, "reuse.leniency", "lenience"),
        (Cell, {"reuse": {"kind": "speculative", "speculative": 2}}, "reuse.speculative", "lenience"),
        (Cell, {"reuse": {"kind": "speculative", "lenience": -2}}, "reuse.lenience", None),
        (Cell, {"reuse": {}}, "reuse.kind", None),
        (Cell, {"schedule": {"kind": "speed", "screenings": 2}}, "schedule.screenings", "screening"),
        (
            Cell,
            {"algorithm": {"kind": "dapo", "overlong": {"buffer": 9, "penal": 1}}},
            "algorithm.overlong.penal",
            "penalty",
        ),
        (Cell, {"trainer": {"epochs": "many"}}, "trainer.epochs", None),
        (Preset, {"models": {"m": {"kind": "tiny", "width": 1}}}, "models.m.width", "hidden_size"),
    ],
)
def test_an_error_names_the_key_as_in_the_file_and_the_keys_that_are_there(model, content, key, allowed):
    cell = {
        "paper": "p",
        "name": "n",
        "model": "m",
        "data": "d",
        "algorithm": {"kind": "grpo"},
        "reuse": {"kind": "vanilla"},
    }
    preset = {"name": "n", "description": "d", "seeds": [0], "models": {}, "data": {}, "default": {}}
    with pytest.raises(UserError) as error:
        read.parse(model, {**(cell if model is Cell else preset), **content}, "file.yaml")
    assert error.value.key == key
    assert allowed is None or allowed in error.value.allowed.split(", ")


SUMS = {"sums": {"data": {"kind": "arithmetic"}}}
WRONG_PRESET = {
    "a scale that its models are not of": (lambda p: p.update(paper_scale=True), ["paper_scale", "qwen3-1.7b-base"]),
    "a seed twice": (lambda p: p.update(seeds=[0, 1, 0]), ["seeds", "twice"]),
    "a negative seed": (lambda p: p.update(seeds=[-1]), ["seeds", ">= 0"]),
    "more seeds of a paper that it does not run": (
        lambda p: p.update(more_seeds={"spec": {"pair": [3]}}),
        ["more_seeds", "the preset has no paper spec", "spec_rl"],
    ),
    "a seed twice for a grid": (
        lambda p: p.update(more_seeds={"spec_rl": {"pair": [3, 1]}}),
        ["more_seeds.spec_rl.pair", "twice", "1"],
    ),
    "an unknown key": (lambda p: p["trainer"].update(epoch=3), ["trainer.epoch", "epochs"]),
    "an unknown first paper": (lambda p: p.update(first=["spec"]), ["first.0", "'spec'", "spec_rl"]),
    "an infinite share": (
        lambda p: p["engine"].update(gpu_memory_utilization=float("nan")),
        ["engine.gpu_memory_utilization", "finite"],
    ),
    "a thousand million threads": (lambda p: p["engine"].update(threads=1e9), ["engine.threads", "at most 4096"]),
    "true for a number": (lambda p: p["engine"].update(threads=True), ["engine.threads", "not true or false"]),
    "no temperature": (lambda p: p["trainer"].update(temperature=0), ["trainer.temperature", "at least 0.001"]),
    "an infinite temperature": (
        lambda p: p["trainer"].update(temperature=float("inf")),
        ["trainer.temperature", "at most 1000"],
    ),
    "a value out of range": (
        lambda p: p["trainer"].update(learning_rate=0),
        ["trainer.learning_rate", "greater than 0"],
    ),
    "terms out of order": (
        lambda p: p["data"]["deepmath-6k"].update(min_terms=9, max_terms=8),
        ["data.deepmath-6k", "min_terms", "9", "8"],
    ),
    "a benchmark that is no name": (
        lambda p: p.update(protocol="", benchmarks={"my bench": {"data": {"kind": "arithmetic"}}}),
        ["benchmarks", "my bench"],
    ),
    "a benchmark that is a number": (
        lambda p: p.update(protocol="", benchmarks={"24": {"data": {"kind": "arithmetic"}}}),
        ["benchmarks", "24", "number"],
    ),
    "two ways to evaluate": (
        lambda p: p.update(benchmarks=SUMS),
        ["either protocol or benchmarks"],
    ),
    "no way to evaluate": (lambda p: p.pop("protocol"), ["either protocol or benchmarks"]),
    "a paper's unknown protocol": (lambda p: p.update(protocols={"spec_rl": "x"}), ["no such protocol", "greedy"]),
    "a protocol of an unknown paper": (
        lambda p: p.update(protocols={"spec": "tiny"}),
        ["protocols", "unknown paper", "spec", "allowed: spec_rl, speed_rl"],
    ),
    "an unknown probe": (lambda p: p.update(probe="prompts"), ["no such protocol", "prompts", "tiny_prompts"]),
    "protocols without protocol": (
        lambda p: p.update(protocols={"spec_rl": "tiny"}, protocol="", benchmarks=SUMS),
        ["protocols needs protocol"],
    ),
    "an unknown protocol": (lambda p: p.update(protocol="spec-rl"), ["spec-rl", "spec_rl"]),
    "an unknown backend": (lambda p: p.update(evaluation={"backend": "x"}), ["evaluation.backend", "x", "vllm"]),
    "a model that leaves its folder": (lambda p: p["models"].update({"..": {"kind": "tiny"}}), ["models", ".."]),
    "data that leaves its folder": (lambda p: p["data"].update({"a..b": {"kind": "arithmetic"}}), ["data", "a..b"]),
    "a paper that is no folder": (lambda p: p["default"].update({"SPEC-RL": ["core"]}), ["default", "SPEC-RL"]),
    "a name that is none": (lambda p: p.update(name="tiny/er"), ["name", "tiny/er", "pattern"]),
    "an unknown data kind": (lambda p: p["data"]["deepmath-6k"].update(kind="oracle"), ["oracle", "arithmetic"]),
    "another name": (lambda p: p.update(name="huge"), ["name", "huge", "tiny"]),
    "an unknown engine": (lambda p: p["engine"].update(kind="steam"), ["engine.kind", "steam", "torch"]),
}


def test_more_seeds_of_an_unknown_grid_are_refused_with_the_file_and_what_is_there(experiments):
    path = change(experiments, "presets/tiny.yaml", lambda p: p.update(more_seeds={"spec_rl": {"pairs": [5]}}))
    mine = Experiments(experiments)
    with pytest.raises(UserError) as error:
        mine.seeds(mine.cell("spec_rl/grpo-vanilla"), mine.preset("tiny"))
    said = str(error.value)
    assert all(word in said for word in (str(path), "more_seeds.spec_rl", "'pairs'", "pair")), said


@pytest.mark.parametrize("name", WRONG_PRESET)
def test_a_wrong_preset_is_named_with_file_key_and_value(experiments, name):
    edit, words = WRONG_PRESET[name]
    path = change(experiments, "presets/tiny.yaml", edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).preset("tiny")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


# Found when a run is resolved, since other files have a part in it.
WRONG_FOR_RUNS = {
    "batches that do not divide": (
        lambda p: p["trainer"].update(prompts_per_update=160),
        ["trainer_factors.prompts_per_update", "(5)", "(32)"],
    ),
    "a part of a prompt": (
        lambda p: p["trainer_factors"].update(prompts_per_step="1/2048"),
        ["trainer_factors.prompts_per_step", "integer"],
    ),
    "an unknown factor": (
        lambda p: p["trainer_factors"].update(epoch=2),
        ["trainer_factors", "epoch", "epochs"],
    ),
    "a factor of what is not set": (
        lambda p: p["trainer_factors"].update(prompts_per_batch=2),
        ["trainer_factors", "prompts_per_batch", "number"],
    ),
}


@pytest.mark.parametrize("name", WRONG_FOR_RUNS)
def test_a_preset_that_fits_no_run_is_named_with_file_key_and_value(experiments, name):
    edit, words = WRONG_FOR_RUNS[name]
    path = change(experiments, "presets/tiny.yaml", edit)
    with pytest.raises(UserError) as error:
        Experiments(experiments).run("spec_rl/grpo-vanilla", 0, "tiny")
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_an_unknown_default_grid_is_named_with_the_preset_that_names_it(experiments):
    path = change(experiments, "presets/tiny.yaml", lambda p: p["default"].update(spec_rl=["smok"]))
    mine = Experiments(experiments)
    with pytest.raises(UserError, match=r"no such grid") as error:
        mine.default_grids(mine.preset("tiny"), "spec_rl")
    assert (error.value.file, error.value.key, error.value.value) == (path, "default.spec_rl", "smok")


def test_the_hint_to_exclude_a_combination_is_given_only_where_the_label_fits_another_one(experiments):
    """`lenience` fits `spec` and not `vanilla`; a misspelled key fits nothing."""
    found = {}
    for key in ("lenience", "leniency"):
        path = experiments / "experiments/spec_rl/cells.yaml"
        shutil.copy(ROOT / "experiments/spec_rl/cells.yaml", path)
        change(
            experiments,
            "spec_rl/cells.yaml",
            lambda c, key=key: grid_of(c, "lenience")["axes"]["lenience"].update(l3={"reuse": {key: 3}}),
        )
        with pytest.raises(UserError) as error:
            Experiments(experiments).cells("spec_rl")
        found[key] = error.value
    assert found["lenience"].key == "grids.1.axes.lenience.l3.reuse.lenience"
    assert "`exclude`" in found["lenience"].hint
    assert found["leniency"].key == "grids.1.axes.lenience.l3.reuse.leniency"
    assert found["leniency"].hint is None


def test_a_grid_of_too_many_combinations_is_refused_at_once(experiments):
    axes = {f"a{i}": {f"x{i}{j}": {} for j in range(10)} for i in range(40)}
    change(experiments, "spec_rl/cells.yaml", lambda c: grid_of(c, "lenience").update(axes=axes, exclude=[]))
    with pytest.raises(UserError, match=r"combinations(.|\n)*grids\.1"):
        Experiments(experiments).cells("spec_rl")


def test_a_key_that_occurs_twice_is_refused(experiments):
    path = experiments / "experiments/presets/tiny.yaml"
    path.write_text(path.read_text() + "\nname: tiny\n")
    with pytest.raises(UserError, match="'name' occurs twice"):
        Experiments(experiments).preset("tiny")


def test_cells_that_are_not_there_are_named_with_neighbours_or_a_reason():
    experiments = Experiments(ROOT)
    with pytest.raises(UserError, match="excluded: a vanilla rollout has no draft") as raised:
        experiments.cell("spec_rl/grpo-vanilla-l0.5")
    assert raised.value.file == ROOT / "experiments/spec_rl/cells.yaml"
    with pytest.raises(UserError, match="no such cell(.|\n)*spec_rl/grpo-spec-l0.5"):
        experiments.cell("spec_rl/grpo-spec-0.5")
    with pytest.raises(UserError, match="no such paper(.|\n)*spec_rl"):
        experiments.cell("spek_rl/grpo-vanilla")
    with pytest.raises(UserError, match=r"no such preset(.|\n)*tiny"):
        experiments.preset("tyny")


WRONG_REPORT = {
    "a baseline that is no row": (
        "tables",
        lambda c: c["tables"][0].update(baseline="grpo-spec-l2", rows=c["tables"][0]["rows"][:3]),
        ["tables.0", "baseline", "grpo-spec-l2", "grpo-vanilla"],
    ),
    "a row twice": (
        "tables",
        lambda c: c["tables"][0]["rows"].insert(1, c["tables"][0]["rows"][0]),
        ["tables.0", "row", "twice"],
    ),
    "a column twice": (
        "tables",
        lambda c: c["tables"][0]["columns"][1].update(name="tokens_m"),
        ["tables.0", "tokens_m", "twice"],
    ),
    "all benchmarks twice": (
        "tables",
        lambda c: c["tables"][0]["columns"][0].update(quantity="accuracy:*"),
        ["tables.0", "column of all benchmarks", "twice"],
    ),
    "all benchmarks against the baseline": (
        "tables",
        lambda c: next(k for k in c["tables"][0]["columns"] if k["name"] == "accuracy").update(relative="difference"),
        ["tables.0", "accuracy:* (accuracy)", "absolute", "accuracy:all, their mean"],
    ),
    "a table twice": (
        "tables",
        lambda c: c["tables"].append(c["tables"][0]),
        ["key:     tables", "table 1 occurs twice"],
    ),
    "a figure twice": (
        "figures",
        lambda c: c["figures"].append(c["figures"][0]),
        ["key:     figures", "figure 1 occurs twice"],
    ),
    "a pair of one cell": (
        "claims",
        lambda c: next(x for x in c["claims"] if x["test"].get("pair"))["test"]["pair"].pop(),
        ["test.pair.1", "this key is missing"],
    ),
    "a misspelled key": (
        "tables",
        lambda c: c["tables"][0].update(base=c["tables"][0].pop("baseline")),
        ["tables.0.base", "there is no such key", "baseline"],
    ),
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
        lambda c: c["figures"][0]["panels"][0]["cells"].insert(1, "grpo-vanila"),
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
        grid_of(content, "core")["axes"]["method"]["grpo-spec-l0"]["reuse"]["lenience"] = 3

    change(experiments, "spec_rl/cells.yaml", edit)
    with pytest.raises(UserError, match="two grids define this cell differently"):
        Experiments(experiments).cells("spec_rl")


def tiny_run(**changes):
    run = Experiments(ROOT).run("spec_rl/grpo-spec-l0.5", 0, "tiny")
    return Run.model_validate(merge(run.model_dump(), changes))


def test_identity_is_what_defines_the_experiment_and_nothing_else():
    reference = fingerprint(tiny_run().identity)
    same = [{"trainer": {"temperature": 1.0}}, {"engine": {"threads": 2, "max_rows": 8, "checkpoint_every": 1}}]
    other = [
        {"seed": 1},
        {"trainer": {"epochs": 7}},
        {"reuse": {"lenience": "e^0.6"}},
        {"algorithm": {"kl_loss_coef": 0.5}},
        {"data": {"size": 128}},
        {"model": {"layers": 3}},
        {"model": {"warm_start": {"seed": 1}}},
        {"trainer": {"temperature": 0.7}},
    ]
    assert all(fingerprint(tiny_run(**changes).identity) == reference for changes in same)
    fingerprints = [fingerprint(tiny_run(**changes).identity) for changes in other]
    assert reference not in fingerprints
    assert len(set(fingerprints)) == len(other)


def test_a_new_field_with_a_default_changes_no_fingerprint():
    class WiderTrainer(TrainerConfig):
        patience: int = Field(default=3)

    class WiderRun(Run):
        trainer: WiderTrainer

    run = tiny_run()
    wider = WiderRun.model_validate(run.model_dump())
    assert wider.trainer.patience == 3
    assert fingerprint(wider.identity) == fingerprint(run.identity)


def test_an_engine_must_have_all_that_a_method_needs_and_what_it_lacks_is_named():
    class Demanding(ReleaseVariant):
        @property
        def needs(self):
            return frozenset({Capability.STORED_LOG_PROBS, Capability.GUMBEL, Capability.OTHER_SCORES})

    run = tiny_run().model_copy(update={"reuse": Demanding()})
    assert run.unsupported == ""
    lacking = run.model_copy(update={"engine": VerlEngine()}).unsupported
    assert lacking == f"engine.kind verl does not support {Capability.OTHER_SCORES} or {Capability.GUMBEL}"


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
    # Changed once, when the preset tiny got a data set and a batch of other sizes.
    assert fingerprint(tiny_run().identity) == "2032df0a11187057"
    assert run_fingerprint(Experiments(ROOT).run("spec_rl/grpo-spec-l0.5", 0, "paper")) == "a354f6bd6bb46357"


@pytest.mark.parametrize("preset", PRESETS)
def test_no_two_cells_share_a_fingerprint_and_adding_one_changes_none(preset, experiments):
    before = {name: fingerprint(run.identity) for name, run in every_run(preset).items()}
    assert len(set(before.values())) == len(before)

    def edit(content):
        grid_of(content, "core")["axes"]["method"]["grpo-spec-l3"] = {
            "reuse": {"kind": "speculative", "lenience": "e^3"}
        }
        grid_of(content, "drift")["axes"]["drift"]["lr2"] = {"trainer_factors": {"learning_rate": 2}}

    change(experiments, "spec_rl/cells.yaml", edit)
    changed = Experiments(experiments)
    names = [cell.name for cell in fitting(changed, "spec_rl", preset)]
    assert set(names) - set(before) == {"grpo-spec-l3", "grpo-vanilla-lr2", "grpo-spec-l0.5-lr2"}
    after = {name: fingerprint(changed.run(f"spec_rl/{name}", 0, preset).identity) for name in before}
    assert after == before


SAMPLED = {
    "temperature": 0.5,
    "top_p": 0.5,
    "samples": 7,
    "max_new_tokens": 7,
    "chat": "never",
    "data": {"size": 7},
    "data ": {"seed": 7},
    "data  ": {"min_terms": 3},
}
"""Fields of a benchmark that change what is sampled; a field of its data is a mapping."""
ONLY_GRADED = {"role": "out-of-distribution", "description": "other words"}


def changed_benchmark(preset, **fields):
    """The preset with some fields of one of its benchmarks changed."""
    name, benchmark = next(iter(preset.benchmarks.items()))
    nested = {key: getattr(benchmark, key).model_copy(update=v) for key, v in fields.items() if isinstance(v, dict)}
    return preset.model_copy(
        update={"benchmarks": preset.benchmarks | {name: benchmark.model_copy(update=fields | nested)}}
    )


@pytest.mark.parametrize("field", SAMPLED)
def test_whatever_changes_what_is_sampled_changes_its_fingerprint(field):
    preset = Experiments(ROOT).preset("tiny")
    changed = changed_benchmark(preset, **{field.strip(): SAMPLED[field]})
    assert changed != preset
    assert sampling_fingerprint(changed) != sampling_fingerprint(preset)


@pytest.mark.parametrize("field", ONLY_GRADED)
def test_what_is_said_of_a_benchmark_does_not_change_what_is_sampled(field):
    preset = Experiments(ROOT).preset("tiny")
    assert sampling_fingerprint(changed_benchmark(preset, **{field: ONLY_GRADED[field]})) == sampling_fingerprint(
        preset
    )


@pytest.mark.parametrize(("field", "value"), [("backend", "vllm"), ("harness", "lm-eval")])
def test_what_samples_is_in_the_fingerprint(field, value):
    preset = Experiments(ROOT).preset("tiny")
    changed = preset.model_copy(update={"evaluation": preset.evaluation.model_copy(update={field: value})})
    assert sampling_fingerprint(changed) != sampling_fingerprint(preset)


def test_skipped_problems_and_another_origin_are_told_apart():
    """Which problems of a file are taken counts; where the file was found does not."""
    data = HubProblems(id="a/b", files=["x.jsonl"], size=2)
    skipped, local = (data.model_copy(update=change) for change in ({"skip": 1}, {"local": "elsewhere.jsonl"}))
    prints = [
        benchmarks_fingerprint({"one": Benchmark(data=each, role="in-distribution", description="d")}, graded=False)
        for each in (data, skipped, local)
    ]
    assert prints[0] != prints[1]
    assert prints[0] == prints[2]


def test_the_split_of_generated_problems_is_in_the_fingerprint_and_that_of_hub_data_is_not():
    def of(data):
        return benchmarks_fingerprint({"one": Benchmark(data=data)}, graded=False)

    held_out = ArithmeticProblems(size=8, split="held-out")
    assert of(held_out) != of(ArithmeticProblems(size=8, split="train"))
    hub = HubProblems(id="a/b", files=["x.jsonl"], size=2)
    assert of(hub) == of(hub.model_copy(update={"split": "test"}))
    # As before the split counted: finished evaluations keep their fingerprint.
    assert of(held_out) == "e4363a72371b242f"


def test_a_template_is_in_the_fingerprint_unless_it_was_the_first_default():
    """Hub data without a template once sent the problem alone; their runs keep their fingerprints."""
    bare, boxed = (defining(HubProblems(id="a/b", files=["x"], size=1, **f)) for f in ({"template": "{problem}"}, {}))
    assert "template" not in bare
    assert boxed == bare | {"template": BOX}
    one, another = (ProblemFile(path="p", size=1, **fields) for fields in ({"template": "{problem}"}, {}))
    assert [defining(each)["template"] for each in (one, another)] == ["{problem}", BOX]


def test_every_declared_prompt_asks_for_a_box_or_is_declared_as_the_problem_alone():
    read = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "experiments/presets").glob("*.yaml"))]
    data = [each for preset in read for each in preset.get("data", {}).items()]
    sets = yaml.safe_load((ROOT / "experiments/benchmarks.yaml").read_text())["sets"]
    data += [(name, each["data"]) for name, each in sets.items() if each.get("grading") != "instructions"]
    listed = [(name, each.get("template", BOX)) for name, each in data if each["kind"] in ("file", "hub")]
    assert len(listed) == 22
    alone = {name for name, template in listed if "\\boxed{}" not in template}
    assert alone == {name for name, template in listed if template == "{problem}"}
    assert all(name.startswith("deepmath-") or name == "simplerl-8k" for name in alone), "SPEC-RL's release"


def test_the_least_memory_of_a_step_counts_all_rollouts_and_drafts():
    run = Experiments(ROOT).run("spec_rl/grpo-spec-l0.5", 0, "tiny")
    assert run.reuse.retention.visits == 1
    rollouts = run.trainer.prompts_per_step * run.trainer.group_size
    assert run.least_bytes == 2 * 1024 * rollouts


def test_a_preset_may_start_from_another_one(folder):
    """Such as the papers' scale without CUDA graphs, for the other speed claim: only the folder of results differs."""
    file = folder / "experiments/presets/paper-eager.yaml"
    file.write_text("{name: paper-eager, base: paper, description: Without CUDA graphs., engine: {eager: true}}")
    experiments = Experiments(folder)
    graphs, eager = (experiments.run("spec_rl/8b-grpo-vanilla", 0, name) for name in ("paper", "paper-eager"))
    assert (graphs.engine.eager, eager.engine.eager) == (False, True)
    assert eager.engine.model_copy(update={"eager": False}) == graphs.engine
    assert run_fingerprint(eager) == run_fingerprint(graphs)
    assert experiments.preset("paper-eager").description == "Without CUDA graphs."
    for text, words in (("base: papr", ["no such preset", "paper"]), ("base: paper-eager", ["has a base itself"])):
        (folder / "experiments/presets/other.yaml").write_text(f"{{name: other, {text}, description: x}}")
        with pytest.raises(UserError) as error:
            Experiments(folder).preset("other")
        assert all(word in str(error.value) for word in ["other.yaml", "base", *words])
    file.write_text("")
    with pytest.raises(UserError, match="must be a mapping") as error:
        Experiments(folder).preset("other")
    assert error.value.file == file


def test_a_part_of_another_kind_replaces_that_of_a_preset_s_base(folder):
    """Fields of one kind mean nothing in another, and its defaults count."""
    data = "{deepmath-6k: {kind: file, path: p.jsonl, size: 32}}"
    text = f"{{name: mine, base: smoke, description: Mine., data: {data}, trainer: {{epochs: 7}}}}"
    (folder / "experiments/presets/mine.yaml").write_text(text)
    mine, smoke = (Experiments(folder).preset(name) for name in ("mine", "smoke"))
    assert mine.data["deepmath-6k"] == ProblemFile(path="p.jsonl", size=32)
    assert mine.trainer == smoke.trainer | {"epochs": 7}


def test_a_precision_that_a_site_sets_for_verl_is_part_of_a_run():
    """Else a run could change it between two of its checkpoints."""
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "verl-tiny")

    def of(keys):
        return run_fingerprint(run.model_copy(update={"engine": run.engine.model_copy(update={"verl": keys})}))

    actor = "actor_rollout_ref.actor.fsdp_config"
    assert of({}) == of({f"{actor}.offload_policy": True}) == run_fingerprint(run)
    changed = [
        *({f"{actor}.model_dtype": "bf16"}, {actor: {"mixed_precision": {"param_dtype": "fp32"}}}),
        *({"actor_rollout_ref.rollout.dtype": "float16"}, {"critic.fsdp.model_dtype": "bf16"}),
    ]
    assert len({of({}), *map(of, changed)}) == 1 + len(changed)


def test_a_preset_has_the_papers_values_at_its_base(folder):
    (folder / "experiments/presets/mine.yaml").write_text("{name: mine, base: tiny, description: Mine., seeds: [5]}")
    experiments = Experiments(folder)
    mine, tiny = (experiments.run("ar3po/grpo", 5, name).trainer for name in ("mine", "tiny"))
    assert mine == tiny


def test_a_mapping_below_verl_is_checked_as_its_dotted_keys_are():
    for verl in (
        {"actor_rollout_ref.actor.fsdp_config.full_determinism": False},
        {"actor_rollout_ref.actor.fsdp_config": {"full_determinism": False}},
    ):
        with pytest.raises(ValidationError, match="bitwise is not known to hold"):
            VerlEngine(bitwise=True, verl=verl)
        assert VerlEngine(verl=verl).verl == verl


def test_an_overlong_buffer_beyond_the_length_limit_is_rejected():
    """At a limit of 64 tokens a buffer of 4096 would take 0.99 of a response's reward even for 10 tokens."""
    experiments = Experiments(ROOT)
    cell = next(cell for cell in experiments.cells("spec_rl") if cell.algorithm.kind == "dapo")
    limit = experiments.run_of(cell, 0, "tiny").trainer.max_response_tokens
    for buffer in (0.5, limit):
        changed = cell.model_copy(update={"algorithm": DAPO(overlong={"buffer": buffer})})
        assert experiments.run_of(changed, 0, "tiny").algorithm.overlong.buffer == buffer
    changed = cell.model_copy(update={"algorithm": DAPO(overlong={"buffer": limit + 1})})
    with pytest.raises(UserError, match="longer than a response may be") as error:
        experiments.run_of(changed, 0, "tiny")
    assert error.value.key == "algorithm.overlong.buffer"
