"""Reading of result files: their content has the expected types, and is what the recorded hashes say.

The records form a chain. `manifest.json` has the hashes of a run's records, rollouts and policies, `generations.json`
those of the manifest and of the generations, `grades.json` those of the generations and of the scores. A file that is
made from these and printed by a command has its hash in a file next to it. So a file that was damaged or edited is an
error of the next command that reads it.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from redraft.errors import UserError
from redraft.files import read_json, sha256, steps_in, write_atomically, write_json
from redraft.provenance import hashes

CACHED_BYTES = 2**20
"""Size of a file in bytes from which it is hashed once in the life of a process, while it does not change."""
Hashes = dict[str, str]
"""SHA-256 hashes by the names of files in a folder."""


class Typed(BaseModel):
    """Types of the keys that are read of a file, where it has them; it may have others."""

    model_config = ConfigDict(extra="allow", strict=True)


class Manifest(Typed):
    """Types of a run's manifest (`redraft.provenance.write_manifest`)."""

    run: str = ""
    fingerprint: str = ""
    configuration: dict[str, Any] = {}
    inputs: Hashes = {}
    git: dict[str, Any] = {}
    processes: list[dict[str, Any]] = []
    finished: str = ""
    seconds: FiniteFloat = 0.0
    sha256: Hashes = {}


class Record(Typed):
    """Types of a record of hashes, which is next to what it describes."""

    sha256: Hashes = {}
    made_from: Hashes = {}
    sampled: str = ""
    seed: int = 0
    fingerprint: str = ""
    data: dict[str, Any] = {}


class Counts(Typed):
    """Types of the two counts that every score has."""

    correct: NonNegativeInt
    total: PositiveInt


Scores = dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], dict[str, Counts]]
"""`scores.json`: number of finished steps to benchmark to counts."""
OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
MANIFEST: TypeAdapter[Any] = TypeAdapter(Manifest)
RECORD: TypeAdapter[Any] = TypeAdapter(Record)
SCORES: TypeAdapter[Any] = TypeAdapter(Scores)


REASONS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


def read_left_out(file: Path) -> dict[str, str]:
    """Cells that the latest call of Snakemake left out since they do not fit, with reasons (`Layout.left_out`)."""
    cells: dict[str, str] = read_typed(file, REASONS) if file.exists() else {}
    return cells


def read_typed(file: Path, types: TypeAdapter[Any] = OBJECT, *needed: str) -> Any:
    """Parse a JSON file whose content has these types and keys; the content is returned as it is.

    Raises:
        UserError: if it is missing, is no JSON, or has another type or no such key.
    """
    content = read_json(file)
    try:
        types.validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        shown = json.dumps(first["input"])
        raise UserError(
            "this file is damaged: a value has the wrong type",
            file=file,
            key=".".join(map(str, first["loc"])) or "(the whole file)",
            value=shown if len(shown) < 80 else f"{shown[:80]}…",
            allowed=first["msg"].removeprefix("Input should be "),
        ) from None
    for key in needed:
        if key not in content:
            raise UserError("this file lacks a key", file=file, key=key)
    return content


def read_manifest(file: Path, *needed: str) -> dict[str, Any]:
    """A run's manifest, with at least these keys; errors as of `read_typed`."""
    content: dict[str, Any] = read_typed(file, MANIFEST, *needed)
    return content


def read_record(file: Path, *needed: str) -> dict[str, Any]:
    """A record of hashes, with at least these keys; errors as of `read_typed`."""
    content: dict[str, Any] = read_typed(file, RECORD, *needed)
    return content


