"""Resolution of a run's trainer. Each value keeps its origin, for messages and for `redraft show`."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from redraft.config.hyperparameters import Stated
from redraft.config.read import parse
from redraft.config.trainer import Trainer
from redraft.errors import UserError


@dataclass(frozen=True)
class Setting:
    """Value of a trainer's field.

    Attributes:
        value: value as its file has it.
        origin: part that sets the value, with the source or the factor; text for people.
        file: file that sets the value; None for a default.
        key: dotted key in that file.
    """

    value: Any
    origin: str
    file: Path | None
    key: str


Settings = dict[str, Setting]
"""Settings by field of `Trainer`."""


def defaults() -> Settings:
    """Fields of `Trainer` that have a default."""
    fields = {name: field for name, field in Trainer.model_fields.items() if not field.is_required()}
    return {name: Setting(field.default, "default", None, name) for name, field in fields.items()}


def stated(values: Mapping[str, Stated], origin: str, file: Path, key: str) -> Settings:
    """Settings that a paper states."""
    return {name: Setting(s.value, f"{origin}: {s.source}", file, f"{key}.{name}.value") for name, s in values.items()}


def given(values: Mapping[str, Any], origin: str, file: Path, key: str) -> Settings:
    """Settings that a preset or a cell replaces."""
    return {name: Setting(value, origin, file, f"{key}.{name}") for name, value in values.items()}


def scaled(settings: Settings, factors: Mapping[str, Fraction], origin: str, file: Path, key: str) -> Settings:
    """Settings that factors change. The product is exact for decimals, and an integer if it is whole.

    Raises:
        UserError: if the field of a factor has no number.
    """
    products = {}
    for name, factor in factors.items():
        value = settings[name].value if name in settings else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError("no such number of a trainer", file=file, key=key, value=name, allowed=Trainer.model_fields)
        exact = Fraction(str(value)) * factor
        product = exact.numerator if exact.denominator == 1 else float(exact)
        products[name] = Setting(product, f"{origin}: {factor} × {value}", file, f"{key}.{name}")
    return products


def trainer_of(settings: Settings) -> Trainer:
    """Trainer with these settings.

    Raises:
        UserError: for the first value that is out of range or does not fit another, with its file and key.
    """
    try:
        return parse(Trainer, {name: setting.value for name, setting in settings.items()}, "")
    except UserError as error:
        setting = settings[(error.key or "").split(".")[0]]
        raise error.told(file=setting.file, key=setting.key) from None
