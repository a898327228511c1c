"""A problem and its answer, and how configured data becomes a list of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from redraft.config.data import ArithmeticProblems, Data, ProblemFile
from redraft.errors import UserError
from redraft.tasks import arithmetic


@dataclass(frozen=True)
class Problem:
    """What is put to the model, and the answer it must box."""

    prompt: str
    answer: str


def load_problems(data: Data) -> list[Problem]:
    """The problems of a configured data set, in a fixed order.

    Raises:
        UserError: if a file is missing or damaged, has another size, or a problem has no answer.
    """
    match data:
        case ArithmeticProblems():
            drawn = arithmetic.draw(data.size, data.min_terms, data.max_terms, data.signs, data.split, data.seed)
            return [Problem(problem.prompt, str(problem.answer)) for problem in drawn]
        case ProblemFile():
            return _from_file(data)


def _from_file(data: ProblemFile) -> list[Problem]:
    file = Path(data.path)
    if not file.exists():
        raise UserError("this problem file is missing", file=file, key="data.path", value=data.path)
    problems = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            problems.append(Problem(record["problem"], str(record["answer"])))
        except ValueError:
            raise UserError(f"line {number} is not JSON", file=file, value=line[:80]) from None
        except KeyError as key:
            raise UserError(f"line {number} lacks a key", file=file, key=str(key), allowed="problem, answer") from None
        except TypeError:
            raise UserError(f"line {number} is not an object", file=file, value=line[:80]) from None
    if len(problems) != data.size:
        raise UserError("wrong number of problems", file=file, key="size", value=len(problems), allowed=str(data.size))
    return problems
