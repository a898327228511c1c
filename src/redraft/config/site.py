"""Configuration of a Slurm site: partition, account and limits of jobs (profiles/slurm/site.yaml, docs/slurm.md)."""

import os
from pathlib import Path
from typing import Any

from redraft.config.preset import Preset
from redraft.config.read import parse, read_yaml
from redraft.config.requests import Request, Stage, gpus_of, request_of
from redraft.errors import UserError

VARIABLE = "REDRAFT_SLURM_SITE"
"""Environment variable with the path of another site file."""
FILE = Path("profiles/slurm/site.yaml")
"""Site file if the variable is not set. If it is missing, requests follow from the preset only."""

GPUS_PER_NODE = "--gpus-per-node="
"""Option of sbatch for GPUs of a type with a hyphen, which the plugin's `gres` must not have."""
MINUTES_PER_UNIT = {"m": 1, "h": 60, "d": 24 * 60}


class Site(Request):
    """Site file: settings of all jobs and of the jobs of single stages."""

    stages: dict[Stage, Request] = {}
    """Stage to settings that override those of all jobs."""

    def request(self, stage: Stage, preset: Preset) -> Request:
        """Settings of a stage, by precedence: the site's for the stage, the site's for all jobs, those of the
        preset."""
        merged: dict[str, Any] = {}
        # Weakest first: `merged` keeps the last value that is set.
        for part in (request_of(stage, preset), self, self.stages.get(stage, Request())):
            settings = {name: getattr(part, name) for name in Request.model_fields}
            merged |= {name: value for name, value in settings.items() if value is not None}
        return Request(**merged)

    def resources(self, stage: Stage, preset: Preset) -> dict[str, int | str]:
        """Resources of a Snakemake rule, by the names of Snakemake's Slurm plugin.

        Training has the preset's number of nodes, other stages one. With several nodes, the job's own command starts
        processes on the others.
        """
        engine = preset.engine
        # Evaluation and grading run in one process each, whatever the number of training nodes.
        gpus, nodes = gpus_of(stage, engine), engine.nodes if stage == "train" else 1
        request = self.request(stage, preset)
        on_node = ":".join(filter(None, (request.gpu_model, str(gpus))))
        # GPUs per node; the plugin's `gpu` is the total of all nodes. It rejects hyphens in types, which are common.
        hyphenated = gpus > 0 and "-" in on_node
        options = [*(request.options or []), *([f"{GPUS_PER_NODE}{on_node}"] if hyphenated else [])]
        named = {
            "slurm_partition": request.partition,
            "slurm_account": request.account,
            "qos": request.qos,
            "constraint": request.constraint,
            "slurm_extra": " ".join(options) or None,
        }
        resources: dict[str, int | str] = {name: value for name, value in named.items() if value}
        resources |= {
            "nodes": nodes,
            # Each stage's request has all three, so the alternatives only satisfy the types.
            "runtime": minutes(request.runtime or "1h"),
            "mem_mb": round(1024 * (request.memory_gb or 1)),
            "cpus_per_task": request.cpus or 1,
        }
        if gpus and not hyphenated:
            resources["gres"] = f"gpu:{on_node}"
        if nodes > 1:
            # Without `tasks_per_gpu` the plugin would pass the number of tasks as tasks per GPU.
            resources |= {"mpi": "srun", "tasks": nodes, "tasks_per_gpu": 0}
        return resources


def minutes(duration: str) -> int:
    """A `Duration` in minutes."""
    return int(duration[:-1]) * MINUTES_PER_UNIT[duration[-1]]


def site_file() -> Path:
    """Site file of the environment variable, else the default one."""
    return Path(os.environ.get(VARIABLE) or FILE)


def load_site() -> Site:
    """Read the site file; an empty site if the default file is missing.

    Raises:
        UserError: if the file of the variable is missing, or a file has an unknown key or a wrong value.
    """
    file = site_file()
    if not file.exists():
        # The default file may be missing; one that the user names may not.
        if os.environ.get(VARIABLE):
            raise UserError("no such file", key=VARIABLE, value=str(file))
        return Site()
    # An empty file is a site without settings.
    return parse(Site, read_yaml(file) or {}, file)
