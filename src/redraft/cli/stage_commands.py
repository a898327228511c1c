"""The commands `redraft stage …`, by which the workflow's rules run single stages.

A stage's module is imported when the stage is called: no training or grading job should wait for `analysis`.
"""

from redraft.cli.lazy import LazyGroup

STAGES = {
    "model": "redraft.cli.stages:make_model",
    "data": "redraft.cli.stages:prepare_data",
    "calibrate": "redraft.cli.stages:calibrate",
    "time": "redraft.cli.stages:time_runs",
    "check": "redraft.cli.stages:check",
    "train": "redraft.cli.stages:train",
    "generate": "redraft.cli.stages:generate",
    "grade": "redraft.cli.stages:grade",
    "lighteval": "redraft.cli.stages:lighteval",
    "diversity": "redraft.cli.stages:diversity",
    "laws": "redraft.cli.stages:laws",
    "observe": "redraft.cli.stages:observe",
    "choose-cases": "redraft.cli.stages:choose_cases",
    "track": "redraft.cli.stages:track",
    "collect": "redraft.analysis.stages:collect_runs",
    "measure": "redraft.analysis.measuring:measure",
    "tables": "redraft.analysis.tables.files:write_tables",
    "figures": "redraft.analysis.figures.files:write_figures",
    "cases": "redraft.analysis.stages:cases",
    "claims": "redraft.analysis.stages:judge_claims",
    "report": "redraft.analysis.stages:report",
}
"""Function of each command. Its parameters are the command's: arguments, or options where they have a default."""


class StageGroup(LazyGroup):
    """The group of commands in `STAGES`."""

    table = STAGES
