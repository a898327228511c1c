"""IFEval graded twice, by lm-eval's checkers and by lighteval's, on the same generations: metrics and verdicts.

Ours are the lines of grades.parquet, lighteval's what workflows/lighteval/grade.py wrote. A sample on which a checker
failed, in either, enters no metric; how many these are is said.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from redraft.errors import UserError
from redraft.files import read_json, read_parquet, write_json

SAMPLE = ["step", "benchmark", "problem", "sample"]
LEVELS = ("strict", "loose")


def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """The four metrics by both graders.

    Returns:
        One line a step, benchmark and metric (as lighteval names it): `lm_eval` and `lighteval`, 0 to 1, `samples`
        that enter, and `failed` ones that do not.

    Raises:
        UserError: if the two are not of the same samples.
    """
    rows = []
    for (step, benchmark), part in _joined(ours, theirs).groupby(["step", "benchmark"], sort=True):
        whole = _complete(part)
        counts = {"samples": len(whole), "failed": len(part) - len(whole)}
        rows += [{"step": step, "benchmark": benchmark, **line, **counts} for line in _metrics(whole)]
    return pd.DataFrame(rows)


def disagreements(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Every verdict in which they differ: the sample, `level` (strict or loose), `instruction`, and both verdicts."""
    rows = [
        [*(getattr(row, key) for key in SAMPLE), level, name, a, b]
        for row in _complete(_joined(ours, theirs)).itertuples()
        for level in LEVELS
        for name, a, b in zip(
            row.instructions, getattr(row, f"{level}_ours"), getattr(row, f"{level}_theirs"), strict=True
        )
        if a != b
    ]
    return pd.DataFrame(rows, columns=[*SAMPLE, "level", "instruction", "lm_eval", "lighteval"])


def write_comparison(ours: Path, theirs: Path, splitter: str, out: Path) -> None:
    """Compare two files of grades and write what was found as JSON.

    Args:
        ours: grades.parquet.
        theirs: what lighteval's grader wrote; its summary lies beside it, with the suffix .json.
        splitter: by what our sentences were split, `redraft.tasks.sentences.sentence_splitter()`.
        out: where to write.

    Raises:
        UserError: if a file is missing or damaged, the samples are not the same, or sentences were split differently.
    """
    about = read_json(theirs.with_suffix(".json"))
    if about["sentence_splitter"] != splitter:
        raise UserError("the graders split sentences differently, so that comparing them would compare splitters",
                        file=theirs, key="sentence_splitter", value=about["sentence_splitter"],
                        allowed=splitter)  # fmt: skip
    frames = (
        read_parquet(ours, (*SAMPLE, "outcome", *LEVELS)),
        read_parquet(theirs, (*SAMPLE, *LEVELS, "instructions")),
    )
    metrics = compare(*frames).astype(object)
    content = {
        "graders": {"lm_eval": _versions(), "lighteval": {key: about[key] for key in ("lighteval", "nltk")}},
        "sentence_splitter": splitter,
        "metrics": metrics.where(metrics.notna(), None).to_dict("records"),
        "disagreements": disagreements(*frames).to_dict("records"),
    }
    write_json(out, content)


def _without_failures(grades: pd.DataFrame) -> pd.DataFrame:
    """Our grades, without the verdicts that stand in where a checker failed."""
    failed = grades["outcome"].isin(["time-out", "error"])
    return grades.assign(**{level: grades[level].where(~failed, None) for level in LEVELS})


def _joined(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    ours = _without_failures(ours[ours["benchmark"].isin(set(theirs["benchmark"]))])
    columns = [*SAMPLE, *LEVELS]
    joined = ours[columns].merge(
        theirs[[*columns, "instructions"]], on=SAMPLE, how="outer", suffixes=("_ours", "_theirs"), indicator=True,
        validate="one_to_one",
    )  # fmt: skip
    alone = joined[joined["_merge"] != "both"]
    if len(alone):
        raise UserError(f"{len(alone)} samples were graded by one of the graders only", key=", ".join(SAMPLE),
                        value=alone[SAMPLE].iloc[0].tolist())  # fmt: skip
    return joined


def _complete(joined: pd.DataFrame) -> pd.DataFrame:
    """Samples on which no checker failed."""
    return joined[joined[[f"{level}_{whose}" for level in LEVELS for whose in ("ours", "theirs")]].notna().all(axis=1)]


def _metrics(samples: pd.DataFrame) -> list[dict[str, Any]]:
    lines = []
    for level in LEVELS:
        ours, theirs = samples[f"{level}_ours"], samples[f"{level}_theirs"]
        lines += [
            {"metric": f"prompt_level_{level}_acc", "lm_eval": _of_prompts(ours), "lighteval": _of_prompts(theirs)},
            {"metric": f"inst_level_{level}_acc", "lm_eval": _of_all(ours), "lighteval": _of_all(theirs)},
        ]
    return lines


def _of_prompts(verdicts: pd.Series) -> float | None:
    """Share of prompts all of whose instructions are followed; nothing of none."""
    return float(verdicts.map(all).mean()) if len(verdicts) else None


def _of_all(verdicts: pd.Series) -> float | None:
    """Share of instructions that are followed; nothing of none."""
    flat = [bool(verdict) for one in verdicts for verdict in one]
    return sum(flat) / len(flat) if flat else None


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"lm_eval": version("lm_eval"), "nltk": version("nltk")}
