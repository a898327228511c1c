"""Slurm's partitions, and whether a job could ever start in one of them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from redraft.messages import counted
from redraft.ops.slurm.jobs import output_of

GIB_MB = 1024
RESOURCES = ("cpus", "memory_mb", "gpus")
SHOWN_NODE_KINDS = 4
"""Largest number of node kinds in a message."""
SETTING_KEYS = {
    "minutes": "runtime",
    "cpus": "cpus",
    "memory_mb": "memory_gb",
    "gpus": "engine.gpus",
    "gpu_model": "gpu_model",
    "nodes": "engine.nodes",
}
"""Setting of each field of a `JobRequest`: a key of the site file, or `engine.` and a key of the preset."""


@dataclass(frozen=True)
class JobRequest:
    """Requested resources of a job, per node.

    Attributes:
        minutes: time limit in minutes.
        cpus: processors.
        memory_mb: memory in MiB.
        gpus: number of GPUs.
        gpu_model: type of the GPUs; any type if empty.
        nodes: number of nodes.
        partitions: allowed partitions; the cluster's default if empty.
        qos: quality of service, which may override a partition's limits of time and nodes.
    """

    minutes: float
    cpus: int
    memory_mb: float
    gpus: int = 0
    gpu_model: str = ""
    nodes: int = 1
    partitions: tuple[str, ...] = ()
    qos: str = ""

    def __str__(self) -> str:
        node = _node_text(self.cpus, self.memory_mb, self.gpus, self.gpu_model)
        on = f" on each of {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{node}{on} for {duration_text(self.minutes)}"


@dataclass(frozen=True)
class Nodes:
    """Equal nodes of a partition: their count and the resources that a job may use of each; `gpus` is by type."""

    count: int
    cpus: int
    memory_mb: float
    gpus: Mapping[str, int]

    def has(self, resource: str, request: JobRequest) -> bool:
        """Whether a node has enough of one of `RESOURCES`."""
        if resource == "gpus":
            count = self.gpus.get(request.gpu_model, 0) if request.gpu_model else sum(self.gpus.values())
            return count >= request.gpus
        return getattr(self, resource) >= getattr(request, resource)

    def __str__(self) -> str:
        types = ", ".join(filter(None, self.gpus))
        node = _node_text(self.cpus, self.memory_mb, sum(self.gpus.values()), types)
        return f"{self.count} {'node' if self.count == 1 else 'nodes'} of {node}"


@dataclass(frozen=True)
class Partition:
    """A partition: its limits (infinite if it has none) and its nodes."""

    name: str
    default: bool
    minutes: float
    max_nodes: float
    nodes: tuple[Nodes, ...]

    def shortfalls(self, request: JobRequest) -> list[str]:
        """Fields of a request because of which the job could never start here; empty if it could, or if unknown."""
        limited = not request.qos
        exceeded = ["minutes"] if limited and request.minutes > self.minutes else []
        if not self.nodes:
            return exceeded
        total = sum(kind.count for kind in self.nodes)
        if request.nodes > min(total, self.max_nodes if limited else math.inf):
            return [*exceeded, "nodes"]
        short = [resource for resource in RESOURCES if self._count_with([resource], request) < request.nodes]
        if not short and self._count_with(RESOURCES, request) < request.nodes:
            # Enough nodes have each resource, but too few have all: name those that some nodes lack.
            short = [resource for resource in RESOURCES if self._count_with([resource], request) < total]
        if "gpus" in short and request.gpu_model and "gpus" not in self.shortfalls(replace(request, gpu_model="")):
            short[short.index("gpus")] = "gpu_model"
        return exceeded + short

    def _count_with(self, resources: Sequence[str], request: JobRequest) -> int:
        return sum(some.count for some in self.nodes if all(some.has(resource, request) for resource in resources))

    def __str__(self) -> str:
        time = "without a time limit" if math.isinf(self.minutes) else f"{duration_text(self.minutes)} at most"
        nodes = "; ".join(map(str, self.nodes[:SHOWN_NODE_KINDS])) or "its nodes are unknown"
        nodes += "; and others" if len(self.nodes) > SHOWN_NODE_KINDS else ""
        most = "" if math.isinf(self.max_nodes) else f", at most {self.max_nodes:.0f} for a job"
        return f"partition {self.name}{' (the default)' if self.default else ''}: {time}; {nodes}{most}"


def _node_text(cpus: int, memory_mb: float, gpus: int, model: str) -> str:
    parts = [f"{cpus} {'processor' if cpus == 1 else 'processors'}", f"{memory_mb / GIB_MB:.4g} GiB"]
    if gpus:
        parts.append(f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}" + (f" ({model})" if model else ""))
    return ", ".join(parts)


def duration_text(minutes: float) -> str:
    """A duration as text, in days or hours if it is a whole number of them: `4 days`, `1 hour`, `90 minutes`."""
    units = ((1440, "day"), (60, "hour"), (1, "minute"))
    length, unit = next(((length, unit) for length, unit in units if minutes % length == 0), units[-1])
    return counted(round(minutes / length), unit)


def partitions() -> dict[str, Partition]:
    """Partitions of the cluster by name; empty if Slurm does not answer.

    Without them no job is rejected in advance: Slurm itself rejects it, or gives the reason why it waits.
    """
    # --all shows hidden partitions too; --exact shows unequal nodes apart, not as one line with 64+ processors.
    limits = output_of("scontrol", "--all", "--oneliner", "show", "partition")
    nodes = output_of("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G")
    return parse_partitions(limits, nodes) if limits and nodes is not None else {}


def parse_partitions(limits: str, nodes: str) -> dict[str, Partition]:
    """Partitions by name.

    Args:
        limits: output of `scontrol --oneliner show partition`.
        nodes: output of `sinfo --exact --noheader --format='%R|%D|%c|%m|%G'`: partition, number of nodes, processors,
            memory in MiB and generic resources of each.
    """
    parsed = {}
    rows = [line.split("|", 4) for line in nodes.splitlines() if line.count("|") >= 4]
    for line in limits.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        name = fields.get("PartitionName")
        if not name:
            continue
        # A partition may lend only a part of its nodes' processors and memory.
        cpus, memory = _limit(fields.get("MaxCPUsPerNode")), _limit(fields.get("MaxMemPerNode"))
        nodes_of_partition = [
            Nodes(int(count), int(min(int(has_cpus), cpus)), min(float(has_memory), memory), parse_gpus(gres))
            for partition, count, has_cpus, has_memory, gres in rows
            if partition == name
        ]
        parsed[name] = Partition(
            name,
            fields.get("Default") == "YES",
            _minutes(fields.get("MaxTime")),
            _limit(fields.get("MaxNodes")),
            tuple(nodes_of_partition),
        )
    return parsed


def parse_gpus(gres: str) -> dict[str, int]:
    """Number of GPUs by type in generic resources such as `gpu:h100:8(S:0-1),nvme:1` or `gpu:2`; '' if untyped.

    A type may be a number (`gpu:3090:2`). A single number is a count, and without a count there is one GPU.
    """
    gpus: dict[str, int] = {}
    # Slurm's form is name[:type][:no_consume]:number, and sockets in parentheses after it.
    for resource in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *parts = (part for part in resource.split(":") if part != "no_consume")
        if name == "gpu":
            count = int(parts.pop()) if parts and parts[-1].isdecimal() else 1
            model = parts[0] if parts else ""
            gpus[model] = gpus.get(model, 0) + count
    return gpus


def _limit(text: str | None) -> float:
    # Slurm writes UNLIMITED, or leaves the field out, where there is no limit.
    return float(text) if text and text.isdigit() else math.inf


def _minutes(time: str | None) -> float:
    """Minutes of Slurm's `[days-]hours:minutes:seconds`; infinite without a limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", time or "")
    if not match:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
