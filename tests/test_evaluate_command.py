"""`redraft evaluate`: from a model to a table, and the messages of mistakes."""

import io
import json
import os
import shutil
import subprocess
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pandas as pd
import pytest

from redraft.cli.app import main
from redraft.config import Evaluation, Experiments, InProcessEngine, TinyModel
from redraft.config.data import Benchmark, HubProblems, known_sizes
from redraft.errors import UserError
from redraft.evaluate import command
from redraft.evaluate.evaluation_plan import EvaluationRequest, find_policy, plan, usual_backend
from redraft.ops.locking.devices import LOCK_VARIABLE
from redraft.ops.locking.gpus import VISIBLE
from redraft.tasks.problems import missing
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from tests.checkout import called

ROOT = Path(__file__).parents[1]
NAMES = ("arithmetic", "arithmetic-minus", "arithmetic-longer")
DATA = ROOT.parent / "shared/data/benchmarks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the experiments and a random model under `model`."""
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    shape = TinyModel(architecture="qwen3", hidden_size=32, heads=2, head_dim=16, intermediate_size=48)
    models.save(models.initialise(shape, make_tokenizer()), make_tokenizer(), folder / "model")
    return folder


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (4, {4: ""}),
        (900, {900: ""}),
        (1000, {1000: "", 900: "900 of 1000 problems: older"}),
        (1200, {1200: "", 900: "900 of 1200 problems: older"}),
        (2000, {1319: "", 1200: "1200 of 1319 problems: cut", 900: "900 of 1319 problems: older"}),
    ],
)
def test_a_limit_cuts_each_copy_of_a_data_set_and_only_smaller_ones_are_incomplete(limit, expected):
    incomplete = {1200: "cut", 900: "older"}
    data = HubProblems(id="a/b", files=["a"], size=1319, incomplete=incomplete, problem="q", answer="a")
    found = command._limited({"x": Benchmark(data=data)}, limit)["x"].data
    assert {size: missing(found, size) for size in known_sizes(found)} == expected


