"""Grading of generations beyond accuracy: counts and lengths of each cell's last policies, by benchmark."""

from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.result_files import OBJECT, read_with_hash

COUNTS = ("correct", "total", "truncated", "without_answer", "empty", "timeouts", "errors")
"""Summed over seeds."""
MEANS = ("pass_at_most", "majority", "mean_tokens", "tokens_p50", "tokens_p90")
"""Averaged over seeds."""


def summary(runs: Runs) -> dict[str, Any]:
    """A row a cell and benchmark, over the seeds, and what all responses of all policies came to.

    Returns:
        rows: list of `cell`, `benchmark`, `samples`, COUNTS and MEANS; NaN where a benchmark has no such number.
        totals: the COUNTS of all graded policies but the initial ones, which cells share.
        notes: what graders had to say, each once.
    """
    # IFEval's grader has no majority and no answers to extract, and earlier versions counted less.
    absent = [name for name in (*COUNTS, *MEANS[1:], "samples") if name not in runs.scores]
    scores = runs.scores.reindex(columns=[*runs.scores.columns, *absent])
    scores = scores.assign(pass_at_most=_pass_at_most(scores))
    last = scores[scores["step"] == scores.groupby(["cell", "seed"])["step"].transform("max")]
    # `min_count`: a benchmark that lacks a count has none, and not 0.
    how = dict.fromkeys(COUNTS, lambda counts: float(counts.sum(min_count=1))) | dict.fromkeys(
        (*MEANS, "samples"), "mean"
    )
    rows = last.groupby(["cell", "benchmark"], sort=False).agg(how).reset_index()
    notes = scores["note"].dropna() if "note" in scores else pd.Series(dtype=str)
    return {
        "rows": rows.to_dict("records"),
        "totals": {name: int(scores.loc[scores["step"] > 0, name].sum()) for name in COUNTS},
        "notes": sorted({f"{scores.loc[i, 'benchmark']}: {note}" for i, note in notes.items()}),
    }


def _pass_at_most(scores: pd.DataFrame) -> pd.Series:
    """pass@k for as many samples as a problem has; missing for a single one."""
    # By the number k: as texts pass_at_16 would be before pass_at_8.
    columns = sorted((c for c in scores if str(c).startswith("pass_at_")), key=lambda c: int(c.rpartition("_")[2]))
    of_several = [column for column in columns if column != "pass_at_1"]
    return scores[of_several].ffill(axis=1).iloc[:, -1] if of_several else pd.Series(float("nan"), index=scores.index)


def graders(runs: Runs) -> list[dict[str, Any]]:
    """IFEval's metrics by both graders, for each collected cell that has them: means over seeds of its last policies.

    Returns:
        rows: `cell`, `metric`, `lm_eval` and `lighteval` (0 to 1), and `differ`, verdicts in which they do.
    """
    lines = []
    # Cells by the names of the collected runs: a base of another paper may have the folder name of an own cell.
    files = {Path(run["manifest"]).with_name("ifeval.json"): run["cell"] for run in runs.runs.to_dict("records")}
    for file in sorted(file for file in files if file.exists()):
        content = read_with_hash(file, OBJECT, "metrics", "disagreements")
        last = max(line["step"] for line in content["metrics"])
        differ = sum(line["step"] == last for line in content["disagreements"])
        lines += [
            {"cell": files[file], **line, "differ": differ} for line in content["metrics"] if line["step"] == last
        ]
    if not lines:
        return []
    how = {"lm_eval": "mean", "lighteval": "mean", "differ": "sum"}
    return pd.DataFrame(lines).groupby(["cell", "metric"], sort=False).agg(how).reset_index().to_dict("records")
