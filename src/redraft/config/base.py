"""Base class of all configuration models, and scalar types that several of them use."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Set
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

_WORD = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

Name = Annotated[str, StringConstraints(pattern=f"^{_WORD}$")]
"""Part of a path: letters, digits, `_`, `-` and single dots."""

Label = Annotated[str, StringConstraints(pattern=f"^({_WORD})?$")]
"""Name or empty text."""

PAPER = "[a-z0-9_]+"
PaperName = Annotated[str, StringConstraints(pattern=f"^{PAPER}$")]
"""Folder under experiments/."""

CellId = Annotated[str, StringConstraints(pattern=f"^{PAPER}/{_WORD}$")]
"""`paper/cell`."""


def _no_number(name: str) -> str:
    try:
        float(name)
    except ValueError:
        return name
    raise ValueError(f"{name} is a number, not a name")


WordyName = Annotated[Name, AfterValidator(_no_number)]
"""Name that is not a number, so that readers of a table cannot mistake it for one."""


HubId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
"""Repository on the hub: a name, usually with an owner."""


def _stays_inside(path: str) -> str:
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{path!r} is no path inside a folder")
    return path


InnerPath = Annotated[str, AfterValidator(_stays_inside)]
"""Relative path, perhaps with `*`, that stays inside its folder."""


class Config(BaseModel):
    """Configuration model. Unknown keys are errors, and values do not change after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def defining(model: Config, exclude: Set[str] = frozenset()) -> dict[str, Any]:
    """Fields of a model that differ from their defaults, and its `kind`, although that is a default."""
    kind = {"kind": model.kind} if hasattr(model, "kind") else {}
    return model.model_dump(mode="json", exclude_defaults=True, exclude=set(exclude)) | kind


def refuse_twice(what: str, values: Iterable[object]) -> None:
    """Raise a ValueError if a value occurs twice."""
    for value, count in Counter(values).items():
        if count > 1:
            raise ValueError(f"{what} {value!r} stands twice")


def near(name: str, names: Iterable[str]) -> list[str]:
    """Names that resemble `name`, or all if none does."""
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
        raise ValueError("must be a number >= 0, e^x or inf; negative and NaN have no meaning")
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
