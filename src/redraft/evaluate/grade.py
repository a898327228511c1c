"""Grading saved generations, by the grader that also rewards training. Scores are counts, k of n."""

from pathlib import Path

import pandas as pd

from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.files import read_parquet, write_json
from redraft.tasks.grading import is_correct

COLUMNS = ("benchmark", "problem", "sample", "prompt", "answer", "text", "tokens", "finish")


def read_generations(file: Path, benchmarks: dict[str, Benchmark]) -> pd.DataFrame:
    """Generations as `generate` wrote them.

    Raises:
        UserError: if the file is missing, damaged, or holds other benchmarks or counts than configured.
    """
    frame = read_parquet(file, COLUMNS)
    if unknown := set(frame["benchmark"]) - set(benchmarks):
        raise UserError(
            "generations of another benchmark", file=file, key="benchmark", value=sorted(unknown), allowed=benchmarks
        )
    for name, benchmark in benchmarks.items():
        expected = benchmark.data.size * benchmark.samples
        found = int((frame["benchmark"] == name).sum())
        if found != expected:
            raise UserError("wrong number of generations", file=file, key=name, value=found, allowed=str(expected))
    return frame


def grade(generations: Path, benchmarks: dict[str, Benchmark], scores: Path) -> None:
    """Grade a file of generations and write `scores`: for each benchmark correct, total, tokens and truncated."""
    frame = read_generations(generations, benchmarks)
    frame["correct"] = [is_correct(t, a) for t, a in zip(frame["text"], frame["answer"], strict=True)]
    result = {
        name: {
            "correct": int(part["correct"].sum()),
            "total": len(part),
            "role": benchmarks[str(name)].role,
            "mean_tokens": float(part["tokens"].mean()),
            "truncated": int((part["finish"] == "length").sum()),
            "without_answer": int((~part["text"].str.contains("\\boxed{", regex=False)).sum()),
        }
        for name, part in frame.groupby("benchmark", sort=True)
    }
    write_json(scores, result)
