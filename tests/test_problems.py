"""Hub data sets, read from a folder that is laid out like their repositories."""

import json
from pathlib import Path

import pandas as pd
import pytest

from redraft.config import Experiments
from redraft.config.data import ArithmeticProblems, HubProblems, ProblemFile
from redraft.errors import UserError
from redraft.files import sha256
from redraft.tasks.grading import is_correct
from redraft.tasks.problems import DATA_ROOT, Problem, checksums, load_problems, missing, origin

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT.parent / "shared/data/benchmarks"
COPIED = ("amc23", "aime24", "math500", "minerva", "olympiad", "gsm8k", "mmlu_stem", "ifeval")
"""Data sets that may have local copies."""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))
    return tmp_path


def write_training_file(root, file, count):
    """A Parquet file with the columns of SPEC-RL's release."""
    target = root / "bensonbsliu/Spec-RL" / file
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "data_source": "deepmath",
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"problem {i}"}],
            "reward_model": {"ground_truth": f"{i:03}", "style": "rule"},
            "extra_info": {"index": i},
        }
        for i in range(count)
    ]
    pd.DataFrame(rows).to_parquet(target)


def write_lines(root, rows, name="test.jsonl", dataset="a/b"):
    (root / dataset / name).parent.mkdir(parents=True, exist_ok=True)
    (root / dataset / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_paper_preset_reads_the_release_s_columns_and_its_subsets_are_the_first_problems(root):
    data = Experiments(ROOT).preset("paper").data
    write_training_file(root, "deepmath/train_sample_6144.parquet", 6144)
    write_training_file(root, "simplerl_math_35/train_8192.parquet", 8192)
    whole = load_problems(data["deepmath-6k"])
    assert len(whole) == 6144
    assert whole[7] == Problem("problem 7", "007")
    for role, size in (("2k", 2048), ("3k", 3072), ("4k", 4096), ("5k", 5120)):
        assert load_problems(data[f"deepmath-{role}"]) == whole[:size]
    assert len(load_problems(data["simplerl-8k"])) == 8192


def test_a_file_of_another_size_is_rejected(root):
    write_training_file(root, "train.parquet", 5)
    data = HubProblems(
        id="bensonbsliu/Spec-RL",
        files=["train.parquet"],
        size=4,
        problem="prompt.-1.content",
        answer="reward_model.ground_truth",
    )
    for size in (4, 6):
        with pytest.raises(UserError, match="wrong number") as error:
            load_problems(data.model_copy(update={"size": size}))
        assert (error.value.key, error.value.value, error.value.allowed) == ("size", 5, str(size))
    assert len(load_problems(data.model_copy(update={"of": 5}))) == 4
    with pytest.raises(ValueError, match="must not exceed"):
        HubProblems(id="a/b", files=["x"], size=5, of=4)


def test_options_get_letters_and_an_index_becomes_one(root):
    write_lines(root, [{"q": "Which?", "options": ["one", "two"], "answer": 1}])
    template = "{problem}\n{choices}\nBox it."
    data = HubProblems(id="a/b", files=["*test*"], size=1, problem="q", choices="options", template=template)
    assert load_problems(data) == [Problem("Which?\nA. one\nB. two\nBox it.", "B")]


def test_answers_keep_zeros_lose_empty_fractions_and_come_out_of_boxes(root):
    write_lines(root, [{"problem": "p", "answer": a} for a in ("025", 27.0, 2.5, 3)])
    answers = [p.answer for p in load_problems(HubProblems(id="a/b", files=["test.jsonl"], size=4))]
    assert answers == ["025", "27", "2.5", "3"]
    write_lines(root, [{"problem": "p", "answer": r"so \boxed{x} and \boxed{y}"}])
    with pytest.raises(UserError, match="earns nothing") as error:
        load_problems(HubProblems(id="a/b", files=["test.jsonl"], size=1))
    assert "answer_from: box" in error.value.hint
    boxed = HubProblems(id="a/b", files=["test.jsonl"], size=1, answer_from="box", template="{problem}")
    assert load_problems(boxed) == [Problem("p", "y")]


def test_several_files_are_read_in_the_order_of_the_configuration(root):
    write_lines(root, [{"problem": "1", "answer": "x"}], "one.jsonl")
    write_lines(root, [{"problem": "2", "answer": "x"}], "two.jsonl")
    data = HubProblems(id="a/b", files=["two.jsonl", "one.jsonl"], size=2, template="{problem}")
    assert [problem.prompt for problem in load_problems(data)] == ["2", "1"]


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"problem": "p", "answer": "a"}, {"id": "a/other"}, "without this data set"),
        ({"problem": "p", "answer": "a"}, {"files": ["train*"]}, "no file of the data set"),
        ({"problem": "p", "answer": "a"}, {"files": ["*"]}, "several files"),
        ({"problem": "p", "answer": "a"}, {"files": ["README.md"]}, "line 1 is not JSON"),
        ({"problem": "p"}, {}, "line 1 lacks a key"),
        ({"problem": "p", "answer": []}, {"answer": "answer.0"}, "line 1 lacks a key"),
        ({"problem": ["p"], "answer": "a"}, {}, "line 1: the value is not text"),
        ({"problem": None, "answer": "a"}, {}, "line 1: the value is not text"),
        ({"problem": "p", "answer": ""}, {}, "has no answer"),
        ({"problem": "p", "answer": "no box"}, {"answer_from": "box"}, "has no answer"),
        (["p"], {}, "not an object"),
    ],
)
def test_data_that_do_not_fit_the_configuration_are_rejected(root, row, changes, message):
    write_lines(root, [row])
    (root / "a/b/README.md").write_text("about")
    data = HubProblems(id="a/b", files=["*.jsonl"], size=1).model_copy(update=changes)
    with pytest.raises(UserError, match=message):
        load_problems(data)


