"""Comparison of two evaluations of the same problems, response by response: backends, precisions or policies.

Differences of scores are paired, so problems that are easy or hard for both add nothing to the interval. Under greedy
decoding, two evaluations of one policy differ only by rounding: responses part where the two most probable tokens have
nearly equal probabilities.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from redraft.errors import UserError
from redraft.evaluate.generation_parts import KEY
from redraft.evaluate.metrics import Z
from redraft.files import read_parquet
from redraft.result_files import check_hashes, read_record
from redraft.tasks.answers import Outcome

FILES = ("generations.parquet", "grades.parquet")
COLUMNS = (
    "benchmark",
    "responses",
    "first",
    "second",
    "second - first",
    "same verdict",
    "same tokens",
    "one first difference in",
)


@dataclass(frozen=True)
class EvaluationAgreement:
    """How two evaluations of a benchmark agree. Shares are of responses, 0 to 1.

    Attributes:
        benchmark: name.
        problems: number of problems.
        responses: number of responses in each evaluation.
        first: share of correct responses of the first evaluation.
        second: share of correct responses of the second evaluation.
        low: lower bound of the 95 % interval of `second - first` on problems like these.
        high: upper bound.
        same_verdict: share of responses with the same verdict, correct or not.
        same_answer: share of responses with the same extracted answer; None if the grader extracts none.
        same_text: share of responses with the same text. lm-eval returns texts without the stop token.
        same_tokens: share of responses that are equal token by token.
        tokens_a_difference: tokens up to and including the first difference, per first difference; None if all
            responses are equal.
        noise: half-width of the 95 % range of `second - first` for two independent samplings of one policy; None if
            the samples do not show how much those of a problem differ.
    """

    benchmark: str
    problems: int
    responses: int
    first: float
    second: float
    low: float
    high: float
    same_verdict: float
    same_answer: float | None
    same_text: float
    same_tokens: float
    tokens_a_difference: float | None
    noise: float | None

    def texts(self) -> list[str]:
        """A row of `COLUMNS`."""
        difference = 100 * (self.second - self.first)
        every = "-" if self.tokens_a_difference is None else f"{self.tokens_a_difference:,.0f} tokens"
        return [
            self.benchmark,
            str(self.responses),
            f"{self.first:.1%}",
            f"{self.second:.1%}",
            f"{difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]",
            f"{self.same_verdict:.1%}",
            f"{self.same_tokens:.1%}",
            every,
        ]


def agreements(first: Path, second: Path, *, whole: bool = False) -> list[EvaluationAgreement]:
    """Compare two folders of generations and grades, by benchmark, on the responses that both contain.

    Args:
        first: folder of an evaluation.
        second: folder of another one.
        whole: whether each has to contain all responses of the other.

    Raises:
        UserError: if a file is missing or damaged, if no response is common to both, if prompts or answers differ, or
            with `whole` if one lacks a response.
    """
    ours, theirs = _read(first), _read(second)
    both = ours.merge(theirs, on=KEY, how="inner", suffixes=("", " of second"))
    if both.empty:
        raise UserError(
            "these evaluations have no response of the same problem",
            file=second,
            key="benchmark",
            value=", ".join(theirs["benchmark"].unique()),
            allowed=", ".join(ours["benchmark"].unique()),
        )
    if whole and not len(both) == len(ours) == len(theirs):
        raise UserError(
            "these evaluations have different problems or numbers of samples",
            file=second,
            key="responses",
            value=len(theirs),
            allowed=f"the {len(ours)} of {first}; both have {len(both)}",
        )
    # Keys are indices: under another version of the data the same index is another problem.
    for column in ("prompt", "answer"):
        other = both[both[column] != both[f"{column} of second"]]
        if len(other):
            name, problem = other[["benchmark", "problem"]].iloc[0]
            raise UserError(
                f"these evaluations have another {column} of the same problem",
                file=second,
                key=f"{name}, problem {problem}",
                value=repr(other[f"{column} of second"].iloc[0]),
                allowed=repr(other[column].iloc[0]),
            )
    return [_agreement(str(name), part) for name, part in both.groupby("benchmark", sort=False)]


def _read(folder: Path) -> pd.DataFrame:
    """Join generations with their grades."""
    for name in FILES:
        if not (folder / name).exists():
            raise UserError(
                "this is no folder of a finished evaluation",
                file=folder / name,
                key="folder",
                value=str(folder),
                allowed="a folder that `redraft evaluate` printed",
            )
    record = read_record(folder / "grades.json", "sha256", "made_from")
    # Grades of earlier generations would be joined by the same keys without an error.
    check_hashes(folder, record["sha256"] | record["made_from"], folder / "grades.json")
    generations = read_parquet(folder / FILES[0], (*KEY, "prompt", "answer", "tokens", "text"), only=True)
    grades = read_parquet(folder / FILES[1], (*KEY, "outcome", "extracted"), only=True)
    whole = generations.merge(grades, on=KEY, how="inner")
    if not len(whole) == len(generations) == len(grades):
        raise UserError("these grades do not belong to the generations in this folder", file=folder / FILES[1])
    return whole.assign(right=whole["outcome"] == Outcome.CORRECT)


def _agreement(name: str, both: pd.DataFrame) -> EvaluationAgreement:
    first, second = (both[column].astype(float) for column in ("right", "right of second"))
    # The unit is the problem: samples of one problem are correlated, those of policies of several steps too.
    changes = (second - first).groupby(both["problem"]).mean().to_numpy()
    pairs = list(zip(both["tokens"], both["tokens of second"], strict=True))
    # Equal tokens before each first difference; a response without a difference counts whole.
    before = sum(common_tokens(a, b) for a, b in pairs)
    different = sum(not np.array_equal(a, b) for a, b in pairs)
    # Policies of several steps do not sample independently.
    samples = len(both) // both.groupby(["step", "problem"]).ngroups
    low, high = paired_interval(changes, samples)
    # Graders of instructions extract no answers.
    answers = both[["extracted", "extracted of second"]].fillna("")
    return EvaluationAgreement(
        benchmark=name,
        problems=len(changes),
        responses=len(both),
        first=float(first.mean()),
        second=float(second.mean()),
        low=low,
        high=high,
        same_verdict=float((first == second).mean()),
        same_answer=float(answers.eq(answers["extracted"], axis=0).all(axis=1).mean())
        if answers.any(axis=None)
        else None,
        same_text=float((both["text"] == both["text of second"]).mean()),
        same_tokens=1 - different / len(both),
        tokens_a_difference=(before + different) / different if different else None,
        noise=sampling_noise([both["step"], both["problem"]], first, second),
    )


def common_tokens(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix of two responses, in tokens."""
    shorter = min(len(first), len(second))
    unequal = np.flatnonzero(np.asarray(first[:shorter]) != np.asarray(second[:shorter]))
    return int(unequal[0]) if len(unequal) else shorter


