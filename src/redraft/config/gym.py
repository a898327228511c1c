"""Configuration of problems that the package reasoning-gym generates and scores (docs/reasoning-gym.md)."""

import importlib.metadata
import json
import warnings
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from redraft.config.base import invalid, near
from redraft.config.generated import BOX, Generated, Grading
from redraft.errors import UserError

LINE = "{problem}\nAnswer in one line, with nothing but the answer."
"""Default template of problems whose answers are the first lines of responses."""

DISTRIBUTION = "reasoning-gym"
VERSION = "0.1.25"
"""Version of the package; another one makes other problems."""
ITEMS = 500
"""Problems of one generator, the package's default. A data set takes as many generators as it needs."""

_NO_ANSWER = "its problems have no answer, so that nothing shows that its scorer accepts a right one"
_HASH_SEED = "its problems depend on the hash seed of Python, so that another process makes others"
UNSUPPORTED = {
    "ab": "some of its problems have an empty answer, which no box holds",
    "boxnet": _NO_ANSWER,
    "coin_flip": "its scorer gives the answer `0` the full score for any decimal below 1",
    "complex_arithmetic": "its scorer gives the answer `nan` the full score",
    "composite": "it mixes other tasks; name one of them",
    "game_of_life_halting": "its scorer gives every text the full score",
    "graph_color": _NO_ANSWER,
    "intermediate_integration": "some of its answers are integrals that are not worked out, which its scorer accepts",
    "isomorphic_strings": _HASH_SEED,
    "knight_swap": _HASH_SEED,
    "number_sorting": "its scorer gives the full score to numbers that differ by less than 1",
    "polynomial_multiplication": _HASH_SEED,
    "propositional_logic": _NO_ANSWER,
    "puzzle24": "its scorer does not ask for the problem's numbers, so that one expression solves every problem",
    "ransom_note": _HASH_SEED,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "word_ladder": _HASH_SEED,
}
"""Tasks of the package that no run can have, each with the reason."""
OF_THE_DATA = {"seed": "data.seed", "size": "data.size"}
"""Options of every generator that the data set decides itself, and its keys for them."""


def _json(options: dict[str, Any]) -> dict[str, Any]:
    for name, key in OF_THE_DATA.items():
        if name in options:
            raise invalid(f"{name} is no option here", f"the key {key}", at=(name,))
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise invalid(f"options must be numbers, texts, lists and mappings ({error})") from None
    return options


class GymProblems(Generated):
    """Problems of one of reasoning-gym's generators, graded by its scorer (docs/reasoning-gym.md).

    The two splits share no question. The scorer gets the content of a response's last box, or its first line. A
    response earns 1 or 0: partial scores reward what is not the answer, and methods and schedules count right and wrong
    responses.
    """

    grading: ClassVar[Grading] = "reasoning_gym"
    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: str
    """Name of the generator, such as `chain_sum`."""
    options: Annotated[dict[str, Any], AfterValidator(_json)] = {}
    """Values of the generator's configuration, such as its difficulty. The package's defaults apply to all others."""
    threshold: float = Field(default=1.0, gt=0, le=1)
    """Smallest score of a right answer. Below 1, answers with a partial score are right too."""
    scorer_errors: Literal["stop", "wrong"] = "stop"
    """What happens if the scorer fails on an answer: `stop` ends the work with an error that names task and problem,
    `wrong` counts the answer as wrong, and evaluations count it among the errors."""
    answer_in: Literal["box", "first_line"] = "box"
    """Part of a response that the scorer gets: the content of the last `\\boxed{}`, or the first line, in which small
    models can answer that write no box."""
    examples: int = Field(default=0, ge=0, le=16)
    """Number of solved problems that precede each question, the same ones for all. They are of the training split, and
    no problem of the data."""
    # Factories that get the other fields, so that fingerprints contain both values.
    template: str = Field(default_factory=lambda fields: LINE if fields.get("answer_in") == "first_line" else BOX)
    """Prompt template. `{problem}` is replaced by the question. By default the question and a request for a box or a
    line. Solved problems have it too, with a blank and their answer after it."""
    version: Literal["0.1.25"] = Field(default_factory=lambda _: cast(Literal["0.1.25"], VERSION))
    """Version of the package, which must be the installed one. By default 0.1.25."""

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if "{problem}" not in self.template:
            raise invalid("template must contain {problem}", at=("template",))
        if reason := UNSUPPORTED.get(self.task):
            raise invalid(f"the task {self.task} is unsupported: {reason}", at=("task",))
        return self


@cache
def _registry() -> dict[str, tuple[Any, Any]]:
    """Classes of a generator and of its configuration, by the task's name.

    Raises:
        ModuleNotFoundError: if the package is not installed.
        UserError: if another version is installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # syntax warnings of its dependencies
        from reasoning_gym.factory import DATASETS
    # Its `__version__` is an earlier one than its metadata.
    if (found := importlib.metadata.version(DISTRIBUTION)) != VERSION:
        raise UserError(
            "another version of reasoning-gym is installed, which makes other problems",
            key="data.version",
            value=found,
            allowed=VERSION,
            hint=f"pip install {DISTRIBUTION}=={VERSION}",
        )
    return DATASETS


def tasks() -> list[str]:
    """Names of all supported tasks, sorted."""
    return sorted(set(_registry()) - set(UNSUPPORTED))


def build(task: str, options: dict[str, Any], seed: int = 0) -> Any:
    """The generator of a task: `generator[i]` is its problem i, from 0 to `ITEMS` - 1.

    Raises:
        UserError: if there is no such task, it has no such option, or it rejects a value.
        ModuleNotFoundError: if the package is not installed.
    """
    if task not in _registry() or task in UNSUPPORTED:
        raise UserError("reasoning-gym has no such task", key="data.task", value=task, allowed=near(task, tasks()))
    generator, configuration = _registry()[task]
    known = {field.name for field in fields(configuration)} - set(OF_THE_DATA)
    for name, value in options.items():
        if name not in known:
            raise UserError(
                f"reasoning-gym's task {task} has no such option",
                key=f"data.options.{name}",
                value=value,
                allowed=near(name, known),
            )
    try:
        return generator(configuration(**options, seed=seed, size=ITEMS))
    except Exception as error:  # an AssertionError mostly, and whatever a value of a wrong type leads to
        raise UserError(
            f"reasoning-gym's task {task} rejects these options: {error or type(error).__name__}",
            key="data.options",
            value=options,
            hint=f"`help({configuration.__module__}.{configuration.__name__})` in Python lists them",
        ) from None


def check(data: Any) -> None:
    """Build the generator of a data set of reasoning-gym, so that its mistakes are errors now; nothing for others."""
    if isinstance(data, GymProblems):
        build(data.task, data.options)
