"""`redraft status` tells the state of runs from the files that they leave."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.config import Experiments, run_fingerprint
from redraft.errors import UserError
from redraft.files import hashes, write_json
from redraft.layout import REOPENED, Layout
from redraft.ops.locking.entries import latest
from redraft.ops.locking.lease import EVALUATION, acquire, lease
from redraft.ops.workflow.plan import Call, CampaignPlan
from redraft.ops.workflow.status import STATES, TARGETS, RunStatus, run_status, run_statuses, status_text, target
from tests.checkout import copy_to, snakemake
from tests.finished import finish, grade, removed, trained

ROOT = Path(__file__).parents[1]
CELL = "spec_rl/grpo-spec-l0.5"
RUN = Experiments(ROOT).run(CELL, 0, "tiny")
FINGERPRINT = run_fingerprint(RUN)


def status(layout, experiments, papers=(), grids=()):
    return run_statuses(layout, experiments, target(layout, experiments, papers, grids))


@pytest.fixture
def layout(tmp_path):
    return Layout("tiny", tmp_path)


@pytest.fixture
def folder(layout):
    path = layout.run(CELL, 0)
    path.mkdir(parents=True)
    return path


def records(folder, count):
    (folder / "steps.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(count)) + '{"ste')


def killed(folder, run=FINGERPRINT):
    """Have a process take the folder and die."""
    code = (
        "import os, sys; from pathlib import Path; from redraft.ops.locking.lease import acquire; "
        "acquire(Path(sys.argv[1]), sys.argv[2]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), run], check=False)


def test_a_run_that_nobody_has_begun_waits(layout):
    assert run_status(layout, RUN) == RunStatus(CELL, 0, "waiting", 0, RUN.steps)


def test_a_running_run_names_its_owner_its_heart_beat_and_its_step(layout, folder):
    with lease(folder, FINGERPRINT):
        records(folder, 3)
        entry = latest(folder)
        os.utime(entry.file, (entry.beat - 9, entry.beat - 9))
        found = run_status(layout, RUN)
    assert (found.state, found.step, found.steps) == ("running", 3, RUN.steps)
    assert found.owner.startswith(f"process {os.getpid()} on ")
    assert 9 <= found.age < 60
    assert not found.detail


def edited(file, **changes):
    write_json(file, json.loads(file.read_text()) | changes)


def test_a_run_is_trained_and_then_done(layout, folder):
    with lease(folder, FINGERPRINT):
        trained(folder, RUN)
    assert run_status(layout, RUN).state == "trained"
    grade(folder, 0, RUN.steps)
    assert run_status(layout, RUN).state == "done"
    edited(folder / "manifest.json", seconds=1.0)
    assert run_status(layout, RUN).state == "trained", "it was trained again, and will be evaluated again"


def test_an_unpacked_run_is_complete_without_its_training_files(layout, folder):
    with lease(folder, FINGERPRINT):
        trained(folder, RUN)
    grade(folder, 0, RUN.steps)
    for file in folder.rglob("*"):
        if file.is_file() and file.name not in ("manifest.json", "scores.json"):
            file.unlink()
    assert run_status(layout, RUN).state == "damaged", "no published results were unpacked here"
    (layout.folder / REOPENED).touch()
    found = run_status(layout, RUN)
    assert (found.state, found.step, found.detail) == ("unpacked", RUN.steps, ())
    assert "unpacked" not in status_text([found]).partition("\n")[2], "it needs no line of its own"
    edited(folder / "manifest.json", sha256={"steps.jsonl": "1"})
    assert run_status(layout, RUN).state == "damaged", "the hashes of rollouts and policies are gone"
    edited(folder / "manifest.json", fingerprint="another")
    assert run_status(layout, RUN).state == "outdated"


def shortened(folder):
    file = folder / "steps.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def shortened_with_its_hash(folder):
    shortened(folder)
    edited(folder / "manifest.json", sha256=hashes(folder / "steps.jsonl") | removed(RUN.steps - 1, 9, RUN.steps - 1))


def folder_of_records(folder):
    (folder / "steps.jsonl").unlink()
    (folder / "steps.jsonl").mkdir()


def exchanged(folder):
    """Scores of another run, with the record that belongs to them."""
    grades = json.loads((folder / "grades.json").read_text())
    write_json(folder / "scores.json", {"30": {"arithmetic": {"correct": 4, "total": 4}}})
    digests = grades["sha256"] | hashes(folder / "scores.json")
    write_json(folder / "grades.json", {"sha256": digests, "made_from": {"generations.parquet": "another"}})


DAMAGE = {
    "records without the last line": (shortened, "steps.jsonl", "differs from the hash"),
    "a shorter run": (shortened_with_its_hash, "manifest.json", r"lacks the hash of rollouts/step-0029\.parquet"),
    "a folder of records": (folder_of_records, "steps.jsonl", "a folder and no file"),
    "no records": (lambda folder: (folder / "steps.jsonl").unlink(), "steps.jsonl", "missing"),
    "no hashes": (
        lambda folder: edited(folder / "manifest.json", sha256={}),
        "manifest.json",
        "the hash of steps.jsonl",
    ),
    "no hash of rollouts": (
        lambda folder: edited(folder / "manifest.json", sha256=hashes(folder / "steps.jsonl")),
        "manifest.json",
        r"lacks the hash of rollouts/step-0000\.parquet",
    ),
    "no hash of the last policy": (
        lambda folder: edited(folder / "manifest.json", sha256=hashes(folder / "steps.jsonl") | removed(RUN.steps, 9)),
        "manifest.json",
        "lacks the hash of policies/step-0030",
    ),
    "another run's manifest": (
        lambda folder: edited(folder / "manifest.json", run="spec_rl/grpo-vanilla/seed0"),
        "manifest.json",
        "of another run",
    ),
    "empty generations": (
        lambda folder: write_json(folder / "generations.json", {}),
        "generations.json",
        "lacks a key",
    ),
    "generations without hashes": (
        lambda folder: edited(folder / "generations.json", sha256={}),
        "generations.json",
        "lacks the hash of generations.parquet",
    ),
    "empty grades": (lambda folder: write_json(folder / "grades.json", {}), "grades.json", "lacks a key"),
    "grades without the scores' hash": (
        lambda folder: edited(folder / "grades.json", sha256=hashes(folder / "grades.parquet")),
        "grades.json",
        "lacks the hash of scores.json",
    ),
    "scores of another run": (exchanged, "grades.json", "made from other files"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_finished_run_is_done_only_if_it_has_every_file_and_hash(name, layout, folder):
    damage, file, words = DAMAGE[name]
    trained(folder, RUN)
    os.utime(folder / "manifest.json", (1, 1))
    grade(folder, 0, RUN.steps)
    assert run_status(layout, RUN).state == "done"
    damage(folder)
    os.utime(folder / "manifest.json", (1, 1))
    found = run_status(layout, RUN)
    assert found.state == "damaged"
    assert found.detail[0].startswith(f"{folder / file}: ")
    assert re.search(words, "\n".join(found.detail))


NO_MANIFESTS = [
    None,
    [],
    7,
    {},
    {"fingerprint": FINGERPRINT},
    {"fingerprint": 7},
    {"fingerprint": FINGERPRINT, "sha256": []},
]


@pytest.mark.parametrize("content", NO_MANIFESTS)
def test_a_manifest_of_another_type_is_damage_that_names_the_file(content, layout, folder):
    write_json(folder / "manifest.json", content)
    found = run_status(layout, RUN)
    assert found.state == "damaged"
    assert found.detail[0].startswith(f"{folder / 'manifest.json'}: this file")


@pytest.mark.parametrize("content", [None, [], {"3": 1}, {"x": {}}, {"3": {"gsm8k": {"correct": 9, "total": 4}}}])
def test_scores_that_were_not_graded_are_damage_that_names_the_file(content, layout, folder):
    trained(folder, RUN)
    grade(folder, 0, RUN.steps)
    write_json(folder / "scores.json", content)
    found = run_status(layout, RUN)
    assert found.state == "damaged"
    assert found.detail[0].startswith(f"{folder / 'scores.json'}: this file")
    assert "damaged" in status_text([found])


def test_a_trained_run_that_is_evaluated_is_running_and_not_another_when_that_is_killed(layout, folder):
    with lease(folder, FINGERPRINT):
        trained(folder, RUN)
    with lease(folder, EVALUATION):
        assert run_status(layout, RUN).state == "running"
    killed(folder, EVALUATION)
    assert run_status(layout, RUN).state == "trained"
    (folder / "manifest.json").unlink()
    assert run_status(layout, RUN).state == "failed"


def test_a_run_of_another_configuration_is_outdated(layout, folder):
    write_json(folder / "manifest.json", {"fingerprint": "another", "sha256": {}})
    assert run_status(layout, RUN).state == "outdated"


def test_a_killed_run_shows_how_far_it_was_and_the_end_of_the_log_written_last(layout, folder):
    killed(folder)
    records(folder, 2)
    (folder / "verl.log").write_text("early\n")
    os.utime(folder / "verl.log", (1, 1))
    (folder / "log.txt").write_text("".join(f"line {i}\n" for i in range(30_000)) + "CUDA error\n\n")
    found = run_status(layout, RUN)
    assert (found.state, found.step) == ("failed", 2)
    assert "has ended" in found.detail[0]
    assert found.detail[1].endswith("log.txt:")
    assert found.detail[-2:] == ("  line 29999", "  CUDA error")


def test_a_run_that_ended_in_an_error_says_which(layout, folder):
    with pytest.raises(ValueError, match="x"), lease(folder, FINGERPRINT):
        raise ValueError("x")
    found = run_status(layout, RUN)
    assert found.state == "failed"
    assert "with ValueError" in found.detail[0]


def test_who_cleaned_up_behind_a_killed_run_is_not_its_owner(layout, folder):
    killed(folder)
    owner = latest(folder).content.owner
    acquire(folder).release("recovered")
    found = run_status(layout, RUN)
    assert (found.state, found.owner) == ("failed", str(owner))


def test_an_unreadable_lease_or_manifest_is_no_traceback(layout, folder):
    killed(folder)
    latest(folder).file.write_text("{")
    assert run_status(layout, RUN).state == "running", "its owner may live"
    (folder / "manifest.json").write_text("{")
    os.utime(latest(folder).file, (1, 1))
    assert run_status(layout, RUN).state == "damaged"


def test_all_runs_of_a_preset_are_listed_by_paper_and_grid(layout):
    experiments = Experiments(ROOT)
    preset = experiments.preset("tiny")
    default = status(layout, experiments)
    assert preset.first == ["spec_rl"] != list(preset.default)
    cells = experiments.cells("spec_rl", preset.default["spec_rl"])
    assert [(run.cell, run.seed) for run in default] == [(cell.id, seed) for cell in cells for seed in preset.seeds]
    real = status(Layout("smol"), experiments)
    pair = {cell.id for cell in experiments.cells("spec_rl", ["pair"])}
    assert {run.cell: [r.seed for r in real if r.cell == run.cell] for run in real} == {
        cell.id: [0, 1, 2] if cell.id in pair else [0] for cell in experiments.cells("spec_rl", ["pretrained"])
    }
    grid = experiments.grids("spec_rl", beyond_paper=False)[0]
    some = status(layout, experiments, ["spec_rl"], [grid])
    assert {run.cell for run in some} == {cell.id for cell in experiments.cells("spec_rl", [grid])}
    core = status(layout, experiments, grids=["core"])
    assert {run.cell.partition("/")[0] for run in core} == {"spec_rl", "speed_rl", "ar3po", "efficient_rollout"}, (
        "one paper has no such grid"
    )
    for unknown in ({"papers": ["no_such_paper"]}, {"grids": ["no-such-grid"]}):
        with pytest.raises(UserError):
            status(layout, experiments, **unknown)


def test_the_text_counts_first_and_shows_what_needs_attention():
    died = ("it died: process 8 has ended", "log.txt:", "  no")
    runs = [
        RunStatus("p/a", 0, "done", 6, 6),
        RunStatus("p/b", 0, "waiting", 0, 6),
        RunStatus("p/long-name", 1, "running", 3, 6, "process 7 on node3, Slurm job 12", 4.2),
        RunStatus("p/c", 0, "failed", 2, 6, "process 8 on node4", None, died),
    ]
    counts, table, reason = status_text(runs).split("\n\n")
    assert counts == "4 runs: 1 done, 1 running, 1 failed, 1 waiting"
    rows = table.splitlines()
    assert rows[0].split() == ["run", "state", "step", "owner", "heart-beat"]
    assert len(rows) == 3
    assert "p/long-name seed 1" in rows[1]
    assert "4 s ago" in rows[1]
    assert rows[1].index("running") == rows[2].index("failed"), "aligned"
    assert reason == "p/c seed 0: it died: process 8 has ended\nlog.txt:\n  no"
    assert "p/b" in status_text(runs, every=True)
    assert status_text([]) == "0 runs"


def test_every_state_is_counted():
    runs = [RunStatus("p/a", i, state, 0, 1) for i, state in enumerate(STATES)]
    assert all(f"1 {state}" in status_text(runs).splitlines()[0] for state in STATES)


@pytest.mark.parametrize("name", TARGETS)
def test_targets_have_the_runs_that_snakemake_would_train(layout, name):
    experiments = Experiments(ROOT)
    preset = experiments.preset("tiny")
    runs = status(layout, experiments, [name])
    plan = CampaignPlan(Call(preset="tiny"), experiments, lambda: [name], {}, main=False)
    cells = [cell for paper in plan.papers for cell in plan.wanted_cells(paper)]
    assert {(run.cell, run.seed) for run in runs} == {
        (cell.id, seed) for cell in cells for seed in experiments.seeds(cell, preset)
    }
    assert len(runs) == len({(run.cell, run.seed) for run in runs}), "each once, also a base of several cells"
    with pytest.raises(UserError, match="its own grids"):
        target(layout, experiments, [name], ["core"])


def test_status_writes_nothing(layout, folder):
    killed(folder)
    before = {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")}
    status(layout, Experiments(ROOT))
    assert {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")} == before
    assert json.loads(latest(folder).file.read_text())["released"] is None


# What Snakemake would train again.

KEPT, CHANGED, TOUCHED = [("grpo-vanilla", 0), ("grpo-spec-l0.5", 0), ("grpo-vanilla", 1)]
"""Cells and seeds. The seeds have different initial policies."""


def scores_of_finished_run(cell, seed):
    """A run with all files that the workflow makes of it, of which only the records have content."""
    layout = Layout("tiny")
    weights = layout.model(Experiments().run(f"spec_rl/{cell}", seed, "tiny").model_role) / "model.safetensors"
    if not weights.exists():
        weights.parent.mkdir(parents=True)
        weights.write_bytes(bytes(2 * 10**6))  # Snakemake compares times of files from 1 MB on, not contents
    made = finish(Path(), f"spec_rl/{cell}", seed)
    for name in ("generations.parquet", "generations.json", "grades.parquet"):
        (made / name).touch()
    return str(made / "scores.json")


def test_outdated_are_the_runs_that_snakemake_would_train_again(tmp_path, monkeypatch):
    monkeypatch.chdir(copy_to(tmp_path))
    scores = [scores_of_finished_run(*run) for run in (KEPT, CHANGED, TOUCHED)]

    def states():
        runs = status(Layout("tiny"), Experiments(), grids=["core"], papers=["spec_rl"])
        return {(run.cell.partition("/")[2], run.seed): run.state for run in runs if run.state != "waiting"}

    def trained_again():
        plan = snakemake(tmp_path, "-n", "--", *scores, preset="tiny")
        assert plan.returncode == 0, plan.stderr
        jobs = re.findall(r"rule train:.*?cell=(\S+?), seed=(\d+)", plan.stdout + plan.stderr, flags=re.DOTALL)
        return {(cell, int(seed)) for cell, seed in jobs}

    assert set(states().values()) == {"done"}, "without records of Snakemake the runs' own files decide"
    recorded = snakemake(tmp_path, "--touch", "--forceall", "--", *scores, preset="tiny")
    assert recorded.returncode == 0, recorded.stderr
    assert states() == dict.fromkeys((KEPT, CHANGED, TOUCHED), "done")

    cells = tmp_path / "experiments/spec_rl/cells.yaml"
    before = cells.read_text()
    cells.write_text(before.replace("lenience: e^0.5", "lenience: e^0.6"))
    assert cells.read_text() != before
    os.utime(Layout("tiny").model("qwen3-1.7b-base@1") / "model.safetensors")
    assert states() == {KEPT: "done", CHANGED: "outdated", TOUCHED: "outdated"}
    assert trained_again() == {CHANGED, TOUCHED}

    manifest = Layout("tiny").run("spec_rl/grpo-vanilla", 0) / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text()) | {"seconds": 7.0})
    assert states()[KEPT] == "trained", "it would be evaluated again"
    (tmp_path / "Snakefile").write_text("an error")
    assert states()[CHANGED] == "outdated", "its fingerprint is another"
