"""The commands `redraft stage MODULE:FUNCTION …`, by which the workflow's rules run functions of this package.

A function's module is imported when it is called: no training or grading job should wait for `analysis`.
"""

import re
from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from typing import Any

import typer
from typer.core import TyperGroup

from redraft.cli.loading import loading

NAME = re.compile(r"(redraft(?:\.[a-z]\w*)+):([a-z]\w*)")


class StageGroup(TyperGroup):
    """Group whose commands are the public functions of this package, by `module:function`.

    A function's parameters are the command's: arguments, or options where they have a default.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None if there is no such function."""
        if not (function := function_of(cmd_name)):
            return None
        one = typer.Typer(add_completion=False)
        one.command(cmd_name)(function)
        return typer.main.get_command(one)


def function_of(name: str) -> Callable[..., Any] | None:
    """Public function that a module of this package defines, by `module:function`; None if there is none."""
    if not (named := NAME.fullmatch(name)):
        return None
    module, function = named.groups()
    try:
        with loading():
            found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            return None
        raise  # a package that the module needs
    return found if isfunction(found) and found.__module__ == module else None
