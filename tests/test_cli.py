"""The command: what it prints, and that a mistake is one message with exit code 2 and no traceback."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from redraft.analysis.data.sequential import nominal_level, write_looks
from redraft.analysis.reference import reopening
from redraft.analysis.reference.published import Published
from redraft.cli import summary
from redraft.cli.app import StageGroup, function_of, main
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import read_json
from redraft.layout import REOPENED, Layout
from redraft.ops.workflow import code_hash
from redraft.result_files import write_own_hash
from tests.checkout import called
from tests.finished import CELLS, SECONDS, finish, grade

ROOT = Path(__file__).parents[1]


def redraft(folder, *arguments):
    return called(folder, "redraft", *arguments, limit=120)


def test_list_names_every_cell(folder):
    result = redraft(folder, "list", "--wide")
    assert result.returncode == 0
    header, *rows = (re.split(r" {2,}", line) for line in result.stdout.splitlines())
    listed = [row[0] for row in rows]
    assert header == ["cell", "model", "data", "reuse", "schedule", "decoding", "state"]
    cell = ["efficient_rollout/speed-threshold", "qwen2.5-7b", "simplerl-8k", "vanilla", "speed", "threshold"]
    assert [*cell, "0/3 done"] in rows
    experiments = Experiments(ROOT)
    assert listed == [cell.id for paper in experiments.papers for cell in experiments.cells(paper)]
    assert {"spec_rl/grpo-vanilla", "spec_rl/14b-dapo-spec-l0.15", "spec_rl/grpo-spec-l0.5-u16"} <= set(listed)


def test_show_prints_a_complete_run(folder):
    result = redraft(folder, "show", "spec_rl/grpo-spec-l0.5", "--seed", "3")
    shown = yaml.safe_load(result.stdout)
    assert (shown["seed"], shown["reuse"], shown["trainer"]["group_size"]) == (
        3,
        {"kind": "speculative", "lenience": "e^0.5", "fresh_every": 0},
        4,
    )


def test_a_cell_that_the_engine_cannot_train_is_refused_before_any_job(folder):
    (folder / "Snakefile").touch()
    result = redraft(folder, "run", "efficient_rollout/self-sd", "--preset", "verl-tiny")
    words = ["engine.kind verl", "speculation", "decoding", "self_speculation", "engine.kind: torch"]
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert not (folder / "results").exists()


def test_status_counts_what_waits_and_recover_finds_nothing_to_do(folder):
    result = redraft(folder, "status", "--preset", "smoke")
    assert result.returncode == 0, result.stderr
    assert "waiting" in result.stdout
    (folder / "results").mkdir()
    result = redraft(folder, "recover")
    assert (result.returncode, result.stdout) == (0, "nothing to do\n"), result.stderr


TRAIN, GRADE = "redraft.train.job:train", "redraft.evaluate.grade:grade_policies"
RULES = re.compile(r"^(?:use )?rule (\w+).*?(?=^(?:use )?rule |\Z)", flags=re.M | re.S)
STAGE = r"redraft stage (\S+)|\"stage\", \"(\S+)\""


def test_every_function_that_a_rule_runs_is_a_command():
    files = [*(ROOT / "workflows/rules").glob("*.smk"), ROOT / "src/redraft/ops/workflow/plan.py"]
    called = {first or second for file in files for first, second in re.findall(STAGE, file.read_text())}
    assert len(called) == 24
    group = StageGroup(name="stage")
    assert {group.get_command(click.Context(group), name).name for name in called} == called


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "os:remove",
        "redraft.nothing:train",
        "redraft.train.job:nothing",
        "redraft.train.job:_train",
        "redraft.train.job:lease",
        "redraft.train.job.train",
        "redraft.train.job:Path",
    ],
)
def test_a_stage_is_a_public_function_of_this_package_in_the_module_that_defines_it(folder, name):
    assert function_of(name) is None
    result = redraft(folder, "stage", name)
    assert result.returncode == 2
    assert f"No such command '{name}'" in result.stderr


def test_a_rule_s_hash_is_of_the_code_that_it_runs():
    rules = {m[1]: m[0] for file in (ROOT / "workflows/rules").glob("*.smk") for m in RULES.finditer(file.read_text())}
    hashed = {name: re.findall(r'code_of\(\s*"(.*)"\s*\)', text) for name, text in rules.items() if "code_of" in text}
    assert set(hashed) == {
        "collect",
        "choose_cases",
        "cases",
        "report",
        "lighteval",
        "measure",
        "tables",
        "figures",
        "claims",
        "track",
        "grade",
        "diversity",
        "distributions",
        "observe",
    }
    assert all(re.findall(r"redraft stage (\S+)", rules[name]) == stage for name, stage in hashed.items())
    assert len({code_hash.code_of(stage) for (stage,) in hashed.values()}) == len(hashed)


def test_a_stage_is_imported_when_it_is_called():
    late = {"redraft.analysis", "redraft.train", "pandas", "torch"}
    code = f"import sys, redraft.cli.app; print(*{late} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "nothing"], ["no such paper", "nothing", "spec_rl"]),
        (["status", "--grid", "nothing"], ["nothing", "core"]),
        (["show", "spec_rl/grpo-spec-l9"], ["no such cell", "spec_rl/grpo-spec-l0.5"]),
        (["show", "spec_rl/grpo-vanilla-l2"], ["excluded", "no draft"]),
        (["show", "spec_rl/grpo-vanilla", "--preset", "huge"], ["'huge'", "no such preset", "tiny"]),
        (["show", "spec_rl/grpo-vanilla", "--seed", "-1"], ["seed", "-1"]),
        (["show", "spec_rl/grpo-vanilla", "--backend", "trl"], ["--backend", "trl", "verl"]),
        (["run", "spec_rl/grpo-vanilla", "--seed", "1", "--seed", "1"], ["twice", "--seed", "1"]),
        (["run", "spec_rl/grpo-vanilla-l2"], ["excluded"]),
        (["compare", "spec_rl/grpo-vanilla", "spec_rl/grpo-spec-l0"], ["not finished", "redraft run"]),
        (["compare", "spec_rl/nothing", "spec_rl/none", "--preset", "huge"], ["'huge'", "no such preset", "tiny"]),
        (["stage", "redraft.analysis.tables.files:write_tables", "tiny", "spec_rl"], ["measured.json", "missing"]),
        (["stage", "redraft.analysis.measuring:measure", "tiny", "spec_rl"], ["collected.json", "missing"]),
        (
            ["stage", GRADE, "tiny", "tiny", "nothing.parquet", "scores.json"],
            ["nothing.json", "missing"],
        ),
        (["stage", "redraft.evaluate.diversity:measure_run", ".", "0", "out.parquet"], ["no saved rollouts"]),
        (
            ["stage", TRAIN, "tiny", "spec_rl/grpo-vanilla", "0", "no-model", "out"],
            ["no-model", "no model"],
        ),
        (["stage", "redraft.train.initial_policy:make_model", "tiny", "gpt-9", "out"], ["gpt-9", "qwen3-1.7b-base"]),
        (
            ["stage", TRAIN, "paper", "spec_rl/grpo-vanilla", "0", "no-model", "out"],
            ["engine.gpus", "8", "this machine has 0"],
        ),
    ],
)
def test_a_mistake_is_one_message(folder, mistake, arguments, words):
    (folder / "Snakefile").touch()
    text = mistake(folder, *arguments)
    assert all(word in text for word in words), text


def test_the_installed_command_ends_a_mistake_in_one_message(folder):
    result = redraft(folder, "status", "nothing")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_compare_is_over_all_seeds_of_both_cells_with_the_tables_relations_and_intervals(folder):
    """Seeds 0 and 1 of both; of the first cell seed 2 as well, which has no partner."""
    runs = [((3, 2), (1000, 300), (2.0, 1.0)), ((3, 0), (1000, 500), (2.0, 0.5))]
    for seed, (correct, tokens, seconds) in enumerate(runs):
        for cell, k, decoded, rollout in zip(CELLS, correct, tokens, seconds, strict=True):
            finish(folder, cell, seed=seed, correct=k, tokens_decoded=decoded, seconds=SECONDS | {"rollout": rollout})
    finish(folder, CELLS[0], seed=2, correct=4)
    result = redraft(folder, "compare", *CELLS, "--wide")
    assert result.returncode == 0, result.stderr
    header, *rows = (re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines())
    assert header == ["quantity", *CELLS, "second vs first", "95 % interval", "seeds"]
    lines = {row[0]: row[1:] for row in rows}
    # Student's t of one degree of freedom is 12.7062. Ratios have the mean and the interval of their logarithms.
    assert lines["tokens_decoded (tokens)"] == ["30,000", "12,000", "0.387 ×", "[0.015, 9.942]", "2"]
    assert lines["rollout_seconds (s)"] == ["60", "22.500", "2.828 × as fast", "[0.035, 231.217]", "2"]
    assert lines["accuracy:arithmetic (%)"] == ["75", "25", "-50 points", "[-367.655, 267.655]", "2"]
    assert lines["accuracy:all (%)"] == lines["accuracy:arithmetic (%)"]
    assert lines["fresh_reward"] == ["-", "-", "-", "[-, -]", "0"]
    # On the one benchmark the second cell is worse with both seeds.
    assert lines["probability of improvement"][2:] == ["0", "[-, -]", "2"]


def test_the_intervals_of_a_sequential_campaign_are_those_of_its_level(folder):
    for seed, tokens in enumerate((300, 500)):
        finish(folder, CELLS[0], seed=seed, tokens_decoded=1000)
        finish(folder, CELLS[1], seed=seed, tokens_decoded=tokens)
    looks = (2, 3)
    write_looks(Layout("tiny", folder / "results").looks("spec_rl"), looks)
    rows = [
        re.split(r" {2,}", line.strip()) for line in redraft(folder, "compare", *CELLS, "--wide").stdout.splitlines()
    ]
    logs = np.log([0.3, 0.5])
    half = stats.t.ppf(1 - nominal_level(0.05, looks) / 2, 1) * stats.sem(logs)
    low, high = np.exp(logs.mean() + half * np.array([-1, 1]))
    assert f"[{low:.3f}, {high:.3f}]" in next(row for row in rows if row[0].startswith("tokens_decoded"))


def test_the_probability_of_improvement_counts_benchmarks_and_halves_ties():
    first = {0: {"accuracy:a": 10.0, "accuracy:b": 20.0, "accuracy:all": 15.0, "reward": 1.0}}
    first |= {1: first[0], 2: first[0]}
    changes = {0: (1.0, 2.0), 1: (0.0, -3.0), 2: (5.0, -1.0)}
    second = {
        seed: {"accuracy:a": 10.0 + a, "accuracy:b": 20.0 + b, "accuracy:all": 99.0, "reward": 9.0}
        for seed, (a, b) in changes.items()
    }
    assert summary._better(first, second) == {0: 1.0, 1: 0.25, 2: 0.5}


SMOKE = ("spec_rl/grpo-vanilla", "spec_rl/grpo-spec-linf")


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """The published results of the smoke preset, unpacked without making tables and a report again."""
    published, layout = Published.read(ROOT / "results/reference/smoke"), Layout("smoke", tmp_path / "results")
    reopening._unpack(published, "spec_rl", layout)
    (layout.folder / REOPENED).touch()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    return Layout("smoke")


def test_unpacked_runs_are_compared_by_the_collected_data(unpacked, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", *SMOKE, "--preset", "smoke", "--json"])
    assert not end.value.code
    rows = {row["quantity"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    steps = pd.read_parquet(unpacked.collected("spec_rl") / "steps.parquet")
    tokens = steps.groupby(["cell", "seed"])["tokens_decoded"].sum()
    for key, cell in zip(("first", "second"), SMOKE, strict=True):
        assert rows["tokens_decoded"][key] == tokens[cell.partition("/")[2]].mean()
    assert rows["tokens_decoded"]["against"] < 1


def test_an_unpacked_run_that_was_not_collected_is_an_error(unpacked, mistake):
    file = unpacked.run(SMOKE[1], 0) / "scores.json"
    file.write_text(re.sub(r'"correct": \d+', '"correct": 1', file.read_text(), count=1))
    text = mistake(Path.cwd(), "compare", *SMOKE, "--preset", "smoke")
    assert "not the one that was collected" in text
    assert "redraft report" in text
    (unpacked.folder / REOPENED).unlink()
    assert "missing" in mistake(Path.cwd(), "compare", *SMOKE, "--preset", "smoke"), "it is not said to be unpacked"


@pytest.mark.parametrize(("correct", "interval"), [((3, 3, 3), None), ((3, 3, 0), (0.0, 1.0))])
def test_the_probability_of_improvement_has_an_interval_only_if_blocks_differ(folder, correct, interval):
    for seed, k in enumerate(correct):
        finish(folder, CELLS[0], seed=seed, correct=1)
        finish(folder, CELLS[1], seed=seed, correct=k)
    rows = [
        re.split(r" {2,}", line.strip()) for line in redraft(folder, "compare", *CELLS, "--wide").stdout.splitlines()
    ]
    (row,) = [row for row in rows if row[0] == "probability of improvement"]
    shown = "[-, -]" if interval is None else f"[{interval[0]:.0f}, {interval[1]:.0f}]"
    assert (row[3], row[4]) == ("1" if interval is None else "0.667", shown)


def test_one_seed_has_no_interval(folder):
    for cell, reward in zip(CELLS, (0.5, 0.25), strict=True):
        finish(folder, cell, reward=reward)
    rows = [
        re.split(r" {2,}", line.strip()) for line in redraft(folder, "compare", *CELLS, "--wide").stdout.splitlines()
    ]
    assert ["reward", "0.500", "0.250", "-0.250", "[-, -]", "1"] in rows


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "scores.json").unlink(), ["not finished", "scores.json", "redraft run"]),
        (lambda run: (run / "steps.jsonl").write_text(""), ["steps.jsonl", "differs from the hash in manifest.json"]),
        (lambda run: edited(run / "scores.json", '"correct": 0', '"correct": 9'), ["scores.json", "differs", "grades"]),
        (lambda run: edited(run / "manifest.json", "90.25", "9.25"), ["generations.json", "made from other files"]),
        (lambda run: (run / "grades.json").write_text("[]"), ["grades.json", "wrong type", "the whole file"]),
        (lambda run: (run / "scores.json").write_text("null"), ["scores.json", "differs from the hash"]),
        (lambda run: (run / "manifest.json").write_text("[]"), ["manifest.json", "wrong type", "the whole file"]),
        (lambda run: (run / "manifest.json").write_text("{}"), ["manifest.json", "lacks a key", "fingerprint"]),
        (
            lambda run: (run / "manifest.json").write_text(
                '{"fingerprint": "0123", "identity": {"dtype": "bfloat16"}}'
            ),
            ["manifest.json", "another precision", "bfloat16", "auto"],
        ),
        (
            lambda run: (run / "manifest.json").write_text('{"fingerprint": "0123"}'),
            ["manifest.json", "another configuration", "0123"],
        ),
    ],
)
def test_compare_refuses_what_is_not_a_finished_run_of_today(folder, mistake, damage, words):
    runs = [finish(folder, cell) for cell in CELLS]
    damage(runs[1])
    text = mistake(folder, "compare", *CELLS)
    assert all(word in text for word in words), text


def edited(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def tracked(layout):
    """Runs in the database after an import: (name, step count, accuracy), by name."""
    from mlflow.tracking import MlflowClient

    from redraft.ops.workflow.tracking import import_runs

    import_runs(layout, "spec_rl")
    client = MlflowClient(f"sqlite:///{layout.tracking}")
    experiment = client.get_experiment_by_name("tiny/spec_rl").experiment_id
    found = [
        (
            run.info.run_name,
            len(client.get_metric_history(run.info.run_id, "reward")),
            run.data.metrics.get("accuracy.arithmetic"),
        )
        for run in client.search_runs([experiment])
    ]
    return sorted(found)


def test_mlflow_holds_each_run_once_and_as_it_was_graded_last(folder):
    layout = Layout("tiny", folder / "results")
    runs = [finish(folder, cell) for cell in CELLS]
    before = [("spec_rl/grpo-spec-l0/seed0", 30, 0.75), ("spec_rl/grpo-vanilla/seed0", 30, 0.75)]
    assert tracked(layout) == tracked(layout) == before
    grade(runs[0], 1)
    assert tracked(layout) == [before[0], ("spec_rl/grpo-vanilla/seed0", 30, 0.25)]


def test_a_manifest_that_was_edited_is_not_imported(folder):
    manifest = finish(folder, CELLS[0]) / "manifest.json"
    write_own_hash(manifest)
    content = read_json(manifest)
    manifest.write_text(json.dumps(content | {"seconds": content["seconds"] / 2}))
    with pytest.raises(UserError, match="differs from the hash in manifest.json.sha256"):
        tracked(Layout("tiny", folder / "results"))


def test_runs_of_all_pages_of_a_search_are_known(folder, monkeypatch):
    from redraft.ops.workflow import tracking

    layout = Layout("tiny", folder / "results")
    for cell in CELLS:
        finish(folder, cell)
    monkeypatch.setattr(tracking, "FOUND", 1)
    assert len(tracked(layout)) == len(tracked(layout)) == 2, "those of all pages are known, and not imported twice"


def test_an_experiment_that_was_deleted_in_mlflow_is_restored_with_one_sentence(folder, capsys):
    from mlflow.tracking import MlflowClient

    layout = Layout("tiny", folder / "results")
    finish(folder, CELLS[0])
    before = tracked(layout)
    client = MlflowClient(f"sqlite:///{layout.tracking}")
    client.delete_experiment(client.get_experiment_by_name("tiny/spec_rl").experiment_id)
    assert tracked(layout) == before
    assert capsys.readouterr().err.count("the experiment tiny/spec_rl was deleted; it is restored\n") == 1


def of_another_version(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of-the-future'")


@pytest.fixture(scope="module")
def made_before(tmp_path_factory):
    """A database that another process has made of a run; MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    finish(folder, CELLS[0])
    subprocess.run([sys.executable, "-c", IMPORT, str(folder / "results"), "spec_rl"], capture_output=True, check=True)
    return Layout("tiny", folder / "results").tracking


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (of_another_version, "it is of another version of MLflow"),
        (lambda database: database.write_bytes(b"garbage" * 200), "it is damaged"),
        (lambda database: database.write_bytes(b""), "it is of another version of MLflow"),
    ],
)
def test_a_database_that_mlflow_cannot_read_is_made_again_with_all_papers(damage, reason, folder, made_before, capsys):
    from redraft.ops.workflow.tracking import _unreadable

    layout = Layout("tiny", folder / "results")
    finish(folder, CELLS[0])
    shutil.copy(made_before, layout.tracking)
    assert not _unreadable(layout.tracking)
    earlier = layout.tracking.with_name("mlflow.db.old")
    earlier.write_text("an earlier one")
    damage(layout.tracking)
    assert reason in _unreadable(layout.tracking)
    assert tracked(layout) == [("spec_rl/grpo-vanilla/seed0", 30, 0.75)]
    (sentence,) = (line for line in capsys.readouterr().err.splitlines() if str(layout.tracking) in line)
    assert reason in sentence
    assert earlier.read_text() == "an earlier one"
    assert layout.tracking.with_name("mlflow.db.old1").exists()
    assert not _unreadable(layout.tracking)


