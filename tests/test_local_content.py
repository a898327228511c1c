"""A user's model or problems that change: the workflow makes what follows again, and `redraft status` says so."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from redraft import provenance
from redraft.config import Experiments, ProblemFile, run_fingerprint
from redraft.config.site import Site
from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.layout import Layout
from redraft.ops.workflow.plan import Call, CampaignPlan
from redraft.ops.workflow.rule_inputs import RuleInputs
from redraft.ops.workflow.status import run_status
from redraft.provenance import SOURCE
from redraft.train import initial_policy, models
from redraft.train.initial_policy import make_model
from redraft.train.loop import inputs_of
from tests.finished import trained

ROLE = "qwen3-1.7b-base"
CELL = "spec_rl/grpo-spec-l0.5"
NAMED = SimpleNamespace(paper="spec_rl", cell="grpo-spec-l0.5", seed="0", role=ROLE)


@pytest.fixture
def found(tiny_model, folder, monkeypatch):
    """Folder of a user's model, which a preset imports, next to a user's problems; there are no results."""
    found = Path(shutil.copytree(tiny_model, folder / "found"))
    (folder / "problems.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    preset = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(preset.read_text())
    content["models"] = {role: {"kind": "pretrained", "path": str(found)} for role in content["models"]}
    content["data"] = {role: {"kind": "file", "path": "problems.jsonl", "size": 32} for role in content["data"]}
    content["blocks"] = 1
    preset.write_text(yaml.safe_dump(content))
    monkeypatch.chdir(folder)
    return found


def rule_inputs():
    call = Call.of({"preset": "smoke", "papers": "spec_rl"})
    return RuleInputs(CampaignPlan(call, Experiments(), lambda: (), {}, main=False), Site())


def params():
    """Params of the rules that import the model and train."""
    inputs = rule_inputs()
    return inputs.part_fingerprint("models", ROLE), inputs.run_content(NAMED)


def replace_weights(found):
    """Other weights of the same size; the file keeps the times of the old one, as after `cp -p` or `rsync -a`."""
    file = found / "model.safetensors"
    stat = file.stat()
    model, tokenizer = models.load(found)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    models.save(model, tokenizer, found)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size


def change_template(found):
    tokenizer = models.load_tokenizer(found)
    tokenizer.chat_template = "{{ messages[0]['content'] }}="
    tokenizer.save_pretrained(found)


@pytest.mark.parametrize("change", [replace_weights, change_template])
def test_another_model_in_the_same_folder_is_imported_again_and_starts_another_run(found, change):
    imported, before = Layout("smoke").model(ROLE), params()
    make_model("smoke", ROLE, imported)
    first = inputs_of(imported, [])
    assert params() == before, "the record of the import is no change"
    change(found)
    assert params()[0] != before[0]
    assert params()[1] == before[1], "the imported weights are the input of the run"
    make_model("smoke", ROLE, imported)
    second = inputs_of(imported, [])
    assert second["source"] != first["source"]
    assert (second["initial_policy"] == first["initial_policy"]) is (change is change_template)


def test_other_files_and_new_times_are_no_change(found):
    before = params()
    (found / "README.md").write_text("A model.")
    (found / "original").mkdir()
    for file in found.iterdir():
        os.utime(file)
    assert params() == before


def test_files_that_were_not_touched_are_not_read_again(found, monkeypatch):
    before = params()
    make_model("smoke", ROLE, Layout("smoke").model(ROLE))
    monkeypatch.setattr(provenance, "sha256", lambda file: pytest.fail(f"{file} is read"))
    assert rule_inputs().part_fingerprint("models", ROLE) == before[0]


def test_models_that_are_not_local_keep_their_params(folder, monkeypatch):
    monkeypatch.chdir(folder)
    inputs = rule_inputs()
    declared = inputs.preset.models[ROLE].model_dump(mode="json", exclude_defaults=True)
    assert inputs.part_fingerprint("models", ROLE) == provenance.fingerprint(declared)
    assert inputs.run_content(NAMED) == run_fingerprint(inputs.run(NAMED))


def test_a_model_that_changes_while_it_is_imported_is_not_kept(found, monkeypatch):
    load = models.load

    def loaded(*arguments):
        result = load(*arguments)
        change_template(found)
        return result

    monkeypatch.setattr(initial_policy.models, "load", loaded)
    with pytest.raises(UserError, match="changed while they were read"):
        make_model("smoke", ROLE, Layout("smoke").model(ROLE))
    assert not Layout("smoke").model(ROLE).exists()


def test_a_damaged_record_is_named(found):
    imported = Layout("smoke").model(ROLE)
    make_model("smoke", ROLE, imported)
    write_json(imported / SOURCE, [])
    with pytest.raises(UserError, match="damaged") as refused:
        params()
    assert refused.value.file == imported / SOURCE


def test_other_problems_in_the_same_file_train_again_though_the_file_is_old(found):
    def made():
        inputs = rule_inputs()
        return inputs.run_content(NAMED), inputs.part_fingerprint("data", inputs.run(NAMED).data_role)

    before, file = made(), Path("problems.jsonl")
    file.write_text(file.read_text().replace("2", "3"))
    os.utime(file, (1, 1))
    assert all(new != old for new, old in zip(made(), before, strict=True))


def test_other_problems_of_a_benchmark_are_sampled_again(found):
    file, inputs = Path("problems.jsonl"), rule_inputs()
    benchmark = next(iter(inputs.benchmarks(NAMED).values()))
    own = {"own": benchmark.model_copy(update={"data": ProblemFile(path=str(file), size=1)})}
    inputs.benchmarks = lambda wildcards: own
    before = inputs.sampled(NAMED)
    file.write_text(file.read_text().replace("2", "3"))
    assert inputs.sampled(NAMED) != before


@pytest.mark.parametrize("change", ["nothing", "weights", "template", "problems", "import"])
def test_status_says_outdated_where_the_workflow_trains_again(found, change):
    layout, run = Layout("smoke"), Experiments().run(CELL, 0, "smoke")
    imported, folder = layout.model(run.model_role), layout.run(CELL, 0)
    make_model("smoke", run.model_role, imported)
    inputs = inputs_of(imported, []) | {"data/problems.jsonl": sha256(Path("problems.jsonl"))}
    trained(folder, run, inputs=inputs)
    assert run_status(layout, run).state == "trained"
    match change:
        case "weights":
            replace_weights(found)
        case "template":
            change_template(found)
        case "problems":
            Path("problems.jsonl").write_text("{}")
        case "import":
            weights = imported / "model.safetensors"
            weights.write_bytes(weights.read_bytes() + b" ")
            os.utime(weights, (2**33, 2**33))
    assert run_status(layout, run).state == ("trained" if change == "nothing" else "outdated")


def test_the_record_names_every_file_that_transformers_reads(found):
    make_model("smoke", ROLE, Layout("smoke").model(ROLE))
    record = read_json(Layout("smoke").model(ROLE) / SOURCE)
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= record.keys()
    assert {name: entry["sha256"] for name, entry in record.items()} == {name: sha256(found / name) for name in record}
