"""Slurm site: partition, account and limits of jobs (profiles/slurm/site.yaml, docs/slurm.md)."""

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
"""Site file if the variable is not set; without it a job asks for what follows from its preset."""

MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


class Site(Request):
    """Site file: settings of all jobs, and of the jobs of single stages."""

    stages: dict[Stage, Request] = {}
    """Settings of the jobs of one stage; they override those of all jobs."""

    def request(self, stage: Stage, preset: Preset) -> Request:
        """Settings of a stage: the site's for the stage, then the site's for all jobs, then what the preset needs."""
        whole: dict[str, Any] = {}
        for part in (request_of(stage, preset), self, self.stages.get(stage, Request())):
            settings = {name: getattr(part, name) for name in Request.model_fields}
            whole |= {name: value for name, value in settings.items() if value is not None}
        return Request(**whole)

    def resources(self, stage: Stage, preset: Preset) -> dict[str, int | str]:
        """Resources of a Snakemake rule, by the names of its Slurm plugin.

        Nodes are the preset's for a run, else one. With more than one node, the job's own command starts processes on
        the others.
        """
        engine = preset.engine
        gpus, nodes = gpus_of(stage, engine), engine.nodes if stage == "train" else 1
        asked = self.request(stage, preset)
        named = {
            "slurm_partition": asked.partition,
            "slurm_account": asked.account,
            "qos": asked.qos,
            "constraint": asked.constraint,
            "slurm_extra": " ".join(asked.options or []) or None,
        }
        resources: dict[str, int | str] = {name: value for name, value in named.items() if value}
        resources |= {
            "nodes": nodes,
            "runtime": minutes(asked.runtime or "1h"),
            "mem_mb": round(1024 * (asked.memory_gb or 1)),
            "cpus_per_task": asked.cpus or 1,
        }
        if gpus:
            # A node's, whereas the plugin's `gpu` counts those of all nodes.
            resources["gres"] = ":".join(filter(None, ("gpu", asked.gpu_model, str(gpus))))
        if nodes > 1:
            # Without the third the plugin would take the number of tasks for one a GPU.
            resources |= {"mpi": "srun", "tasks": nodes, "tasks_per_gpu": 0}
        return resources


def minutes(duration: str) -> int:
    """Length of a `Duration` in minutes."""
    return int(duration[:-1]) * MINUTES[duration[-1]]


def site_file() -> Path:
    """Site file that holds: the one that the variable names, else the usual one."""
    return Path(os.environ.get(VARIABLE) or FILE)


def load_site() -> Site:
    """Read the site file: the one that the variable names, else the usual one, else none.

    Raises:
        UserError: if the named file is missing, or the file has an unknown key or a wrong value.
    """
    file = site_file()
    if not file.exists():
        if os.environ.get(VARIABLE):
            raise UserError("no such file", key=VARIABLE, value=str(file))
        return Site()
    return parse(Site, read_yaml(file) or {}, file)
