"""lm-eval as a harness: its tasks, samples and metrics equal our benchmarks, samples and grades."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from redraft.config import ArithmeticProblems, Experiments, InProcessEngine, ProblemFile, TinyModel
from redraft.config.data import Benchmark, Sampling
from redraft.errors import UserError
from redraft.evaluate.backend import GenerationRequest, Response
from redraft.evaluate.backends import open_backend
from redraft.evaluate.lm_eval import harness, stock, task_functions
from redraft.evaluate.lm_eval.harness import evaluate
from redraft.evaluate.lm_eval.redraft_model import RedraftModel, number, sampling
from redraft.evaluate.lm_eval.tasks import task_config, to_yaml, write_tasks
from redraft.tasks.grading import is_correct
from redraft.tasks.problems import DATA_ROOT, load_problems
from redraft.tasks.prompts import encode
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "workflows" / "lm_eval"
COPIES = ROOT.parent / "shared/data/benchmarks"
PROTOCOLS = list(Experiments(ROOT).benchmark_file().protocols)
ENGINE = InProcessEngine(device="cpu", max_rows=8)
SUMS = Benchmark(data=ArithmeticProblems(size=5), samples=3, max_new_tokens=12)
MINUS = Benchmark(data=ArithmeticProblems(size=4, signs="minus"), temperature=0, max_new_tokens=12)
BOTH = {"sums": SUMS, "minus": MINUS}
COINS = Benchmark(
    data=ProblemFile(path=str(Path(__file__).parent / "data/coin_problems.jsonl"), size=8, template="{problem}"),
    samples=3,
    max_new_tokens=8,
)
TEMPLATE = (
    "{{ date_string[:2] }}{% for m in messages %}q{{ m['content'] }}{% endfor %}{{ 'a' * add_generation_prompt }}"
)
COLUMNS = ["benchmark", "problem", "sample", "prompt", "answer", "tokens", "text", "finish", "seconds"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A random model with heads that vLLM's CPU build takes."""
    folder = tmp_path_factory.mktemp("policy") / "model"
    shape = TinyModel(hidden_size=64, layers=2, heads=2, head_dim=32, intermediate_size=96)
    models.save(models.initialise(shape, make_tokenizer()), make_tokenizer(), folder)
    return folder


