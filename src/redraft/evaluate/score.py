"""Scores of graded samples: one flat dictionary of numbers per policy and benchmark.

Counts refer to samples, k of `total`; the accuracy is `correct` over `total`. Shares lie between 0 and 1.
docs/grading.md explains every key.
"""

from typing import Any

import numpy as np
import pandas as pd

from redraft.config.data import Benchmark
from redraft.evaluate.metrics import interval, ks, majority, pass_at
from redraft.tasks.answers import Outcome
from redraft.tasks.problems import missing

PERCENTILES = (50, 90, 99)


def score(graded: pd.DataFrame, benchmark: Benchmark, note: str = "") -> dict[str, Any]:
    """Scores of one policy on one benchmark. A key without a meaning for the benchmark is left out.

    Args:
        graded: one line per sample, in the order of problem and sample, with the columns outcome, extracted, length,
            truncated, seconds, strict and loose.
        benchmark: the sampled benchmark.
        note: the grader's note; empty if there is none.
    """
    right = _by_problem(graded["outcome"] == Outcome.CORRECT, benchmark)
    count = right.sum(axis=1)
    low, high = interval(count, benchmark.samples)
    notes = [text for text in (missing(benchmark.data, len(right)), note) if text]
    return {
        "correct": int(count.sum()), "total": len(graded), "problems": len(right), "samples": benchmark.samples,
        "accuracy_low": low, "accuracy_high": high,
        **{f"pass_at_{k}": pass_at(count, benchmark.samples, k) for k in ks(benchmark.samples)},
        **(_instructions(graded) if benchmark.grading == "instructions" else _answers(graded, right, benchmark)),
        **_lengths(graded),
        **{key: int((graded["outcome"] == outcome).sum()) for key, outcome in FAILED.items()},
        "seconds": float(graded["seconds"].sum()), "role": benchmark.role,
        **({"note": "; ".join(notes)} if notes else {}),
    }  # fmt: skip


FAILED = {"empty": Outcome.EMPTY, "timeouts": Outcome.TIMEOUT, "errors": Outcome.ERROR}


def _by_problem(values: pd.Series, benchmark: Benchmark) -> np.ndarray:
    return values.to_numpy().reshape(-1, benchmark.samples)


def _answers(graded: pd.DataFrame, right: np.ndarray, benchmark: Benchmark) -> dict[str, Any]:
    without = graded["outcome"].isin([Outcome.NO_ANSWER, Outcome.EMPTY])
    return {
        "majority": majority(right, _by_problem(graded["extracted"], benchmark)), "without_answer": int(without.sum()),
    }  # fmt: skip


def _instructions(graded: pd.DataFrame) -> dict[str, Any]:
    """IFEval's four accuracies (Zhou et al., 2023, arXiv 2311.07911, Section 3), as counts."""
    return {
        "prompt_strict": int(graded["strict"].map(all).sum()), "prompt_loose": int(graded["loose"].map(all).sum()),
        "instructions": int(graded["strict"].map(len).sum()),
        "instructions_strict": int(graded["strict"].map(sum).sum()),
        "instructions_loose": int(graded["loose"].map(sum).sum()),
    }  # fmt: skip


def _lengths(graded: pd.DataFrame) -> dict[str, Any]:
    lengths = graded["length"].to_numpy()
    percentiles = {f"tokens_p{p}": float(np.percentile(lengths, p)) for p in PERCENTILES}
    return {"mean_tokens": float(lengths.mean()), **percentiles, "truncated": int(graded["truncated"].sum())}
