"""The report's table of one policy's scores under several settings of evaluation (`redraft sensitivity`)."""

from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter

from redraft.files import sha256
from redraft.layout import Layout, check_cell
from redraft.result_files import Hashes, Typed, check_hashes, check_listed, read_with_hash

TABLE = "sensitivity.csv"


class _Row(Typed):
    variant: str
    changed: str
    benchmark: str
    decoding: str
    problems: PositiveInt
    responses: PositiveInt
    reference: FiniteFloat
    score: FiniteFloat
    difference: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    noise: FiniteFloat | None
    different_responses: NonNegativeInt
    different_answers: NonNegativeInt | None
    different_verdicts: NonNegativeInt
    processor: str


class _Run(Typed):
    cell: str
    seed: NonNegativeInt
    manifest_sha256: str


class _Evaluation(Typed):
    variant: str
    settings: dict[str, Any]
    processor: str
    packages: dict[str, str]


class _Sensitivity(Typed):
    run: _Run
    protocol: str
    sampled: list[str]
    policy: str
    evaluations: list[_Evaluation]
    rows: list[_Row]
    sha256: Hashes


SENSITIVITY: TypeAdapter[Any] = TypeAdapter(_Sensitivity)
"""Types of what is read of `sensitivity.json`."""


def sensitivities(layout: Layout) -> list[dict[str, Any]]:
    """Tables of a preset's policies; `stale` is true if the run was trained again since, and its rows are not shown.

    Raises:
        UserError: if a file was changed since it was written.
    """
    return [_sensitivity(file, layout) for file in layout.sensitivities]


def _sensitivity(file: Path, layout: Layout) -> dict[str, Any]:
    needed = ("run", "protocol", "sampled", "policy", "evaluations", "rows", "sha256")
    content: dict[str, Any] = read_with_hash(file, SENSITIVITY, *needed)
    check_listed([TABLE], content["sha256"], file)
    check_hashes(file.parent, content["sha256"], file)
    run = content["run"]
    manifest = layout.run(check_cell(run["cell"], file), run["seed"]) / "manifest.json"
    reference = content["evaluations"][0]
    return {
        "name": f"{run['cell']}, seed {run['seed']}, {Path(content['policy']).name}",
        "protocol": ", ".join([content["protocol"], *content["sampled"]]),
        "stale": not manifest.exists() or sha256(manifest) != run["manifest_sha256"],
        "rows": content["rows"],
        "settings": ", ".join(f"{key} {value}" for key, value in reference["settings"].items()),
        "processor": reference["processor"],
        "packages": ", ".join(f"{name} {version}" for name, version in reference["packages"].items()),
        "csv": (Path("..") / file.with_name(TABLE).relative_to(layout.folder)).as_posix(),
    }
