"""Two evaluations of the same problems, response by response: other backends, precisions or policies.

Differences of scores are paired: problems that both find easy or hard add nothing to their interval. Where both take
the most probable token, responses of the same policy differ only by rounding, from the first token on whose two most
probable ones are about as probable as each other.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from redraft.errors import UserError
from redraft.evaluate.generation_parts import KEY
from redraft.files import read_parquet
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
        responses: of each.
        first: share of right responses of the first one.
        second: of the second one.
        low: lower bound of the 95 % interval of `second - first` on problems like these.
        high: upper bound.
        same_verdict: share of responses that both get right or both get wrong.
        same_tokens: share of responses that are equal token by token.
        tokens_a_difference: tokens that both computed on equal texts so far, over first differences; None without any.
    """

    benchmark: str
    responses: int
    first: float
    second: float
    low: float
    high: float
    same_verdict: float
    same_tokens: float
    tokens_a_difference: float | None

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


def agreements(first: Path, second: Path) -> list[EvaluationAgreement]:
    """How two folders of generations and grades agree on the responses that both have, by benchmark.

    Raises:
        UserError: if a file is missing or damaged, or if both have no benchmark in common, or other prompts or answers.
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
    """Responses with their verdicts."""
    for name in FILES:
        if not (folder / name).exists():
            raise UserError(
                "this is no folder of a finished evaluation",
                file=folder / name,
                key="folder",
                value=str(folder),
                allowed="a folder that `redraft evaluate` printed",
            )
    generations = read_parquet(folder / FILES[0], (*KEY, "prompt", "answer", "tokens"), only=True)
    grades = read_parquet(folder / FILES[1], (*KEY, "outcome"), only=True)
    whole = generations.merge(grades, on=KEY, how="inner")
    if not len(whole) == len(generations) == len(grades):
        raise UserError("these grades are not those of the generations beside them", file=folder / FILES[1])
    return whole.assign(right=whole["outcome"] == Outcome.CORRECT)


def _agreement(name: str, both: pd.DataFrame) -> EvaluationAgreement:
    first, second = (both[column].astype(float) for column in ("right", "right of second"))
    changes = (second - first).groupby([both["step"], both["problem"]]).mean().to_numpy()
    pairs = list(zip(both["tokens"], both["tokens of second"], strict=True))
    before = sum(common_tokens(a, b) for a, b in pairs)
    different = sum(not np.array_equal(a, b) for a, b in pairs)
    low, high = paired_interval(changes)
    return EvaluationAgreement(
        name,
        len(both),
        float(first.mean()),
        float(second.mean()),
        low,
        high,
        float((first == second).mean()),
        1 - different / len(both),
        (before + different) / different if different else None,
    )


def common_tokens(first: np.ndarray, second: np.ndarray) -> int:
    """Number of tokens before the first one that differs, or before the end of the shorter response."""
    shorter = min(len(first), len(second))
    unequal = np.flatnonzero(np.asarray(first[:shorter]) != np.asarray(second[:shorter]))
    return int(unequal[0]) if len(unequal) else shorter


def paired_interval(changes: np.ndarray) -> tuple[float, float]:
    """95 % interval of a mean change of paired shares.

    Two pairs are added, as Agresti and Min add half a pair to each cell of the table of two verdicts (2005, "Simple
    improved confidence intervals for comparing matched proportions"), so that no change at all still has an interval.

    Args:
        changes: of each problem, -1 to 1.
    """
    size = len(changes) + 2
    mean = float(np.sum(changes)) / size
    variance = (float(np.sum(np.square(changes))) + 1) / size - mean**2
    half = float(stdtrit(size - 1, 0.975)) * float(np.sqrt(variance / size))
    return max(-1.0, mean - half), min(1.0, mean + half)