IMPORT = """
import sys
from pathlib import Path
from redraft.layout import Layout
from redraft.ops.workflow.tracking import import_runs
import_runs(Layout("tiny", Path(sys.argv[1])), sys.argv[2])
"""


def test_papers_are_imported_one_after_the_other(folder, monkeypatch):
    from redraft.ops.workflow import tracking

    inside, most = [], []

    def slow_import(layout, paper):
        inside.append(paper)
        most.append(len(inside))
        time.sleep(0.2)
        inside.remove(paper)
        return []

    monkeypatch.setattr(tracking, "_tracked", slow_import)
    layout = Layout("tiny", folder / "results")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda paper: tracking.import_runs(layout, paper), ["spec_rl", "ours", "theirs"]))
    assert most == [1, 1, 1]
    assert all((layout.collected(paper) / "tracked.json").exists() for paper in ("spec_rl", "ours", "theirs"))


def test_mlflow_has_the_times_of_training_and_counts_steps_and_epochs_from_1(folder):
    from mlflow.tracking import MlflowClient

    layout = Layout("tiny", folder / "results")
    finish(folder, CELLS[0])
    tracked(layout)
    client = MlflowClient(f"sqlite:///{layout.tracking}")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny/spec_rl").experiment_id])
    start, end = (
        1000 * int(datetime.fromisoformat(f"2026-11-01T{at}+00:00").timestamp()) for at in ("08:00:00", "08:31:02")
    )
    assert (run.info.start_time, run.info.end_time) == (start, end), "not those of the import"
    assert run.data.metrics["training_seconds"] == 90.25
    history = {key: client.get_metric_history(run.info.run_id, key) for key in ("step", "epoch", "accuracy.arithmetic")}
    assert (
        [metric.step for metric in history["step"]] == [metric.value for metric in history["step"]] == [*range(1, 31)]
    )
    assert [metric.value for metric in history["epoch"]] == [1] * 15 + [2] * 15
    # Steps take 4 s and the last one 16, 132 together, on which the 1,862 s from start to end are spread.
    gone = [(metric.timestamp - start) / 1000 for metric in history["step"]]
    assert gone == pytest.approx([1862 * 4 * i / 132 for i in range(1, 30)] + [1862], abs=0.001)
    policies = [(metric.step, metric.value, metric.timestamp) for metric in history["accuracy.arithmetic"]]
    ended = {metric.step: metric.timestamp for metric in history["step"]}
    assert policies == [(9, 0.0, ended[9]), (30, 0.75, ended[30])], "a policy is named by the steps that it has done"