def test_without_a_network_one_message_says_where_to_put_the_files(tmp_path):
    """The test runs in a process of its own, since the hub's client reads its settings on import."""
    import os
    import subprocess
    import sys

    code = (
        "from redraft.config.data import HubProblems; from redraft.tasks.problems import load_problems\n"
        "from redraft.errors import UserError\n"
        "try: load_problems(HubProblems(id='a/b', files=['test.jsonl'], size=1))\n"
        "except UserError as error: print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != DATA_ROOT} | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "cannot be fetched" in result.stdout
    assert "a/b" in result.stdout
    assert "test.jsonl into the folder $REDRAFT_DATA/a/b" in result.stdout


@pytest.mark.parametrize("name", COPIED)
def test_real_benchmarks_load_from_their_local_copies(name, monkeypatch):
    data = Experiments(ROOT).benchmark_file().sets[name].data
    if not (BENCHMARKS / data.local).exists():
        pytest.skip(f"{data.local} is not there: third-party data are not part of the repository")
    monkeypatch.setenv(DATA_ROOT, str(BENCHMARKS))
    problems = load_problems(data)
    size = 540 if name == "ifeval" else data.size  # the copy lacks one prompt
    assert len(problems) == size
    assert bool(missing(data, len(problems))) == (name == "ifeval")
    assert checksums(data) == data.sha256
    assert origin(data)["kind"] == "copy"
    assert len({problem.prompt for problem in problems}) >= size - 12  # MMLU has some questions twice
    if name == "ifeval":
        answers = [json.loads(problem.answer) for problem in problems]
        assert all(len(a["instruction_id_list"]) == len(a["kwargs"]) > 0 for a in answers)
        return
    assert all(problem.prompt.endswith("within \\boxed{}.") for problem in problems)
    assert all(is_correct(f"\\boxed{{{problem.answer}}}", problem.answer) for problem in problems[:20])
    if name == "mmlu_stem":
        assert {problem.answer for problem in problems} == set("ABCD")
        assert "\nA. " in problems[0].prompt


def test_a_local_file_is_read_where_there_is_no_folder(root):
    data = HubProblems(id="a/b", files=["test.jsonl"], local="b.jsonl", size=2, incomplete={1: "half of it"})
    with pytest.raises(UserError, match="without this data set") as error:
        load_problems(data)
    assert error.value.allowed == "a/b/ or b.jsonl"
    (root / "b.jsonl").write_text('{"problem": "1", "answer": "local"}\n')
    assert [problem.answer for problem in load_problems(data)] == ["local"]
    assert missing(data, 1) == "1 of 2 problems: half of it"
    assert missing(data, 2) == missing(ArithmeticProblems(), 1) == ""
    write_lines(root, [{"problem": str(i), "answer": "folder"} for i in range(2)])
    assert [problem.answer for problem in load_problems(data)] == ["folder"] * 2
    write_lines(root, [{"problem": str(i), "answer": "folder"} for i in range(3)])
    with pytest.raises(UserError, match="wrong number") as error:
        load_problems(data)
    assert error.value.allowed == "2, 1"


def test_a_file_with_another_hash_than_the_declared_one_is_rejected(root):
    write_lines(root, [{"problem": "p", "answer": "a"}])
    digest = sha256(root / "a/b/test.jsonl")
    data = HubProblems(id="a/b", files=["test.jsonl"], size=1, sha256={"test.jsonl": digest})
    assert len(load_problems(data)) == 1
    write_lines(root, [{"problem": "p", "answer": "b"}])
    with pytest.raises(UserError, match="not the declared one") as error:
        load_problems(data)
    assert (error.value.key, error.value.allowed) == ("sha256", digest)


def test_problems_can_be_skipped_at_the_front(root):
    write_lines(root, [{"problem": str(i), "answer": "x"} for i in range(5)])
    data = HubProblems(id="a/b", files=["test.jsonl"], size=2, skip=3, template="{problem}")
    assert [problem.prompt for problem in load_problems(data)] == ["3", "4"]
    with pytest.raises(ValueError, match="must not exceed"):
        HubProblems(id="a/b", files=["x"], size=2, skip=3, of=4)


def test_answers_are_read_after_hashes(root):
    write_lines(root, [{"problem": "p", "answer": "1 + 1 = 2\n#### 2"}])
    data = HubProblems(id="a/b", files=["test.jsonl"], size=1, answer_from="####", template="{problem}")
    assert load_problems(data)[0].answer == "2"
    write_lines(root, [{"problem": "p", "answer": "#### 1 was a guess\n#### 2"}])
    assert load_problems(data)[0].answer == "2", "the last ones"
    write_lines(root, [{"problem": "p", "answer": "no hashes"}])
    with pytest.raises(UserError, match="has no answer"):
        load_problems(data)


def test_a_template_needs_a_place_for_what_is_put_into_it():
    with pytest.raises(ValueError, match="must contain {problem}"):
        HubProblems(id="a/b", files=["x"], size=1, template="solve it")
    with pytest.raises(ValueError, match="must contain {choices}"):
        HubProblems(id="a/b", files=["x"], size=1, choices="options", template="{problem}")


def test_every_file_that_a_data_set_is_read_from_has_a_checksum(root, tmp_path):
    write_lines(root, [{"problem": "1", "answer": "1"}], "a/test-0.jsonl")
    write_lines(root, [{"problem": "2", "answer": "2"}], "unused.jsonl")
    data = HubProblems(id="a/b", revision="main", files=["a/*"], size=1)
    assert checksums(data) == {"a/test-0.jsonl": sha256(root / "a/b/a/test-0.jsonl")}
    assert origin(data) == {"kind": "copy", "id": "a/b", "revision": "main", "commit": None}
    before = checksums(data)
    write_lines(root, [{"problem": "1", "answer": "3"}], "a/test-0.jsonl")
    assert checksums(data) != before
    (file := tmp_path / "problems.jsonl").write_text("{}")
    assert checksums(ProblemFile(path=str(file), size=1)) == {str(file): sha256(file)}
    assert (checksums(ArithmeticProblems()), origin(ArithmeticProblems())) == ({}, {"kind": "arithmetic"})
    with pytest.raises(UserError, match="missing"):
        checksums(ProblemFile(path=str(tmp_path / "none"), size=1))


def test_a_fetched_data_set_is_recorded_with_its_commit(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_ROOT, raising=False)
    (tmp_path / "snapshots/0123abc").mkdir(parents=True)
    (tmp_path / "snapshots/0123abc/test.jsonl").write_text("{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path / "snapshots/0123abc"))
    data = HubProblems(id="a/b", files=["test.jsonl"], size=1)
    assert origin(data) == {"kind": "hub", "id": "a/b", "revision": None, "commit": "0123abc"}
    assert set(checksums(data)) == {"test.jsonl"}
