"""Sampling on benchmarks: backends agree, a killed run resumes, and wrong requests are refused."""

import json
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from redraft.config import ArithmeticProblems, Evaluation, Experiments, InProcessEngine, TinyModel
from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.evaluate import generate as module
from redraft.evaluate.command import evaluate
from redraft.evaluate.evaluation_plan import EvaluationRequest, plan
from redraft.evaluate.generate import generate, generate_policies
from redraft.evaluate.generation_parts import MACHINES, SCHEMA, WHOLE, GenerationParts
from redraft.files import read_json, sha256
from redraft.layout import Layout
from redraft.ops.locking.lease import EVALUATION, LeaseLost, lease
from redraft.ops.workflow.rule_inputs import RuleInputs
from redraft.tasks.prompts import encode
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

ENGINE = InProcessEngine(device="cpu", max_rows=8)
SUMS = {
    "sums": Benchmark(data=ArithmeticProblems(size=5, split="held-out"), samples=3, max_new_tokens=12),
    "differences": Benchmark(data=ArithmeticProblems(size=4, signs="minus"), samples=2, max_new_tokens=9),
}
GREEDY = {name: b.model_copy(update={"temperature": 0.0}) for name, b in SUMS.items()}
BACKENDS = ("torch", "transformers", "vllm")
SAMPLING = [*BACKENDS[:2], pytest.param("vllm", marks=pytest.mark.servers)]
"""Backends for tests that sample."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A random model with heads that vLLM's CPU build takes."""
    folder = tmp_path_factory.mktemp("policy") / "model"
    shape = TinyModel(architecture="qwen3", hidden_size=64, heads=2, head_dim=32, intermediate_size=96)
    models.save(models.initialise(shape, make_tokenizer()), make_tokenizer(), folder)
    return folder


def sampled(policy, file, benchmarks=SUMS, seed=0, backend="torch", **arguments):
    generate({0: policy}, benchmarks, seed, ENGINE, Evaluation(backend=backend), file, **arguments)
    return pd.read_parquet(file)


