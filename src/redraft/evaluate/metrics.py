"""Measures of one policy on one benchmark, from which of each problem's samples are right. All are shares, 0 to 1."""

from collections import Counter

import numpy as np
from scipy.stats import norm, t

Z = float(norm.ppf(0.975))


def pass_at(correct: np.ndarray, samples: int, k: int) -> float:
    """The probability that of k samples of a problem one is right, without bias; the mean over problems.

    1 - C(n - c, k) / C(n, k) as a product (Chen et al., 2021, "Evaluating large language models trained on code",
    Section 2.1).

    Args:
        correct: how many samples of each problem are right, int (problems,).
        samples: how many there are of each, n.
        k: 1 to n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k ({k}) must be between 1 and the number of samples ({samples})")
    drawn = np.arange(k)
    # Each factor is the share of wrong ones among those not yet drawn; with fewer than k wrong ones a factor is 0.
    wrong = np.maximum(samples - np.asarray(correct)[:, None] - drawn, 0)
    return float(1 - (wrong / (samples - drawn)).prod(axis=1).mean())


def ks(samples: int) -> list[int]:
    """The k of which pass@k is said: powers of two up to the number of samples, and that."""
    return sorted({2**i for i in range(samples.bit_length())} | {samples})


def majority(correct: np.ndarray, extracted: np.ndarray) -> float:
    """Share of problems whose most frequent answer is right (maj@n over all samples).

    Right samples of a problem are one answer, however they are written, and wrong ones are one if written alike; so
    wrong answers in several notations are split, which favours the right one. Samples without an answer do not vote.
    If the right answer shares the first place with m others, the problem counts 1 / (m + 1).

    Args:
        correct: which samples are right, bool (problems, samples).
        extracted: what was compared with the answer, str (problems, samples); empty for samples without an answer.
    """
    return float(np.mean([_vote(right, texts) for right, texts in zip(correct, extracted, strict=True)]))


def _vote(correct: np.ndarray, extracted: np.ndarray) -> float:
    wrong = Counter(text for text, right in zip(extracted, correct, strict=True) if text and not right)
    right, most = int(np.sum(correct)), max(wrong.values(), default=0)
    if right != most:
        return float(right > most)
    return 1 / (1 + sum(count == most for count in wrong.values())) if right else 0.0


def interval(correct: np.ndarray, samples: int) -> tuple[float, float]:
    """95 % interval of the accuracy on problems like these, with samples of a problem alike.

    Wilson's interval (1927) with the effective number of samples in place of theirs: accuracy's binomial variance over
    its variance between problems, which is their number over the design effect (Kish, 1965, "Survey sampling"), less
    what the problems' own number costs (Korn and Graubard, 1998, "Confidence intervals for proportions with small
    expected number of positive counts estimated from survey data"; with Wilson's interval: Dean and Pagano, 2015,
    "Evaluating confidence interval methods for binomial proportions in clustered surveys"). It lies between the number
    of problems, at which samples of a problem tell nothing new, and the number of samples, at which they are
    independent. With one sample a problem it is their number. Where all are right or all wrong the variance is
    unknown, and it is the number of problems as well.

    Args:
        correct: how many samples of each problem are right, int (problems,).
        samples: how many there are of each.
    """
    shares = np.asarray(correct) / samples
    mean, size = float(shares.mean()), _effective(shares, samples)
    centre = (mean + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * np.sqrt(mean * (1 - mean) / size + Z**2 / (4 * size**2))
    # At 0 and 1 a bound is exactly that, but for rounding.
    return max(0.0, min(float(centre - half), mean)), min(1.0, max(float(centre + half), mean))


def _effective(shares: np.ndarray, samples: int) -> float:
    problems, mean = len(shares), shares.mean()
    if problems == 1 or not 0 < mean < 1:
        return float(problems)
    variance = shares.var(ddof=1) / problems
    # The variance is an estimate from that many problems, hence Student's quantile (Korn and Graubard, 1998).
    size = mean * (1 - mean) / max(variance, 1e-300) * (Z / t.ppf(0.975, problems - 1)) ** 2
    return float(np.clip(size, problems, problems * samples))
