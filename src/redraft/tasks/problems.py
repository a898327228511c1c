"""A problem and its answer, and how configured data becomes a list of them.

A data set of the hub is read from the folder `$REDRAFT_DATA/<id>`, laid out like its repository, if that variable is
set, and else fetched. Where it comes from is no part of a run's identity; what it holds is hashed with the run.
"""

import json
import os
import string
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from redraft.config.data import ArithmeticProblems, Data, HubProblems, ProblemFile
from redraft.errors import UserError
from redraft.files import read_parquet, sha256
from redraft.tasks import arithmetic
from redraft.tasks.grading import boxed

DATA_ROOT = "REDRAFT_DATA"
"""Environment variable: a folder of data sets, each under its hub id."""


@dataclass(frozen=True)
class Problem:
    """What is put to the model, and the answer it must box; empty if it is not graded against an answer."""

    prompt: str
    answer: str


def load_problems(data: Data) -> list[Problem]:
    """The problems of a configured data set, in a fixed order.

    Raises:
        UserError: if a file is missing or damaged, has another size, or a problem has no answer where it should.
    """
    match data:
        case ArithmeticProblems():
            drawn = arithmetic.draw(data.size, data.min_terms, data.max_terms, data.signs, data.split, data.seed)
            return [Problem(problem.prompt, str(problem.answer)) for problem in drawn]
        case ProblemFile():
            return _from_file(data)
        case HubProblems():
            return _from_hub(data)


def checksums(data: Data) -> dict[str, str]:
    """SHA-256 of every file that a data set is read from, by its name inside the data set; none are generated from.

    Raises:
        UserError: if a file is missing.
    """
    match data:
        case ArithmeticProblems():
            return {}
        case ProblemFile():
            return {data.path: sha256(_existing(data))}
        case HubProblems():
            folder = _folder(data)
            files = [_match(folder, pattern) for pattern in data.files]
            return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def origin(data: Data) -> dict[str, str | None]:
    """Where a data set comes from: for one of the hub its id, and the commit unless it is a local copy."""
    if not isinstance(data, HubProblems):
        return {"kind": data.kind}
    local = bool(os.environ.get(DATA_ROOT))
    return {
        "kind": "copy" if local else "hub", "id": data.id, "revision": data.revision,
        "commit": None if local else _folder(data).name,  # the hub's cache names a folder by its commit
    }  # fmt: skip


def _existing(data: ProblemFile) -> Path:
    file = Path(data.path)
    if not file.exists():
        raise UserError("this problem file is missing", file=file, key="data.path", value=data.path)
    return file


def _from_file(data: ProblemFile) -> list[Problem]:
    file = _existing(data)
    problems = []
    for number, record in enumerate(_json_lines(file), start=1):
        try:
            problems.append(Problem(record["problem"], str(record["answer"])))
        except KeyError as key:
            raise UserError(f"line {number} lacks a key", file=file, key=str(key), allowed="problem, answer") from None
    if len(problems) != data.size:
        raise UserError("wrong number of problems", file=file, key="size", value=len(problems), allowed=str(data.size))
    return problems


def _json_lines(file: Path) -> list[dict[str, Any]]:
    """One object a line; text stays text, so that an answer such as 025 keeps its zero."""
    records = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise UserError(f"line {number} is not JSON", file=file, value=line[:80]) from None
        if not isinstance(record, dict):
            raise UserError(f"line {number} is not an object", file=file, value=line[:80])
        records.append(record)
    return records


def _from_hub(data: HubProblems) -> list[Problem]:
    folder = _folder(data)
    rows = [(file, row) for pattern in data.files for file in [_match(folder, pattern)] for row in _rows(file)]
    if len(rows) != data.rows:
        raise UserError("wrong number of problems", file=folder, key="of" if data.of else "size", value=len(rows),
                        allowed=str(data.rows))  # fmt: skip
    return [_problem(row, data, file) for file, row in rows[: data.size]]


def _folder(data: HubProblems) -> Path:
    """The folder that holds the data set's files."""
    if root := os.environ.get(DATA_ROOT):
        folder = Path(root) / data.id
        if not folder.is_dir():
            raise UserError(f"{DATA_ROOT} names a folder without this data set", file=folder, key="data.id",
                            value=data.id)  # fmt: skip
        return folder
    return _fetched(data)


def _fetched(data: HubProblems) -> Path:
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(
            data.id, repo_type="dataset", revision=data.revision, allow_patterns=data.files
        ))  # fmt: skip
    except (OSError, httpx.HTTPError) as error:
        raise UserError(
            f"this data set cannot be fetched from the hub ({type(error).__name__})", key="data.id", value=data.id,
            allowed=f"with a network, or with its files {', '.join(data.files)} in the folder ${DATA_ROOT}/{data.id}",
        ) from None  # fmt: skip


def _match(folder: Path, pattern: str) -> Path:
    """The one file of that name; `*` matches slashes too, as it does when files are fetched."""
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    names = [name for name in files if fnmatch(name, pattern)]
    if len(names) != 1:
        message = "no such file in the data set" if not names else "several files of the data set match"
        raise UserError(message, file=folder, key="data.files", value=pattern, allowed=names or files)
    return files[names[0]]


def _rows(file: Path) -> list[dict[str, Any]]:
    readers: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        ".jsonl": _json_lines,
        ".parquet": lambda path: read_parquet(path, ()).to_dict("records"),
    }
    if file.suffix not in readers:
        raise UserError("cannot read this kind of file", file=file, value=file.suffix, allowed=readers)
    return readers[file.suffix](file)


def _problem(row: dict[str, Any], data: HubProblems, file: Path) -> Problem:
    prompt = _text(_column(row, data.problem, file), data.problem, file)
    if data.choices is not None:
        options = _column(row, data.choices, file)
        prompt += "".join(f"\n{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options))  # noqa: B905
    return Problem(prompt + data.instruction, _answer(row, data, file) if data.answer is not None else "")


def _answer(row: dict[str, Any], data: HubProblems, file: Path) -> str:
    assert data.answer is not None
    text = _text(_column(row, data.answer, file), data.answer, file)
    if data.choices is not None and text.isdecimal():
        text = string.ascii_uppercase[int(text)]
    answer = boxed(text) if data.answer_in_box else text
    if not answer:
        raise UserError("a problem has no answer", file=file, key=data.answer, value=text[-80:])
    return answer


def _column(row: Any, path: str, file: Path) -> Any:
    """What a row holds at a path of keys and indices."""
    value = row
    for part in path.split("."):
        try:
            value = value[part] if isinstance(value, dict) else value[int(part)]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UserError("a problem lacks this column", file=file, key="column", value=path,
                            allowed=row if isinstance(row, dict) else None) from None  # fmt: skip
    return value


def _text(value: Any, path: str, file: Path) -> str:
    """Text as it is, a number without a fraction as an integer.

    Raises:
        UserError: for anything else, such as a list or nothing.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__float__") or hasattr(value, "__len__") or value != value:  # noqa: PLR0124
        raise UserError("a problem's column is neither text nor a number", file=file, key=path, value=str(value)[:80])
    return str(int(value)) if float(value).is_integer() else str(value)
