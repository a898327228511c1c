"""Commands for the time between runs of the workflow: list experiments, run single cells, compare and cost them.

`redraft list` shows the cells, `redraft status` the progress of their runs. docs/cli.md describes all commands.
"""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from redraft.cli.extras import missing
from redraft.cli.process import FastExit, gc_paused, repair_streams
from redraft.cli.terminal import error_text
from redraft.errors import UserError
from redraft.files import NO_ACCESS, NO_SPACE
from redraft.messages import echo

COMMANDS = {
    "list": "redraft.cli.cells:list_cells",
    "show": "redraft.cli.cells:show",
    "run": "redraft.cli.runs:run",
    "status": "redraft.cli.campaign:status",
    "compare": "redraft.cli.runs:compare",
    "prompts": "redraft.cli.runs:prompts",
    "evaluate": "redraft.cli.evaluate:evaluate",
    "agreement": "redraft.cli.evaluate:agreement",
    "sensitivity": "redraft.cli.evaluate:sensitivity",
    "regrade": "redraft.cli.evaluate:regrade",
    "cost": "redraft.cli.campaign:cost",
    "results": "redraft.cli.report:results",
    "claims": "redraft.cli.report:claims",
    "seeds": "redraft.cli.report:seeds",
    "run-until": "redraft.cli.run_until:run_until",
    "share": "redraft.cli.report:share",
    "check": "redraft.cli.reference:check",
    "report": "redraft.cli.reference:report",
    "publish": "redraft.cli.reference:publish",
    "doctor": "redraft.cli.doctor:doctor",
    "recover": "redraft.cli.campaign:recover",
    "calibrate": "redraft.cli.selfspec:calibrate",
    "simulate": "redraft.cli.selfspec:simulate",
    "replay": "redraft.cli.selfspec:replay",
    "predict": "redraft.cli.predict:predict",
    "advise": "redraft.cli.advise:advise",
    "audit": "redraft.cli.audit:audit",
    "certify": "redraft.cli.certify:certify",
    "validate": "redraft.cli.cells:validate",
    "new": "redraft.cli.new:new",
    "schema": "redraft.cli.cells:schema",
}
"""Function of each command, in the order of the help."""
STAGE_NAME = re.compile(r"(redraft(?:\.[a-z]\w*)+):([a-z]\w*)")
"""Module and function of a stage."""


class Commands(TyperGroup):
    """The commands in `COMMANDS`, each imported when it is called: `analysis` alone takes a second to import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The names without their functions: enough for the help and for suggestions after a typo.
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, with the parameters of its function; None if there is none."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, function = COMMANDS[cmd_name].partition(":")
        with gc_paused():
            return _command(cmd_name, getattr(import_module(module), function))


class StageGroup(TyperGroup):
    """The commands `redraft stage MODULE:FUNCTION ...`, through which the workflow's rules call this package.

    Every public function of the package is one. Its parameters are the command's: arguments, or options where they
    have a default. A module is imported when its function is called, so that no training or grading job waits for
    `analysis`.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None if there is no such function."""
        function = function_of(cmd_name)
        return _command(cmd_name, function) if function else None


def function_of(name: str) -> Callable[..., Any] | None:
    """Public function that a module of this package defines, by `module:function`; None if there is none."""
    if not (match := STAGE_NAME.fullmatch(name)):
        return None
    module, function = match.groups()
    try:
        with gc_paused():
            found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            return None
        raise  # a package that the module needs
    # Not what the module imports: a stage has one name.
    return found if isfunction(found) and found.__module__ == module else None


def _command(name: str, function: Callable[..., Any]) -> Any:
    # Typer makes a command from a function only as part of an app.
    single = typer.Typer(add_completion=False)
    single.command(name)(function)
    return typer.main.get_command(single)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
stages = typer.Typer(cls=StageGroup, no_args_is_help=True, help="Single stages, as the workflow's rules run them.")
app.add_typer(stages, name="stage", hidden=True)


def _version(requested: bool) -> None:
    """Print the version, and the commit of the code if it is known, and exit."""
    if not requested:
        return
    from redraft import __version__
    from redraft.provenance import git_state

    state = git_state()
    changed = ", with changes" if state["modified"] else ""
    echo(f"redraft {__version__}" + (f" (commit {state['commit']}{changed})" if state["commit"] else ""))
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and the commit.")
    ] = False,
) -> None:
    """Options of `redraft` itself."""


def main(arguments: list[str] | None = None, command: Callable[..., Any] = app) -> None:
    """Entry point. A user's mistake, a missing extra, a full disk or a read-only file prints one message and exits
    with code 2.

    All other errors end in a traceback.

    Args:
        arguments: command line; None for the process's own, and then the process exits fast after a success.
        command: the command to call.
    """
    fast_exit = None
    if arguments is None:
        repair_streams()
        fast_exit = FastExit()
    try:
        command(args=arguments)
    except SystemExit as end:
        # After a failure the process exits as usual.
        if fast_exit and not end.code:
            fast_exit.enabled = True
        raise
    except UserError as error:
        echo(error_text(error), err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (mistake := missing(error, sys.argv[1:] if arguments is None else arguments)) is None:
            raise
        echo(error_text(mistake), err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno in NO_SPACE:
            file = error.filename or "a file"
            echo(f"error: {file}: no space left on the device; finished results are intact", err=True)
        # Without a file's name the message would say nothing; the traceback does.
        elif error.errno in NO_ACCESS and error.filename:
            echo(f"error: {error.filename}: {(error.strerror or '').lower()}", err=True)
        else:
            raise
        sys.exit(2)


if __name__ == "__main__":
    main()
