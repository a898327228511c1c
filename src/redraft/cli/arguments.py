"""Arguments and options that several commands share."""

import os
from typing import Annotated

import typer

DEFAULT_PRESET = "tiny"
"""Default preset of every command, as in config/config.yaml."""


def _find(name: str) -> str:
    """Id of a cell, whose paper the user may leave out."""
    from redraft.config import Experiments

    return Experiments().find(name)


def _register_cells(file: str | None) -> None:
    """Register a user-defined file of cells as a paper, in this process and its children."""
    from redraft.config import own

    if file is not None:
        # Snakemake's jobs inherit it.
        os.environ[own.VARIABLE] = file
        # Raises now if the file is missing, and not when the first paper is read.
        own.cells_file()


def _known_preset(name: str) -> str:
    """The name of a preset, which has a file or, where results were unpacked, only a folder of results."""
    from redraft.config import Experiments
    from redraft.layout import Layout

    if not Layout(name).folder.is_dir():
        Experiments().check_preset(name)
    return name


Cell = Annotated[
    str,
    typer.Argument(
        help="paper/cell, such as spec_rl/grpo-spec-l0.5, or the cell alone if only one paper has it.", callback=_find
    ),
]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells",
        help="User-defined file of cells, added as a paper.",
        callback=_register_cells,
        # Before `Cell` is looked up, among whose papers this file is.
        is_eager=True,
        expose_value=False,
    ),
]
Changes = Annotated[
    list[str], typer.Option("--set", help="key=value: make a variant of the cell, such as trainer.group_size=16.")
]
Preset = Annotated[str, typer.Option(help="A file under experiments/presets/.", callback=_known_preset)]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the same content as one JSON document (docs/cli.md).")]
Wide = Annotated[bool, typer.Option("--wide", help="All columns, one line per row, of any width.")]
