"""What verl reads: problems in Parquet. Which of them a step rolls out, the schedule says (test_schedules.py)."""

import json

import pandas as pd
import pytest
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from redraft.config import Experiments
from redraft.config.data import ArithmeticProblems
from redraft.errors import UserError
from redraft.tasks.problems import Problem, load_problems
from redraft.train.verl.problem_files import prepare_data, read_problems, write_problems
from tests.columns import same


def test_written_problems_are_read_back(tmp_path):
    problems = [Problem("1+1=", "2"), Problem("what is\n\\boxed{x}?", "025"), Problem("ü", "")]
    write_problems(problems, "deepmath-6k", tmp_path / "problems.parquet")
    assert read_problems(tmp_path / "problems.parquet") == problems
    with pytest.raises(UserError, match="missing"):
        read_problems(tmp_path / "none.parquet")


def test_verl_s_dataset_reads_the_problems(tmp_path):
    problems = [Problem("1+1=", "2"), Problem("what is\n\\boxed{x}?", "025"), Problem("ü", "")]
    write_problems(problems, "deepmath-6k", file := tmp_path / "problems.parquet")
    dataset = RLHFDataset(str(file), tokenizer=None, config={"filter_overlong_prompts": False})
    batch = collate_fn([dataset[i] for i in range(3)])
    assert [message[0]["content"] for message in batch["raw_prompt"]] == [problem.prompt for problem in problems]
    assert [entry["ground_truth"] for entry in batch["reward_model"]] == ["2", "025", ""]
    assert list(batch["index"]) == [0, 1, 2]
    assert set(batch["data_source"]) == {"deepmath-6k"}


def test_preparing_data_writes_the_problems_and_what_they_were_read_from(tmp_path, monkeypatch):
    preset = Experiments().preset("verl-tiny")
    prepare_data("verl-tiny", "deepmath-6k", tmp_path / "data")
    frame = pd.read_parquet(tmp_path / "data/problems.parquet")
    assert same("problems", frame)
    assert [p[0]["content"] for p in frame["prompt"]] == [p.prompt for p in load_problems(preset.data["deepmath-6k"])]
    record = json.loads((tmp_path / "data/data.json").read_text())
    assert record["problems"] == len(frame) == 48
    assert (record["origin"], record["sha256"]) == ({"kind": "arithmetic"}, {})
    assert ArithmeticProblems.model_validate(record["data"]) == preset.data["deepmath-6k"]
    with pytest.raises(UserError, match="no such data"):
        prepare_data("verl-tiny", "deepmath-9k", tmp_path / "data")
