"""What a call of Snakemake wants, without Snakemake: papers, cells with reasons, seeds, files and resources."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from redraft.config import Experiments, run_fingerprint
from redraft.config.requests import Request
from redraft.config.site import Site
from redraft.errors import UserError
from redraft.ops.workflow.plan import PAPERS, Call, CampaignPlan, problem_files
from redraft.ops.workflow.rule_inputs import STAGES, Declarations, RuleInputs

ROOT = Path(__file__).parents[1]
BASE = "spec_rl/grpo-spec-l0.5"
CELLS = f"""
title: Mine
source: a test
grids:
  - name: mine
    base: {BASE}
    axes: {{lenience: {{l9: {{reuse: {{lenience: 9}}}}}}}}
"""


def planned(*targets, environment=None, main=True, experiments=None, **config):
    call = Call.of({"preset": "tiny"} | config)
    experiments = experiments or Experiments(ROOT)
    return CampaignPlan(call, experiments, lambda: targets, {} if environment is None else environment, main)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory: no results, no data."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finish(plan, cell, seed):
    file = plan.layout.run(cell, seed) / "scores.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({}))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"presets": "tiny"}, ["presets", "cells, container, grids, papers, preset, seeds, without_unfitting"]),
        ({"preset": ["tiny"]}, ["preset", "must be a text"]),
        ({"seeds": 0}, ["seeds", "at least 1"]),
        ({"seeds": "some"}, ["seeds", "some"]),
        ({"papers": "spec"}, ["papers", "spec"]),
        ({"papers": ","}, ["papers", "a name is empty"]),
        ({"papers": "spec_rl,"}, ["papers", "a name is empty"]),
    ],
)
def test_a_wrong_value_of_config_is_named(config, words):
    with pytest.raises(UserError) as error:
        planned(**config)
    assert error.value.file == "--config"
    assert all(word in str(error.value) for word in words), str(error.value)


def test_papers_are_the_preset_s_first_ones_all_of_a_reproduction_or_those_that_the_call_names():
    first, every = planned(), planned("reproduction")
    assert first.papers == first.preset.first
    assert every.papers == first.preset.papers([])
    assert set(first.papers) < set(every.papers)
    assert planned("reproduction", papers="speed_rl").papers == ["speed_rl"]


def test_grids_that_the_call_names_replace_those_of_the_target():
    for targets in ((), ("reproduction",), ("extras",)):
        plan = planned(*targets, papers="spec_rl", grids="pair", seeds=5)
        assert [cell.name for cell in plan.wanted_cells("spec_rl")] == ["grpo-vanilla", "grpo-spec-l0.5"]
        assert len(plan.runs("spec_rl")) == 10
    both = planned(papers="spec_rl,ar3po", grids="pair,exact")
    assert {"grpo-one-hot", "grpo-vanilla"} < {cell.name for cell in both.wanted_cells("spec_rl")}
    assert len(both.wanted_cells("ar3po")) == 2


@pytest.mark.parametrize(
    ("config", "message", "allowed"),
    [
        ({"papers": "spec_rl", "grids": "pair,pear"}, "no such grid", "pair"),
        ({"papers": "spec_rl", "grids": ","}, "names no grid", "pair"),
        ({"papers": "spec_rl,exact_reuse", "grids": "rules"}, "spec_rl has none of these grids", "lenience"),
    ],
)
def test_a_grid_that_is_not_there_is_an_error(config, message, allowed):
    with pytest.raises(UserError, match=message) as error:
        planned(**config).papers  # noqa: B018
    assert error.value.key == "grids"
    assert allowed in error.value.allowed


def test_grids_do_not_concern_finished_variants(folder):
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    (folder / "experiments/own").mkdir()
    (folder / "experiments/own/cells.yaml").write_text(CELLS)
    finish(planned(experiments=Experiments(folder)), "own/l9", 7)
    assert "own" in planned(experiments=Experiments(folder), grids="lenience").papers


def test_a_paper_without_a_cell_that_can_be_run_is_an_error(folder, capsys):
    fraction = CELLS.replace("{reuse: {lenience: 9}}", "{trainer_factors: {prompts_per_update: 1/1000}}")
    (folder / "mine.yaml").write_text(fraction)
    plan = planned(experiments=Experiments(ROOT, cells=folder / "mine.yaml"))
    plan.experiments.cells("mine")
    assert [cell.id for cell in plan.wanted_cells("mine")] == []
    with pytest.raises(SystemExit):
        plan.check_runs()
    text = " ".join(capsys.readouterr().err.split())
    assert "no cell of mine can be run at preset tiny" in text
    assert "mine/l9: prompts_per_update would be" in text


def test_a_factor_in_a_user_s_file_that_makes_a_fraction_above_1_is_an_error(folder):
    factor = CELLS.replace("{reuse: {lenience: 9}}", "{trainer_factors: {group_size: 1.3}}")
    (folder / "mine.yaml").write_text(factor)
    with pytest.raises(UserError, match="integer") as error:
        planned(experiments=Experiments(ROOT, cells=folder / "mine.yaml"))
    assert error.value.file == folder / "mine.yaml"
    assert error.value.key == "l9.trainer_factors.group_size"


def test_a_reproduction_leaves_out_cells_whose_model_or_data_the_preset_lacks():
    plan = planned("reproduction", preset="smol", papers="spec_rl")
    wanted = {cell.name for cell in plan.wanted_cells("spec_rl")}
    assert {"grpo-vanilla", "grpo-spec-l0.5", "ppo-vanilla"} < wanted
    assert plan.left_out()["spec_rl/8b-grpo-vanilla"] == "the preset has no model qwen3-8b-base"
    assert {cell.model for cell in plan.wanted_cells("spec_rl")} == {"qwen3-1.7b-base"}


def test_a_default_cell_whose_model_the_preset_lacks_is_a_mistake(folder):
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    file = folder / "experiments/presets/smol.yaml"
    file.write_text(file.read_text().replace("spec_rl: [pretrained]", "spec_rl: [pretrained, main]"))
    with pytest.raises(UserError, match="the preset has nothing for"):
        planned(experiments=Experiments(folder), preset="smol")


def test_a_job_takes_its_papers_from_the_process_that_started_it():
    environment = {}
    papers = planned("reproduction", environment=environment).papers
    assert environment[PAPERS] == ",".join(papers)
    assert planned("report.html", environment=environment, main=False).papers == papers
    assert planned("report.html", main=False).papers == planned().papers, "one that a person started has none"


def test_the_laboratory_adds_papers_that_have_one_unless_the_call_names_others():
    added = set(planned("laboratory").papers) - set(planned().papers)
    assert added == {"exact_reuse"}
    assert Experiments(ROOT).observed_cell("exact_reuse")
    plan = planned("laboratory")
    assert len(plan.laboratory_files()) == 1 + len(plan.preset.seeds) * sum(
        bool(plan.experiments.observed_cell(paper)) for paper in plan.papers
    )
    with pytest.raises(UserError, match="none of these papers has a laboratory"):
        planned("laboratory", papers="ar3po").papers  # noqa: B018


def test_a_user_s_file_of_cells_names_itself(folder):
    (folder / "mine.yaml").write_text(CELLS)
    experiments = Experiments(ROOT, cells=folder / "mine.yaml")
    plan = planned(experiments=experiments)
    assert plan.papers == ["mine"]
    assert [cell.id for cell in plan.wanted_cells("mine")] == ["mine/l9", BASE]
    assert planned(experiments=experiments, papers="speed_rl").papers == ["speed_rl"]


def test_a_user_s_finished_runs_come_with_those_of_their_bases(folder):
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    (folder / "experiments/own").mkdir()
    (folder / "experiments/own/cells.yaml").write_text(CELLS)
    first = planned(experiments=Experiments(folder))
    assert "own" not in first.papers
    finish(first, "own/l9", 7)
    plan = planned(experiments=Experiments(folder))
    assert plan.papers == [*first.papers, "own"]
    assert [(cell.id, seed) for cell, seed in plan.runs("own")] == [("own/l9", 7)], "no paper wants the base's seed 7"
    finish(plan, BASE, 7)
    assert [(cell.id, seed) for cell, seed in plan.runs("own")] == [("own/l9", 7), (BASE, 7)]
    named = planned(experiments=Experiments(folder), papers="own")
    assert {seed for _, seed in named.runs("own")} == set(named.preset.seeds), "all are wanted of one that is named"


def test_a_target_wants_the_cells_of_its_grids_and_each_seed_of_the_call():
    default, paper, both = planned(), planned("reproduction"), planned("reproduction", "extras")
    names = [{cell.name for cell in plan.wanted_cells("spec_rl")} for plan in (default, paper, both)]
    assert names[0] <= names[1] < names[2]
    plan = planned(seeds=2)
    assert {seed for _, seed in plan.runs("spec_rl")} == {0, 1}
    folders = plan.run_folders("spec_rl")
    assert folders == [plan.layout.run(cell.id, seed) for cell, seed in plan.runs("spec_rl")]
    assert len(set(plan.initial_folders("spec_rl"))) == len(plan.initial_folders("spec_rl")) < len(folders)


def test_cells_are_left_out_with_the_reason(folder, capsys):
    plan = planned("reproduction", preset="paper")
    left_out = plan.left_out()
    missing = "speed_rl/numina-rloo"
    assert left_out[missing] == "data/numinamath-integer.jsonl does not exist"
    assert "exact speculation" in left_out["efficient_rollout/self-sd"]
    assert not left_out.keys() & {cell.id for paper in plan.papers for cell in plan.wanted_cells(paper)}
    (folder / "data").mkdir()
    (folder / "data/numinamath-integer.jsonl").write_text("")
    assert missing not in planned("reproduction", preset="paper").left_out()
    capsys.readouterr()
    planned("reproduction", preset="tiny").check_runs()
    assert capsys.readouterr().err == "", "nothing is left out"


def test_timings_and_the_laboratory_are_wanted_by_name_or_where_they_exist():
    plan = planned()
    assert plan.timing_files("spec_rl") == []
    assert plan.layout.distributions not in plan.report_parts()
    file = plan.layout.timing("spec_rl", 0)
    file.parent.mkdir(parents=True)
    file.touch()
    assert plan.timing_files("spec_rl") == [], "the cells of another target would make it again"
    assert len(planned("timing").timing_files("spec_rl")) == len(plan.preset.seeds)


def test_a_report_has_the_parts_that_its_papers_declare():
    plan, layout = planned(papers="spec_rl"), planned().layout
    assert list(plan.report_parts()) == [
        layout.collected("spec_rl") / "runs.parquet",
        layout.tables("spec_rl"),
        layout.figures("spec_rl"),
        layout.cases("spec_rl").with_suffix(".html"),
        layout.claims("spec_rl"),
    ]


def test_a_missing_roofline_of_the_preset_ends_the_call(monkeypatch):
    experiments = Experiments(ROOT)
    preset = experiments.preset("tiny")
    engine = preset.engine.model_copy(update={"calibrations": {"qwen2.5-7b": "none.json"}})
    monkeypatch.setattr(Experiments, "preset", lambda *_: preset.model_copy(update={"engine": engine}))
    with pytest.raises(UserError, match="without this key the workflow measures") as error:
        planned(experiments=experiments)
    assert error.value.key == "engine.calibrations.qwen2.5-7b"


def wildcards(**names):
    return SimpleNamespace(**names)


def test_wildcards_name_runs_protocols_and_what_they_are_made_from():
    inputs = RuleInputs(planned(), Site())
    named = wildcards(paper="spec_rl", cell="grpo-spec-l0.5", seed="1")
    run = inputs.experiments.run("spec_rl/grpo-spec-l0.5", 1, "tiny")
    assert run_fingerprint(inputs.run(named)) == run_fingerprint(run)
    assert inputs.weights(named) == inputs.layout.model(run.model_role) / "model.safetensors"
    protocol = inputs.preset.protocol_of("spec_rl")
    evaluated = wildcards(kind="runs", group="spec_rl", policy="grpo-spec-l0.5/seed1")
    initial = wildcards(kind="initial", group=protocol, policy="qwen3-1.7b-base/seed1")
    assert [inputs.protocol(w) for w in (named, evaluated, initial, wildcards(protocol="greedy"))] == [
        protocol,
        protocol,
        protocol,
        "greedy",
    ]
    assert inputs.sampled(named) != inputs.sampled(wildcards(protocol="greedy", seed="1"))
    assert inputs.training_files(named) == problem_files(run.data)
    assert inputs.part_fingerprint("models", run.model_role) != inputs.part_fingerprint("models", "qwen2.5-7b")
    manifest, weights = inputs.observed(wildcards(paper="exact_reuse", seed="0"))
    assert (manifest.name, weights.name) == ("manifest.json", "model.safetensors")
    with pytest.raises(UserError, match="no such cell"):
        inputs.run(wildcards(paper="spec_rl", cell="nothing", seed="0"))


def test_the_steps_of_a_training_are_those_with_a_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = RuleInputs(planned(), Site())
    named = wildcards(paper="spec_rl", cell="grpo-spec-l0.5", seed="1")
    train, grade = (SimpleNamespace(rule=SimpleNamespace(name=name), wildcards=named) for name in ("train", "grade"))
    total = inputs.run(named).steps
    assert inputs.steps(train) == ("spec_rl grpo-spec-l0.5 1", 0, total)
    folder = inputs.layout.run("spec_rl/grpo-spec-l0.5", 1)
    folder.mkdir(parents=True)
    (folder / "steps.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert inputs.steps(train) == ("spec_rl grpo-spec-l0.5 1", 2, total)
    assert inputs.steps(grade) is None


def test_a_rule_s_resources_are_those_of_its_stage_for_the_job_s_model():
    inputs = RuleInputs(planned(preset="paper"), Site())
    small = wildcards(role="qwen3-1.7b-base")
    large = wildcards(role="qwen2.5-32b")
    train = inputs.resources("train")
    assert train["mem_mb"](small) < train["mem_mb"](large)
    assert {rule: inputs.gpus(rule) for rule in STAGES} == {
        "train": 8,
        "time_runs": 8,
        "calibrate": 1,
        "generate": 1,
        "generate_initial": 1,
        "observe": 1,
        "grade": 0,
        "lighteval": 0,
        "diversity": 0,
        "make_model": 0,
    }
    assert train["gpus"] == 8
    assert inputs.resources("grade")["cpus_per_task"] == 1
    assert "gpus" not in inputs.resources("grade")
    assert inputs.resources("make_model") == {"in_turn": 1}, "no model is made"


def test_a_model_that_is_made_needs_a_core_for_minutes_and_no_gpu():
    inputs = RuleInputs(planned(preset="smoke"), Site(stages={"grade": Request(partition="cpu")}))
    assert inputs.resources("make_model") == {
        "slurm_partition": "cpu",
        "nodes": 1,
        "runtime": 60,
        "mem_mb": 3072,
        "cpus_per_task": 1,
        "in_turn": 1,
    }
    assert re.fullmatch(inputs.roles(made=True), "qwen2.5-32b@2")
    assert not any(re.fullmatch(inputs.roles(made=made), "qwen2x5-32b") for made in (True, False))
    assert not re.fullmatch(inputs.roles(made=False), "qwen2.5-32b")


def test_tables_figures_and_claims_wait_for_their_declarations():
    declared = Declarations(Experiments(ROOT))
    assert declared.names("spec_rl", "family") == ["tables.yaml", "claims.yaml"]
    assert declared.names("spec_rl", "figures") == declared.names("spec_rl", "cases") == ["figures.yaml"]
    assert declared.names("efficient_rollout", "figures") == ["figures.yaml", "tables.yaml"], "models of a sweep"
    reported = declared.names("spec_rl", "reported")
    assert reported[0] == "reported.yaml"
    assert all(Path(file).is_file() for file in declared.files("spec_rl", "family", "reported"))
    assert declared.published_curves("speed_rl") == [], "no published data are here"


@pytest.mark.parametrize("key", ["preset", "papers", "cells", "container"])
def test_a_text_that_was_read_as_a_number_is_refused(key):
    """Snakemake reads `container=1.10` as the number 1.1, and `container=007` as 7."""
    is_path = key in ("cells", "container")
    for value in (1.1, 7) if is_path else (1.1,):
        with pytest.raises(UserError, match="read as a number") as raised:
            Call.of({"preset": "tiny"} | {key: value})
        assert (raised.value.key, raised.value.value) == (key, value)
        assert ("./1.10" in str(raised.value)) == is_path
    assert Call.of({"preset": "tiny"} | {key: "1.10"}).model_dump()[key] == "1.10"
    assert Call.of({"preset": 7}).preset == "7"
