"""Problems of reasoning-gym: splits, options, its scorers as rewards and graders, a run from preset to scores."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir

import numpy as np
import pandas as pd
import pytest
import yaml
from pydantic import ValidationError

from redraft.config import Experiments, GymProblems, Preset, TinyModel, gym, run_fingerprint
from redraft.config.base import defining
from redraft.config.data import BOX
from redraft.config.read import parse
from redraft.errors import UserError
from redraft.evaluate.generate import generate_policies
from redraft.evaluate.grade import GRADERS, grade, grade_policies
from redraft.files import hashes, read_json, read_json_lines
from redraft.rollout.types import Finish, Rollout
from redraft.tasks import gym as tasks
from redraft.tasks.answers import Outcome, box
from redraft.tasks.problems import Problem, check_answers, fingerprint_of, load_problems
from redraft.tasks.prompts import encode
from redraft.tasks.rewards import rewards_of
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import job
from redraft.train.initial_policy import make_model
from redraft.train.local.grading import Graders
from redraft.train.local.trainer import LocalTrainer
from tests.checkout import ROOT, called

pytest.importorskip("reasoning_gym", reason="envs/gym.txt could not be installed (docs/reasoning-gym.md)")
PAGE = (ROOT / "docs/reasoning-gym.md").read_text(encoding="utf-8")
SUMS = {"task": "chain_sum", "options": {"max_terms": 2, "max_digits": 1}}
CELL = "spec_rl/grpo-spec-l0.5"


def problems(**fields):
    return load_problems(GymProblems(**{**SUMS, "size": 8, **fields}))


@pytest.mark.parametrize(
    "of", [SUMS, {"task": "gcd", "options": {}}, {"task": "spell_backward", "options": {"max_word_len": 4}}]
)
def test_no_question_is_in_both_splits_or_twice_in_one(of):
    split = {
        (split, seed): [p.prompt for p in problems(**of, size=60, split=split, seed=seed)]
        for split in ("train", "held-out")
        for seed in (0, 1)
    }
    assert all(len(set(texts)) == 60 for texts in split.values())
    assert not {*split["train", 0], *split["train", 1]} & {*split["held-out", 0], *split["held-out", 1]}
    assert split["train", 0] != split["train", 1]


def test_seeds_of_blocks_share_no_generator():
    """The generators of seeds 0 and 1 have 499 of 500 problems in common."""
    seeds = [{tasks.source_of(p.answer).seed for p in problems(task="gcd", options={}, seed=s)} for s in (0, 1, 1000)]
    assert len(set.union(*seeds)) == 3
    assert all(abs(a - b) > gym.ITEMS for a in seeds[0] for b in seeds[1] | seeds[2])


def test_more_problems_than_the_generator_has_are_one_clear_error():
    options = {"min_terms": 1, "max_terms": 1, "max_digits": 1}
    with pytest.raises(UserError, match="fewer different problems") as error:
        problems(options=options, size=40)
    least = int(error.value.allowed.removeprefix("at most "))
    assert error.value.key == "data.size"
    assert (
        len(problems(options=options, size=least)) + len(problems(options=options, size=10 - least, split="held-out"))
        == 10
    )


OTHER_PROCESS = """
import sys, json
from redraft.config import GymProblems
from redraft.tasks.problems import fingerprint_of, load_problems
print(*(fingerprint_of(load_problems(GymProblems(task=task, size=12))) for task in sys.argv[1:]))
"""


def test_equal_seeds_give_equal_problems_in_another_process():
    named = ("chain_sum", "family_relationships", "shortest_path")
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, *named]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert there == [fingerprint_of(load_problems(GymProblems(task=task, size=12))) for task in named]


def test_the_version_and_the_template_are_part_of_the_identity():
    fields = defining(GymProblems(**SUMS))
    assert (fields["version"], fields["template"]) == ("0.1.25", BOX)
    with pytest.raises(ValidationError, match="0.1.25"):
        GymProblems(**SUMS, version="0.1.24")


def test_another_installed_version_is_an_error(monkeypatch):
    gym._registry.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.1.24")
    try:
        with pytest.raises(UserError, match="another version") as error:
            gym.build("chain_sum", {})
    finally:
        gym._registry.cache_clear()
    assert (error.value.value, error.value.allowed) == ("0.1.24", "0.1.25")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "chain_sums"}, ["no such task", "data.task", "chain_sums", "chain_sum, decimal_chain_sum"]),
        ({"options": {"max_term": 3}}, ["no such option", "data.options.max_term", "3", "max_terms"]),
        (
            {"options": {"max_terms": 1}},
            ["rejects", "data.options", "max_terms must be >= min_terms", "ChainSumConfig"],
        ),
        ({"options": {"max_terms": "many"}}, ["rejects", "data.options", "many"]),
    ],
)
def test_unknown_tasks_options_and_values_are_one_clear_error(fields, words):
    with pytest.raises(UserError) as error:
        gym.check(GymProblems(**SUMS | fields))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "rubiks_cube", "options": {}},
        {"options": {"seed": 1}},
        {"options": {"size": 1}},
        {"options": {"max_terms": float("nan")}},
        {"template": "problem"},
        {"threshold": 0},
        {"answer_in": "text"},
    ],
    ids=str,
)
def test_a_configuration_that_no_run_can_have_is_invalid(fields):
    with pytest.raises(ValidationError):
        GymProblems(**SUMS | fields)


def test_only_tasks_of_the_package_are_named_as_unsupported_and_the_page_has_all():
    from reasoning_gym.factory import DATASETS

    assert set(gym.UNSUPPORTED) < set(DATASETS)
    assert set(gym.tasks()) == set(DATASETS) - set(gym.UNSUPPORTED)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.M)) == set(DATASETS)
    assert set(tasks.EVALUATED | tasks.PARSED) < set(gym.tasks())


# The scorer


def test_the_reward_is_the_scorer_s_verdict_on_the_last_box():
    problem = problems()[0]
    right = tasks.source_of(problem.answer).answer
    texts = [f"so {box(right)}", f"{box(right)} no, {box('x')}", right, "", box("")]
    texts += [box(f"+{right}.0"), box(f"{right} apples")]
    rewards, seconds = rewards_of(texts, problem.answer, "reasoning_gym")
    assert rewards == [1, 0, 0, 0, 0, 1, 0], "a partial score, as of the last text, earns nothing"
    assert seconds > 0


def test_an_answer_can_be_the_first_line_instead():
    problem = problems(answer_in="first_line")[0]
    assert gym.LINE.removeprefix("{problem}") in problem.prompt
    right = tasks.source_of(problem.answer).answer
    texts = [right, f" \n {right} \r\nbecause", f"It is {right}", f"Well\n{right}", box(right), "", " \n "]
    assert rewards_of(texts, problem.answer, "reasoning_gym")[0] == [1, 1, 0, 0, 0, 0, 0]
    graded = [tasks.grade(text, problem.answer) for text in texts]
    assert [each.extracted for each in graded] == [right, right, f"It is {right}", "Well", box(right), "", ""]
    assert [each.outcome for each in graded[4:]] == [Outcome.WRONG, Outcome.EMPTY, Outcome.EMPTY]
    generations = pd.DataFrame({"text": texts, "answer": problem.answer})
    outcomes = GRADERS["reasoning_gym"](generations, 1)
    assert list(outcomes["outcome"]) == [str(each.outcome) for each in graded]
    assert list(outcomes["extracted"]) == [each.extracted for each in graded]


@pytest.mark.parametrize("answer_in", ["box", "first_line"])
def test_solved_problems_precede_the_question_and_are_no_problems_themselves(answer_in):
    fields = {"template": "Q: {problem}\nA:", "answer_in": answer_in, "examples": 2}
    small = {"task": "chain_sum", "options": {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}}
    most = 4  # of ten questions
    train, held_out = (problems(**small, size=2, split=split, **fields) for split in ("train", "held-out"))
    (solved,) = {each.prompt.rpartition("\n\n")[0] for each in train + held_out}
    shown = re.findall(r"Q: (.*)\nA: (.*)", solved)
    plain = {p.prompt: tasks.source_of(p.answer).answer for p in problems(**small, size=most, template="{problem}")}
    written = box if answer_in == "box" else str
    assert len(dict(shown)) == 2
    assert all(written(plain[question]) == answer for question, answer in shown), "problems of the training split"
    asked = [each.prompt.rpartition("Q: ")[2].removesuffix("\nA:") for each in train + held_out]
    assert not {*asked} & {*dict(shown)}
    assert [question in plain for question in asked] == [True, True, False, False]
    with pytest.raises(UserError, match="fewer different problems"):
        problems(**small, size=most - 1, **fields)


def test_a_record_with_another_place_of_the_answer_is_an_error():
    record = json.loads(problems(size=1)[0].answer)
    with pytest.raises(UserError, match="no record of a problem"):
        tasks.source_of(json.dumps(record | {"answer_in": "last_line"}))
    del record["answer_in"]
    assert tasks.source_of(json.dumps(record)).answer_in == "box", "as in records of earlier versions"


def test_answers_of_several_lines_need_the_box():
    fields = {"task": "rotate_matrix", "options": {}, "size": 1}
    assert "\n" in tasks.source_of(problems(**fields)[0].answer).answer
    with pytest.raises(UserError, match="in its first line earns nothing"):
        problems(**fields, answer_in="first_line")


def test_a_threshold_below_one_accepts_partial_scores():
    low, high = (problems(threshold=threshold)[0] for threshold in (0.1, 1))
    text = box(f"{tasks.source_of(low.answer).answer} apples")
    assert [rewards_of([text], each.answer, "reasoning_gym")[0] for each in (low, high)] == [[1.0], [0.0]]


FACTORS = {"task": "prime_factorization", "options": {}}
"""Its scorer fails on whatever is no number."""


def test_an_error_of_a_scorer_is_one_clear_error_or_a_counted_one_but_no_silent_zero():
    stop, wrong = (problems(**FACTORS, size=1, scorer_errors=how)[0].answer for how in ("stop", "wrong"))
    with pytest.raises(UserError, match="scorer fails .ValueError") as error:
        rewards_of([box("two")], stop, "reasoning_gym")
    source = tasks.source_of(stop)
    assert error.value.key == f"reasoning-gym's {source.key}"
    assert (error.value.value, "scorer_errors: wrong" in error.value.hint) == ("two", True)
    assert rewards_of([box("two"), box(source.answer)], wrong, "reasoning_gym")[0] == [0.0, 1.0]
    assert tasks.compare("two", wrong) is Outcome.ERROR


class Words:
    """A tokenizer with one token for each text."""

    def __init__(self, *texts):
        self.texts = texts

    def batch_decode(self, rows, skip_special_tokens):
        return [self.texts[int(row[0])] for row in rows]


def test_workers_grade_and_an_error_in_a_worker_reaches_the_trainer():
    answers = [problems(**of, size=1)[0].answer for of in (SUMS, FACTORS)]
    texts = (box(tasks.source_of(answers[0]).answer), box("two"))
    rows = [Rollout(0, i, np.array([i], np.int32), np.zeros(1), np.zeros(1), Finish.EOS) for i in range(2)]
    with Graders(answers, Words(*texts), 1, "reasoning_gym") as graders:
        assert asyncio.run(graders.grade(0, rows)).tolist() == [1, 0]
        with pytest.raises(UserError, match="prime_factorization"):
            asyncio.run(graders.grade(1, rows[1:]))


@pytest.mark.parametrize("task", sorted(tasks.EVALUATED | tasks.PARSED))
def test_no_scorer_runs_an_answer_as_python(task, tmp_path):
    problem = problems(task=task, options={}, size=1)[0]
    file = tmp_path / "made"
    run = f"open({str(file)!r}, 'w')"
    for text in (run, f"[{run}]", f"[[{run}]]", f"x + {run}", f"(lambda: {run})()"):
        assert tasks.compare(text, problem.answer) is Outcome.WRONG
    assert not file.exists()
    assert tasks.compare(tasks.source_of(problem.answer).answer, problem.answer) is Outcome.CORRECT


@pytest.mark.parametrize("text", ["x**2/2 + sin(x) - C", "(25 - 1)*4", "2*exp(3*x)", "sqrt(2)", "x^2"])
def test_expressions_are_scored(text):
    assert tasks.is_expression(text)


@pytest.mark.parametrize(
    "text", ["open('x')", "exit()", "input()", "x.diff()", "x .diff", "[x]", "__x", "é", "a;b", "ｅ", "eval(x)", "{x}"]
)
def test_other_texts_are_none(text):
    assert not tasks.is_expression(text)


def test_a_scorer_without_an_end_is_a_time_out(monkeypatch):
    answer = problems()[0].answer
    monkeypatch.setattr(tasks, "SECONDS", 0.1)
    monkeypatch.setattr(tasks, "score", lambda *_: [None for _ in iter(int, 1)])
    assert tasks.compare("1", answer) is Outcome.TIMEOUT


@pytest.mark.parametrize("scored", [None, float("nan"), 1.5, -0.1, "much"])
def test_a_score_that_is_none_is_an_error(scored, monkeypatch):
    answer = problems()[0].answer
    generator = tasks._generator("chain_sum", json.dumps(SUMS["options"]), tasks.source_of(answer).seed)
    monkeypatch.setattr(generator, "score_answer", lambda *_: scored)
    with pytest.raises(UserError, match="no number from 0 to 1"):
        tasks.compare("1", answer)


def test_a_scorer_that_changes_its_problem_changes_no_later_score(monkeypatch):
    answer = problems()[0].answer
    generator = tasks._generator("chain_sum", json.dumps(SUMS["options"]), tasks.source_of(answer).seed)
    monkeypatch.setattr(generator, "score_answer", lambda _, entry: float(entry.pop("answer") != "gone"))
    assert [tasks.compare("1", answer) for _ in range(2)] == [Outcome.CORRECT] * 2


def test_a_generator_that_makes_another_problem_is_an_error():
    answer = problems()[0].answer
    record = json.loads(answer)
    for changed in ({"index": record["index"] + 1}, {"question": "0" * 16}, {"answer": "7777"}, {"version": "0"}):
        with pytest.raises(UserError, match="makes another problem"):
            tasks.compare("1", json.dumps(record | changed))
    for damaged in ("42", "{}", "x"):
        with pytest.raises(UserError, match="no record"):
            tasks.compare("1", damaged)


def test_a_problem_whose_own_answer_earns_nothing_is_an_error(monkeypatch):
    generator = type(gym.build("chain_sum", {}))
    monkeypatch.setattr(generator, "score_answer", lambda *_: 0.5)
    with pytest.raises(UserError, match="own answer in its box earns nothing"):
        problems()
    assert problems(threshold=0.5)


def test_the_grader_fits_the_problems():
    found = problems()
    check_answers(found, "reasoning_gym", "data")
    for others, grading in ((found, "math"), (found, "choice"), ([Problem("1+1", "2")], "reasoning_gym")):
        with pytest.raises(UserError, match="cannot compare"):
            check_answers(others, grading, "data")


# A run


def test_an_ascii_tokenizer_keeps_every_text_and_others_encode_no_unknown_character():
    tokenizer = make_tokenizer("ascii")
    text = "".join(map(chr, range(32, 127))) + "\n\n\\boxed{7}"
    (tokens,) = encode(tokenizer, [text])
    assert (tokenizer.decode(tokens), len(tokenizer)) == (text, TinyModel(characters="ascii").vocabulary)
    for characters, unknown in (("ascii", "é"), ("arithmetic", "A")):
        with pytest.raises(UserError, match="no token for some characters"):
            encode(make_tokenizer(characters), ["1", f"1{unknown}"])


PRESET = re.search(r"```yaml\n(name: gym.*?)```", PAGE, flags=re.S)[1]


def test_the_page_s_preset_resolves_and_a_mistake_in_it_is_found_before_work_starts(folder, mistake):
    file = folder / "experiments/presets/gym.yaml"
    file.write_text(PRESET)
    parse(Preset, yaml.safe_load(PRESET), "reasoning-gym.md")
    run = Experiments(folder).run(CELL, 0, "gym")
    assert (run.reward, run.grading) == ("reasoning_gym", "reasoning_gym")
    file.write_text(
        PRESET.replace("held-out, size: 32", "held-out, size: 32, options: {max_term: 2}").replace(
            "options: {max_terms: 2, max_digits: 1}, ", ""
        )
    )
    (folder / "Snakefile").touch()
    message = mistake(folder, "run", CELL, "--preset", "gym")
    assert "gym.yaml: reasoning-gym's task chain_sum has no such option" in message
    assert "benchmarks.sums.data.options.max_term" in message
    file.write_text(PRESET.replace("grading: reasoning_gym", "grading: math"))
    with pytest.raises(UserError, match="need grading: reasoning_gym"):
        Experiments(folder).preset("gym")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of the page's run, trained and evaluated without Snakemake."""
    folder = tmp_path_factory.mktemp("gym")
    shutil.copytree(ROOT / "experiments", folder / "experiments", ignore=shutil.ignore_patterns("own"))
    (folder / "experiments/presets/gym.yaml").write_text(PRESET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_model("gym", "qwen3-1.7b-base", folder / "model")
        job.train("gym", CELL, 0, folder / "model", folder / "run")
        generate_policies("gym", "", 0, folder / "run/generations.parquet", [folder / "run/manifest.json"])
        grade_policies("gym", "", folder / "run/generations.parquet", folder / "run/scores.json")
    return folder


def test_the_page_s_run_trains_and_is_evaluated(trained):
    records = read_json_lines(trained / "run/steps.jsonl")
    rewards = [record["reward"] for record in records]
    assert len(records) == 8
    assert 0 < np.mean(rewards) < 1, "some responses are right and some are wrong"
    assert sum(record["tokens_reused"] for record in records) > 0
    manifest = read_json(trained / "run/manifest.json")
    assert manifest["packages"]["reasoning-gym"] == manifest["identity"]["data"]["version"] == "0.1.25"
    scores = read_json(trained / "run/scores.json")
    assert {step: (of["sums"]["total"], of["sums"]["errors"]) for step, of in scores.items()} == {
        "4": (128, 0),
        "8": (128, 0),
    }
    # Counted again by the scorer. On some processors this policy has no right response.
    frame = pd.read_parquet(trained / "run/generations.parquet")
    right = [tasks.is_right(text, answer) for text, answer in zip(frame["text"], frame["answer"], strict=True)]
    counted = frame.assign(right=right).groupby("step")["right"].sum()
    assert {step: of["sums"]["correct"] for step, of in scores.items()} == {str(k): n for k, n in counted.items()}


def test_right_generations_of_the_page_s_benchmark_are_graded_as_right(trained, tmp_path):
    """Every second response becomes its problem's answer."""
    generations = tmp_path / "generations.parquet"
    frame = pd.read_parquet(trained / "run/generations.parquet")
    answers = [box(tasks.source_of(answer).answer) for answer in frame["answer"]]
    frame["text"] = [answer if i % 2 else "" for i, answer in enumerate(answers)]
    frame.to_parquet(generations)
    with chdir(trained):
        grade(generations, Experiments().preset("gym").of_seed(0).benchmarks, tmp_path / "scores.json")
    scores = read_json(tmp_path / "scores.json")
    assert {step: (of["sums"]["correct"], of["sums"]["total"]) for step, of in scores.items()} == {
        "4": (64, 128),
        "8": (64, 128),
    }


def test_a_stopped_run_goes_on_and_ends_bit_identical(trained, tmp_path):
    run = Experiments(trained).run(CELL, 0, "gym")

    class StoppedError(Exception):
        pass

    def stop(done, *_):
        if done == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        LocalTrainer(run, trained / "model", tmp_path).train(stop)
    assert 0 < len(read_json_lines(tmp_path / "steps.jsonl")) < 8
    LocalTrainer(run, trained / "model", tmp_path).train()
    kept = [folder / "policies/step-0008/model.safetensors" for folder in (tmp_path, trained / "run")]
    assert len(set(hashes(kept[0]).values()) | set(hashes(kept[1]).values())) == 1
    rewards = [[r["reward"] for r in read_json_lines(f / "steps.jsonl")] for f in (tmp_path, trained / "run")]
    assert rewards[0] == rewards[1]


def test_another_version_task_or_option_is_another_run(trained):
    run = Experiments(trained).run(CELL, 0, "gym")
    others = [
        run.model_copy(update={"data": run.data.model_copy(update=change)})
        for change in ({"version": "0.1.26"}, {"task": "gcd"}, {"options": {}}, {"threshold": 0.5})
    ]
    assert len({run_fingerprint(each) for each in (run, *others)}) == 5


def test_a_scorer_s_error_in_an_evaluation_names_the_problem(trained, tmp_path, monkeypatch):
    from redraft.config import Benchmark
    from redraft.evaluate import grade
    from tests.test_grade_stage import generation, graded

    answers = {how: problems(**FACTORS, size=1, scorer_errors=how)[0].answer for how in ("stop", "wrong")}
    data = {how: GymProblems(**FACTORS, size=1, scorer_errors=how) for how in answers}
    benchmark = {how: Benchmark(data=data[how], grading="reasoning_gym") for how in answers}
    assert grade.GRADERS.keys() >= {"reasoning_gym"}
    with pytest.raises(UserError, match="prime_factorization"):
        graded(tmp_path, [generation("factors", 0, 0, box("two"), answers["stop"])], {"factors": benchmark["stop"]})
    _, scores = graded(
        tmp_path, [generation("factors", 0, 0, box("two"), answers["wrong"])], {"factors": benchmark["wrong"]}
    )
    assert (scores["0"]["factors"]["errors"], scores["0"]["factors"]["correct"]) == (1, 0)


def test_the_page_s_example_of_six_tasks_is_a_project_of_its_own(tmp_path):
    folder = tmp_path / "gym_tasks"
    shutil.copytree(ROOT / "docs/examples/gym_tasks/experiments", folder / "experiments")
    checked = called(folder, "redraft", "validate", "--preset", "smol-gym")
    assert checked.returncode == 0, checked.stderr
    assert "no mistake in 12 cells" in checked.stdout
    planned = called(ROOT, "snakemake", "--directory", str(folder), "-n", "--config", "preset=smol-gym")
    assert planned.returncode == 0, planned.stderr
    assert "12 runs to train, of 12 cells: 12 of gym_tasks" in " ".join((planned.stdout + planned.stderr).split())
    experiments = Experiments(folder)
    for name in experiments.preset("smol-gym").data:
        run = experiments.run(f"gym_tasks/{name}-vanilla", 0, "smol-gym")
        benchmark = experiments.preset("smol-gym", "gym").benchmarks[name].data
        train, held_out = load_problems(run.data), load_problems(benchmark)
        assert not {p.prompt for p in train} & {p.prompt for p in held_out}
        assert {p.prompt.count("Question: ") for p in train + held_out} == {run.data.examples + (run.data.examples > 0)}
