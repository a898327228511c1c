"""Base class of all configuration models, and the scalar types and names that several of them use."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# Dots only between words: neither `..`, which leads out of a folder, nor a hidden file.
_WORD = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

LONGEST_NAME = 200
"""Characters of a name: file systems take 255 bytes, and some files have a suffix."""

Name = Annotated[str, StringConstraints(pattern=f"^{_WORD}$", max_length=LONGEST_NAME)]
"""Name that can be part of a path: letters, digits, `_`, `-` and single dots."""

Label = Annotated[str, StringConstraints(pattern=f"^({_WORD})?$")]
"""Name or empty text."""

PAPER = "[a-z0-9_]+"
PaperName = Annotated[str, StringConstraints(pattern=f"^{PAPER}$")]
"""Name of a paper: its folder under experiments/."""

CellId = Annotated[str, StringConstraints(pattern=f"^{PAPER}/{_WORD}$")]
"""`paper/cell`."""


def _no_number(name: str) -> str:
    try:
        float(name)
    except ValueError:
        return name
    raise ValueError(f"{name} is a number, not a name")


WordyName = Annotated[Name, AfterValidator(_no_number)]
"""Name that is not a number; a table with such a name would be misread."""


HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
HubId = Annotated[str, StringConstraints(pattern=HUB_ID)]
"""Repository on the hub: a name, usually with an owner."""


def _stays_inside(path: str) -> str:
    # A null byte would end the path in the operating system, and hide what follows from this check.
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{path!r} is not a path inside a folder")
    return path


InnerPath = Annotated[str, AfterValidator(_stays_inside)]
"""Relative path, perhaps with `*`, that stays inside its folder."""


# Bounds of sizes: a hundred times the largest published run. Larger values are typing errors that no machine can run.
MOST_STEPS = 10**9
MOST_PROMPTS = 10**6
"""Prompts of a step."""
MOST_RESPONSES = 4096
"""Responses to a prompt in a step or an evaluation."""
MOST_TOKENS = 2**20
"""Tokens of a prompt or a response."""
MOST_ROWS = 2**20
"""Sequences in memory."""
MOST_BATCHED_TOKENS = 2**30
"""Tokens of a forward pass."""
MOST_PROBLEMS = 10**7
MOST_CPUS = 4096
MOST_GPUS = 64
"""GPUs of a node."""
MOST_NODES = 4096
LARGEST_SEED = 2**32 - 1
"""Largest seed that all random number generators take."""
LARGEST = 2**53
"""Bound of the absolute value of every integer. Larger ones lose digits as floating-point numbers."""


def invalid(message: str, allowed: str = "", at: tuple[str | int, ...] = (), **value: Any) -> ValueError:
    """Error of a validator.

    Args:
        message: the mistake.
        allowed: allowed values.
        at: path of the wrong key below the validated value; empty for the value itself.
        value: `value=…`, if the wrong value is not the one at that path.
    """
    # The message is a field of the context, since Pydantic would format braces in it. Names in it may be of any length.
    shortened = {"message": message[:1000], "expected": allowed[:10_000]}
    return PydanticCustomError("invalid", "{message}", {**shortened, "at": at, **value})


def _number(value: Any) -> Any:
    """The value, unless it is a boolean, which Pydantic would read as 0 or 1, or an integer above `LARGEST`."""
    if isinstance(value, bool):
        raise invalid("must be a number, not true or false")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise invalid(f"must be at most {LARGEST}", value=f"an integer of {value.bit_length()} bits")
    return value


def strict_numbers(schema: Any) -> Any:
    """A core schema whose integers and floats are checked by `_number` first; other parts are unchanged."""
    if isinstance(schema, list | tuple):
        return type(schema)(strict_numbers(each) for each in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("int", "float"):
        return core_schema.no_info_before_validator_function(_number, schema)  # type: ignore[arg-type]
    function = schema.get("function")
    # Each model's schema was wrapped when the model was made; the model that contains it comes here again.
    if isinstance(function, dict) and function.get("function") is _number:
        return schema
    # Metadata are functions and JSON schemas of Pydantic, no core schemas.
    return {key: value if key == "metadata" else strict_numbers(value) for key, value in schema.items()}


class Config(BaseModel):
    """Configuration model. Unknown keys are errors, numbers are finite, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    first_defaults: ClassVar[Mapping[str, Any]] = {}
    """Values that fingerprints omit, since they were defaults when the first runs were trained."""

    # pragma: no mutate start (Pydantic calls this while the class is made, before mutmut registers mutants)
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Schema of the model with `strict_numbers`."""
        return strict_numbers(handler(source))

    # pragma: no mutate end

    def without_effect(self, names: Iterable[str], because: str) -> None:
        """Raise a ValueError if a field has another value than its default where none has an effect.

        By value, and not by the fields that were given, since a run that is read again has all of them.
        """
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise invalid(f"{name} has no effect {because}", "the default", (name,))


def defining(model: Config, exclude: Set[str] = frozenset()) -> dict[str, Any]:
    """Fields of a model that differ from their defaults and its `first_defaults`, and its `kind` in any case."""
    # The kind is part of the definition even where it is the default: two kinds may have equal fields.
    kind = {"kind": model.kind} if hasattr(model, "kind") else {}
    fields = model.model_dump(mode="json", exclude_defaults=True, exclude=set(exclude))
    first = model.first_defaults
    return {name: value for name, value in fields.items() if name not in first or first[name] != value} | kind


def check_distinct(what: str, values: Iterable[object], *at: str | int) -> None:
    """Raise a ValueError if a value occurs twice; `at` is the path of the values below the validated model."""
    for value, count in Counter(values).items():
        if count > 1:
            raise invalid(f"{what} {value!r} occurs twice", at=at)


def distinct(what: str, field: str = "") -> AfterValidator:
    """Validator of a list whose values must be distinct; with `field`, the values of that field of its items."""

    def check(values: list[Any]) -> list[Any]:
        check_distinct(what, [getattr(value, field) if field else value for value in values])
        return values

    return AfterValidator(check)


def near(name: str, names: Iterable[str]) -> list[str]:
    """Names similar to `name`, the most similar first, or all names if none is similar."""
    known = list(names)
    # A name of thousands of characters is similar to none, and its comparison takes seconds.
    return difflib.get_close_matches(name[:200], known, n=5, cutoff=0.5) or known


def parse_lenience(value: Any) -> float:
    """Parse a lenience ℓ as the papers write it: a number, `e^x` or `inf`.

    Returns:
        ℓ >= 0. Infinity accepts every draft token.

    Raises:
        ValueError: if the value is negative, not a number, or written in another way.
    """
    try:
        text = value.strip().lower() if isinstance(value, str) else value
        # `float(True)` is 1.
        if isinstance(text, bool):
            raise ValueError
        is_exponential = isinstance(text, str) and text.startswith("e^")
        lenience = math.exp(float(text[2:])) if is_exponential else float(text)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number >= 0, e^x or inf") from None
    if math.isnan(lenience) or lenience < 0:
        raise ValueError("must be a number >= 0, e^x or inf; negative values and NaN are invalid")
    return lenience


def format_lenience(lenience: float) -> str:
    """Format a lenience as the papers write it: `0`, `1`, `e^0.5`, `inf`. The inverse of `parse_lenience`."""
    if math.isinf(lenience):
        return "inf"
    if lenience in (0.0, 1.0):
        return f"{lenience:g}"
    exponent = f"{round(math.log(lenience), 6):g}"
    # Only if it is read as the same number: fingerprints contain the text. Above 709 `exp` would overflow.
    if abs(float(exponent)) < 700 and math.exp(float(exponent)) == lenience:
        return f"e^{exponent}"
    return repr(lenience)


Lenience = Annotated[
    float,
    # `Config` forbids infinity for all other numbers.
    Field(allow_inf_nan=True),
    BeforeValidator(parse_lenience),
    PlainSerializer(format_lenience, return_type=str),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^(e\^-?[0-9.]+|inf)$"}]}
    ),
]


def _known_cell(name: str, info: ValidationInfo) -> str:
    """The name, if it is among the cells of the context; without a context every name is accepted."""
    cells = (info.context or {}).get("cells", [name])
    if name not in cells:
        raise invalid("no such cell", ", ".join(near(name, cells)))
    return name


CellName = Annotated[str, AfterValidator(_known_cell)]
"""Name of a cell of the same paper, or `paper/cell` if it is the base of a grid (`Grid.base`)."""


def id_of(paper: str, cell: str) -> str:
    """Id of a cell from its name in the files of a paper."""
    return cell if "/" in cell else f"{paper}/{cell}"


Quantity = str
"""Name of a quantity of a run or a step (docs/metrics.md)."""

BEYOND = 100
"""Largest number of a table or figure in a paper. Larger numbers are tables and figures that the paper lacks."""

GENERATION_STAGES = ("verification", "rollout", "assembly", "reward")
"""Stages of a step that generate its rollouts. Groups pass them independently and concurrently."""
STEP_STAGES = (
    *GENERATION_STAGES,
    "old_log_probs",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "others",
)
"""Stages of a step with a recorded wall time, in seconds (SPEC-RL, Table 4). They sum to `total`."""


class Numbered(Config):
    """A table or a figure. Numbers above 100 are for those that the paper lacks."""

    word: ClassVar[str]
    number: int = Field(ge=1, le=199)
    """The paper's number."""

    @property
    def beyond_paper(self) -> bool:
        """True if the paper does not have it."""
        return self.number > BEYOND

    @property
    def heading(self) -> str:
        """`Table 3` or `Figure 4`; `Extra 1` for the first that is not in the paper."""
        return f"Extra {self.number - BEYOND}" if self.beyond_paper else f"{self.word} {self.number}"
