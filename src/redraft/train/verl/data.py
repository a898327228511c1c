"""Training problems as the Parquet file that verl's `RLHFDataset` reads, and back."""

from pathlib import Path

import pandas as pd

from redraft.files import atomic, read_parquet
from redraft.tasks.problems import Problem


def write_problems(problems: list[Problem], role: str, file: Path) -> None:
    """Write problems, whole or not at all.

    Args:
        problems: in the order of their indices, by which drafts are kept.
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
    with atomic(file) as temporary:
        pd.DataFrame(rows).to_parquet(temporary, index=False)


def read_problems(file: Path) -> list[Problem]:
    """Read problems that `write_problems` wrote."""
    frame = read_parquet(file, ("prompt", "reward_model"))
    answers = [entry["ground_truth"] for entry in frame["reward_model"]]
    return [Problem(prompt[-1]["content"], answer) for prompt, answer in zip(frame["prompt"], answers, strict=True)]
