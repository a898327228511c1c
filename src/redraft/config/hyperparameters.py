"""Configuration of hyperparameters: a paper's values of the trainer's fields with their sources, and how a run's
trainer follows from them.

Values of an algorithm (clipping, KL loss) and of a method do not change with scale, so they are not here but in
`redraft.config.algorithm`, `redraft.methods` and the cells. Each value of a run's trainer has its origin, for messages
and for `redraft show`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from redraft.config.base import Config, Name
from redraft.config.read import parse
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError

Source = Annotated[str, Field(min_length=4)]


class Stated(Config):
    """Value of a hyperparameter with its source."""

    value: Any
    """Value of the trainer's field."""
    source: Source
    """Quotation, table or section of the paper, or file of its release; `ours` with a reason if there is no source."""


Wrap = Callable[[CoreSchema], CoreSchema]


FIELDS_OF = "fields_of"
"""Metadata of a schema that has fields of a model: the model."""


class _Fields:
    """Schema of a mapping from fields of `TrainerConfig` to values of the field's type and range.

    The mapping has no defaults: a preset or a cell lists only the fields that it replaces.

    Args:
        wrap: function from the schema of a field to that of its value in the mapping.
        complete: fields without a default are required.
    """

    def __init__(self, wrap: Wrap = lambda schema: schema, complete: bool = False) -> None:
        self.wrap, self.complete = wrap, complete

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {}
        for name, field in TrainerConfig.model_fields.items():
            # With the field's constraints, so that a value is judged in its own file and not after the merge.
            typed: Any = Annotated[(field.annotation, *field.metadata, Field())]  # type: ignore[name-defined]
            schema = self.wrap(handler.generate_schema(typed))
            fields[name] = core_schema.typed_dict_field(schema, required=self.complete and field.is_required())
        return core_schema.typed_dict_schema(fields, extra_behavior="forbid", metadata={FIELDS_OF: TrainerConfig})


def _with_source(value: CoreSchema) -> CoreSchema:
    source = TypeAdapter(Source).core_schema
    fields = {"value": core_schema.typed_dict_field(value), "source": core_schema.typed_dict_field(source)}
    pair = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    return core_schema.no_info_after_validator_function(lambda content: Stated(**content), pair)


TrainerFields = Annotated[dict[str, Any], _Fields()]
"""Some fields of `TrainerConfig` with their values."""


class HyperparameterFile(Config):
    """`experiments/<paper>/hyperparameters.yaml`: a paper's trainer, each field as `{value: …, source: …}`.

    A run's trainer starts from the paper's `trainer`. Then, in this order, the preset's `trainer` replaces fields, its
    `trainer_factors` multiply fields, the paper's `at` for that preset replaces fields, and the cell's `trainer` and
    `trainer_factors` do the same.
    """

    trainer: Annotated[dict[str, Stated], _Fields(_with_source, complete=True)]
    """Fields of `TrainerConfig` at the paper's scale; those without a default are required."""
    at: dict[Name, Annotated[dict[str, Stated], _Fields(_with_source)]] = {}
    """Preset to fields of `TrainerConfig` that it replaces there, such as a batch that cannot be scaled."""


@dataclass(frozen=True)
class Setting:
    """Value of a trainer's field.

    Attributes:
        value: value in the file.
        origin: origin of the value with its source or factor, as text for users.
        file: file that sets the value; None for a default.
        key: dotted key in that file.
    """

    value: Any
    origin: str
    file: Path | None
    key: str


Settings = dict[str, Setting]
"""Settings by field of `TrainerConfig`."""


def defaults() -> Settings:
    """Fields of `TrainerConfig` that have a default."""
    fields = {name: field for name, field in TrainerConfig.model_fields.items() if not field.is_required()}
    return {name: Setting(field.default, "default", None, name) for name, field in fields.items()}


def stated(values: Mapping[str, Stated], origin: str, file: Path, key: str) -> Settings:
    """Settings from a paper, with their sources."""
    return {name: Setting(s.value, f"{origin}: {s.source}", file, f"{key}.{name}.value") for name, s in values.items()}


def given(values: Mapping[str, Any], origin: str, file: Path, key: str) -> Settings:
    """Settings from a preset or a cell."""
    return {name: Setting(value, origin, file, f"{key}.{name}") for name, value in values.items()}


def _is_number(value: Any) -> bool:
    # `True` is an `int` of Python.
    return isinstance(value, int | float) and not isinstance(value, bool)


def scaled(settings: Settings, factors: Mapping[str, Fraction], origin: str, file: Path, key: str) -> Settings:
    """Settings multiplied by factors. The product is exact for decimals, and an integer if it is whole.

    Raises:
        UserError: if the value of a field with a factor is not a number.
    """
    products = {}
    for name, factor in factors.items():
        value = settings[name].value if name in settings else None
        if not _is_number(value):
            raise UserError(
                "the trainer has no number with this name",
                file=file,
                key=f"{key}.{name}",
                value=str(factor),
                allowed=[name for name, setting in settings.items() if _is_number(setting.value)],
            )
        # From the text of the value: a fraction of the float 0.1 would be its binary neighbour.
        exact = Fraction(str(value)) * factor
        product = exact.numerator if exact.denominator == 1 else float(exact)
        products[name] = Setting(product, f"{origin}: {factor} × {value}", file, f"{key}.{name}")
    return products


def trainer_of(settings: Settings) -> TrainerConfig:
    """TrainerConfig with these settings.

    Raises:
        UserError: for the first value that is out of range or does not fit another, with its file and key.
    """
    try:
        # The values come from several files. An error gets the file and key that set the wrong one.
        return parse(TrainerConfig, {name: setting.value for name, setting in settings.items()}, "")
    except UserError as error:
        # Of a nested key its first part: settings are whole fields.
        setting = settings[(error.key or "").split(".")[0]]
        raise error.replace(file=setting.file, key=setting.key) from None
