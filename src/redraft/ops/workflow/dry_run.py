"""The end of a dry run: jobs by rule, runs to train, the time that all takes, and the call that does it."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redraft.cli.terminal import filled
from redraft.config import Preset
from redraft.ops.workflow import pace
from redraft.ops.workflow.campaign import durations, plan
from redraft.ops.workflow.time_left import Left, left

DRY = ("-n", "--dry-run", "--dryrun")
"""Options of Snakemake that make a call a dry run."""
PACED = "by another machine's times at this one's pace"
SLOW = 1.2
"""Times as long as in float32 from which on a precision is said to be slow."""
Runs = Iterable[tuple[str, int]]
"""Cells, as `paper/cell`, and seeds."""


def announce(workflow: Any, preset: Preset, arguments: Sequence[str], cost: Callable[[Runs], str]) -> None:
    """Have Snakemake's logger plugin end a dry run with its summary; call it when rules are read.

    Args:
        workflow: Snakemake's workflow.
        preset: preset of the campaign.
        arguments: command line of this call, the program first.
        cost: says what training some runs costs, as a line; it is asked if no such run has ended, and nothing else is
            known. Empty if it is unknown too.
    """

    def summarise(time_text: Callable[[Left], str]) -> str:
        jobs = list(workflow.dag.needrun_jobs(exclude_finished=False))  # a dry run has "finished" them
        expected, known, runs = plan(workflow, jobs), durations(workflow, preset), trained(jobs)
        source = f", {PACED}" if known.guessed else ""
        cores = _count(expected.capacity["cores"], "core")
        times = [f"{time_text(left(expected, (), {}, known))}; {cores}{source}"]
        if runs and known.mean("train") is None and (line := cost(runs)):
            times.append(line)
        if runs and (times_longer := pace.times_float32(preset.engine.dtype)) > SLOW:
            times.append(
                f"{preset.engine.dtype} takes {times_longer:.1f} times as long as float32 on this processor; "
                "engine.dtype of the preset is the choice (docs/real-model.md)"
            )
        return summary(Counter(job.rule for job in expected.jobs.values() if job.rule), runs, times, arguments)

    for handler in workflow.logger_manager.get_log_handlers():
        if hasattr(handler, "end_dry_run"):
            handler.end_dry_run(summarise)


def trained(jobs: Iterable[Any]) -> list[tuple[str, int]]:
    """Cells and seeds of the runs that jobs of Snakemake train."""
    wildcards = [job.wildcards for job in jobs if job.rule.name == "train"]
    return sorted((f"{wildcard.paper}/{wildcard.cell}", int(wildcard.seed)) for wildcard in wildcards)


def summary(jobs: Mapping[str, int], runs: Sequence[tuple[str, int]], times: Iterable[str], call: Sequence[str]) -> str:
    """The summary as lines.

    Args:
        jobs: numbers of jobs by rule.
        runs: cells and seeds that would be trained.
        times: what is known of the time, a line each.
        call: command line of the dry run.
    """
    rules = ", ".join(f"{count} {rule}" for rule, count in sorted(jobs.items(), key=lambda item: (-item[1], item[0])))
    lines = [f"dry run: {_count(sum(jobs.values()), 'job')} would run: {rules}", _of_runs(runs), *times]
    return "\n".join([*(filled(line, "  ") for line in lines), f"next: {real(call)}"])


def _of_runs(runs: Sequence[tuple[str, int]]) -> str:
    cells = Counter(cell.partition("/")[0] for cell in {cell for cell, _ in runs})
    papers = ", ".join(f"{count} of {paper}" for paper, count in sorted(cells.items()))
    return (
        _count(len(runs), "run") + " to train" + (f", of {_count(sum(cells.values()), 'cell')}: {papers}" * bool(runs))
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def real(call: Sequence[str]) -> str:
    """The command line without what makes it a dry run."""
    _, *arguments = call
    kept = [_without_n(argument) for argument in arguments if argument not in DRY]
    return shlex.join(["snakemake", *kept])


def _without_n(argument: str) -> str:
    """The argument without an n among several short options, such as `-np`."""
    return argument.replace("n", "", 1) if re.fullmatch(r"-[pFR]*n[pFR]+|-[pFR]+n", argument) else argument
