"""Problems with their answers, read from configured data.

If the variable REDRAFT_DATA names a folder, hub data sets are read from it: from `<id>/`, laid out like the hub's
repository, or from the single file that the configuration names. Otherwise they are downloaded. The source of a data
set is not part of a run's identity; its content is hashed with the run.
"""

import json
import os
import string
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from redraft.config.data import Data, HubProblems, ProblemFile
from redraft.config.generated import ArithmeticProblems, Generated, InstructionPrompts, WordProblems
from redraft.errors import UserError
from redraft.files import read_parquet, sha256
from redraft.tasks import arithmetic, word_problems
from redraft.tasks.answers import boxed

DATA_ROOT = "REDRAFT_DATA"
"""Environment variable that names a folder of local copies of data sets."""
_EXTRACT: dict[str, Callable[[str], str | None]] = {
    "text": lambda text: text,
    "box": boxed,
    "####": lambda text: text.rpartition("####")[2].strip() if "####" in text else None,
}


@dataclass(frozen=True)
class Problem:
    """A prompt and its reference answer."""

    prompt: str
    answer: str


def load_problems(data: Data) -> list[Problem]:
    """Read the problems of a configured data set, in a fixed order.

    Raises:
        UserError: if a file is missing or damaged, the number of problems is wrong, a problem has no answer, or fewer
            problems exist.
    """
    match data:
        case ArithmeticProblems():
            sums = arithmetic.sample_problems(
                data.size, data.min_terms, data.max_terms, data.signs, data.split, data.seed
            )
            return [Problem(problem.prompt, str(problem.answer)) for problem in sums]
        case WordProblems():
            stories = word_problems.sample_problems(data.size, data.questions, data.largest, data.split, data.seed)
            prompts = word_problems.prompts(stories, data.examples, data.options, data.largest, data.seed)
            return [Problem(text, story.answer) for text, story in zip(prompts, stories, strict=True)]
        case InstructionPrompts():
            from redraft.tasks import instruction_prompts  # IFEval's checkers take seconds to load

            instructed = instruction_prompts.sample_problems(
                data.size, data.instructions, data.max_instructions, data.split, data.seed
            )
            return [Problem(each.prompt, each.answer) for each in instructed]
        case ProblemFile():
            return _from_file(data)
        case HubProblems():
            return _from_hub(data)


def checksums(data: Data) -> dict[str, str]:
    """SHA-256 of every file of a data set, by its name inside the data set; empty for generated problems."""
    match data:
        case Generated():
            return {}
        case ProblemFile():
            return {data.path: sha256(_existing(data))}
        case HubProblems():
            folder, files = _files(data)
            return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def missing(data: Data, count: int) -> str:
    """Note on the problems that an incomplete copy lacks; empty if the data set is whole."""
    lacking = data.incomplete.get(count, "") if isinstance(data, HubProblems) else ""
    return f"{count} of {data.size} problems: {lacking}" if lacking else ""


def origin(data: Data) -> dict[str, str | None]:
    """Source of a data set: its kind, and for a hub data set its id, and its commit unless a local copy is read."""
    if not isinstance(data, HubProblems):
        return {"kind": data.kind}
    local = bool(os.environ.get(DATA_ROOT))
    return {
        "kind": "copy" if local else "hub",
        "id": data.id,
        "revision": data.revision,
        "commit": None if local else _fetched(data).name,  # the hub's cache names a folder by its commit
    }


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
            answer = record["answer"]
            problems.append(Problem(record["problem"], json.dumps(answer) if isinstance(answer, dict) else str(answer)))
        except KeyError as key:
            raise UserError(f"line {number} lacks a key", file=file, key=str(key), allowed="problem, answer") from None
    if len(problems) != data.size:
        raise UserError("wrong number of problems", file=file, key="size", value=len(problems), allowed=str(data.size))
    return problems


