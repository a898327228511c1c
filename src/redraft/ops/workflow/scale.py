"""Large campaigns: less work for each of Snakemake's jobs while a campaign is planned."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

LISTED_IN_FULL = 1000
"""Largest number of jobs of a dry run that are all listed."""
EXAMPLES = 2
"""Number of listed jobs of each rule in a larger dry run."""


def inspect_functions_once() -> None:
    """Let Snakemake inspect the signature of each function of the rules once; call this while rules are read.

    Snakemake (9.27) inspects it twenty times for each job, a sixth of the time of a plan of 40,000 jobs.
    """
    from snakemake import common, jobs, rules

    original = common.get_function_params
    known: dict[tuple[object, bool], Mapping[str, inspect.Parameter]] = {}

    def params(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
        bound = inspect.ismethod(function)
        key = (getattr(function, "__func__", function), bound)
        try:
            return known[key]
        except KeyError:
            return known.setdefault(key, original(function))
        except TypeError:  # a callable object without a hash
            return original(function)

    for module in (common, jobs, rules):
        module.get_function_params = params


def list_examples(workflow: Any) -> None:
    """Let a dry run of more than `LISTED_IN_FULL` jobs list `EXAMPLES` jobs of each rule, unless it prints commands.

    Call this while rules are read. Formatting a job takes a millisecond, and nobody reads ten thousand of them.
    """
    from snakemake.jobs import Job

    original, listed = Job.log_info, Counter[str]()

    def log_info(job: Any, *arguments: Any, **options: Any) -> None:
        if workflow.dryrun and len(job.dag) > LISTED_IN_FULL and not workflow.output_settings.printshellcmds:
            listed[job.rule.name] += 1
            if listed[job.rule.name] > EXAMPLES:
                return
        original(job, *arguments, **options)

    Job.log_info = log_info