def read_scores(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores of a folder of evaluated policies, as they were graded.

    Raises:
        UserError: if they are missing, or were changed since; also if the record of their hash is missing.
    """
    scores: dict[str, dict[str, dict[str, Any]]] = read_typed(folder / "scores.json", SCORES)
    record = read_record(folder / "grades.json", "sha256")["sha256"]
    check_hashes(folder, {"scores.json": record.get("scores.json", "")}, folder / "grades.json")
    return scores


def check_hashes(folder: Path, recorded: Mapping[str, str], record: Path) -> None:
    """Compare files of a folder with recorded hashes, several at a time; `record` is the file with them, for messages.

    Raises:
        UserError: for the first file that is missing or has another hash.
    """
    with ThreadPoolExecutor() as pool:
        found = dict(zip(recorded, pool.map(lambda name: _hash(folder / name), recorded), strict=True))
    for name, digest in recorded.items():
        if found[name] != digest:
            raise UserError(
                f"this file differs from the hash in {record.name}",
                file=folder / name,
                key="sha256",
                value=found[name],
                allowed=digest,
            )


def _hash(file: Path) -> str | None:
    """Hash of a file; None if it is missing."""
    if not file.is_file():
        return None
    state = file.stat()
    if state.st_size < CACHED_BYTES:
        return sha256(file)
    return _hash_of_large(file, state.st_size, state.st_mtime_ns, state.st_ino)


@cache
def _hash_of_large(file: Path, _size: int, _modified: int, _inode: int) -> str:
    return sha256(file)


def check_records(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check that the step records of a finished run are those that its manifest names, as all but old ones do."""
    recorded = manifest.get("sha256", {})
    if "steps.jsonl" in recorded:
        check_hashes(folder, {"steps.jsonl": recorded["steps.jsonl"]}, folder / "manifest.json")


def rollout_files(folder: Path) -> dict[int, Path]:
    """Rollout file of each step of a run, ascending; those of a finished run are the ones that its manifest names.

    Raises:
        UserError: if there are none, or one of a finished run's is missing, unknown or was changed since.
    """
    files, manifest = steps_in(folder / "rollouts", ".parquet"), folder / "manifest.json"
    if not files:
        raise UserError("this run has no saved rollouts", file=folder / "rollouts")
    if manifest.exists():
        recorded = read_manifest(manifest, "sha256")["sha256"].items()
        of_rollouts = {name: digest for name, digest in recorded if name.startswith("rollouts/")}
        check_hashes(folder, of_rollouts, manifest)
        if unknown := {file.name for file in files.values()} - {Path(name).name for name in of_rollouts}:
            raise UserError("the manifest has no hash of this file", file=folder / "rollouts" / min(unknown))
    return files


def check_run(folder: Path, *, large: bool = False) -> None:
    """Check that records, scores and grades of a graded run are those that were made, from this run and no other.

    Args:
        large: read rollouts, generations and diversity too. Rollouts may have been removed as a whole to save space.

    Raises:
        UserError: for the first file that is not what its record names.
    """
    manifest = folder / "manifest.json"
    check_records(folder, read_manifest(manifest, "sha256"))
    if large and (folder / "rollouts").is_dir():
        rollout_files(folder)
    records = ["generations.json"]
    if large:
        records.append("diversity.json")
        check_hashes(folder, read_record(folder / "diversity.json", "sha256")["sha256"], folder / "diversity.json")
    check_evaluation(folder, large=large)
    for record in records:
        check_same(read_record(folder / record, "made_from")["made_from"], hashes(manifest), folder / record)


def check_evaluation(folder: Path, *, large: bool = False) -> None:
    """Check that the scores of evaluated policies are those of the grades and generations next to them.

    Args:
        large: read the generations too, unless they were removed to save space.

    Raises:
        UserError: for the first file that is not what its record names.
    """
    grades, generations = (read_record(folder / n, "sha256", "made_from") for n in ("grades.json", "generations.json"))
    check_hashes(folder, grades["sha256"], folder / "grades.json")
    check_same(grades["made_from"], generations["sha256"], folder / "grades.json")
    if large:
        present = {name: digest for name, digest in generations["sha256"].items() if (folder / name).exists()}
        check_hashes(folder, present, folder / "generations.json")


def check_same(made_from: Mapping[str, str], found: Mapping[str, str], record: Path) -> None:
    """Compare the hashes in a record with those of the files that are there; a UserError if they differ."""
    if made_from != found:
        raise UserError(
            "this was made from other files than those beside it",
            file=record,
            key="made_from",
            value=", ".join(f"{name} {digest[:12]}" for name, digest in made_from.items()),
            allowed=", ".join(f"{name} {digest[:12]}" for name, digest in found.items()),
        )


def write_with_hash(file: Path, content: Any) -> None:
    """Write a complete file of JSON, and next to it its hash in the format of `sha256sum`, for `read_with_hash`."""
    write_json(file, content)
    write_atomically(_hash_file(file), f"{sha256(file)}  {file.name}\n")


def read_with_hash(file: Path, types: TypeAdapter[Any] = OBJECT, *needed: str) -> Any:
    """Parse a file of `write_with_hash` as `read_typed` does.

    Raises:
        UserError: as of `read_typed`, and if it was changed since, or has no hash.
    """
    content, record = read_typed(file, types, *needed), _hash_file(file)
    if not record.exists():
        raise UserError(
            "this file has no recorded hash", file=file, hint="it was made by an earlier version; make it again"
        )
    check_hashes(file.parent, {file.name: record.read_text(encoding="utf-8", errors="replace")[:64]}, record)
    return content


def _hash_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")