def paired_interval(changes: np.ndarray, samples: int = 1) -> tuple[float, float]:
    """95 % interval of a mean change of paired shares.

    Two pseudo-pairs are added, half a pair to each cell of the 2 x 2 table (Agresti and Min, 2005, "Simple improved
    confidence intervals for comparing matched proportions"), so the interval has a width even without any change.
    Their squares are divided by the samples of a problem, as the variance of its mean change is.

    Args:
        changes: mean change of each problem, -1 to 1, (problems,).
        samples: responses of each problem that its change is the mean of.
    """
    size = len(changes) + 2
    mean = float(np.sum(changes)) / size
    variance = (float(np.sum(np.square(changes))) + 1 / samples) / size - mean**2
    half = float(stdtrit(size - 1, 0.975)) * float(np.sqrt(variance / size))
    return max(-1.0, mean - half), min(1.0, mean + half)


def sampling_noise(of: list[pd.Series], first: pd.Series, second: pd.Series) -> float | None:
    """Half-width of the 95 % range of the difference between two independent samplings of the same problems.

    Only samples vary, by the variance within each problem. `paired_interval` also has the variance between problems.

    Args:
        of: step and problem of each response, (responses,) each; all problems have the same number of samples.
        first: 1 for a correct response of the first sampling, else 0, (responses,).
        second: the same of the second sampling.

    Returns:
        Half-width as a share, 0 to 1; None if a problem has one sample, or if the samples of no problem differ: then
        the variance is unknown and not 0.
    """
    spread = [side.groupby(of).agg(["var", "size"]) for side in (first, second)]
    if min(int(each["size"].min()) for each in spread) < 2:
        return None
    variance = sum(float((each["var"] / each["size"]).sum()) for each in spread) / len(spread[0]) ** 2
    return Z * float(np.sqrt(variance)) or None
