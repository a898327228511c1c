"""Training problems as the Parquet file of verl's `RLHFDataset`: writing and reading."""

from pathlib import Path

import pandas as pd

from redraft.config import Experiments
from redraft.config.preset import parted
from redraft.data_dictionary import write_parquet
from redraft.errors import UserError
from redraft.files import read_parquet, write_json
from redraft.tasks.problems import Problem, load_problems, record_of


def prepare_data(preset_name: str, name: str, folder: Path) -> None:
    """Read the preset's training problems for a role and block (`Preset.role`); write them and their origin.

    Raises:
        UserError: if the preset has nothing for the role, or it cannot be read.
    """
    role, block = parted(name)
    preset = Experiments().preset(preset_name).of_block(block)
    if role not in preset.data:
        raise UserError("the preset has no such data", key="data", value=role, allowed=preset.data)
    data = preset.data[role]
    problems = load_problems(data)
    write_problems(problems, role, folder / "problems.parquet")
    write_json(folder / "data.json", record_of(data, problems))


def write_problems(problems: list[Problem], role: str, file: Path) -> None:
    """Write problems atomically.

    Args:
        problems: in the order of their indices, which are the keys of drafts.
        role: the paper's training data, verl's `data_source`.
    """
    rows = [
        {
            "data_source": role,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index},
        }
        for index, problem in enumerate(problems)
    ]
    write_parquet(pd.DataFrame(rows), file, "problems")


def read_problems(file: Path) -> list[Problem]:
    """Read problems that `write_problems` wrote."""
    frame = read_parquet(file, ("prompt", "reward_model"))
    answers = [entry["ground_truth"] for entry in frame["reward_model"]]
    return [Problem(prompt[-1]["content"], answer) for prompt, answer in zip(frame["prompt"], answers, strict=True)]
