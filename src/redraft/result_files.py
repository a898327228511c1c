"""Reading of result files: their content has the expected types, and is what the recorded hashes say.

The records form a chain. `manifest.json` has the hashes of a run's records, rollouts and policies, and its own hash is
in `manifest.json.sha256`. `generations.json` has those of the manifest and of the generations, `grades.json` those of
the generations and of the scores. A file that is made from these has its hash in a file next to it, or in the record of
its folder (tables, figures, pages). So a file that was damaged or edited is an error of the next command that reads it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from redraft.errors import UserError
from redraft.files import (
    errors_of_reading,
    hashes,
    own_hash_file,
    read_json,
    read_json_lines,
    sha256,
    steps_in,
    write_atomically,
    write_json,
)
from redraft.provenance import policies_of

CACHED_BYTES = 2**20
"""Size of a file in bytes from which it is hashed once in the life of a process, while it does not change."""
Hashes = dict[str, str]
"""SHA-256 hashes by the names of files in a folder."""
MOST = 2**53
"""Largest count: floats represent larger whole numbers inexactly."""
HASHED = {
    "generations.json": ("generations.parquet",),
    "grades.json": ("grades.parquet", "scores.json"),
    "diversity.json": ("diversity.parquet",),
    "collected.json": ("runs.parquet", "steps.parquet", "scores.parquet"),
    "measured.json": ("measured.parquet", "family.parquet"),
}
"""Files whose hashes a record must have."""
ROLLOUTS = re.compile(r"rollouts/step-(\d+)\.parquet")
"""Name of a step's rollouts in a manifest. Group: the step."""


def finished_steps(folder: Path) -> int:
    """Number of steps with a record in a run's folder, which may be written at this moment."""
    records = folder / "steps.jsonl"
    return records.read_bytes().count(b"\n") if records.is_file() else 0


class Typed(BaseModel):
    """Types of the keys that are read of a file, where it has them; it may have others."""

    model_config = ConfigDict(extra="allow", strict=True)


class Manifest(Typed):
    """Types of a run's manifest (`redraft.provenance.write_manifest`)."""

    run: str = ""
    fingerprint: str = ""
    identity: dict[str, Any] = {}
    configuration: dict[str, Any] = {}
    inputs: Hashes = {}
    git: dict[str, Any] = {}
    processes: list[dict[str, Any]] = []
    finished: str = ""
    seconds: FiniteFloat = 0.0
    sha256: Hashes = {}
    taken_from: str = ""


class Record(Typed):
    """Types of a record of hashes, which is next to what it describes."""

    sha256: Hashes = {}
    made_from: Hashes = {}
    sampled: str = ""
    looks: list[int] = []
    seed: int = 0
    fingerprint: str = ""
    data: dict[str, Any] = {}


class Counts(Typed):
    """Types of the two counts that every score has."""

    correct: NonNegativeInt
    total: PositiveInt

    @model_validator(mode="after")
    def _within(self) -> Self:
        if not self.correct <= self.total <= MOST:
            raise ValueError(f"counts with correct <= total <= {MOST}")
        return self


class Step(Typed):
    """Types of a step's record."""

    step: NonNegativeInt
    epoch: NonNegativeInt = 0
    seconds: dict[str, FiniteFloat] = {}


Scores = dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], dict[str, Counts]]
"""`scores.json`: number of finished steps to benchmark to counts."""
OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
MANIFEST: TypeAdapter[Any] = TypeAdapter(Manifest)
RECORD: TypeAdapter[Any] = TypeAdapter(Record)
SCORES: TypeAdapter[Any] = TypeAdapter(Scores)
STEP: TypeAdapter[Any] = TypeAdapter(Step)


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
    content = read_json(file, finite=True)
    try:
        types.validate_json(file.read_bytes())
    except ValidationError as error:
        raise _wrong_type(error, file, "(the whole file)") from None
    for key in needed:
        if key not in content:
            raise UserError("this file lacks a key", file=file, key=key)
    return content


