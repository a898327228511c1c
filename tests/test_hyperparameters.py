"""Hyperparameters: a paper states them, a preset scales them, a cell changes them; each value knows its origin."""

import shutil
from pathlib import Path

import pytest
import yaml

from redraft.cli import app as cli
from redraft.config import Experiments, HyperparameterFile, TrainerConfig, run_fingerprint
from redraft.config.experiment import FIRST_DEFAULTS
from redraft.errors import UserError
from tests.checkout import snakemake
from tests.trainers import make_trainer

ROOT = Path(__file__).parents[1]
FILE = "experiments/spec_rl/hyperparameters.yaml"
CELL = "spec_rl/grpo-vanilla"
PRESETS = sorted(file.stem for file in (ROOT / "experiments/presets").glob("*.yaml"))


@pytest.fixture
def root(tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path


def change(root, edit, file=FILE):
    """Apply `edit` to the parsed YAML of a file."""
    path = root / file
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def trainer(root, preset="tiny", cell=CELL):
    return Experiments(root).run(cell, 0, preset).trainer


def settings(root, preset="tiny", cell=CELL):
    experiments = Experiments(root)
    return experiments.trainer_settings(experiments.cell(cell), experiments.preset(preset))


@pytest.mark.parametrize("paper", Experiments(ROOT).papers)
def test_every_paper_states_a_trainer_that_is_one_by_itself(paper):
    content = Experiments(ROOT).hyperparameters(paper)
    assert TrainerConfig(**{name: stated.value for name, stated in content.trainer.items()})
    assert set(content.at) <= set(PRESETS)


def test_at_the_paper_s_scale_a_run_has_what_the_paper_states_and_what_is_ours():
    stated = Experiments(ROOT).hyperparameters("spec_rl").trainer
    values = trainer(ROOT, "paper").model_dump()
    assert {name: values[name] for name in stated} == {name: s.value for name, s in stated.items()}
    assert values.keys() - stated.keys() == {
        "prompts_per_batch",
        "updates_per_batch",
        "warmup_steps",
        "fresh_samples",
        "evaluation_clock",
        "reward",
        "temperature",
    }
    assert Experiments(ROOT).preset("paper").trainer.keys() == {"fresh_samples"}


@pytest.mark.parametrize(
    ("fields", "value"), [({"trainer": {"group_size": 6}}, 6), ({"trainer_factors": {"learning_rate": 2}}, "twice")]
)
def test_a_setting_of_a_cell_is_looked_up_in_the_paper_s_file_of_cells(fields, value):
    experiments = Experiments(ROOT)
    cell = experiments.cell(CELL).model_copy(update=fields)
    ((part, names),) = fields.items()
    (name,) = names
    setting = experiments.trainer_settings(cell, experiments.preset("tiny"))[name]
    assert setting.file == ROOT / "experiments/spec_rl/cells.yaml"
    assert setting.key == f"{cell.name}.{part}.{name}"
    unchanged = experiments.trainer_settings(experiments.cell(CELL), experiments.preset("tiny"))[name].value
    assert setting.value == (2 * unchanged if value == "twice" else value) != unchanged


def test_values_are_those_of_the_paper_s_table():
    """SPEC-RL, Appendix A.1 and its release; these are also what fingerprints leave out."""
    stated = Experiments(ROOT).hyperparameters("spec_rl").trainer
    assert {name: s.value for name, s in stated.items()} == FIRST_DEFAULTS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_has_as_many_updates_at_every_scale(preset):
    assert trainer(ROOT, preset).prompts_per_step == 4 * trainer(ROOT, preset).prompts_per_update


def at(**values):
    return {name: {"value": value, "source": "a test"} for name, value in values.items()}


def test_the_cell_s_word_counts_before_the_paper_s_at_a_preset_the_preset_s_and_the_paper_s(root):
    def cell(content):
        (grid,) = (grid for grid in content["grids"] if grid["name"] == "data")
        grid["cell"] |= {"trainer": {"weight_decay": 0.4}, "trainer_factors": {"gradient_clip": 2}}

    def paper(content):
        content["at"] = {"tiny": at(max_prompt_tokens=3, weight_decay=0.3, gradient_clip=3)}

    change(root, paper)
    change(
        root,
        lambda p: p["trainer"].update(evaluate_every=2, max_prompt_tokens=2, weight_decay=0.2),
        "experiments/presets/tiny.yaml",
    )
    change(root, cell, "experiments/spec_rl/cells.yaml")
    found = trainer(root, cell="spec_rl/simplerl-grpo-vanilla")
    assert (found.group_size, found.evaluate_every, found.max_prompt_tokens) == (4, 2, 3)
    assert (found.weight_decay, found.gradient_clip, found.prompts_per_step) == (0.4, 6, 32)
    origins = {name: s.origin for name, s in settings(root, cell="spec_rl/simplerl-grpo-vanilla").items()}
    assert origins["max_prompt_tokens"] == "paper at preset tiny: a test"
    assert (origins["evaluate_every"], origins["weight_decay"]) == ("preset tiny", "cell")
    assert (origins["gradient_clip"], origins["prompts_per_step"]) == ("cell: 2 × 3.0", "preset tiny: 1/32 × 1024")
    assert origins["prompts_per_batch"] == "default"
    assert trainer(root, "smoke").max_prompt_tokens == 1024, "a paper's values for a preset are for it alone"


def test_a_preset_multiplies_its_own_value_as_a_cell_does(root):
    change(root, lambda p: p["trainer_factors"].update(group_size=3), "experiments/presets/tiny.yaml")
    assert trainer(root).group_size == 3 * trainer(ROOT).group_size


def test_a_factor_multiplies_the_number_as_it_is_written(root):
    """0.1 × 3 is 0.3 and not the 0.30000000000000004 of two doubles, which would be another fingerprint."""
    change(root, lambda c: c["trainer"].update(at(weight_decay=0.1)))
    change(root, lambda p: p["trainer_factors"].update(weight_decay=3), "experiments/presets/tiny.yaml")
    assert trainer(root).weight_decay == 0.3


def test_updates_divide_what_is_trained_on_at_once():
    assert make_trainer(prompts_per_step=8, prompts_per_batch=12, prompts_per_update=6).batch_prompts == 12
    with pytest.raises(ValueError, match=r"prompts_per_update \(8\) must divide prompts_per_batch \(12\)"):
        make_trainer(prompts_per_step=8, prompts_per_batch=12, prompts_per_update=8)
    with pytest.raises(ValueError, match=r"prompts_per_update \(6\) must divide prompts_per_step \(8\)"):
        make_trainer(prompts_per_step=8, prompts_per_update=6)


def test_another_paper_needs_no_word_in_a_preset_but_its_grids(root):
    """It has 16 prompts a step, as SPEED-RL, which no factor scales down."""
    folder = root / "experiments/another"
    folder.mkdir()
    grid = {
        "name": "core",
        "axes": {"": {"vanilla": {}}},
        "cell": {
            "model": "qwen3-1.7b-base",
            "data": "deepmath-6k",
            "algorithm": {"kind": "rloo"},
            "reuse": {"kind": "vanilla"},
        },
    }
    (folder / "cells.yaml").write_text(yaml.safe_dump({"title": "Another", "source": "arXiv", "grids": [grid]}))
    with pytest.raises(UserError, match=r"(?s)another/hyperparameters.yaml(.*)allowed:(.*)learning_rate"):
        trainer(root, "paper", "another/vanilla")
    stated = at(
        epochs=1,
        prompts_per_step=16,
        group_size=24,
        prompts_per_update=16,
        learning_rate=1e-6,
        weight_decay=0.1,
        gradient_clip=1.0,
        max_prompt_tokens=1024,
        max_response_tokens=3072,
        evaluate_every=25,
    )
    file = folder / "hyperparameters.yaml"
    file.write_text(yaml.safe_dump({"trainer": stated}))
    found = trainer(root, "paper", "another/vanilla")
    assert (found.prompts_per_step, found.group_size, found.learning_rate) == (16, 24, 1e-6)
    with pytest.raises(UserError, match=r"(?s)tiny.yaml(.*)trainer_factors.prompts_per_step(.*)0.5"):
        trainer(root, "tiny", "another/vanilla")
    file.write_text(yaml.safe_dump({"trainer": stated, "at": {"tiny": at(prompts_per_step=16, prompts_per_update=16)}}))
    found = trainer(root, "tiny", "another/vanilla")
    assert (found.prompts_per_step, found.prompts_per_update, found.learning_rate) == (16, 16, 1e-4)
    assert trainer(root) == trainer(ROOT), "another paper changes nothing of the first"


WRONG = {
    "an unknown field": (lambda c: c["trainer"].update(at(batch=3)), ["trainer.batch", "prompts_per_step"]),
    "a field that is missing": (lambda c: c["trainer"].pop("learning_rate"), ["trainer.learning_rate", "missing"]),
    "a wrong type": (
        lambda c: c["trainer"].update(at(group_size="many")),
        ["trainer.group_size.value", "many", "integer"],
    ),
    "a value out of range": (lambda c: c["trainer"].update(at(group_size=1)), ["trainer.group_size.value", "1", "2"]),
    "no source": (lambda c: c["trainer"]["epochs"].pop("source"), ["trainer.epochs.source", "missing"]),
    "an empty source": (lambda c: c["trainer"]["epochs"].update(source=""), ["trainer.epochs.source", "at least 4"]),
    "a bare value": (lambda c: c["trainer"].update(epochs=15), ["trainer.epochs", "15"]),
    "another key beside it": (
        lambda c: c["trainer"]["epochs"].update(page=3),
        ["trainer.epochs.page", "source, value"],
    ),
    "an unknown preset": (lambda c: c.update(at={"tinny": {}}), ["at", "tinny", "tiny"]),
    "an unknown field at a preset": (
        lambda c: c.update(at={"tiny": at(epoch=3)}),
        ["at.tiny.epoch", "epochs"],
    ),
    "a wrong type at another preset": (
        lambda c: c.update(at={"smoke": at(learning_rate="small")}),
        ["at.smoke.learning_rate.value", "small"],
    ),
    "a batch that does not divide": (
        lambda c: c.update(at={"tiny": at(prompts_per_update=5)}),
        ["at.tiny.prompts_per_update.value", "5", "a divisor of 32"],
    ),
    "another section": (lambda c: c.update(engine={}), ["engine", "at, trainer"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_with_file_key_and_value(root, name):
    edit, words = WRONG[name]
    path = change(root, edit)
    with pytest.raises(UserError) as error:
        trainer(root)
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_snakemake_ends_in_that_message_before_anything_is_planned(tmp_path):
    for name in ("Snakefile", "config", "workflows", "profiles", "experiments", "envs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    change(tmp_path, lambda c: c.update(at={"smoke": at(prompts_per_update=5)}))
    result = snakemake(tmp_path, "-n")
    assert result.returncode == 2, result.stderr[-3000:]
    assert "at.smoke.prompts_per_update.value" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


def test_a_cell_s_unknown_field_is_named(root):
    def edit(content):
        content["grids"][0]["cell"]["trainer"] = {"leaning_rate": 1}

    path = change(root, edit, "experiments/spec_rl/cells.yaml")
    with pytest.raises(UserError) as error:
        trainer(root)
    assert all(w in str(error.value) for w in [str(path), "trainer.leaning_rate", "learning_rate"]), str(error.value)


def test_a_fingerprint_leaves_out_the_first_defaults_and_nothing_else():
    """Otherwise every run of before would be run again. Other values and other fields are part of it."""
    run = Experiments(ROOT).run(CELL, 0, "paper")
    assert run.identity["trainer"] == {}
    assert FIRST_DEFAULTS.keys() == {name for name, field in TrainerConfig.model_fields.items() if field.is_required()}
    for name, value in {**FIRST_DEFAULTS, "fresh_samples": 3}.items():
        other = 2 * value if name != "prompts_per_update" else value // 2
        changed = run.model_copy(update={"trainer": run.trainer.model_copy(update={name: other})})
        assert changed.identity["trainer"] == {name: other}
        assert run_fingerprint(changed) != run_fingerprint(run)


@pytest.mark.parametrize("preset", PRESETS)
def test_show_says_of_every_value_where_it_comes_from_and_stays_yaml(preset, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        cli.main(["show", "spec_rl/grpo-vanilla-lr4", "--preset", preset])
    assert not ended.value.code
    text = capsys.readouterr().out
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla-lr4", 0, preset)
    assert yaml.safe_load(text) == {"fingerprint": run_fingerprint(run), **run.model_dump(mode="json")}
    shown = {line.split(":")[0].strip(): line.partition("  # ")[2] for line in text.splitlines() if "  # " in line}
    assert shown.keys() == TrainerConfig.model_fields.keys()
    rate = {"paper": "5e-07", "smol": "3e-05", "verl-smol": "3e-05"}.get(preset, "0.0001")
    assert shown["learning_rate"] == f"cell: 4 × {rate}"
    assert shown["weight_decay"] == "paper: Appendix A.1"
    assert shown["prompts_per_step"].startswith('paper: "a global' if preset == "paper" else f"preset {preset}: 1/")


def test_the_schema_knows_every_field_with_its_range():
    schema = HyperparameterFile.model_json_schema()
    stated = schema["properties"]["trainer"]
    assert stated["properties"].keys() == TrainerConfig.model_fields.keys()
    assert set(stated["required"]) == FIRST_DEFAULTS.keys()
    assert stated["additionalProperties"] is False
    assert stated["properties"]["group_size"]["properties"]["value"]["minimum"] == 2
