"""Problems with their answers, read from configured data.

If the variable REDRAFT_DATA names a folder, hub data sets are read from it: from `<id>/`, laid out like the hub's
repository, or from the single file that the configuration names. Otherwise they are downloaded. The source of a data
set is not part of a run's identity; its content is hashed with the run.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from redraft.config.data import Data, HubProblems, ListedProblems, ProblemFile
from redraft.config.generated import ArithmeticProblems, Generated, Grading, InstructionPrompts, WordProblems
from redraft.config.gym import GymProblems
from redraft.config.identity import fingerprint
from redraft.errors import UserError
from redraft.files import sha256
from redraft.tasks import arithmetic, word_problems
from redraft.tasks.answers import LETTERS
from redraft.tasks.problem_rows import Row, read_rows

DATA_ROOT = "REDRAFT_DATA"
"""Environment variable that names a folder of local copies of data sets."""
ANSWERS: dict[Grading, str] = {
    "math": "a number or LaTeX; instructions need `grading: instructions`",
    "choice": f"one letter, {LETTERS[0]} to {LETTERS[-1]}",
    "instructions": "IFEval's columns: `answer: [key, instruction_id_list, kwargs]`",
    "reasoning_gym": "problems of kind reasoning_gym",
}
"""Answers that each grader can compare."""


@dataclass(frozen=True)
class Problem:
    """A prompt and its reference answer."""

    prompt: str
    answer: str


def load_problems(data: Data) -> list[Problem]:
    """Read the problems of a configured data set, in a fixed order.

    Raises:
        UserError: if a file is missing or damaged, the number of problems is wrong, a problem or its answer has no
            certain text, or fewer problems exist.
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
        case GymProblems():
            from redraft.tasks import gym  # the grader takes a second to load

            sampled = gym.sample_problems(data)
            questions = gym.prompts(sampled, data)
            return [Problem(text, each.answer) for text, each in zip(questions, sampled, strict=True)]
        case ProblemFile():
            return _from_file(data)
        case HubProblems():
            return _from_hub(data)


def fingerprint_of(problems: Sequence[Problem]) -> str:
    """Fingerprint of prompts and answers, in their order."""
    return fingerprint([[problem.prompt, problem.answer] for problem in problems])


def problems_of_run(data: Data, manifest: Mapping[str, Any], file: Path) -> list[Problem]:
    """Training problems of a finished run, from its configuration and the manifest in `file`.

    Raises:
        UserError: as `load_problems`, or if they are not those that the run was trained on.
    """
    problems = load_problems(data)
    recorded = manifest.get("inputs", {}).get("problems")
    if recorded and (found := fingerprint_of(problems)) != recorded:
        raise UserError(
            "the problems that this run was trained on have changed since, or are read in another way",
            file=file,
            key="inputs.problems",
            value=found,
            allowed=recorded,
        )
    return problems


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


def record_of(data: Data, problems: Sequence[Problem]) -> dict[str, Any]:
    """What is recorded of a data set and its problems: their number and fingerprint, their origin and its hashes."""
    return {
        "data": data.model_dump(mode="json"),
        "problems": len(problems),
        "fingerprint": fingerprint_of(problems),
        "origin": origin(data),
        "sha256": checksums(data),
    }


def _existing(data: ProblemFile) -> Path:
    file = Path(data.path)
    if not file.exists():
        raise UserError("this problem file is missing", file=file, key="data.path", value=data.path)
    return file


def _from_file(data: ProblemFile) -> list[Problem]:
    file = _existing(data)
    problems = [_problem(row, data) for row in read_rows(file)]
    if len(problems) != data.size:
        raise UserError("wrong number of problems", file=file, key="size", value=len(problems), allowed=str(data.size))
    return problems


def _from_hub(data: HubProblems) -> list[Problem]:
    folder, files = _files(data)
    for file in files:
        wanted = data.sha256.get(file.relative_to(folder).as_posix())
        if wanted and (digest := sha256(file)) != wanted:
            raise UserError(
                "the hash of this file is not the declared one", file=file, key="sha256", value=digest, allowed=wanted
            )
    problems = [_problem(row, data) for file in files for row in read_rows(file)]
    # Before the slice: a file that is cut off would otherwise go unnoticed.
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
    # As `allow_patterns` of the hub's client matches, so that a copy and the hub give the same file.
    names = [name for name in files if fnmatch(name, pattern)]
    if len(names) != 1:
        message = "no file of the data set matches" if not names else "several files of the data set match"
        raise UserError(message, file=folder, key="data.files", value=pattern, allowed=names or files)
    return files[names[0]]


def _problem(row: Row, data: ListedProblems) -> Problem:
    parts, labels = {"problem": row.text(data.problem)}, None
    if data.choices is not None:
        labels, options = row.options(data.choices)
        lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
        parts["choices"] = "\n".join(lines)
    # In one pass, since a text may contain a field's name in braces.
    prompt = re.sub(r"\{(problem|choices)\}", lambda field: parts[field[1]], data.template)
    if isinstance(data.answer, list):
        return Problem(prompt, row.instructions(data.answer))
    if labels:
        return Problem(prompt, row.letter(data.answer, labels, data.answer_from))
    return Problem(prompt, row.answer(data.answer, data.answer_from))


def check_answers(problems: Sequence[Problem], grading: Grading, key: str) -> None:
    """Check that a grader can compare these answers; `key` names the problems in the error.

    Raises:
        UserError: if an answer is not a letter of an option, or is a prompt's instructions or a problem of
            reasoning-gym under another grader, or the reverse. Such an answer would make every response wrong.
    """
    for number, problem in enumerate(problems, start=1):
        instructed = problem.answer.startswith('{"key": ')  # as `Row.instructions` and the generated prompts write it
        scored = problem.answer.startswith('{"reasoning_gym": ')  # as `redraft.tasks.gym.Source` begins
        lettered = len(problem.answer) == 1 and problem.answer in LETTERS
        recorded = (instructed, scored) == (grading == "instructions", grading == "reasoning_gym")
        if not recorded or (grading == "choice" and not lettered):
            raise UserError(
                f"the grader `{grading}` cannot compare the answer of problem {number}",
                key=f"{key}, grading",
                value=problem.answer[:80],
                allowed=ANSWERS[grading],
            )