def _wrong_type(error: ValidationError, file: Path, whole: str, *at: str) -> UserError:
    """The first of pydantic's errors; `whole` is the key if the type of all is wrong, `at` precedes other keys."""
    first = error.errors(include_url=False)[0]
    # As JSON, in which texts have quotes.
    shown = json.dumps(first["input"])
    return UserError(
        "this file is damaged: a value has the wrong type",
        file=file,
        key=", ".join([*at, ".".join(map(str, first["loc"]))]) if first["loc"] else whole,
        value=shown if len(shown) < 80 else f"{shown[:80]}…",
        allowed=first["msg"].removeprefix("Input should be ").removeprefix("Value error, "),
    )


def read_steps(file: Path) -> list[dict[str, Any]]:
    """Step records of a run; those of a finished run are the ones that the manifest next to them names.

    Raises:
        UserError: if the file cannot be read, has no records, or others than those of consecutive steps from 0.
    """
    records, manifest = read_json_lines(file), file.with_name("manifest.json")
    if manifest.exists():
        recorded = read_manifest(manifest, "sha256")["sha256"]
        check_listed([file.name], recorded, manifest)
        # Of a finished run the hash first: it also finds a change that leaves valid lines.
        check_hashes(file.parent, {file.name: recorded[file.name]}, manifest)
    if not records:
        raise UserError("this file has no steps", file=file)
    for number, record in enumerate(records):
        line = f"line {number + 1}"
        try:
            STEP.validate_python(record)
        except ValidationError as error:
            raise _wrong_type(error, file, line, line) from None
        if record["step"] != number:
            raise UserError(
                "these are not the records of consecutive steps",
                file=file,
                key=f"{line}, step",
                value=record["step"],
                allowed=str(number),
            )
    return records


def check_record(record: Mapping[str, Any], types: TypeAdapter[Any], file: Path) -> None:
    """Raise a UserError if a step's record, which `read_steps` has read, lacks a field of `types` or has another type.

    `read_steps` checks only the fields that every run has; a command checks those that it computes with.
    """
    try:
        types.validate_python(record)
    except ValidationError as error:
        line = f"line {record['step'] + 1}"
        first = error.errors(include_url=False)[0]
        if first["type"] == "missing":
            raise UserError(
                "this record lacks a field", file=file, key=", ".join([line, ".".join(map(str, first["loc"]))])
            ) from None
        raise _wrong_type(error, file, line, line) from None


def read_manifest(file: Path, *needed: str) -> dict[str, Any]:
    """A run's manifest, with at least these keys; errors as of `read_typed`, and if it was changed since training."""
    content: dict[str, Any] = read_typed(file, MANIFEST, *needed)
    # Until a run is evaluated no other record has its manifest's hash. Manifests of earlier versions have none.
    check_own_hash(file, optional=True)
    return content


def read_record(file: Path, *needed: str) -> dict[str, Any]:
    """A record of hashes, with at least these keys and the hashes that `HASHED` demands.

    Raises:
        UserError: as of `read_typed`, and for a hash that is not there.
    """
    names = HASHED.get(file.name, ())
    content: dict[str, Any] = read_typed(file, RECORD, *needed, *(("sha256", "made_from") if names else ()))
    check_listed(names, content.get("sha256", {}), file)
    return content


def check_listed(names: Iterable[str], recorded: Mapping[str, str], record: Path) -> None:
    """Raise a UserError for the first of these files of which the record has no hash."""
    for name in names:
        if name not in recorded:
            raise UserError(
                f"this record lacks the hash of {name}", file=record, key="sha256", value=list(recorded)[:3]
            )


