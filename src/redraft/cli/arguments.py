"""Arguments and options that several commands take."""

import os
from typing import Annotated

import typer

DEFAULT_PRESET = "tiny"
"""Preset of every command that is given none, as in workflows/config.yaml."""


def _find(name: str) -> str:
    """Id of a cell that is named without its paper."""
    from redraft.config import Experiments

    return Experiments().find(name)


def _take_cells(file: str | None) -> None:
    """Take a file of one's own as a paper, in this process and those that it starts."""
    from redraft.config import own

    if file is not None:
        os.environ[own.VARIABLE] = file
        own.cells_file()


Cell = Annotated[
    str,
    typer.Argument(
        help="paper/cell, such as spec_rl/grpo-spec-l0.5, or only a cell that one paper has.", callback=_find
    ),
]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells",
        help="File of cells of one's own, taken as a paper.",
        callback=_take_cells,
        is_eager=True,
        expose_value=False,
    ),
]
Changes = Annotated[
    list[str], typer.Option("--set", help="key=value: a variant of the cell, such as trainer.group_size=16.")
]
Preset = Annotated[str, typer.Option(help="A file under experiments/presets/.")]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the same as one JSON document (docs/cli.md).")]
Wide = Annotated[bool, typer.Option("--wide", help="All columns, one line a row, however wide.")]
