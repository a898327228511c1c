"""Groups of commands of which each is imported when it is called: `analysis` alone takes a second to import."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from redraft.cli.loading import loading


class LazyGroup(TyperGroup):
    """A group whose commands stand in a table; a command's parameters are those of its function.

    Attributes:
        table: name of a command to its function, `module:function`, in the order of the help.
    """

    table: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands.update(dict.fromkeys(self.table))  # type: ignore[arg-type]  # names, for the help and for typos

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None if there is none."""
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.table[cmd_name].partition(":")
        one = typer.Typer(add_completion=False)
        with loading():
            one.command(cmd_name)(getattr(import_module(module), function))
        return typer.main.get_command(one)