def read_scores(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores of a folder of evaluated policies, as they were graded.

    Raises:
        UserError: if they are missing, or were changed since; also if the record of their hash is missing.
    """
    scores: dict[str, dict[str, dict[str, Any]]] = read_typed(folder / "scores.json", SCORES)
    recorded = read_record(folder / "grades.json")["sha256"]
    check_hashes(folder, {"scores.json": recorded["scores.json"]}, folder / "grades.json")
    return scores


def check_hashes(folder: Path, recorded: Mapping[str, str], record: Path) -> None:
    """Compare files of a folder with recorded hashes, several at a time; `record` is the file with them, for messages.

    Raises:
        UserError: for the first file that is missing or has another hash.
    """
    # Threads suffice, since hashing large data releases Python's lock.
    with ThreadPoolExecutor() as pool:
        found = dict(zip(recorded, pool.map(lambda name: _hash(folder / name), recorded), strict=True))
    for name, digest in recorded.items():
        if found[name] is None:
            raise UserError(f"this file is missing, of which {record.name} has a hash", file=folder / name)
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
    if not file.exists():
        return None
    state = file.stat()
    if state.st_size < CACHED_BYTES:
        return sha256(file)
    # A changed file is another key of the cache.
    return _hash_of_large(file, state.st_size, state.st_mtime_ns, state.st_ino)


@cache
def _hash_of_large(file: Path, _size: int, _modified: int, _inode: int) -> str:
    return sha256(file)


def check_manifest(folder: Path, manifest: Mapping[str, Any], steps: int | None = None) -> int:
    """Check that a manifest is that of the run in its folder, and has the hashes of all its files.

    Args:
        folder: folder of the run.
        manifest: content of its `manifest.json`.
        steps: number of steps in the run's configuration; if unknown, that of the rollouts in the manifest.

    Returns:
        The number of steps.

    Raises:
        UserError: if it is another run's, or a hash is missing.
    """
    file, recorded = folder / "manifest.json", manifest["sha256"]
    # The last three folders are paper, cell and seed, as in the manifest's `run`.
    own, name = "/".join(folder.absolute().parts[-3:]), manifest.get("run")
    if name != own:
        raise UserError("this is the manifest of another run", file=file, key="run", value=name, allowed=own)
    rollouts = {int(found[1]) for found in map(ROLLOUTS.fullmatch, recorded) if found}
    count = max(rollouts, default=0) + 1 if steps is None else steps
    lacking = (f"rollouts/step-{step:04d}.parquet" for step in range(count) if step not in rollouts)
    # The last policy is always evaluated, whatever the clock (`TrainerConfig.evaluates`).
    last = [] if count in policies_of(manifest) else [f"policies/step-{count:04d}"]
    check_listed(["steps.jsonl", *lacking, *last], recorded, file)
    return count


def check_records(folder: Path, manifest: Mapping[str, Any], steps: int | None = None) -> None:
    """Check that a finished run has a complete manifest and one record for each step; arguments of `check_manifest`.

    Raises:
        UserError: as of `check_manifest`, or if the records are others or as many as of another number of steps.
    """
    file, count = folder / "manifest.json", check_manifest(folder, manifest, steps)
    check_hashes(folder, {"steps.jsonl": manifest["sha256"]["steps.jsonl"]}, file)
    # The hash proves that the records are the run's, not that the run was complete.
    if (lines := (folder / "steps.jsonl").read_bytes().count(b"\n")) != count:
        raise UserError(
            "this run has another number of records than of steps",
            file=folder / "steps.jsonl",
            key="lines",
            value=lines,
            allowed=str(count),
        )


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
        # A file that no record names may be of another run.
        if unknown := {file.name for file in files.values()} - {Path(name).name for name in of_rollouts}:
            raise UserError("the manifest has no hash of this file", file=folder / "rollouts" / min(unknown))
    return files


def check_run(folder: Path, steps: int | None = None, *, large: bool = False) -> None:
    """Check that records, scores and grades of a graded run are those that were made, from this run and no other.

    Args:
        folder: folder of the run.
        steps: as in `check_records`.
        large: read rollouts, generations and diversity too. Rollouts may have been removed as a whole to save space.

    Raises:
        UserError: for the first file that is not what its record names.
    """
    file = folder / "manifest.json"
    # From the training outwards: each record names the hashes of the one before.
    manifest = read_manifest(file, "sha256")
    check_records(folder, manifest, steps)
    if large and (folder / "rollouts").is_dir():
        rollout_files(folder)
    records = ["generations.json"]
    if large:
        records.append("diversity.json")
        check_hashes(folder, read_record(folder / "diversity.json")["sha256"], folder / "diversity.json")
    check_evaluation(folder, large=large)
    for record in records:
        check_same(read_record(folder / record)["made_from"], hashes(file), folder / record)
    scored, policies = sorted(map(int, read_scores(folder))), sorted(policies_of(manifest))
    if scored != policies:
        raise UserError(
            "these are not the scores of the policies in the manifest",
            file=folder / "scores.json",
            key="steps",
            value=scored,
            allowed=str(policies),
        )


def check_evaluation(folder: Path, *, large: bool = False) -> None:
    """Check that the scores of evaluated policies are those of the grades and generations next to them.

    Args:
        large: read the generations too, unless they were removed to save space.

    Raises:
        UserError: for the first file that is not what its record names.
    """
    grades, generations = (read_record(folder / n) for n in ("grades.json", "generations.json"))
    check_hashes(folder, grades["sha256"], folder / "grades.json")
    check_same(grades["made_from"], generations["sha256"], folder / "grades.json")
    if large:
        # Generations may have been removed to save space; those that are there must be right.
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


DERIVED = "sha256.json"
"""Record of a folder of derived files: their hashes, and those of the files that they were made from."""


def record_derived(folder: Path, files: Iterable[Path], *made_from: Path) -> None:
    """Write the record of a folder of derived files; names of files are relative to it."""
    digests = {file.relative_to(folder).as_posix(): sha256(file) for file in sorted(files) if file.name != DERIVED}
    write_json(folder / DERIVED, {"sha256": digests, "made_from": hashes(*made_from)})


def read_derived(folder: Path, *made_from: Path) -> dict[str, str]:
    """Hashes of the files in a folder of derived files.

    Raises:
        UserError: if the folder has no record, or its files were made from others than `made_from`.
    """
    record = folder / DERIVED
    if not record.exists():
        raise UserError(
            "these files have no recorded hashes", file=folder, hint="an earlier version made them; make them again"
        )
    content = read_record(record, "sha256", "made_from")
    if made_from:
        check_same(content["made_from"], hashes(*made_from), record)
    recorded: dict[str, str] = content["sha256"]
    return recorded


def check_derived(file: Path) -> None:
    """Check that a file of tables or figures is the one that was made; a UserError if it is not."""
    recorded, record = read_derived(file.parent), file.with_name(DERIVED)
    check_listed([file.name], recorded, record)
    check_hashes(file.parent, {file.name: recorded[file.name]}, record)


def write_with_hash(file: Path, content: Any) -> None:
    """Write a complete file of text or JSON, and next to it its hash in the format of `sha256sum`."""
    if isinstance(content, str):
        write_atomically(file, content)
    else:
        write_json(file, content)
    write_own_hash(file)


def write_own_hash(file: Path) -> None:
    """Write the hash of a file next to it, in the format of `sha256sum`."""
    write_atomically(own_hash_file(file), f"{sha256(file)}  {file.name}\n")


def check_own_hash(file: Path, *, optional: bool = False) -> None:
    """Check a file with a hash next to it; a UserError if it was changed since, or has no hash unless `optional`."""
    record = own_hash_file(file)
    if optional and not record.exists():
        return
    _require_record(file)
    with errors_of_reading(record):
        digest, _, name = record.read_text(encoding="utf-8", errors="replace").strip().partition("  ")
    check_listed([file.name], {name: digest}, record)
    check_hashes(file.parent, {file.name: digest}, record)


def _require_record(file: Path) -> None:
    if not own_hash_file(file).exists():
        raise UserError("this file has no recorded hash", file=file, hint="an earlier version made it; make it again")


def read_with_hash(file: Path, types: TypeAdapter[Any] = OBJECT, *needed: str) -> Any:
    """Parse a file of `write_with_hash` as `read_typed` does.

    Raises:
        UserError: as of `read_typed`, and if it was changed since, or has no hash.
    """
    if file.exists():
        _require_record(file)  # first, since a file of an earlier version may also have other fields
    content = read_typed(file, types, *needed)
    check_own_hash(file)
    return content