@pytest.fixture(scope="module")
def chat_policy(policy, tmp_path_factory):
    """The random model with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(policy, folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def key(frame):
    return [(*row, list(tokens)) for *row, tokens in frame[[*COLUMNS[:5], "text", "finish", "tokens"]].to_numpy()]


# ---- task files


def test_the_task_files_are_up_to_date():
    assert write_tasks(FOLDER, check=True, root=ROOT) == []


def test_missing_changed_and_left_over_task_files_are_found_and_corrected(tmp_path):
    every = write_tasks(tmp_path, check=True, root=ROOT)
    assert not list(tmp_path.iterdir())
    assert len(every) == len(set(every)) == len(list(FOLDER.glob("*/*.yaml")))
    assert write_tasks(tmp_path, check=False, root=ROOT) == every
    every[0].write_text("task: other\n")
    every[1].unlink()
    extra = tmp_path / "spec_rl" / "redraft_spec_rl_gone.yaml"
    extra.write_text("task: gone\n")
    wrong = {every[0], every[1], extra}
    assert set(write_tasks(tmp_path, check=True, root=ROOT)) == wrong
    assert set(write_tasks(tmp_path, check=False, root=ROOT)) == wrong
    assert write_tasks(tmp_path, check=True, root=ROOT) == []
    assert not extra.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lm_eval_reads_from_a_task_file_what_the_python_harness_uses(protocol):
    benchmarks = Experiments(ROOT).protocol(protocol)
    for name, benchmark in benchmarks.items():
        config = task_config(name, benchmark, protocol)
        assert load_yaml(FOLDER / protocol / f"{config['task']}.yaml") == config
        unnamed = task_config(name, benchmark)
        assert config | {"task": unnamed["task"]} == unnamed
    group = load_yaml(FOLDER / protocol / f"redraft_{protocol}.yaml")
    assert group["task"] == [f"redraft_{protocol}_{name}" for name in benchmarks]


def test_lm_eval_finds_every_task_and_group_and_builds_a_group():
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    assert manager.all_groups == sorted(f"redraft_{protocol}" for protocol in PROTOCOLS)
    assert len(manager.all_subtasks) == sum(len(Experiments(ROOT).protocol(p)) for p in PROTOCOLS)
    benchmarks = Experiments(ROOT).protocol("tiny")
    tasks = manager.load("redraft_tiny")["tasks"]
    for name, benchmark in benchmarks.items():
        documents = tasks[f"redraft_tiny_{name}"].eval_docs
        found = list(zip(documents["prompt"], documents["answer"], strict=True))
        assert found == [(problem.prompt, problem.answer) for problem in load_problems(benchmark.data)]
        assert documents["problem"][:] == list(range(benchmark.data.size))


@pytest.mark.skipif(not COPIES.is_dir(), reason=f"no local copies of the benchmarks in {COPIES}")
def test_the_tasks_of_spec_rl_hold_the_paper_s_problems_word_for_word(monkeypatch):
    monkeypatch.setenv(DATA_ROOT, str(COPIES))
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    tasks = manager.load("redraft_spec_rl")["tasks"]
    sizes = {name.removeprefix("redraft_spec_rl_"): len(task.eval_docs) for name, task in tasks.items()}
    assert sizes == {
        "amc23": 40,
        "aime24": 30,
        "math500": 500,
        "minerva": 272,
        "olympiad": 675,
        "mmlu_stem": 3018,
        "ifeval": 540,
    }
    for task in tasks.values():
        for document in task.eval_docs:
            assert task.doc_to_text(document) == document["prompt"]  # no template language, whatever braces it has
            assert task.doc_to_target(document) == document["answer"]


def test_a_wrong_size_is_rejected_when_the_task_is_made():
    config = task_config("coins", COINS.model_copy(update={"data": COINS.data.model_copy(update={"size": 9})}))
    with pytest.raises(UserError, match="wrong number of problems"):
        config["custom_dataset"](**config["metadata"], **config["dataset_kwargs"])


def test_a_function_without_an_importable_name_is_never_written():
    assert to_yaml({"f": task_functions.share}) == "f: !function 'redraft.evaluate.lm_eval.task_functions.share'\n"


@pytest.mark.servers  # its own program reads all of its task files first
def test_stock_lm_eval_runs_a_protocol_from_its_task_files(policy, tmp_path):
    command = [
        sys.executable,
        "-m",
        "lm_eval",
        "run",
        "--model",
        "hf",
        "--model_args",
        f"pretrained={policy},dtype=float32",
        "--device",
        "cpu",
        "--batch_size",
        "8",
        "--tasks",
        "redraft_tiny",
        "--limit",
        "2",
        "--include_path",
        str(FOLDER),
        "--log_samples",
        "--output_path",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [line.split("|") for line in result.stdout.splitlines() if "accuracy" in line]
    assert [row[1].strip(" -") for row in rows] == [
        "redraft_tiny_arithmetic",
        "redraft_tiny_arithmetic-longer",
        "redraft_tiny_arithmetic-minus",
    ]
    (logged,) = tmp_path.rglob("samples_redraft_tiny_arithmetic_*.jsonl")
    lines = logged.read_text().splitlines()
    assert len(lines) == 2
    assert all(line.count('"resps": [[') == 1 for line in lines)


# ---- the model


class Scripted:
    """A backend that writes a request's problem and sample as letters, and answers in reverse order."""

    def __init__(self):
        self.tokenizer, self.calls = make_tokenizer(), []

    def sample(self, name, requests, sampling, seed, deliver):
        self.calls.append((name, sampling, seed, [self.tokenizer.decode(r.prompt) for r in requests]))
        for request in reversed(requests):
            text = f"{'pqrs'[request.problem]}{'abcd'[request.sample]}<eos>"
            tokens = np.array(self.tokenizer(text)["input_ids"], dtype=np.int32)
            deliver(Response(request.problem, request.sample, tokens, "stop"))

    def close(self):
        pass


