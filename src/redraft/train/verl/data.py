"""Training problems as the Parquet file that verl's `RLHFDataset` reads."""

from pathlib import Path

import pandas as pd

from redraft.files import atomic
from redraft.tasks.problems import Problem


def write_problems(problems: list[Problem], role: str, file: Path) -> None:
    """Write problems, whole or not at all.

    Args:
        problems: in the order of their indices, by which drafts are kept.
        role: the paper's training data, verl's `data_source`.
        file: where to.
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
