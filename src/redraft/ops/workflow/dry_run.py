"""Summary at the end of a dry run: jobs by rule, runs to train, expected time, and the command of the real run."""

import importlib.metadata
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redraft.cli.terminal import filled
from redraft.config import Preset
from redraft.config.precision import FASTEST
from redraft.messages import counted
from redraft.ops.workflow import pace
from redraft.ops.workflow.job_times import Sizes, durations, job_graph
from redraft.ops.workflow.scale import EXAMPLES, LISTED_IN_FULL
from redraft.ops.workflow.time_left import JOBS, TimeLeft, estimate_time_left

DRY = ("-n", "--dry-run", "--dryrun")
"""Options of Snakemake that make a call a dry run."""
SCALED = "from another machine's times, scaled to this one"
SLOW_RATIO = 1.2
"""Ratio of a precision's time to float32's above which the summary warns about it."""
Runs = Iterable[tuple[str, int]]
"""Cells, as `paper/cell`, and seeds."""


def announce(
    workflow: Any,
    preset: Preset,
    sizes: Sizes,
    arguments: Sequence[str],
    cost: Callable[[Runs], str],
    cluster: Callable[[Sequence[Any]], Iterable[str]] = lambda _: (),
) -> None:
    """Register the summary with Snakemake's logger plugin; call this while rules are read.

    Args:
        workflow: Snakemake's workflow.
        preset: preset of the campaign.
        sizes: sizes of runs.
        arguments: command line of this call, including the program.
        cost: returns the training cost of runs as a line, empty if unknown; called only if the time of training is
            unknown.
        cluster: returns lines about the submission of jobs.
    """

    def summarise(time_text: Callable[[TimeLeft], str]) -> str:
        jobs = list(workflow.dag.needrun_jobs(exclude_finished=False))  # a dry run marks them as finished
        graph, known, runs = job_graph(workflow, sizes, jobs), durations(workflow, preset, sizes), runs_to_train(jobs)
        source = f", {SCALED}" if known.guessed else ""
        cores = counted(graph.capacity["cores"], "core")
        if any(job.submitted for job in graph.jobs.values()):
            cores += f" on this machine, at most {counted(graph.capacity[JOBS], 'job')} on Slurm at a time"
        times = [f"{time_text(estimate_time_left(graph, (), {}, known))}; {cores}{source}"]
        if runs and known.mean("train") is None and (line := cost(runs)):
            times.append(line)
        in_image = any(job.container_img_url for job in jobs)
        if runs and preset.engine.gpus and not in_image and not has_gpu_packages():
            times.append("its runs need GPUs, and this environment is for CPUs: `make ENV=gpu` (docs/paper-scale.md)")
        if preset.engine.dtype == FASTEST:
            times.append("the first call that is no dry run measures which precision is faster (docs/real-model.md)")
        if runs and (ratio := pace.times_float32(preset.engine.dtype)) > SLOW_RATIO:
            times.append(
                f"{preset.engine.dtype} takes {ratio:.1f} times as long as float32 on this processor; "
                "set engine.dtype of the preset to change it (docs/real-model.md)"
            )
        times += cluster(jobs)
        if len(graph.jobs) > LISTED_IN_FULL and not workflow.output_settings.printshellcmds:
            times.append(f"{EXAMPLES} jobs of each rule are listed above; -p lists all, with their commands")
        return summary(Counter(job.rule for job in graph.jobs.values() if job.rule), runs, times, arguments)

    for handler in workflow.logger_manager.get_log_handlers():
        if hasattr(handler, "end_dry_run"):
            handler.end_dry_run(summarise)


def is_dry(arguments: Sequence[str]) -> bool:
    """True if a command line has one of the options `DRY`, also as a letter of several (`-np`)."""
    return any(argument in DRY or _without_n(argument) != argument for argument in arguments)


def has_gpu_packages() -> bool:
    """True if vLLM's build for GPUs is installed; its CPU build has another name."""
    return any(importlib.metadata.distributions(name="vllm"))


def runs_to_train(jobs: Iterable[Any]) -> list[tuple[str, int]]:
    """Cells and seeds of the runs that Snakemake's jobs train, sorted."""
    wildcards = [job.wildcards for job in jobs if job.rule.name == "train"]
    return sorted((f"{wildcard.paper}/{wildcard.cell}", int(wildcard.seed)) for wildcard in wildcards)


def summary(jobs: Mapping[str, int], runs: Sequence[tuple[str, int]], times: Iterable[str], call: Sequence[str]) -> str:
    """Format the summary.

    Args:
        jobs: number of jobs by rule.
        runs: cells and seeds to train.
        times: lines about the expected time.
        call: command line of the dry run.
    """
    rules = ", ".join(f"{count} {rule}" for rule, count in sorted(jobs.items(), key=lambda item: (-item[1], item[0])))
    lines = [f"dry run: {counted(sum(jobs.values()), 'job')} would run: {rules}", _runs_text(runs), *times]
    return "\n".join([*(filled(line, "  ") for line in lines), f"next: {real_command(call)}"])


def _runs_text(runs: Sequence[tuple[str, int]]) -> str:
    cells = Counter(cell.partition("/")[0] for cell in {cell for cell, _ in runs})
    papers = ", ".join(f"{count} of {paper}" for paper, count in sorted(cells.items()))
    return f"{counted(len(runs), 'run')} to train" + f", of {counted(sum(cells.values()), 'cell')}: {papers}" * bool(
        runs
    )


def real_command(call: Sequence[str]) -> str:
    """The command line without the options of a dry run."""
    targets, kept = [], []
    after_dry = False
    for argument in call[1:]:
        after_dry = argument in DRY or (after_dry and not argument.startswith("-"))
        if after_dry and argument not in DRY:
            # A target, which an option of several values in front of the omitted one, as `--config`, would take.
            targets.append(argument)
        elif not after_dry:
            kept.append(_without_n(argument))
    return shlex.join(["snakemake", *targets, *kept])


def _without_n(argument: str) -> str:
    """Remove the n from combined short options such as `-np` and `-nj4`."""
    # Only options without a value may come before it: the n of `-Rn` is the name of a rule.
    return re.sub(r"\A(-[Ffkpat]*)n", r"\1", argument)