def test_no_two_processes_sample_into_one_folder(policy, tmp_path):
    with lease(tmp_path, EVALUATION):
        with pytest.raises(UserError, match="another process works in this folder"):
            generate_policies("smoke", "smoke", 0, tmp_path / "generations.parquet", [policy])
        asked = EvaluationRequest(str(policy), "tiny", [], Evaluation(backend="torch"), ENGINE, folder=tmp_path)
        with pytest.raises(UserError, match="another process works in this folder"):
            evaluate(plan(asked, Experiments(), tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


def test_a_process_that_lost_its_folder_writes_no_sample(policy, tmp_path):
    def check():
        raise LeaseLost("another process has taken this folder")

    with pytest.raises(LeaseLost):
        sampled(policy, tmp_path / "g.parquet", check=check)
    assert not list(tmp_path.rglob("*.parquet"))


def texts(frame):
    return [(*key, list(tokens)) for *key, tokens in frame[["benchmark", "problem", "sample", "tokens"]].to_numpy()]


@pytest.fixture(scope="module")
def by_backend(policy, tmp_path_factory):
    """Drawn and most probable responses of a backend, sampled when they are first asked for."""
    folder = tmp_path_factory.mktemp("generations")

    @cache
    def of(backend):
        files = [folder / f"{backend}-{kind}.parquet" for kind in ("drawn", "greedy")]
        return [sampled(policy, f, b, backend=backend) for f, b in zip(files, (SUMS, GREEDY), strict=True)]

    return of


@pytest.mark.parametrize("backend", SAMPLING)
def test_every_sample_is_there_once_and_in_order(by_backend, backend):
    drawn, _ = by_backend(backend)
    assert list(drawn.columns) == SCHEMA.names
    keys = [(name, i, s) for name, b in SUMS.items() for i in range(b.data.size) for s in range(b.samples)]
    assert list(drawn[["benchmark", "problem", "sample"]].itertuples(index=False, name=None)) == keys
    limits = drawn["benchmark"].map({"sums": 12, "differences": 9})
    lengths = drawn["tokens"].map(len)
    assert (lengths <= limits).all()
    stop = make_tokenizer().eos_token_id
    stopped = drawn["tokens"].map(lambda tokens: tokens[-1] == stop)
    assert ((drawn["finish"] == "stop") == stopped).all()
    assert (stopped | (lengths == limits)).all()
    assert set(drawn["finish"]) <= {"stop", "length"}
    assert (drawn["seconds"] > 0).all()
    tokenizer = make_tokenizer()
    assert list(drawn["text"]) == [tokenizer.decode(t, skip_special_tokens=True) for t in drawn["tokens"]]


@pytest.mark.parametrize("backend", SAMPLING[1:])
def test_the_most_probable_responses_are_those_of_the_in_process_engine(by_backend, backend):
    assert texts(by_backend(backend)[1]) == texts(by_backend("torch")[1])
    assert list(by_backend(backend)[1]["finish"]) == list(by_backend("torch")[1]["finish"])


@pytest.mark.parametrize("backend", SAMPLING)
def test_samples_of_a_problem_differ_and_those_at_temperature_0_do_not(by_backend, backend):
    drawn, greedy = (
        {len({tuple(t) for t in of_one}) for _, of_one in frame.groupby(["benchmark", "problem"])["tokens"]}
        for frame in by_backend(backend)
    )
    assert max(drawn) > 1
    assert greedy == {1}


@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_the_seed_decides_the_samples(by_backend, policy, tmp_path, backend):
    again, other = (sampled(policy, tmp_path / f"{seed}.parquet", seed=seed, backend=backend) for seed in (0, 1))
    assert texts(again) == texts(by_backend(backend)[0])
    assert texts(other) != texts(again)


class KilledError(Exception):
    """Stand-in for the end of a process."""


def killed(*_):
    raise KilledError


def stop_after(monkeypatch, count):
    """Save each sample in a part of its own, and stop after some samples as if the process ended."""
    monkeypatch.setattr("redraft.evaluate.generation_parts.SAVE_SECONDS", 0.0)
    add = GenerationParts.add

    began = []

    def adding(self, *rows):
        began.extend([len(self.done)] * (not began))
        for row in rows:
            add(self, row)
            if len(self.done) - began[0] == count:
                raise KilledError

    monkeypatch.setattr(GenerationParts, "add", adding)


def test_all_machines_that_sampled_are_recorded(policy, tmp_path, monkeypatch):
    def on(processor, samples=None):
        with monkeypatch.context() as patch:
            patch.setattr(module, "machine", lambda: {"processor": processor})
            patch.setattr("redraft.evaluate.generation_parts.SAVE_SECONDS", 0.0)
            if samples:
                stop_after(patch, samples)
            return generate({0: policy}, SUMS, 0, ENGINE, Evaluation(), tmp_path / "generations.parquet")

    for processor in ("first", "second"):
        with pytest.raises(KilledError):
            on(processor, 4)
    found = on("third")
    assert [each["processor"] for each in found] == ["first", "second", "third"]
    assert found[0]["device"].startswith("cpu ")
    assert on("fourth") == on("first") == found, "they sample nothing"
    (tmp_path / "generations.parquet").unlink()
    assert on("fourth") == found


@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_a_killed_run_goes_on_at_the_missing_samples(by_backend, policy, tmp_path, monkeypatch, backend):
    file = tmp_path / "generations.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(KilledError):
            sampled(policy, file, backend=backend)
    assert not file.exists()
    saved = {path: path.stat().st_mtime_ns for path in file.with_name("generations.parquet.parts").rglob("*.parquet")}
    assert 7 <= len(saved) < 23  # what came in the same moment is saved too
    asked = []
    original = module.open_backend

    def watched(*arguments):
        backend = original(*arguments)
        sample = backend.sample
        backend.sample = lambda name, requests, *rest: (asked.extend(requests), sample(name, requests, *rest))
        return backend

    monkeypatch.setattr(module, "open_backend", watched)
    resumed = sampled(policy, file, backend=backend)
    assert len(asked) == 23 - len(saved)
    assert len(resumed) == 23
    assert {path.name for path in file.with_name("generations.parquet.parts").glob("*/*")} == {WHOLE, MACHINES}
    asked.clear()
    file.unlink()  # as a workflow does that was killed before it knew that this is whole
    assert texts(sampled(policy, file, backend=backend)) == texts(resumed)
    assert not asked
    with monkeypatch.context() as patch:  # killed again before there is a link to the new file, and its output removed
        patch.setattr(Path, "hardlink_to", killed)
        with pytest.raises(KilledError):
            sampled(policy, file, backend=backend)
    file.unlink()
    assert texts(sampled(policy, file, backend=backend)) == texts(resumed)
    assert not asked
    if backend == "torch":  # transformers draws by batch, which is another one after a resume
        assert texts(resumed) == texts(by_backend(backend)[0])


def test_a_damaged_part_is_made_again_and_costs_no_other(by_backend, policy, tmp_path, monkeypatch, capsys):
    file = tmp_path / "generations.parquet"
    for _ in range(2):
        with monkeypatch.context() as patch:
            stop_after(patch, 7)
            with pytest.raises(KilledError):
                sampled(policy, file)
        parts = sorted(file.with_name("generations.parquet.parts").rglob("*.parquet"))
        parts[2].write_bytes(parts[2].read_bytes()[:100])
    assert 13 <= len(parts) < 23  # 7 or some more, less the damaged one, and as many again
    (another := tmp_path / "generations.parquet.parts/another").mkdir()
    assert len(GenerationParts(file, "another").done) == 0
    assert len(GenerationParts(file, parts[0].parent.name).done) == len(parts) - 1
    assert "sampled again" in capsys.readouterr().err
    assert texts(sampled(policy, file)) == texts(by_backend("torch")[0])
    assert another.exists()
    sampled(policy, file, seed=1)
    kept = {path.relative_to(another.parent).parts[1:] for path in another.parent.rglob("*")}
    assert kept == {(), (WHOLE,), (MACHINES,)}, "what is finished of an earlier experiment is not kept twice"
    assert len(list(another.parent.rglob("*.parquet"))) == 1


def test_a_limit_takes_the_first_problems(by_backend, policy, tmp_path):
    first = sampled(policy, tmp_path / "first.parquet", limit=2)
    whole = by_backend("torch")[0]
    assert texts(first) == texts(whole[whole["problem"] < 2])


def test_a_missing_template_is_rejected_where_the_protocol_needs_one(policy, tmp_path):
    needs = {"sums": SUMS["sums"].model_copy(update={"chat": "required"})}
    with pytest.raises(UserError, match="no chat template") as error:
        sampled(policy, tmp_path / "x.parquet", needs)
    assert error.value.key == "chat"
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}={% endfor %}"
    plain, chat = (encode(tokenizer, ["1a+2b"], how) for how in ("never", "required"))
    assert chat == [[*plain[0], tokenizer.convert_tokens_to_ids("=")]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_policy_is_a_user_error(tmp_path, backend):
    with pytest.raises(UserError, match="no such folder"):
        sampled(tmp_path / "none", tmp_path / "x.parquet", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_response_that_is_longer_than_the_model_is_rejected(policy, tmp_path, backend):
    long = {"sums": SUMS["sums"].model_copy(update={"max_new_tokens": 600})}
    with pytest.raises(UserError) as error:
        sampled(policy, tmp_path / "x.parquet", long, backend=backend)
    assert "512" in str(error.value)


ROW = {
    "step": 0,
    "benchmark": "b",
    "problem": 0,
    "prompt": "",
    "answer": "",
    "tokens": [1],
    "text": "",
    "finish": "",
}


@pytest.mark.parametrize("call", ["hardlink_to", "replace", "unlink"])
def test_a_kill_while_parts_are_replaced_leaves_each_sample_once(tmp_path, monkeypatch, call):
    file = tmp_path / "g.parquet"
    original = getattr(Path, call)

    def killed(path, *arguments, **keywords):
        if (path.name == f".{WHOLE}" and not keywords) or path.name == "000001.parquet":
            raise SystemExit
        return original(path, *arguments, **keywords)

    parts = GenerationParts(file, "x")
    for sample in range(3):
        parts.add(ROW | {"sample": sample})
        parts.save()
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, killed)
        with pytest.raises(SystemExit):
            parts.finish(["b"])
    file.unlink()  # as Snakemake does with the output of a job that was killed
    GenerationParts(file, "x").finish(["b"])
    assert list(pd.read_parquet(file)["sample"]) == [0, 1, 2]


def test_seconds_are_shared_by_samples_that_came_together(tmp_path, monkeypatch):
    clock = iter([0.0, 100.0, 130.0, 130.0, 130.0, 190.0, 190.0])
    monkeypatch.setattr("redraft.evaluate.generation_parts.time.perf_counter", lambda: next(clock))
    parts = GenerationParts(tmp_path / "g.parquet", "x")  # 0
    parts.begin()  # 100
    parts.add(ROW | {"sample": 0}, ROW | {"sample": 1})  # 130, 30 seconds of 60
    parts.save()  # 130
    parts.add(ROW | {"sample": 2}, ROW | {"sample": 3, "seconds": 7.0})  # 130
    parts.finish(["b"])  # 190
    assert list(pd.read_parquet(tmp_path / "g.parquet")["seconds"]) == [15.0, 15.0, 30.0, 7.0]


@pytest.mark.parametrize("backend", SAMPLING)
def test_a_model_s_own_generation_settings_change_nothing(policy, by_backend, tmp_path, backend):
    folder = tmp_path / "penalised"
    shutil.copytree(policy, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    penalties = {"repetition_penalty": 1.5, "min_p": 0.9, "no_repeat_ngram_size": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings | penalties))
    found = sampled(folder, tmp_path / "g.parquet", GREEDY, backend=backend)
    assert texts(found) == texts(by_backend(backend)[1])


@pytest.mark.parametrize("backend", SAMPLING)
def test_every_backend_ends_responses_at_each_end_that_one_file_names(policy, tmp_path, backend):
    """Without generation_config.json and with several ends in config.json, as in some published models."""
    ends = {1, 5, 6, 7, 8}
    folder = shutil.copytree(policy, tmp_path / "model")
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": sorted(ends - {1})}))
    found = sampled(folder, tmp_path / "generations.parquet", backend=backend)
    stopped = found[found["finish"] == "stop"]
    assert len(stopped) > len(found) / 3
    assert {tokens[-1] for tokens in stopped["tokens"]} - {1}
    assert all(tokens[-1] in ends for tokens in stopped["tokens"])
    assert not any(ends & {*tokens[:-1]} for tokens in found["tokens"])
    limits = {name: benchmark.max_new_tokens for name, benchmark in SUMS.items()}
    cut = found[found["finish"] == "length"]
    assert all(len(tokens) == limits[name] for tokens, name in zip(cut["tokens"], cut["benchmark"], strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backend_samples_beyond_the_length_at_which_rotary_embeddings_change(policy, tmp_path, backend):
    """A short response would depend on the longest one beside it."""
    folder = shutil.copytree(policy, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16, "rope_theta": 1e4}
    config["rope_parameters"] = rope | {"original_max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="rotary embeddings of this qwen3 model change") as refused:
        sampled(folder, tmp_path / "generations.parquet", backend=backend)
    assert (refused.value.key, refused.value.file) == ("rope_parameters.rope_type", folder)


def test_benchmarks_of_the_hub_are_read_before_any_job_samples(tmp_path, monkeypatch):
    rows = [{"question": f"{i}+1", "answer": str(i + 1)} for i in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hub = {"kind": "hub", "id": "o/sums", "files": ["sums.jsonl"], "local": "sums.jsonl", "size": 4}
    of_hub = Benchmark.model_validate({"data": hub | {"problem": "question"}})
    preset = SimpleNamespace(benchmarks=SUMS | {"of the hub": of_hub})
    monkeypatch.setattr(module, "Experiments", lambda: SimpleNamespace(preset=lambda *_: preset))
    monkeypatch.setenv("REDRAFT_DATA", str(tmp_path))
    module.prepare_benchmarks("any", "any", tmp_path / "record.json")
    record = read_json(tmp_path / "record.json")
    assert {name: part["problems"] for name, part in record.items()} == {"of the hub": 4}, "others need no network"
    assert record["of the hub"]["sha256"] == {"sums.jsonl": sha256(tmp_path / "sums.jsonl")}
    (tmp_path / "sums.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(UserError, match="wrong number of problems"):
        module.prepare_benchmarks("any", "any", tmp_path / "record.json")


@pytest.mark.parametrize("preset", ["paper", "tiny"])
def test_jobs_wait_for_what_comes_from_the_hub(preset):
    """Compute nodes may have no network."""
    experiments = Experiments()
    plan = SimpleNamespace(experiments=experiments, preset=experiments.preset(preset), layout=Layout(preset))
    inputs = RuleInputs(plan, None)
    of_run = SimpleNamespace(paper="spec_rl", cell="grpo-vanilla", seed="0", kind="runs")
    expected = [f"results/{preset}/benchmarks/{inputs.protocol(of_run)}.json"] * (preset == "paper")
    assert inputs.benchmark_files(of_run) == expected
    run = experiments.run("spec_rl/grpo-vanilla", 0, preset)
    in_process = run.model_copy(update={"engine": ENGINE})
    inputs.run = lambda _: in_process
    assert bool(inputs.training_files(of_run)) == (preset == "paper"), "also for the in-process engine"
