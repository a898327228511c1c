"""Scores of graded samples: one flat dictionary of numbers per policy and benchmark.

Counts refer to samples, k of `total`; the accuracy is `correct` over `total`. Shares lie between 0 and 1.
docs/grading.md explains every key.
"""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from redraft.config.data import Benchmark
from redraft.tasks.answers import Outcome
from redraft.tasks.problems import missing

Z = float(ndtri(0.975))
PERCENTILES = (50, 90, 99)
UNANSWERED = 0.9
"""Share of responses without an answer from which the scores have a note."""
NO_ANSWERS = (
    "nearly all responses have no answer in \\boxed{}, so nothing was compared: the prompt may not ask for one "
    "(`template`), or responses are cut off"
)
FAILED = {"empty": Outcome.EMPTY, "timeouts": Outcome.TIMEOUT, "errors": Outcome.ERROR}


def score(graded: pd.DataFrame, benchmark: Benchmark, note: str = "") -> dict[str, Any]:
    """Scores of one policy on one benchmark; keys that do not apply to the benchmark are left out.

    Args:
        graded: one line per sample, in the order of problem and sample, with the columns outcome, extracted, length,
            truncated, seconds, strict and loose.
        benchmark: the sampled benchmark.
        note: the grader's note; empty if there is none.
    """
    right = _by_problem(graded["outcome"] == Outcome.CORRECT, benchmark)
    count = right.sum(axis=1)
    low, high = interval(count, benchmark.samples)
    notes = [missing(benchmark.data, len(right)), note]
    lengths = graded["length"].to_numpy()
    scores = {
        "correct": int(count.sum()),
        "total": len(graded),
        "problems": len(right),
        "samples": benchmark.samples,
        "accuracy_low": low,
        "accuracy_high": high,
        **{f"pass_at_{k}": pass_at(count, benchmark.samples, k) for k in ks(benchmark.samples)},
    }
    if benchmark.grading == "instructions":
        # IFEval's four accuracies (Zhou et al., 2023, arXiv 2311.07911, Section 3), as counts
        scores |= {f"prompt_{level}": int(graded[level].map(all).sum()) for level in ("strict", "loose")}
        scores["instructions"] = int(graded["strict"].map(len).sum())
        scores |= {f"instructions_{level}": int(graded[level].map(sum).sum()) for level in ("strict", "loose")}
    else:
        scores["majority"] = majority(right, _by_problem(graded["extracted"], benchmark))
        scores["without_answer"] = int(graded["outcome"].isin([Outcome.NO_ANSWER, Outcome.EMPTY]).sum())
        notes.append(NO_ANSWERS if scores["without_answer"] >= UNANSWERED * len(graded) else "")
    return scores | {
        "mean_tokens": float(lengths.mean()),
        **{f"tokens_p{p}": float(np.percentile(lengths, p)) for p in PERCENTILES},
        "truncated": int(graded["truncated"].sum()),
        **{key: int((graded["outcome"] == outcome).sum()) for key, outcome in FAILED.items()},
        "seconds": float(graded["seconds"].sum()),
        "role": benchmark.role,
        **({"note": "; ".join(filter(None, notes))} if any(notes) else {}),
    }


def _by_problem(values: pd.Series, benchmark: Benchmark) -> np.ndarray:
    # `read_generations` has sorted the samples and checked that none is missing.
    return values.to_numpy().reshape(-1, benchmark.samples)


def pass_at(correct: np.ndarray, samples: int, k: int) -> float:
    """Unbiased estimate of pass@k: the probability that at least one of k samples is right, averaged over problems.

    1 - C(n - c, k) / C(n, k) as a product (Chen et al., 2021, "Evaluating large language models trained on code",
    Section 2.1).

    Args:
        correct: number of right samples of each problem, int, (problems,).
        samples: number of samples of each problem, n.
        k: number of samples that are chosen, 1 to n.

    Raises:
        ValueError: if k is outside 1 to n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k ({k}) must be between 1 and the number of samples ({samples})")
    chosen_K = np.arange(k)
    # Each factor is the share of wrong samples among those not chosen yet; with fewer than k wrong samples, one is 0.
    wrong_PK = np.maximum(samples - np.asarray(correct)[:, None] - chosen_K, 0)
    return float(1 - (wrong_PK / (samples - chosen_K)).prod(axis=1).mean())


def ks(samples: int) -> list[int]:
    """The values of k for pass@k: the powers of two up to the number of samples, and that number itself."""
    return sorted({2**i for i in range(samples.bit_length())} | {samples})


def majority(correct: np.ndarray, extracted: np.ndarray) -> float:
    """Share of problems whose most frequent answer is right (maj@n over all samples).

    All right samples of a problem count as one answer, however they are written. Wrong samples count as one answer if
    their texts are equal, so a wrong answer in several notations is split, which favours the right one. Samples
    without an answer do not vote. If the right answer ties with m others, the problem counts 1 / (m + 1).

    Args:
        correct: verdicts, bool, (problems, samples).
        extracted: texts that were compared with the answer, str, (problems, samples); empty without an answer.
    """
    votes = []
    for of_problem, texts in zip(correct, extracted, strict=True):
        wrong = Counter(text for text, is_right in zip(texts, of_problem, strict=True) if text and not is_right)
        right, most = int(np.sum(of_problem)), max(wrong.values(), default=0)
        tied = 1 / (1 + sum(count == most for count in wrong.values())) if right else 0.0
        votes.append(tied if right == most else float(right > most))
    return float(np.mean(votes))


def interval(correct: np.ndarray, samples: int) -> tuple[float, float]:
    """95 % interval of the accuracy on problems like these, where samples of one problem are correlated.

    This is Wilson's interval (1927) with an effective number of samples. The effective number is the binomial variance
    of the accuracy over its variance between problems, that is, the number of samples over the design effect (Kish,
    1965, "Survey sampling"). It is reduced for a small number of problems (Korn and Graubard, 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data"; with Wilson's
    interval: Dean and Pagano, 2015, "Evaluating confidence interval methods for binomial proportions in clustered
    surveys").

    The effective number is at least the number of problems (further samples of a problem add no information) and at
    most the number of samples (all are independent). With one sample per problem both are equal. If all samples are
    right or all are wrong, the variance is unknown, and the number of problems is used.

    Args:
        correct: number of right samples of each problem, int, (problems,).
        samples: number of samples of each problem.

    Returns:
        Lower and upper bound.
    """
    shares = np.asarray(correct) / samples
    mean, size = float(shares.mean()), _effective(shares, samples)
    centre = (mean + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * np.sqrt(mean * (1 - mean) / size + Z**2 / (4 * size**2))
    # Rounding can move a bound of exactly 0 or 1.
    return max(0.0, min(float(centre - half), mean)), min(1.0, max(float(centre + half), mean))


def _effective(shares: np.ndarray, samples: int) -> float:
    problems, mean = len(shares), shares.mean()
    if problems == 1 or not 0 < mean < 1:
        return float(problems)
    variance = shares.var(ddof=1) / problems
    # The variance is estimated from this number of problems, hence Student's quantile (Korn and Graubard, 1998).
    size = mean * (1 - mean) / max(variance, 1e-300) * (Z / stdtrit(problems - 1, 0.975)) ** 2
    # Where all problems have the same share the number is huge, and the bound applies.
    return float(np.clip(size, problems, problems * samples))
