"""Slurm site: partition, account and limits of jobs (profiles/slurm/site.yaml, docs/slurm.md)."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from redraft.config.base import Config
from redraft.config.read import parse, read_yaml
from redraft.errors import UserError

VARIABLE = "REDRAFT_SLURM_SITE"
"""Environment variable with the path of another site file."""
FILE = Path("profiles/slurm/site.yaml")
"""Site file if the variable is not set; without it `DEFAULTS` hold."""

Stage = Literal["train", "evaluate", "grade"]
SlurmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$")]
"""Name of a partition, account or the like, without characters that a shell interprets."""
Constraint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:*&|()\[\]-]*$")]
"""Argument of sbatch's `--constraint`."""
GpuModel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""GPU type, in the characters that the executor plugin allows."""
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[mhd]$")]
"""Minutes, hours or days: `90m`, `12h`, `3d`."""
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@+-]+)?$")]
"""Option of sbatch. Commands hold it unquoted, so it has no character that a shell interprets."""
MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


class Request(Config):
    """Slurm settings of one job. Empty ones are the site's, then this project's defaults."""

    partition: SlurmName | None = None
    """Partition, or several with commas; the cluster's default if empty."""
    account: SlurmName | None = None
    """Account that is charged; the user's default if empty."""
    qos: SlurmName | None = None
    """Quality of service."""
    constraint: Constraint | None = None
    """Features that nodes must have, such as `h100&ib`."""
    gpu_model: GpuModel | None = None
    """GPU type as `scontrol show node` lists it under Gres; any if empty."""
    runtime: Duration | None = None
    """Time limit of one attempt: `90m`, `12h`, `3d`."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Memory of the job on each node, GiB."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors on each of the job's nodes."""
    options: list[Option] | None = None
    """Further options of sbatch, such as `--exclusive` or `--reservation=NAME`."""


DEFAULTS: dict[str, Request] = {
    # By `redraft cost` the longest run takes 63 hours on the paper's GPUs; half as much again. verl's workers ask Ray
    # for 3 processors a GPU, and its agents, storage and driver for some more. With offloading, 14B parameters in
    # float32 with Adam's two moments and gradients are 224 GB, and PPO's critic as much again.
    "train": Request(runtime="4d", memory_gb=800, cpus=64),
    # One GPU. What was sampled is kept when time runs out (docs/evaluation.md). 14B parameters in bfloat16 are 28 GB,
    # which are read once through the page cache. How long it takes at this scale has not been measured.
    "evaluate": Request(runtime="1d", memory_gb=96, cpus=8),
    # One process, which may take 4 GiB (docs/grading.md), beside the one that reads the generations.
    "grade": Request(runtime="6h", memory_gb=16, cpus=1),
}
"""Settings of each stage before the site file's."""


class Site(Request):
    """Site file: settings of all jobs, and of the jobs of single stages."""

    stages: dict[Stage, Request] = {}
    """Settings of the jobs of one stage; they override those of all jobs."""

    def request(self, stage: Stage) -> Request:
        """Settings of a stage: the site's for the stage, then the site's for all jobs, then the defaults."""
        whole: dict[str, Any] = {}
        for part in (DEFAULTS[stage], self, self.stages.get(stage, Request())):
            settings = {name: getattr(part, name) for name in Request.model_fields}
            whole |= {name: value for name, value in settings.items() if value is not None}
        return Request(**whole)

    def resources(self, stage: Stage, gpus: int = 0, nodes: int = 1) -> dict[str, int | str]:
        """Resources of a Snakemake rule, by the names of its Slurm plugin.

        Args:
            stage: stage that the rule belongs to.
            gpus: GPUs on each node.
            nodes: nodes of the job. With more than one, the job's own command starts processes on the others.
        """
        asked = self.request(stage)
        named = {"slurm_partition": asked.partition, "slurm_account": asked.account, "qos": asked.qos,
                 "constraint": asked.constraint, "slurm_extra": " ".join(asked.options or []) or None}  # fmt: skip
        resources: dict[str, int | str] = {name: value for name, value in named.items() if value}
        resources |= {"nodes": nodes, "runtime": minutes(asked.runtime or "1h"),
                      "mem_mb": round(1024 * (asked.memory_gb or 1)), "cpus_per_task": asked.cpus or 1}  # fmt: skip
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


def load_site() -> Site:
    """Read the site file: the one that the variable names, else the usual one, else none (the defaults).

    Raises:
        UserError: if the named file is missing, or the file has an unknown key or a wrong value.
    """
    named = os.environ.get(VARIABLE)
    file = Path(named) if named else FILE
    if not file.exists():
        if named:
            raise UserError("no such file", key=VARIABLE, value=named)
        return Site()
    return parse(Site, read_yaml(file) or {}, file)
