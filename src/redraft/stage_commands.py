"""The commands `redraft stage …`, by which the workflow's rules run single stages.

A stage's module is imported when the stage is called: `analysis` alone takes more than a second to import, which no
training or grading job should wait for.
"""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from redraft.loading import loading

STAGES = {
    "model": "redraft.stages:make_model",
    "data": "redraft.stages:prepare_data",
    "calibrate": "redraft.stages:calibrate",
    "time": "redraft.stages:time_runs",
    "check": "redraft.stages:check",
    "train": "redraft.stages:train",
    "generate": "redraft.stages:generate",
    "grade": "redraft.stages:grade",
    "lighteval": "redraft.stages:lighteval",
    "diversity": "redraft.stages:diversity",
    "choose-cases": "redraft.stages:choose_cases",
    "track": "redraft.stages:track",
    "collect": "analysis.stages:collect_runs",
    "tables": "analysis.table_files:write_tables",
    "figures": "analysis.figure_files:write_figures",
    "cases": "analysis.stages:cases",
    "claims": "analysis.stages:judge_claims",
    "report": "analysis.stages:report",
}
"""Function of each command. Its parameters are the command's: arguments, or options where they have a default."""


class StageGroup(TyperGroup):
    """The group of commands in `STAGES`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(STAGES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None for any other name."""
        if cmd_name not in STAGES:
            return None
        module, _, function = STAGES[cmd_name].partition(":")
        stage = typer.Typer(add_completion=False)
        with loading():
            stage.command(cmd_name)(getattr(import_module(module), function))
        return typer.main.get_command(stage)
