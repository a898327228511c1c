"""Grading saved generations, by the grader that also rewards training. Scores are counts, k of n."""

from pathlib import Path
from typing import Any

import pandas as pd

from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.files import read_parquet, write_json
from redraft.tasks.grading import is_correct

COLUMNS = ("step", "benchmark", "problem", "sample", "prompt", "answer", "text", "tokens", "finish")


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
    if (without := frame["answer"] == "").any():
        raise UserError("problems without an answer to compare with need a grader of their own, which this version "
                        "does not have", file=file, key="benchmark",
                        value=sorted(frame.loc[without, "benchmark"].unique()))  # fmt: skip
    for step, part in frame.groupby("step"):
        for name, benchmark in benchmarks.items():
            expected = benchmark.data.size * benchmark.samples
            found = int((part["benchmark"] == name).sum())
            if found != expected:
                raise UserError("wrong number of generations", file=file, key=f"step {step}, {name}", value=found,
                                allowed=str(expected))  # fmt: skip
    return frame


def grade(generations: Path, benchmarks: dict[str, Benchmark], scores: Path) -> None:
    """Grade a file of generations and write `scores`: by step and benchmark what `_score` counts."""
    frame = read_generations(generations, benchmarks)
    frame["correct"] = [is_correct(t, a) for t, a in zip(frame["text"], frame["answer"], strict=True)]
    result = {
        str(step): {
            str(name): _score(part) | {"role": benchmarks[str(name)].role}
            for name, part in of_step.groupby("benchmark", sort=True)
        }
        for step, of_step in frame.groupby("step", sort=True)
    }
    write_json(scores, result)


def _score(graded: pd.DataFrame) -> dict[str, Any]:
    """Counts of one policy's samples on one benchmark."""
    return {
        "correct": int(graded["correct"].sum()),
        "total": len(graded),
        "mean_tokens": float(graded["tokens"].mean()),
        "truncated": int((graded["finish"] == "length").sum()),
        "without_answer": int((~graded["text"].str.contains("\\boxed{", regex=False)).sum()),
    }
