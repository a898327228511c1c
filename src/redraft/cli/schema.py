"""`redraft schema`: the generated files."""

from pathlib import Path
from typing import Annotated

import typer

from redraft.errors import UserError


def schema(check: Annotated[bool, typer.Option(help="Only say whether the files are up to date.")] = False) -> None:
    """Write the generated files: JSON schemas, the configuration reference and lm-eval's tasks."""
    from redraft.config.schema import write_schemas
    from redraft.evaluate.lm_eval.tasks import write_tasks
    from redraft.layout import require

    require("Snakefile")
    if changed := write_schemas(Path("docs"), check) + write_tasks(Path("workflows/lm_eval"), check):
        if check:
            raise UserError("not up to date; run `redraft schema`", file=changed[0])
        typer.echo("\n".join(f"wrote {file}" for file in changed))