def instance(task, problem, benchmark="b", settings=None, **document):
    """A request as lm-eval makes it from a document."""
    document = {"benchmark": benchmark, "problem": problem} | document
    arguments = (f"{problem}a=", settings or task_config("b", SUMS)["generation_kwargs"])
    return Instance("generate_until", document, arguments, 0, metadata=(task, problem, 1))


@given(st.data())
def test_repeats_of_one_instance_are_its_samples_in_whatever_order(data):
    documents = data.draw(st.sets(st.tuples(st.sampled_from("xyz"), st.integers(0, 5)), min_size=1))
    repeats = {name: data.draw(st.integers(1, 4)) for name in sorted(documents)}
    instances = {name: instance(*name) for name in repeats}
    requests = data.draw(st.permutations([instances[name] for name, count in repeats.items() for _ in range(count)]))
    places = number(requests)
    assert [(r.task_name, r.doc["problem"]) for r in requests] == [place[:2] for place in places]
    assert sorted(places) == sorted((*name, s) for name, count in repeats.items() for s in range(count))


def test_answers_come_in_the_order_of_the_requests_and_tasks_are_sampled_apart():
    model = RedraftModel(backend := Scripted(), seed=5)
    first, second, other = instance("x", 0), instance("x", 2), instance("y", 2, "c", chat="never")
    assert model.generate_until([second, first, other, second, first]) == ["ra", "pa", "ra", "rb", "pb"]
    want = Sampling(max_new_tokens=12)
    assert [(name, how.model_dump(), seed) for name, how, seed, _ in backend.calls] == [
        ("b", want.model_dump(), 5),
        ("c", want.model_dump(), 5),
    ]
    assert [prompts for *_, prompts in backend.calls] == [["2a=", "0a=", "2a=", "0a="], ["2a="]]
    assert set(model.responses) == {("x", 2, 0), ("x", 0, 0), ("y", 2, 0), ("x", 2, 1), ("x", 0, 1)}


def test_a_document_of_a_foreign_task_is_named_by_the_task():
    model = RedraftModel(backend := Scripted())
    request = instance("gsm8k", 3)
    request.doc = {"question": "?"}
    assert model.generate_until([request]) == ["sa"]
    assert backend.calls[0][0] == "gsm8k"


@given(
    st.floats(0, 3).filter(lambda t: t == 0 or t > 1e-3), st.floats(0.01, 1), st.integers(1, 20000), st.integers(1, 64)
)
def test_sampling_survives_lm_eval_s_words(temperature, top_p, length, samples):
    benchmark = SUMS.model_copy(
        update={"temperature": temperature, "top_p": top_p, "max_new_tokens": length, "samples": samples}
    )
    config = task_config("b", benchmark)
    again = sampling(config["generation_kwargs"])
    assert (again.temperature, again.max_new_tokens) == (temperature, length)
    assert config["generation_kwargs"]["do_sample"] is (temperature > 0)
    assert again.top_p == (top_p if temperature else 1.0)
    assert config["repeats"] == samples


@pytest.mark.parametrize(
    ("setting", "value"), [("until", ["\n\n"]), ("top_k", 20), ("repetition_penalty", 1.05), ("num_beams", 4)]
)
def test_generation_settings_that_backends_lack_are_rejected(setting, value):
    with pytest.raises(UserError) as error:
        sampling({"do_sample": True, "temperature": 1.0, "max_gen_toks": 5, "until": []} | {setting: value})
    assert error.value.key == setting


def test_what_the_model_does_not_offer_is_rejected_with_the_reason():
    model = RedraftModel(Scripted())
    with pytest.raises(NotImplementedError, match="scores no given answers"):
        model.loglikelihood([])
    with pytest.raises(NotImplementedError, match="scores no given text"):
        model.loglikelihood_rolling([])
    with pytest.raises(UserError, match="itself"):
        model.apply_chat_template([{"role": "user", "content": "1"}])


