"""Runs that a paper takes from another one (`runs_from`): which ones, what is taken, and what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from redraft.analysis.cost.campaign_cost import wanted
from redraft.config import Experiments, run_fingerprint, training_fingerprint
from redraft.config.site import Site
from redraft.config.taken_runs import taken_cells
from redraft.errors import UserError
from redraft.evaluate.taken_generations import take_generations
from redraft.files import read_json, read_json_lines, sha256
from redraft.layout import Layout
from redraft.ops.locking.lease import participants
from redraft.ops.workflow.plan import Call, CampaignPlan, check_paper
from redraft.ops.workflow.rule_inputs import RuleInputs
from redraft.result_files import read_manifest, write_with_hash
from redraft.train.records import append_record
from redraft.train.taken_run import take_run
from tests.checkout import ROOT, snakemake

CELL, ORIGIN = "exact_reuse/vanilla", "spec_rl/grpo-vanilla"
LAYOUT = Layout("smoke")
KINDS = ("trained", "taken", "sampled", "taken_generations")
OF_TRAINING = ("inputs", "git", "machine", "seconds", "finished", "sha256")


def taken(root, preset):
    experiments = Experiments(root)
    return taken_cells(experiments, experiments.preset(preset))


def edit(folder, paper, old, new):
    file = folder / f"experiments/{paper}/cells.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_equal_cells_are_taken_and_no_others():
    experiments = Experiments(ROOT)
    for name in ("smoke", "smol", "tiny"):
        preset, found = experiments.preset(name), taken(ROOT, name)
        assert found
        for cell, origin in found.items():
            assert cell.partition("/")[0] != origin.partition("/")[0]
            for seed in (0, 7):  # of another block at the preset tiny
                own, other = (experiments.run(each, seed, preset.name) for each in (cell, origin))
                assert training_fingerprint(own) == training_fingerprint(other)
                assert own.model_copy(update={"paper": other.paper, "cell": other.cell}) == other
    assert taken(ROOT, "smol")[CELL] == ORIGIN
    assert CELL not in taken(ROOT, "tiny"), "its own number of epochs at this preset"
    assert "exact_reuse/residual" not in taken(ROOT, "smol")


def test_a_difference_in_anything_but_the_names_is_another_run(folder):
    assert taken(folder, "smoke")[CELL] == ORIGIN
    edit(folder, "exact_reuse", "{kind: grpo}}", "{kind: grpo}, trainer: {weight_decay: 0.02}}")
    assert CELL not in taken(folder, "smoke")


@pytest.mark.parametrize(
    ("paper", "value", "message"),
    [
        ("exact_reuse", "[spec_r]", "no such paper"),
        ("exact_reuse", "[exact_reuse]", "no such paper"),
        ("spec_rl", "[cheap_rollouts]", "take runs from each other"),
    ],
)
def test_mistakes_in_runs_from(folder, paper, value, message):
    file = folder / f"experiments/{paper}/cells.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("runs_from")]
    file.write_text("\n".join([lines[0], f"runs_from: {value}", *lines[1:]]))
    experiments = Experiments(folder)
    with pytest.raises(UserError, match=message) as error:
        check_paper(experiments, experiments.preset("smoke"), paper)
    assert error.value.file == file
    assert error.value.key == "runs_from"


def test_a_mistake_in_a_paper_s_file_concerns_no_other_paper(folder):
    (folder / "experiments/cheap_rollouts/cells.yaml").write_text("title: [")
    found = taken(folder, "smoke")
    assert found[CELL] == ORIGIN
    assert not any(cell.startswith("cheap_rollouts") for cell in found)


def test_a_paper_s_own_file_may_be_named_as_a_file_of_cells():
    for paper in ("exact_reuse", "spec_rl"):
        experiments = Experiments(ROOT, cells=ROOT / f"experiments/{paper}/cells.yaml")
        assert taken_cells(experiments, experiments.preset("smoke"))[CELL] == ORIGIN


def test_costs_count_a_taken_run_once():
    experiments = Experiments(ROOT)
    preset = experiments.preset("smoke")
    found = wanted(experiments, preset, ["exact_reuse", "spec_rl/pair"])
    assert "vanilla" not in [cell.name for cell in found["exact_reuse"]]
    assert [cell.id for cells in found.values() for cell in cells].count(ORIGIN) == 1


@pytest.fixture(scope="module")
def other(campaign, tmp_path_factory):
    """The finished campaign of SPEC-RL with runs of another paper, which takes them."""
    folder = tmp_path_factory.mktemp("taken") / "campaign"
    shutil.copytree(campaign, folder, symlinks=True)
    wanted = [LAYOUT.run(CELL, seed) / "scores.json" for seed in (0, 1)]
    wanted += [LAYOUT.run(CELL, 0) / "diversity.parquet"]
    result = snakemake(folder, "papers=exact_reuse", "--", *map(str, wanted))
    assert result.returncode == 0, result.stderr[-3000:]
    return folder, result.stderr


def test_nothing_is_trained_or_sampled_again(other):
    folder, terminal = other
    assert "2 take_run" in terminal
    assert "train" not in terminal.replace("trained", "")
    assert "generate" not in terminal
    for seed in (0, 1):
        own, origin = (folder / LAYOUT.run(cell, seed) for cell in (CELL, ORIGIN))
        for name in ("scores.json", "generations.parquet", "steps.jsonl"):
            assert sha256(own / name) == sha256(origin / name), name
        assert read_json(own / "scores.json"), "graded under its own name"


def test_the_manifest_has_the_names_of_the_cell_and_what_was_trained(other):
    folder, _ = other
    own, origin = (read_manifest(folder / LAYOUT.run(cell, 1) / "manifest.json") for cell in (CELL, ORIGIN))
    run = Experiments(ROOT).run(CELL, 1, "smoke")
    assert own["run"] == f"{CELL}/seed1"
    assert own["identity"] == run.identity
    assert own["configuration"]["cell"] == "vanilla"
    assert own["taken_from"] == f"{ORIGIN}/seed1"
    assert {key: own[key] for key in OF_TRAINING} == {key: origin[key] for key in OF_TRAINING}


def test_training_it_gives_the_same_run_bit_by_bit(other, tmp_path):
    folder, _ = other
    again = tmp_path / "again"
    shutil.copytree(folder, again, ignore=shutil.ignore_patterns("runs"))
    edit(again, "exact_reuse", "runs_from: [spec_rl]\n", "")
    manifest = LAYOUT.run(CELL, 1) / "manifest.json"
    result = snakemake(again, "papers=exact_reuse", "--", str(manifest))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "1 train" in result.stderr
    trained, found = (read_manifest(root / manifest)["sha256"] for root in (again, folder))
    of_steps = {name for name in trained if name != "steps.jsonl"}  # which have times
    assert len(of_steps) > 6
    assert {name: trained[name] for name in of_steps} == {name: found[name] for name in of_steps}


@pytest.fixture
def copy(other, tmp_path, monkeypatch):
    """A copy of these runs, as the working directory."""
    folder = tmp_path / "copy"
    shutil.copytree(other[0], folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def states(folder):
    return {
        file: (file.stat().st_mtime_ns, file.stat().st_mode, sha256(file))
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_nothing_that_happens_to_one_run_changes_the_other(copy):
    own, origin = LAYOUT.run(CELL, 0), LAYOUT.run(ORIGIN, 0)
    for file in origin.rglob("*.safetensors"):
        file.chmod(0o400)  # as in an archive
    before = states(origin)
    take_run("smoke", CELL, 0, origin / "manifest.json", own / "manifest.json")
    take_generations("smoke", "smoke", 0, origin / "generations.json", own / "generations.parquet")
    for name in ("manifest.json", "generations.parquet", "generations.json", "steps.jsonl"):
        (own / name).touch()  # as Snakemake touches outputs
    append_record(own / "steps.jsonl", read_json_lines(own / "steps.jsonl")[-1])
    shutil.rmtree(own / "rollouts")
    assert states(origin) == before


def test_the_paper_that_was_taken_from_has_nothing_to_do_again(other):
    folder, _ = other
    wanted = [str(LAYOUT.run(ORIGIN, seed) / "scores.json") for seed in (0, 1)]
    # By times alone: Snakemake compares the content of small files instead.
    result = snakemake(folder, "papers=spec_rl", "-n", "--max-checksum-file-size", "0", "--", *wanted)
    assert "Nothing to be done" in result.stderr + result.stdout


def test_the_configuration_is_that_of_training(copy):
    """A default that changed since, or another engine, is not that of the run."""
    origin, own = LAYOUT.run(ORIGIN, 0) / "manifest.json", LAYOUT.run(CELL, 0) / "manifest.json"
    changed(origin, configuration__trainer__temperature=0.7, configuration__engine__threads=8)
    take_run("smoke", CELL, 0, origin, own)
    configuration = read_manifest(own)["configuration"]
    assert configuration["trainer"]["temperature"] == 0.7
    assert configuration["engine"]["threads"] == 8
    assert (configuration["paper"], configuration["cell"]) == ("exact_reuse", "vanilla")


def test_a_taken_run_can_be_taken_again_and_names_the_one_that_was_trained(copy):
    cell = "cheap_rollouts/vanilla"
    file = LAYOUT.run(cell, 0) / "manifest.json"
    take_run("smoke", cell, 0, LAYOUT.run(CELL, 0) / "manifest.json", file)
    assert read_manifest(file)["taken_from"] == f"{ORIGIN}/seed0"
    assert read_manifest(file)["run"] == f"{cell}/seed0"


def test_taking_is_no_process_of_training(other):
    run = Experiments(ROOT).run(CELL, 0, "smoke")
    assert participants(other[0] / LAYOUT.run(CELL, 0), run_fingerprint(run), run.steps) == []


def test_a_run_without_its_rollouts_cannot_be_taken(copy):
    own, origin = LAYOUT.run(CELL, 0), LAYOUT.run(ORIGIN, 0)
    shutil.rmtree(origin / "rollouts")
    before = states(own)
    with pytest.raises(UserError, match="rollouts of this run were removed") as error:
        take_run("smoke", CELL, 0, origin / "manifest.json", own / "manifest.json")
    assert str(origin) in error.value.hint
    assert states(own) == before


def test_a_paper_with_another_protocol_is_evaluated_itself(folder):
    preset = folder / "experiments/presets/smol.yaml"
    preset.write_text(preset.read_text() + "\nprotocols: {exact_reuse: short}\n")
    plan = CampaignPlan(Call.of({"preset": "smol"}), Experiments(folder), lambda: (), {}, main=False)
    inputs = RuleInputs(plan, Site())
    path = f"{CELL}/seed0"
    matched = {kind: bool(re.match(inputs.papers_of(kind), path)) for kind in KINDS}
    assert matched == {"trained": False, "taken": True, "sampled": True, "taken_generations": False}
    assert re.match(inputs.papers_of("taken_generations"), "cheap_rollouts/vanilla/seed0")
    assert re.match(inputs.papers_of("trained"), "exact_reuse/vanilla-2/seed0"), "the whole name decides"


def changed(file: Path, **changes):
    content = json.loads(file.read_text())
    for path, value in changes.items():
        *parts, last = path.split("__")
        at = content
        for part in parts:
            at = at[part]
        at[last] = value
    write_with_hash(file, content)


def test_a_run_of_another_configuration_is_refused(copy):
    origin = LAYOUT.run(ORIGIN, 0) / "manifest.json"
    changed(origin, identity__seed=1)
    with pytest.raises(UserError, match="not that of exact_reuse/vanilla") as error:
        take_run("smoke", CELL, 0, origin, LAYOUT.run(CELL, 0) / "manifest.json")
    assert (error.value.key, error.value.value, error.value.allowed) == ("identity.seed", 1, "0")


def test_records_that_were_edited_are_refused(copy):
    own, origin = LAYOUT.run(CELL, 0), LAYOUT.run(ORIGIN, 0)
    records = origin / "steps.jsonl"
    records.write_text(records.read_text().replace('"epoch": 0', '"epoch": 1', 1))
    before = sha256(own / "steps.jsonl")
    with pytest.raises(UserError, match="differs from the hash"):
        take_run("smoke", CELL, 0, origin / "manifest.json", own / "manifest.json")
    assert sha256(own / "steps.jsonl") == before, "nothing is lost"


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("generations.json", {"seed": 1}, "in another way"),
        ("generations.json", {"sampled": "0" * 16}, "in another way"),
        ("generations.json", {"made_from": {"manifest.json": "0" * 64}}, "made from other files"),
        ("generations.json", {"sha256": {"generations.parquet": "0" * 64}}, "differs from the hash"),
    ],
)
def test_generations_of_something_else_are_refused(copy, file, changes, message):
    own, origin = LAYOUT.run(CELL, 0), LAYOUT.run(ORIGIN, 0)
    changed(origin / file, **changes)
    before = sha256(own / "generations.parquet")
    with pytest.raises(UserError, match=message):
        take_generations("smoke", "smoke", 0, origin / "generations.json", own / "generations.parquet")
    assert sha256(own / "generations.parquet") == before


def test_generations_of_other_policies_are_refused(copy):
    own, origin = LAYOUT.run(CELL, 0), LAYOUT.run(ORIGIN, 0)
    changed(own / "manifest.json", sha256__added="0" * 64)
    with pytest.raises(UserError, match="of other policies"):
        take_generations("smoke", "smoke", 0, origin / "generations.json", own / "generations.parquet")