def test_what_an_earlier_version_imported_is_imported_anew(folder, monkeypatch):
    from redraft.ops.workflow import tracking

    layout = Layout("tiny", folder / "results")
    finish(folder, CELLS[0])
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "VERSION", 1)
        patch.setattr(tracking, "COUNTED", ())
        tracked(layout)
    from mlflow.tracking import MlflowClient

    tracked(layout)
    client = MlflowClient(f"sqlite:///{layout.tracking}")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny/spec_rl").experiment_id])
    assert run.data.metrics["step"] == 30


def test_a_killed_import_is_replaced(folder, monkeypatch):
    from mlflow.tracking import MlflowClient

    layout = Layout("tiny", folder / "results")
    finish(folder, CELLS[0])
    logged = MlflowClient.log_batch

    def killed(self, run_id, metrics=(), **others):
        logged(self, run_id, metrics=metrics[:1], **others)
        if metrics:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            tracked(layout)
    assert tracked(layout) == [("spec_rl/grpo-vanilla/seed0", 30, 0.75)]


def test_no_space_left_is_one_message_and_keeps_what_was_there(tmp_path, monkeypatch):
    import errno

    from redraft.errors import UserError
    from redraft.files import write_atomically

    file = tmp_path / "scores.json"
    write_atomically(file, "old")

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="no space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
