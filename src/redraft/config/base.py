"""The base of every configuration model, and the scalar types they share."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema


class Config(BaseModel):
    """A configuration model: unknown keys are errors, values do not change after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def parse_lenience(value: Any) -> float:
    """Read a lenience: a number, `e^x` or `inf`, as the papers write it.

    Returns:
        The lenience, at least 0; infinity means that every draft token is accepted.

    Raises:
        ValueError: if it is negative, not a number, or not written in one of these ways.
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
    """Write a lenience as the papers do: `0`, `1`, `e^0.5`, `inf`; the inverse of `parse_lenience`."""
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
