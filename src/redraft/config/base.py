"""Base class of all configuration models, and the scalar types and names that several of them use."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Set
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

_WORD = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

Name = Annotated[str, StringConstraints(pattern=f"^{_WORD}$")]
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


HubId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
"""Repository on the hub: a name, usually with an owner."""


def _stays_inside(path: str) -> str:
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{path!r} is not a path inside a folder")
    return path


InnerPath = Annotated[str, AfterValidator(_stays_inside)]
"""Relative path, perhaps with `*`, that stays inside its folder."""


class Config(BaseModel):
    """Configuration model. Unknown keys are errors, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def defining(model: Config, exclude: Set[str] = frozenset()) -> dict[str, Any]:
    """Fields of a model that differ from their defaults, and its `kind` in any case."""
    kind = {"kind": model.kind} if hasattr(model, "kind") else {}
    return model.model_dump(mode="json", exclude_defaults=True, exclude=set(exclude)) | kind


def check_distinct(what: str, values: Iterable[object]) -> None:
    """Raise a ValueError if a value occurs twice."""
    for value, count in Counter(values).items():
        if count > 1:
            raise ValueError(f"{what} {value!r} occurs twice")


def distinct(what: str, field: str = "") -> AfterValidator:
    """Validator of a list whose values must be distinct; with `field`, the values of that field of its items."""

    def check(values: list[Any]) -> list[Any]:
        check_distinct(what, [getattr(value, field) if field else value for value in values])
        return values

    return AfterValidator(check)


def near(name: str, names: Iterable[str]) -> list[str]:
    """Names similar to `name`, or all names if none is similar."""
    known = list(names)
    return difflib.get_close_matches(name, known, n=5, cutoff=0.3) or known


def parse_lenience(value: Any) -> float:
    """Parse a lenience ℓ as the papers write it: a number, `e^x` or `inf`.

    Returns:
        ℓ >= 0. Infinity accepts every draft token.

    Raises:
        ValueError: if the value is negative, not a number, or written in another way.
    """
    try:
        text = value.strip().lower() if isinstance(value, str) else value
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
    exponent = round(math.log(lenience), 6)
    if abs(exponent) < 700 and math.exp(exponent) == lenience:
        return f"e^{exponent:g}"
    return repr(lenience)


Lenience = Annotated[
    float,
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
        raise PydanticCustomError("no_such_cell", "no such cell", {"expected": ", ".join(near(name, cells))})
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
