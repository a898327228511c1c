"""Arguments and options that several commands take."""

from typing import Annotated

import typer

DEFAULT_PRESET = "tiny"
"""Preset of every command that is given none, as in workflows/config.yaml."""

Cell = Annotated[str, typer.Argument(help="paper/cell, such as spec_rl/grpo-spec-l0.5")]
Preset = Annotated[str, typer.Option(help="A file under experiments/presets/.")]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the same as one JSON document (docs/cli.md).")]
Wide = Annotated[bool, typer.Option("--wide", help="All columns, one line a row, however wide.")]
