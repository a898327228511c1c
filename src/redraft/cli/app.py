"""What a person does between runs of the workflow: look at experiments, run single ones, compare and cost them.

`redraft list` shows what there is, `redraft status` how far it is. docs/cli.md describes all commands.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from redraft.cli.ending import Ending
from redraft.cli.extras import missing
from redraft.cli.loading import loading
from redraft.cli.stage_commands import StageGroup
from redraft.cli.terminal import error_text
from redraft.errors import UserError
from redraft.files import NO_SPACE

COMMANDS = {
    "list": "redraft.cli.cells:list_cells",
    "show": "redraft.cli.cells:show",
    "run": "redraft.cli.runs:run",
    "status": "redraft.cli.campaign:status",
    "compare": "redraft.cli.runs:compare",
    "prompts": "redraft.cli.runs:prompts",
    "evaluate": "redraft.cli.evaluate:evaluate",
    "agreement": "redraft.cli.evaluate:agreement",
    "cost": "redraft.cli.campaign:cost",
    "results": "redraft.cli.report:results",
    "claims": "redraft.cli.report:claims",
    "share": "redraft.cli.report:share",
    "recover": "redraft.cli.campaign:recover",
    "calibrate": "redraft.cli.selfspec:calibrate",
    "simulate": "redraft.cli.selfspec:simulate",
    "replay": "redraft.cli.selfspec:replay",
    "predict": "redraft.cli.predict:predict",
    "audit": "redraft.cli.audit:audit",
    "schema": "redraft.cli.schema:schema",
}
"""Function of each command, in the order of the help."""


class Commands(TyperGroup):
    """The commands in `COMMANDS`, each imported when it is called: `analysis` alone takes a second to import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]  # names, for the help and for typos

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, with the parameters of its function; None if there is none."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, function = COMMANDS[cmd_name].partition(":")
        one = typer.Typer(add_completion=False)
        with loading():
            one.command(cmd_name)(getattr(import_module(module), function))
        return typer.main.get_command(one)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
stages = typer.Typer(cls=StageGroup, no_args_is_help=True, help="Single stages, as the workflow's rules run them.")
app.add_typer(stages, name="stage", hidden=True)


def _version(asked: bool) -> None:
    """Print the version, and the commit of the code if it is known, and end."""
    if not asked:
        return
    from redraft import __version__
    from redraft.provenance import git_state

    state = git_state()
    changed = ", with changes" if state["modified"] else ""
    typer.echo(f"redraft {__version__}" + (f" (commit {state['commit']}{changed})" if state["commit"] else ""))
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and the commit.")
    ] = False,
) -> None:
    """Options of `redraft` itself."""


def main(arguments: list[str] | None = None, command: Callable[..., Any] = app) -> None:
    """Entry point: a user's mistake, a missing extra or a full disk ends in one message and exit code 2.

    Everything else ends in a traceback.

    Without arguments they are those of the process, which ends with the command.
    """
    ending = Ending() if arguments is None else None
    try:
        command(args=arguments)
    except SystemExit as end:
        if ending and not end.code:
            ending.well = True
        raise
    except UserError as error:
        typer.echo(error_text(error), err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (mistake := missing(error, sys.argv[1:] if arguments is None else arguments)) is None:
            raise
        typer.echo(error_text(mistake), err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        typer.echo(f"error: {error.filename or 'a file'}: no space left; what was finished is intact", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
