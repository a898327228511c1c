"""Hyperparameters: a paper's own values of the trainer's fields, each with its source.

Values of an algorithm (clipping, KL loss) are left out: they do not change with scale, and stand in
`redraft.config.algorithm` and in a paper's cells. The same holds for values of a method (`redraft.config.reuse`).
"""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from redraft.config.base import Config, Name
from redraft.config.trainer import Trainer

Source = Annotated[str, Field(min_length=4)]


class Stated(Config):
    """Value of a hyperparameter with its source."""

    value: Any
    """Value of the trainer's field."""
    source: Source
    """Quotation, table or section of the paper, or file of its release; `ours` with the reason if there is none."""


Wrap = Callable[[CoreSchema], CoreSchema]


class _Fields:
    """Schema of a mapping from fields of `Trainer` to values of the field's type and range.

    A mapping has no defaults, so that a preset or a cell holds only what it replaces.

    Args:
        wrap: maker of a value's schema from the field's.
        complete: fields without a default are required.
    """

    def __init__(self, wrap: Wrap = lambda schema: schema, complete: bool = False) -> None:
        self.wrap, self.complete = wrap, complete

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {}
        for name, field in Trainer.model_fields.items():
            typed: Any = Annotated[(field.annotation, *field.metadata, Field(description=field.description))]  # type: ignore[name-defined]
            schema = self.wrap(handler.generate_schema(typed))
            fields[name] = core_schema.typed_dict_field(schema, required=self.complete and field.is_required())
        return core_schema.typed_dict_schema(fields, extra_behavior="forbid")


def _with_source(value: CoreSchema) -> CoreSchema:
    source = TypeAdapter(Source).core_schema
    fields = {"value": core_schema.typed_dict_field(value), "source": core_schema.typed_dict_field(source)}
    pair = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    return core_schema.no_info_after_validator_function(lambda content: Stated(**content), pair)


TrainerFields = Annotated[dict[str, Any], _Fields()]
"""Some fields of `Trainer` and their values."""


class HyperparameterFile(Config):
    """`experiments/<paper>/hyperparameters.yaml`: a paper's trainer, each field as `{value: …, source: …}`.

    A run's trainer starts from the paper's `trainer`. The preset's `trainer` replaces fields and its `trainer_factors`
    multiply them. Then the paper's `at` for that preset replaces fields. The cell's `trainer` and `trainer_factors`
    come last.
    """

    trainer: Annotated[dict[str, Stated], _Fields(_with_source, complete=True)]
    """Fields of `Trainer` at the paper's scale; those without a default are required."""
    at: dict[Name, Annotated[dict[str, Stated], _Fields(_with_source)]] = {}
    """Preset to fields of `Trainer` that this paper replaces there, such as a batch that cannot be scaled down."""
