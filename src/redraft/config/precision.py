"""The precision that replaces `engine.dtype: fastest`: measured once for all runs of a preset, and recorded.

A campaign compares its cells, so all of its runs compute in the same precision, on whichever machine they resume.
The recorded precision replaces `fastest` when the preset is read. So a run's identity, its manifest and the fingerprint
of evaluations name `float32` or `bfloat16`, as if the preset did.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from redraft.config.preset import Preset
from redraft.config.read import parse
from redraft.errors import UserError
from redraft.files import read_json

FASTEST = "fastest"


class Precision(BaseModel):
    """Record of the taken precision.

    Attributes:
        dtype: the taken one.
        times_float32: seconds of a matrix product in bfloat16 over those in float32 when it was taken.
        machine: on which it was measured.
    """

    model_config = ConfigDict(extra="forbid")

    dtype: Literal["float32", "bfloat16"]
    times_float32: float
    machine: dict[str, object]


def with_taken(preset: Preset, record: Path) -> Preset:
    """The preset with the recorded precision for `fastest`; unchanged if it asks for another one, or none was taken.

    Raises:
        UserError: if the record is damaged.
    """
    if preset.engine.dtype != FASTEST or not record.exists():
        return preset
    taken = parse(Precision, read_json(record), record).dtype
    return preset.model_copy(update={"engine": preset.engine.model_copy(update={"dtype": taken})})


def not_taken() -> UserError:
    """Error of a job that computes before a precision was taken."""
    return UserError(
        "the precision of this preset has not been taken yet",
        key="engine.dtype",
        value=FASTEST,
        allowed="auto, float32 or bfloat16",
        hint="`snakemake` and `redraft run` measure and record it when they start",
    )