def evaluate(folder, *arguments, **environment):
    """Standard output and error of the command, called in this process, which has loaded torch already."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main(["evaluate", *arguments])
    assert end.value.code == 0, err.getvalue()
    return out.getvalue(), err.getvalue()


QUICK = ("model", "--protocol", "tiny", "--limit", "4", "--rows", "16", "--threads", "1")


@pytest.fixture(scope="module")
def evaluated(folder):
    """Standard output of the command in a process of its own, and its folder of results."""
    result = called(folder, "redraft", "evaluate", *QUICK, limit=300)
    assert result.returncode == 0, result.stderr
    return result.stdout, next((folder / "results/evaluations").glob("model-*/tiny-redraft-torch-seed0-first4"))


def test_on_a_machine_with_gpus_it_takes_one_and_sees_no_other(folder, tmp_path, monkeypatch):
    """The GPUs are names in the environment, and PyTorch is patched to look like a CUDA build."""
    seen = []
    monkeypatch.chdir(folder)
    monkeypatch.setenv(VISIBLE, "one,two")
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr(command, "_sample_once", lambda *_: seen.append(os.environ[VISIBLE]))
    monkeypatch.setattr(command, "grade", lambda *_: None)
    monkeypatch.setattr(command, "read_scores", lambda _: {"0": {key: {} for key in NAMES}})
    for kind in ("auto", "cpu"):
        asked = EvaluationRequest(
            "model", "tiny", [], Evaluation(), InProcessEngine(device=kind), folder=tmp_path / kind
        )
        command.evaluate(plan(asked, Experiments(folder), tmp_path))
    assert seen == ["one", ""]
    assert usual_backend() == "vllm"


def test_it_prints_counts_and_says_where_everything_is(evaluated):
    printed, where = evaluated
    header, *rows = printed.splitlines()
    assert header.split()[:3] == ["benchmark", "correct", "accuracy"]
    assert {row.split()[0]: row.split()[1].partition("/")[2] for row in rows[:3]} == dict.fromkeys(NAMES, "16")
    assert rows[-1] == str(where.relative_to(where.parents[3]))
    assert len(pd.read_parquet(where / "generations.parquet")) == len(pd.read_parquet(where / "grades.parquet")) == 48
    record = json.loads((where / "evaluation.json").read_text())
    assert record["asked"]["limit"] == 4
    assert record["packages"]["math-verify"] == "0.9.0"
    assert set(record["data"]) == set(NAMES)


def test_another_precision_is_sampled_into_another_folder_and_an_unknown_one_rejected(folder, evaluated):
    _, where = evaluated
    printed, _ = evaluate(folder, *QUICK, "--dtype", "bfloat16")
    other = where.with_name(where.name.replace("seed0-", "seed0-bfloat16-"))
    assert printed.splitlines()[-1] == str(other.relative_to(other.parents[3]))
    assert json.loads((other / "evaluation.json").read_text())["asked"]["dtype"] == "bfloat16"
    assert json.loads((where / "evaluation.json").read_text())["asked"]["dtype"] == "auto"
    result = called(folder, "redraft", "evaluate", *QUICK, "--dtype", "float16", limit=300)
    assert result.returncode != 0
    assert all(word in result.stderr for word in ("dtype", "float16", "bfloat16")), result.stderr


def test_it_says_first_what_it_does_fits_80_columns_and_prints_the_same_as_json(folder, evaluated):
    printed, said = evaluate(folder, *QUICK)
    assert "by the protocol tiny (as requested): arithmetic (4)," in " ".join(said.split())
    assert "48 responses in all" in " ".join(said.split())
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    assert "--wide: more columns" in printed
    found = json.loads(evaluate(folder, *QUICK, "--json")[0])
    assert (found["command"], found["asked"]["protocol"]) == ("evaluate", "tiny")
    assert [row["benchmark"] for row in found["rows"]] == list(NAMES)
    wide = evaluate(folder, *QUICK, "--wide")[0].splitlines()
    assert wide[0].split()[-2:] == ["time-outs", "errors"]
    for row in found["rows"]:
        (line,) = (line.split() for line in wide if line.startswith(f"{row['benchmark']} "))
        assert line[1] == f"{row['correct']}/{row['total']}"
        assert int(line[-4]) == row["truncated"]


def test_again_it_grades_only_and_with_another_model_it_samples_anew(folder, evaluated):
    _, where = evaluated
    before = (where / "generations.parquet").stat().st_mtime_ns
    (where / "scores.json").unlink()
    evaluate(folder, *QUICK)
    assert (where / "generations.parquet").stat().st_mtime_ns == before
    assert (where / "scores.json").exists()
    os.utime(folder / "model/model.safetensors")
    evaluate(folder, *QUICK)
    assert (where / "generations.parquet").stat().st_mtime_ns > before


def test_a_killed_run_with_another_model_does_not_show_the_last_one_s_answers(folder, evaluated):
    _, where = evaluated
    os.utime(folder / "model/model.safetensors")
    again = ("evaluate", *QUICK, "--folder", str(where))
    with subprocess.Popen(["redraft", *again], cwd=folder, stderr=subprocess.PIPE) as process:
        while (where / "generations.parquet").exists() and process.poll() is None:
            time.sleep(0.02)
        process.kill()
    before = time.time_ns()
    evaluate(folder, *QUICK)
    assert (where / "generations.parquet").stat().st_mtime_ns > before


def test_real_problems_of_all_kinds_are_put_and_graded(folder):
    if not DATA.is_dir():
        pytest.skip("third-party data are not part of the repository, and no copies are beside it")
    names = ("amc23", "minerva", "olympiad", "gsm8k", "mmlu_stem", "ifeval")
    tokenizer = make_tokenizer()
    needed = {c for name in names for c in "".join(p.prompt for p in _first(name))} - set(tokenizer.get_vocab())
    tokenizer.add_tokens(sorted(needed))
    shape = TinyModel(architecture="qwen3", hidden_size=32, heads=2, head_dim=16, intermediate_size=48)
    model = models.initialise(shape, tokenizer)
    model.config.max_position_embeddings = 8192
    models.save(model, tokenizer, folder / "wide")
    file = folder / "experiments/benchmarks.yaml"
    file.write_text(file.read_text().replace("max_new_tokens: 4096", "max_new_tokens: 16"))
    arguments = ("--protocol", "greedy", "--benchmarks", ",".join(names), "--limit", "2", "--threads", "1")
    printed, said = evaluate(folder, "wide", *arguments, REDRAFT_DATA=str(DATA))
    counts = dict(row.split()[:2] for row in printed.splitlines()[1 : 1 + len(names)])
    assert list(counts) == list(names)
    assert {count.partition("/")[2] for count in counts.values()} == {"2"}
    assert {counts[name] for name in names[:4]} == {"0/2"}  # noise boxes nothing, and rarely has a comma
    assert "ifeval: prompt_strict " in printed
    assert "540 of 541 problems: a copy that lacks one prompt" in said


def _first(name):
    os.environ["REDRAFT_DATA"] = str(DATA)
    try:
        from redraft.config import Experiments
        from redraft.tasks.problems import load_problems

        return load_problems(Experiments(ROOT).benchmark_file().sets[name].data)[:2]
    finally:
        del os.environ["REDRAFT_DATA"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "--protocol", "tinny"], ["no such protocol", "tinny", "tiny"]),
        (["model", "--protocol", "tiny", "--benchmarks", "arithmetic,sums"], ["sums", "--benchmarks", "arithmetic"]),
        (["model", "--protocol", "tiny", "--backend", "sglang"], ["backend", "sglang", "vllm"]),
        (["./none", "--protocol", "tiny"], ["no such folder", "none"]),
        (["experiments", "--protocol", "tiny"], ["no model", "config.json"]),
        (["model", "--protocol", "spec_rl", "--benchmarks", "amc23"], ["math-ai/amc23", "REDRAFT_DATA"]),
        (["model", "--protocol", "tiny", "--lighteval"], ["instructions only", "ifeval"]),
        (["nobody/nothing", "--protocol", "tiny"], ["nobody/nothing"]),
    ],
)
def test_a_mistake_is_one_message(folder, mistake, arguments, words):
    text = mistake(folder, "evaluate", *arguments)
    for word in words:
        assert word in text


@pytest.fixture
def trained(folder, tmp_path):
    """Makes a run's folder with the policy of a paper's run at a preset; returns the folder of the policy."""

    def make(paper, preset, seed=0):
        policy = tmp_path / "run/policies/step-0010"
        policy.mkdir(parents=True)
        (policy / "config.json").write_text("{}")
        manifest = {"configuration": {"paper": paper, "preset": preset, "seed": seed}}
        (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
        return policy

    return make


def planned(root, model, protocol="", names=(), **more):
    asked = EvaluationRequest(str(model), protocol, list(names), Evaluation(), InProcessEngine(), **more)
    return plan(asked, Experiments(root), Path("results/evaluations"))


@pytest.mark.parametrize(
    ("paper", "preset", "protocol"),
    [("spec_rl", "tiny", "tiny"), ("speed_rl", "paper", "speed_rl"), ("spec_rl", "smoke", "smoke")],
)
def test_a_run_is_evaluated_by_the_protocol_of_its_paper_at_its_preset(folder, trained, paper, preset, protocol):
    policy, experiments = trained(paper, preset), Experiments(folder)
    for model in (policy, policy.parents[1]):
        found = planned(folder, model)
        assert (found.protocol, found.policy) == (protocol, policy)
        assert found.benchmarks == experiments.preset_of(preset, paper).benchmarks
    asked = planned(folder, policy, "tiny")
    assert (asked.protocol, asked.benchmarks) == ("tiny", experiments.protocol("tiny"))


def test_the_benchmarks_are_those_of_the_run_s_block_of_seeds(folder, trained):
    found = planned(folder, trained("spec_rl", "smoke", seed=13))
    preset = Experiments(folder).preset("smoke")
    assert preset.blocks == 10
    assert found.benchmarks == preset.of_block(3).benchmarks != preset.benchmarks


def test_a_model_of_no_run_has_the_default_protocol_and_a_run_of_a_preset_that_is_gone_an_error(folder, trained):
    assert planned(folder, folder / "model").protocol == "spec_rl"
    policy = trained("spec_rl", "gone")
    with pytest.raises(UserError, match="no such preset"):
        planned(folder, policy)
    assert planned(folder, policy, "tiny").protocol == "tiny"


def test_what_will_be_done_is_said_in_one_sentence(folder):
    found = planned(folder, folder / "model", "tiny", ["arithmetic"], samples=3, limit=5, folder=Path("here"))
    assert found.text() == (
        f"sampling {folder / 'model'} with torch by the protocol tiny (as requested): arithmetic (3) samples a "
        "problem, 15 responses in all; results go to here"
    )


def test_a_policy_is_found_in_a_run_and_in_a_checkpoint_of_verl(tmp_path):
    for part in ("run/policies/step-0010", "run/policies/step-0020", "global_step_5/actor/huggingface"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "config.json").write_text("{}")
    assert find_policy(str(tmp_path / "run")) == tmp_path / "run/policies/step-0020"
    assert find_policy(str(tmp_path / "global_step_5")) == tmp_path / "global_step_5/actor/huggingface"
    assert find_policy(str(tmp_path / "run/policies/step-0010")) == tmp_path / "run/policies/step-0010"
    assert find_policy("Qwen/Qwen3-1.7B-Base") == "Qwen/Qwen3-1.7B-Base"
    with pytest.raises(UserError, match="no such folder"):
        find_policy("results/none")
