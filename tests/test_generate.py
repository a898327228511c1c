"""Sampling on benchmarks: backends agree, a killed run resumes, and what cannot be is said."""

import numpy as np
import pandas as pd
import pytest

from redraft.config import ArithmeticProblems, Engine, Evaluation, TinyModel
from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.evaluate import generate as module
from redraft.evaluate.generate import generate
from redraft.evaluate.parts import COLUMNS, Parts
from redraft.tasks.prompts import encode
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

ENGINE = Engine(device="cpu", max_rows=8)
SUMS = {
    "sums": Benchmark(data=ArithmeticProblems(size=5, split="held-out"), samples=3, max_new_tokens=12),
    "differences": Benchmark(data=ArithmeticProblems(size=4, signs="minus"), samples=2, max_new_tokens=9),
}
GREEDY = {name: b.model_copy(update={"temperature": 0.0}) for name, b in SUMS.items()}
BACKENDS = ("torch", "transformers", "vllm")


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


def texts(frame):
    return [(*key, list(tokens)) for *key, tokens in frame[["benchmark", "problem", "sample", "tokens"]].to_numpy()]


@pytest.fixture(scope="module")
def by_backend(policy, tmp_path_factory):
    """Drawn and most probable responses of every backend."""
    folder = tmp_path_factory.mktemp("generations")
    return {
        backend: [
            sampled(policy, folder / f"{backend}-{i}.parquet", benchmarks, backend=backend)
            for i, benchmarks in enumerate((SUMS, GREEDY))
        ]
        for backend in BACKENDS
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_sample_is_there_once_and_in_order(by_backend, backend):
    drawn, _ = by_backend[backend]
    assert tuple(drawn.columns) == COLUMNS
    keys = [(name, i, s) for name, b in SUMS.items() for i in range(b.data.size) for s in range(b.samples)]
    assert list(drawn[["benchmark", "problem", "sample"]].itertuples(index=False, name=None)) == keys
    limits = drawn["benchmark"].map({"sums": 12, "differences": 9})
    lengths = drawn["tokens"].map(len)
    assert (lengths <= limits).all()
    assert ((drawn["finish"] == "length") == (lengths == limits)).all() or (drawn["finish"] == "stop").any()
    assert set(drawn["finish"]) <= {"stop", "length"}
    assert (drawn["seconds"] > 0).all()
    tokenizer = make_tokenizer()
    assert list(drawn["text"]) == [tokenizer.decode(t, skip_special_tokens=True) for t in drawn["tokens"]]


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_the_most_probable_responses_are_those_of_the_in_process_engine(by_backend, backend):
    assert texts(by_backend[backend][1]) == texts(by_backend["torch"][1])
    assert list(by_backend[backend][1]["finish"]) == list(by_backend["torch"][1]["finish"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_of_a_problem_differ_and_those_at_temperature_0_do_not(by_backend, backend):
    drawn, greedy = (
        {len({tuple(t) for t in of_one}) for _, of_one in frame.groupby(["benchmark", "problem"])["tokens"]}
        for frame in by_backend[backend]
    )
    assert max(drawn) > 1
    assert greedy == {1}


@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_a_seed_says_what_is_drawn(by_backend, policy, tmp_path, backend):
    again, other = (sampled(policy, tmp_path / f"{seed}.parquet", seed=seed, backend=backend) for seed in (0, 1))
    assert texts(again) == texts(by_backend[backend][0])
    assert texts(other) != texts(again)


class KilledError(Exception):
    """Stands for whatever ends a process."""


def stop_after(monkeypatch, count):
    """Save each sample on its own, and end the process's work after so many."""
    monkeypatch.setattr(Parts.__init__, "__defaults__", (0.0,))
    add = Parts.add

    def adding(self, row):
        add(self, row)
        if len(self._saved) == count:
            raise KilledError

    monkeypatch.setattr(Parts, "add", adding)


@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_a_killed_run_goes_on_at_the_missing_samples(by_backend, policy, tmp_path, monkeypatch, backend):
    file = tmp_path / "generations.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(KilledError):
            sampled(policy, file, backend=backend)
    assert not file.exists()
    saved = {path: path.stat().st_mtime_ns for path in file.with_name("generations.parquet.parts").rglob("*.parquet")}
    assert len(saved) == 7
    asked = []
    original = module.open_backend

    def watched(*arguments):
        backend = original(*arguments)
        sample = backend.sample
        backend.sample = lambda name, requests, *rest: (asked.extend(requests), sample(name, requests, *rest))
        return backend

    monkeypatch.setattr(module, "open_backend", watched)
    resumed = sampled(policy, file, backend=backend)
    assert len(asked) == len(resumed) - 7 == 16
    assert not file.with_name("generations.parquet.parts").exists()
    if backend == "torch":  # transformers draws by batch, which is another one after a resume
        assert texts(resumed) == texts(by_backend[backend][0])


def test_a_damaged_part_is_made_again_and_parts_of_something_else_are_not_taken(policy, tmp_path, monkeypatch, capsys):
    file = tmp_path / "generations.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(KilledError):
            sampled(policy, file)
    parts = sorted(file.with_name("generations.parquet.parts").rglob("*.parquet"))
    parts[2].write_bytes(parts[2].read_bytes()[:100])
    assert len(Parts(file, "another").done) == 0
    assert len(Parts(file, parts[0].parent.name).done) == 6
    assert "made again" in capsys.readouterr().err
    assert len(sampled(policy, file)) == 23


def test_a_limit_takes_the_first_problems(by_backend, policy, tmp_path):
    first = sampled(policy, tmp_path / "first.parquet", limit=2)
    whole = by_backend["torch"][0]
    assert texts(first) == texts(whole[whole["problem"] < 2])


def test_a_template_that_is_needed_and_not_there_is_said(policy, tmp_path):
    needs = {"sums": SUMS["sums"].model_copy(update={"chat": "required"})}
    with pytest.raises(UserError, match="no chat template") as error:
        sampled(policy, tmp_path / "x.parquet", needs)
    assert error.value.key == "chat"
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}={% endfor %}"
    plain, chat = (encode(tokenizer, ["1a+2b"], how) for how in ("never", "required"))
    assert chat == [[*plain[0], tokenizer.convert_tokens_to_ids("=")]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_policy_that_is_not_there_is_said(tmp_path, backend):
    with pytest.raises(UserError, match="no such folder"):
        sampled(tmp_path / "none", tmp_path / "x.parquet", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_response_that_is_longer_than_the_model_is_refused(policy, tmp_path, backend):
    long = {"sums": SUMS["sums"].model_copy(update={"max_new_tokens": 600})}
    with pytest.raises(UserError) as error:
        sampled(policy, tmp_path / "x.parquet", long, backend=backend)
    assert "512" in str(error.value)


def test_seconds_add_up_to_the_time_of_sampling(tmp_path):
    parts = Parts(tmp_path / "g.parquet", "x", every=0.0)
    row = dict.fromkeys(COLUMNS[:-1], 0) | {"benchmark": "b", "tokens": np.zeros(1, np.int32)}
    for i in range(3):
        parts.add(row | {"sample": i})
    parts.finish({"b": 0})
    assert 0 < pd.read_parquet(tmp_path / "g.parquet")["seconds"].sum() < 60