def _json_lines(file: Path) -> list[dict[str, Any]]:
    """Read one JSON object per line; text stays text, so that an answer such as 025 keeps its zero."""
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
    folder, files = _files(data)
    for file in files:
        wanted = data.sha256.get(file.relative_to(folder).as_posix())
        if wanted and (digest := sha256(file)) != wanted:
            raise UserError(
                "the hash of this file is not the declared one", file=file, key="sha256", value=digest, allowed=wanted
            )
    problems = [_problem(row, data, file) for file in files for row in _rows(file)]
    if len(problems) not in (data.rows, *data.incomplete):
        raise UserError(
            "wrong number of problems",
            file=folder,
            key="of" if data.of else "size",
            value=len(problems),
            allowed=", ".join(map(str, (data.rows, *data.incomplete))),
        )
    return problems[data.skip : data.skip + data.size]


def _files(data: HubProblems) -> tuple[Path, list[Path]]:
    """The folder of a data set, and its files in the configured order."""
    if not (root := os.environ.get(DATA_ROOT)):
        folder = _fetched(data)
    elif not (folder := Path(root) / data.id).is_dir():
        if data.local and (file := Path(root) / data.local).is_file():
            return Path(root), [file]
        names = f"{data.id}/" if data.local is None else f"{data.id}/ or {data.local}"
        raise UserError(
            f"{DATA_ROOT} names a folder without this data set", file=root, key="data.id", value=data.id, allowed=names
        )
    return folder, [_match(folder, pattern) for pattern in data.files]


def _fetched(data: HubProblems) -> Path:
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(data.id, repo_type="dataset", revision=data.revision, allow_patterns=data.files))
    except (OSError, httpx.HTTPError) as error:
        raise UserError(
            f"this data set cannot be fetched from the hub ({type(error).__name__})",
            key="data.id",
            value=data.id,
            hint=f"fetch it with a network, or put {', '.join(data.files)} into the folder ${DATA_ROOT}/{data.id}",
        ) from None


def _match(folder: Path, pattern: str) -> Path:
    """The one file that matches a pattern; `*` also matches slashes, as it does when files are fetched."""
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    names = [name for name in files if fnmatch(name, pattern)]
    if len(names) != 1:
        message = "no file of the data set matches" if not names else "several files of the data set match"
        raise UserError(message, file=folder, key="data.files", value=pattern, allowed=names or files)
    return files[names[0]]


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return read_parquet(file, ()).to_dict("records")
    if file.suffix == ".jsonl":
        return _json_lines(file)
    raise UserError("files of this kind cannot be read", file=file, value=file.suffix, allowed=(".jsonl", ".parquet"))


def _problem(row: dict[str, Any], data: HubProblems, file: Path) -> Problem:
    prompt = data.template
    if data.choices is not None:
        options = _column(row, data.choices, file)
        lines = [f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False)]
        prompt = prompt.replace("{choices}", "\n".join(lines))
    text = _text(_column(row, data.problem, file), data.problem, file)
    prompt = prompt.replace("{problem}", text)
    if isinstance(data.answer, list):
        columns = {column: _column(row, column, file) for column in data.answer}
        return Problem(prompt, json.dumps(columns, default=lambda value: value.tolist()))  # NumPy arrays, from Parquet
    text = _text(_column(row, data.answer, file), data.answer, file)
    if data.choices is not None and text.isdecimal():
        text = string.ascii_uppercase[int(text)]
    answer = _EXTRACT[data.answer_from](text)
    if not answer or not answer.strip():
        raise UserError("a problem has no answer", file=file, key=data.answer, value=text[-80:])
    return Problem(prompt, answer)


def _column(row: Any, path: str, file: Path) -> Any:
    """The value of a row at a path of keys and indices, joined by dots."""
    value = row
    for part in path.split("."):
        try:
            value = value[part] if isinstance(value, dict) else value[int(part)]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UserError(
                "a problem lacks this column",
                file=file,
                key="column",
                value=path,
                allowed=row if isinstance(row, dict) else None,
            ) from None
    return value


def _text(value: Any, path: str, file: Path) -> str:
    """Text unchanged, or a number as text; a number without a fraction becomes an integer.

    Raises:
        UserError: for any other value, such as a list, a boolean or null.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__float__") or hasattr(value, "__len__") or value != value:  # noqa: PLR0124
        raise UserError("a problem's column is neither text nor a number", file=file, key=path, value=str(value)[:80])
    return str(int(value)) if float(value).is_integer() else str(value)
