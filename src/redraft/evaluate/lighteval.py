"""Second grading of IFEval by lighteval, in a separate environment, and its comparison with lm-eval's checkers.

Our verdicts come from grades.parquet, lighteval's from the file that workflows/lighteval/grade.py writes. On the two
prompts that count a character other than a letter, the verdicts of the unchanged checkers are compared. If a checker of
either grader failed on a sample, it enters no metric; the number of these samples is reported.
"""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from redraft.errors import UserError
from redraft.evaluate.evaluation_plan import LIGHTEVAL
from redraft.evaluate.generation_parts import KEY
from redraft.files import read_json, read_parquet
from redraft.layout import code_root
from redraft.result_files import write_with_hash

SCRIPT = code_root() / "workflows/lighteval/grade.py"
LEVELS = ("strict", "loose")


def grade_again(generations: Path, grades: Path, comparison: Path) -> None:
    """Grade generations by lighteval and compare its verdicts with ours.

    Writes `lighteval.parquet` and `lighteval.json` next to `comparison`.

    Raises:
        UserError: if lighteval fails, or the verdicts cannot be compared.
    """
    from redraft.tasks.sentences import sentence_splitter

    splitter = sentence_splitter()  # chosen first, since the other process inherits the choice
    theirs = comparison.with_name("lighteval.parquet")
    result = subprocess.run(
        [LIGHTEVAL, SCRIPT, generations, theirs], capture_output=True, text=True, errors="replace", check=False
    )
    if result.returncode:
        messages = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise UserError(f"lighteval could not grade these generations ({messages[-1]})", file=generations)
    write_comparison(grades, theirs, splitter, comparison)


def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """IFEval's four metrics by both graders.

    Args:
        ours: our verdicts, the columns of grades.parquet.
        theirs: lighteval's verdicts, the columns of lighteval.parquet.

    Returns:
        One line per step, benchmark and metric (named as in lighteval). `lm_eval` and `lighteval` are the values, 0 to
        1. `samples` counts the samples that enter, `failed` those on which a checker failed.

    Raises:
        UserError: if the two files have different samples.
    """
    rows = []
    for (step, benchmark), part in _joined(ours, theirs).groupby(["step", "benchmark"], sort=True):
        whole = _complete(part)
        counts = {"samples": len(whole), "failed": len(part) - len(whole)}
        for level in LEVELS:
            ours_of, theirs_of = whole[f"{level}_ours"], whole[f"{level}_theirs"]
            for unit, share in {"prompt": _of_prompts, "inst": _of_all}.items():
                values = {"lm_eval": share(ours_of), "lighteval": share(theirs_of)}
                metric = f"{unit}_level_{level}_acc"
                rows.append({"step": step, "benchmark": benchmark, "metric": metric, **values, **counts})
    return pd.DataFrame(rows)


def disagreements(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """The verdicts on which the graders differ, one line each.

    Columns: the sample's key, `level` (strict or loose), `instruction`, and the verdicts `lm_eval` and `lighteval`.
    """
    rows = [
        [*(getattr(row, key) for key in KEY), level, name, a, b]
        for row in _complete(_joined(ours, theirs)).itertuples()
        for level in LEVELS
        for name, a, b in zip(
            row.instructions, getattr(row, f"{level}_ours"), getattr(row, f"{level}_theirs"), strict=True
        )
        if a != b
    ]
    return pd.DataFrame(rows, columns=[*KEY, "level", "instruction", "lm_eval", "lighteval"])


def write_comparison(ours: Path, theirs: Path, splitter: str, out: Path) -> None:
    """Compare two files of grades and write the metrics and the disagreements as JSON.

    Args:
        ours: grades.parquet.
        theirs: lighteval.parquet; its summary is next to it, with the suffix .json.
        splitter: the sentence splitter of our grader, from `redraft.tasks.sentences.sentence_splitter()`.
        out: the JSON file to write.

    Raises:
        UserError: if a file is missing or damaged, the samples differ, or the graders split sentences differently.
    """
    about = read_json(theirs.with_suffix(".json"))
    if about["sentence_splitter"] != splitter:
        raise UserError(
            "the two graders split sentences differently, so their verdicts cannot be compared",
            file=theirs,
            key="sentence_splitter",
            value=about["sentence_splitter"],
            allowed=splitter,
        )
    frames = (
        read_parquet(ours, (*KEY, "outcome", *LEVELS, *(f"official_{level}" for level in LEVELS))),
        read_parquet(theirs, (*KEY, *LEVELS, "instructions")),
    )
    # pandas would turn None, a share without any samples, into NaN, which JSON lacks.
    metrics = compare(*frames).astype(object)
    content = {
        "graders": {
            "lm_eval": {name: version(name) for name in ("lm_eval", "nltk")},
            "lighteval": {key: about[key] for key in ("lighteval", "nltk")},
        },
        "sentence_splitter": splitter,
        "metrics": metrics.where(metrics.notna(), None).to_dict("records"),
        "disagreements": disagreements(*frames).to_dict("records"),
    }
    write_with_hash(out, content)


def _joined(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Both graders' verdicts: ours by the unchanged checkers, and null where a checker failed."""
    # lighteval has verdicts on instructions only. Where a checker failed, grades count nothing as followed; here such
    # samples are to enter no metric.
    ours = ours[ours["benchmark"].isin(set(theirs["benchmark"]))]
    failed = ours["outcome"].isin(["time-out", "error"])
    ours = ours.assign(
        **{
            level: ours[f"official_{level}"].where(ours[f"official_{level}"].notna(), ours[level]).where(~failed, None)
            for level in LEVELS
        }
    )
    columns = [*KEY, *LEVELS]
    joined = ours[columns].merge(
        theirs[[*columns, "instructions"]],
        on=KEY,
        how="outer",
        suffixes=("_ours", "_theirs"),
        indicator=True,
        validate="one_to_one",
    )
    alone = joined[joined["_merge"] != "both"]
    if len(alone):
        raise UserError(
            f"{len(alone)} samples were graded by only one of the two graders",
            key=", ".join(KEY),
            value=alone[KEY].iloc[0].tolist(),
        )
    return joined


def _complete(joined: pd.DataFrame) -> pd.DataFrame:
    """Samples on which no checker failed."""
    return joined[joined[[f"{level}_{whose}" for level in LEVELS for whose in ("ours", "theirs")]].notna().all(axis=1)]


def _of_prompts(verdicts: pd.Series) -> float | None:
    """Share of prompts with all instructions followed; None without prompts."""
    return float(verdicts.map(all).mean()) if len(verdicts) else None


def _of_all(verdicts: pd.Series) -> float | None:
    """Share of instructions that are followed; None without instructions."""
    flat = [bool(verdict) for one in verdicts for verdict in one]
    return sum(flat) / len(flat) if flat else None
