"""`redraft schema`: the generated files."""

from pathlib import Path
from typing import Annotated

import typer

from redraft.errors import UserError


def schema(
    folder: Annotated[Path, typer.Argument(help="Folder of the JSON schemas.")] = Path("docs/schemas"),
    check: Annotated[bool, typer.Option(help="Only say whether reference and tasks are up to date.")] = False,
) -> None:
    """Write the generated files: JSON schemas, the configuration reference and lm-eval's tasks."""
    from redraft.config.schema import write_reference, write_schemas
    from redraft.evaluate.lm_eval.tasks import write_tasks
    from redraft.layout import require

    require("Snakefile")
    changed = write_reference(Path("docs/configuration.md"), check) + write_tasks(Path("workflows/lm_eval"), check)
    if check and changed:
        raise UserError("not up to date; run `redraft schema`", file=changed[0])
    if not check:
        typer.echo("\n".join(f"wrote {file}" for file in write_schemas(folder) + changed))
