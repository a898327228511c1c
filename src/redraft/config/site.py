"""What a Slurm site wants of jobs: partition, account, limits (profiles/slurm/site.yaml, docs/slurm.md)."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from redraft.config.base import Config
from redraft.config.read import parse, read_yaml
from redraft.errors import UserError

VARIABLE = "REDRAFT_SLURM_SITE"
"""Environment variable that names another site file."""
FILE = Path("profiles/slurm/site.yaml")
"""The site file unless the variable names one; without either the defaults hold."""

Stage = Literal["train", "evaluate", "grade"]
SlurmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$")]
"""The name of a partition, account or the like; nothing that a shell would read otherwise."""
Constraint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:*&|()\[\]-]*$")]
"""What sbatch's `--constraint` takes."""
GpuModel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""As the executor plugin allows."""
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[mhd]$")]
"""Minutes, hours or days: `90m`, `12h`, `3d`."""
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@+-]+)?$")]
"""One option of sbatch; it stands unquoted in a command, so no character of it may mean anything to a shell."""
MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


class Request(Config):
    """What is asked of Slurm for one job; what is not set is as the site's or this project's defaults have it."""

    partition: SlurmName | None = None
    """Partition, or several with commas; else the cluster's default one."""
    account: SlurmName | None = None
    """Account that is charged; else the user's default one."""
    qos: SlurmName | None = None
    """Quality of service."""
    constraint: Constraint | None = None
    """Features that nodes must have, such as `h100&ib`."""
    gpu_model: GpuModel | None = None
    """GPU type as `scontrol show node` names it under Gres; else any."""
    runtime: Duration | None = None
    """Longest time of one attempt: `90m`, `12h`, `3d`."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Memory of a node that a job may use, GiB."""
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
"""What the stages ask for unless the site file says otherwise."""


class Site(Request):
    """A site file: what all jobs ask for, and what those of one stage do."""

    stages: dict[Stage, Request] = {}
    """Settings of the jobs of one stage, before those of all."""

    def request(self, stage: Stage) -> Request:
        """What a stage asks for: the site's setting for it, the site's for all, the default."""
        whole: dict[str, Any] = {}
        for part in (DEFAULTS[stage], self, self.stages.get(stage, Request())):
            settings = {name: getattr(part, name) for name in Request.model_fields}
            whole |= {name: value for name, value in settings.items() if value is not None}
        return Request(**whole)

    def resources(self, stage: Stage, gpus: int = 0, nodes: int = 1) -> dict[str, int | str]:
        """Resources of a Snakemake rule, by the names that its Slurm plugin knows.

        Args:
            stage: whose settings.
            gpus: on each node.
            nodes: of the job. More than one make it a job whose own command starts what runs on the others.
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
    """Minutes of a `Duration`."""
    return int(duration[:-1]) * MINUTES[duration[-1]]


def load_site() -> Site:
    """The settings of the site: of the file that the variable names, of the usual one, or the defaults.

    Raises:
        UserError: if the named file is missing, or one has an unknown key or a wrong value.
    """
    named = os.environ.get(VARIABLE)
    file = Path(named) if named else FILE
    if not file.exists():
        if named:
            raise UserError("no such file", key=VARIABLE, value=named)
        return Site()
    return parse(Site, read_yaml(file) or {}, file)
