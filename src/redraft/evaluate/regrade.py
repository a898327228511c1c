"""Grading of a run's saved responses once more, compared with its recorded verdicts and scores."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from redraft.config import Experiments
from redraft.errors import UserError
from redraft.evaluate.generation_parts import KEY
from redraft.evaluate.grade import GRADES, grade
from redraft.files import errors_of_reading, read_json
from redraft.result_files import check_evaluation, read_manifest

SHOWN = ("outcome", "extracted")
"""Columns of grades that a difference shows."""


@dataclass(frozen=True)
class Regraded:
    """Outcome of grading a run's responses again.

    Attributes:
        run: the run, `<paper>/<cell>/seed<seed>`.
        responses: number of graded responses.
        benchmarks: names of the benchmarks.
        differences: one record per response with another verdict: `KEY`, and the outcome and extracted answer, as
            recorded and as graded now (`…_now`).
        scores_equal: True if all scores are equal to the recorded ones.
    """

    run: str
    responses: int
    benchmarks: list[str]
    differences: list[dict[str, Any]]
    scores_equal: bool

    @property
    def equal(self) -> bool:
        """True if all verdicts and scores are the recorded ones."""
        return not self.differences and self.scores_equal


def regrade(folder: Path, processes: int = 1) -> Regraded:
    """Grade the generations in a run's folder again, on the benchmarks of its preset. Nothing in the folder changes.

    Args:
        folder: folder of a graded run, also of one in a published sample or an archive.
        processes: number of concurrent workers.

    Raises:
        UserError: if the folder has no generations, a file is not the one that was recorded, or the preset's benchmarks
            are not those of the generations.
    """
    manifest = read_manifest(folder / "manifest.json", "configuration", "run")
    if not (folder / "generations.parquet").exists():
        raise UserError(
            "this folder has no generations to grade", file=folder / "generations.parquet", hint="docs/artifact.md"
        )
    check_evaluation(folder, large=True)
    configuration, experiments = manifest["configuration"], Experiments()
    preset = experiments.preset_of(configuration["preset"], configuration["paper"]).of_seed(configuration["seed"])
    with TemporaryDirectory() as made:
        scores = Path(made) / "scores.json"
        grade(folder / "generations.parquet", preset.benchmarks, scores, processes)
        now = _grades(scores.with_name("grades.parquet"))
        scores_equal = read_json(scores) == read_json(folder / "scores.json")
    recorded = _grades(folder / "grades.parquet")
    if recorded.keys() != now.keys():
        raise UserError("the recorded grades are of other responses", file=folder / "grades.parquet")
    differences = [
        {**dict(zip(KEY, key, strict=True)), **{name: old[name] for name in SHOWN}}
        | {f"{name}_now": now[key][name] for name in SHOWN}
        for key, old in recorded.items()
        if old != now[key]
    ]
    return Regraded(str(manifest["run"]), len(now), list(preset.benchmarks), differences, scores_equal)


def _grades(file: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Lines of a file of grades by `KEY`."""
    with errors_of_reading(file, OSError, ValueError):
        lines = pq.read_table(file, columns=GRADES.names).to_pylist()
    return {tuple(line[name] for name in KEY): line for line in lines}