def test_the_model_is_made_from_lm_eval_s_arguments(policy):
    more = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    model = get_model("redraft").create_from_arg_string(f"pretrained={policy},seed=3,max_rows=7", more)
    assert isinstance(model, RedraftModel)
    assert (model.seed, model.backend.settings.max_rows, model.backend.settings.device) == (3, 7, "auto")
    assert get_model("redraft").create_from_arg_obj({"pretrained": policy}, {"device": "cpu"}).backend.settings.device
    for arguments, key_ in (("max_rows=7", "model_args"), (f"pretrained={policy},batch=7", "batch")):
        with pytest.raises(UserError) as error:
            get_model("redraft").create_from_arg_string(arguments, more)
        assert error.value.key == key_


# ---- the harness


def sample(*arguments):
    """Generations of all benchmarks."""
    return pd.concat([frame for _, frame, _ in harness.sample(*arguments)], ignore_index=True)


def natively(policy, benchmarks, seed):
    """Samples of the in-process engine without lm-eval: benchmark, problem, sample, prompt, text, tokens, finish."""
    backend, rows = open_backend("torch", policy, ENGINE), []
    for name, benchmark in benchmarks.items():
        problems = load_problems(benchmark.data)
        prompts = encode(backend.tokenizer, [p.prompt for p in problems], benchmark.chat)
        requests = [
            GenerationRequest(i, s, prompt) for i, prompt in enumerate(prompts) for s in range(benchmark.samples)
        ]
        responses = []
        backend.sample(name, requests, benchmark, seed, responses.append)
        for r in sorted(responses, key=lambda r: (r.problem, r.sample)):
            text = backend.tokenizer.decode(r.tokens, skip_special_tokens=True)
            problem = problems[r.problem]
            rows.append((name, r.problem, r.sample, problem.prompt, problem.answer, text, r.finish, list(r.tokens)))
    return rows


def test_the_in_process_engine_gives_the_same_through_lm_eval_as_without(chat_policy):
    benchmarks = BOTH | {"plain": SUMS.model_copy(update={"chat": "never"})}
    frame = sample(chat_policy, benchmarks, 7, "torch", ENGINE)
    assert list(frame.columns) == COLUMNS
    assert key(frame) == natively(chat_policy, benchmarks, 7)
    assert {tokens.dtype for tokens in frame["tokens"]} == {np.dtype(np.int32)}
    assert set(frame["finish"]) == {"stop", "length"}
    assert key(sample(chat_policy, {"sums": SUMS}, 8, "torch", ENGINE)) != key(frame)[: 5 * 3]
    assert (frame.groupby("benchmark")["seconds"].nunique() == 1).all()


@pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=pytest.mark.servers)])
def test_greedy_responses_of_lm_eval_s_own_models_are_the_in_process_engine_s(chat_policy, kind):
    asked = {"minus": MINUS, "plain": MINUS.model_copy(update={"chat": "never"}), "sums": SUMS}
    ours, theirs = (sample(chat_policy, asked, 0, k, ENGINE) for k in ("torch", kind))
    assert list(theirs.columns) == COLUMNS
    assert theirs[COLUMNS[:5]].equals(ours[COLUMNS[:5]])
    greedy = ours["benchmark"] != "sums"
    assert list(theirs.loc[greedy, "text"]) == list(ours.loc[greedy, "text"])
    assert list(theirs.loc[greedy, "finish"]) == list(ours.loc[greedy, "finish"])
    ends = [(list(t), o) for t, o in zip(theirs.loc[greedy, "tokens"], ours.loc[greedy, "tokens"], strict=True)]
    assert all(tokens == [t for t in ours_ if t not in (0, 1)] for tokens, ours_ in ends)
    drawn = theirs[~greedy].groupby("problem")["text"]
    assert drawn.count().tolist() == [3] * 5
    assert drawn.nunique().min() > 1, "repeats are samples of their own"
    assert key(sample(chat_policy, asked, 0, kind, ENGINE)) == key(theirs), "the seed decides"


