"""The commands `redraft stage …`, by which the workflow's rules run single stages.

A stage's module is imported when the stage is called: no training or grading job should wait for `analysis`.
"""

from redraft.lazy import LazyGroup

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
    "laws": "redraft.stages:laws",
    "observe": "redraft.stages:observe",
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


class StageGroup(LazyGroup):
    """The group of commands in `STAGES`."""

    table = STAGES
