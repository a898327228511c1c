"""What one call of Snakemake took: wall seconds, processor seconds, and the seconds of each kind of job."""

import json
import os
import resource
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import psutil

from redraft.layout import Layout
from redraft.ops.workflow.campaign import taken


def close(workflow: Any, layout: Layout, finished: bool) -> None:
    """Print what this call took, and add it to the preset's `calls.jsonl`; call it in `onsuccess` and `onerror`."""
    wall, processor = wall_seconds(), processor_seconds()
    since = time.time() - wall
    seconds = defaultdict(list)
    jobs = [job for job in workflow.dag.needrun_jobs(exclude_finished=False) if workflow.dag.finished(job)]
    for rule, value in taken(workflow, jobs):
        seconds[rule].append(value)
    record = {
        "began": datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(wall, 1),
        "processor_seconds": round(processor, 1),
        "here": bool(workflow.local_exec),
        "finished": finished,
        "jobs": {rule: len(values) for rule, values in sorted(seconds.items())},
        "mean_seconds": {rule: round(sum(values) / len(values), 1) for rule, values in sorted(seconds.items())},
    }
    layout.calls.parent.mkdir(parents=True, exist_ok=True)
    with layout.calls.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")
    print(text(record), file=sys.stderr, flush=True)


def wall_seconds() -> float:
    """Wall seconds since this process began."""
    return time.time() - psutil.Process(os.getpid()).create_time()


def processor_seconds() -> float:
    """Processor seconds, user and system, of this process and of all that it started and that have ended.

    What a child started counts once the child has waited for it. Jobs of a cluster run elsewhere and do not count.
    """
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def text(record: dict[str, Any]) -> str:
    """A call's record as one line."""
    of = "of all jobs and of Snakemake" if record["here"] else "on this machine; Slurm counts those of its jobs"
    minutes = f"{record['wall_seconds'] / 60:.1f} minutes"
    return f"this call took {minutes} and {record['processor_seconds']:,.0f} processor seconds {of}"