@pytest.mark.parametrize("kind", ["torch", "transformers"])
def test_lm_eval_s_metric_is_the_share_of_our_grades(tiny_model, kind):
    evaluated = evaluate(tiny_model, {"coins": COINS}, 0, kind, ENGINE)
    frame = evaluated.generations
    right = [is_correct(text, answer) for text, answer in zip(frame["text"], frame["answer"], strict=True)]
    assert len(right) == 24
    assert 0 < sum(right) < 24
    assert evaluated.metrics == {"coins": {"accuracy": pytest.approx(np.mean(right))}}


def test_lm_eval_s_own_models_have_the_requested_precision(policy):
    rounded = ENGINE.model_copy(update={"dtype": "bfloat16"})
    assert [stock.open_transformers(policy, 20, 0, e).model.dtype for e in (ENGINE, rounded)] == [
        torch.float32,
        torch.bfloat16,
    ]
    assert [stock._site(20, engine)["dtype"] for engine in (ENGINE, rounded)] == ["float32", "bfloat16"]


def test_vllm_on_a_cpu_gets_the_arguments_that_it_needs_there_and_on_a_gpu_those_of_the_engine(monkeypatch):
    assert stock._site(20, ENGINE) == {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "kv_cache_memory_bytes": 2**29,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 16384,
    }
    assert stock._site(20_000, ENGINE)["max_num_batched_tokens"] == 20_000
    monkeypatch.setattr(stock.models, "device_of", torch.device)
    engine = ENGINE.model_copy(update={"device": "cuda", "eager": True, "max_batched_tokens": 4096})
    assert stock._site(20, engine) == {
        "dtype": engine.dtype,
        "enforce_eager": True,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "max_num_batched_tokens": 4096,
    }


def test_a_limit_takes_the_first_problems(policy):
    whole, part = (sample(policy, BOTH, 0, "torch", ENGINE, limit) for limit in (None, 2))
    assert key(part) == key(whole[whole["problem"] < 2])


def test_a_prompt_that_lm_eval_would_cut_is_rejected(policy):
    long = {"sums": SUMS.model_copy(update={"max_new_tokens": 500})}
    with pytest.raises(UserError, match="longer than the model allows") as error:
        sample(policy, long, 0, "transformers", ENGINE)
    assert error.value.key == "max_new_tokens"


@pytest.mark.parametrize("kind", ["torch", "transformers"])
def test_a_template_that_the_protocol_requires_must_be_there(policy, kind):
    with pytest.raises(UserError, match="no chat template"):
        sample(policy, {"sums": SUMS.model_copy(update={"chat": "required"})}, 0, kind, ENGINE)


# ---- metrics

NO_COMMA = (
    '{"key": 1, "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, {}]}'
)


def test_choices_are_right_by_their_letter():
    document = {"answer": "C"}
    assert task_functions.score_choice(document, [["\\boxed{C}", "\\boxed{(C)}", "\\boxed{B}", "C"]]) == {
        "accuracy": 0.5
    }
    assert task_functions.score_math({"answer": "1/2"}, [["\\boxed{0.5}", "\\boxed{2}"]]) == {"accuracy": 0.5}


def test_instructions_are_counted_by_prompt_and_one_by_one():
    document = {"prompt": "Write.", "answer": NO_COMMA}
    scores = task_functions.score_instructions(document, [["this is how it is done", "this, is how it is done"]])
    assert scores["prompt_level_strict_acc"] == scores["prompt_level_loose_acc"] == 0.5
    assert scores["inst_level_strict_acc"] == [True, True, False, True]
    assert task_functions.share([[True, True, False, True], [False]]) == pytest.approx(3 / 5)
    metrics = {
        m["metric"] for m in task_config("i", SUMS.model_copy(update={"grading": "instructions"}))["metric_list"]
    }
    assert metrics == set(scores)


def test_a_response_that_a_checker_fails_on_follows_nothing(monkeypatch):
    from redraft.tasks import instructions

    def fail(*_):
        raise instructions.CheckerError("deep")

    monkeypatch.setattr(instructions, "grade_instructions", fail)
    scores = task_functions.score_instructions({"prompt": "Write.", "answer": NO_COMMA}, [["a"]])
    assert scores["inst_level_loose_acc"] == scores["inst_level_strict_acc"] == [False, False]
