"""What a Slurm's partitions have, and whether a job that asks for more could ever start there."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from redraft.ops.slurm.jobs import output_of

GIB_MB = 1024
FACTS = ("cpus", "memory_mb", "gpus")
SHOWN = 4
"""Kinds of nodes that a message lists."""
KEYS = {
    "minutes": "runtime",
    "cpus": "cpus",
    "memory_mb": "memory_gb",
    "gpus": "engine.gpus",
    "gpu_model": "gpu_model",
    "nodes": "engine.nodes",
}
"""Field of an `Ask` to what sets it: a key of the site file, or `engine.` and a key of the preset."""


@dataclass(frozen=True)
class Ask:
    """What a job asks for, on each of its nodes.

    Attributes:
        minutes: time limit.
        cpus: processors.
        memory_mb: memory in MiB.
        gpus: number of GPUs.
        gpu_model: type of the GPUs; any if empty.
        nodes: number of nodes.
        partitions: partitions that it may go to; the cluster's default if empty.
        qos: quality of service, which may lift a partition's limits of time and nodes.
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
        node = _of_a_node(self.cpus, self.memory_mb, self.gpus, self.gpu_model)
        on = f" on each of {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{node}{on} for {in_words(self.minutes)}"


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike: how many, and what a job may have of each; `gpus` is by type."""

    count: int
    cpus: int
    memory_mb: float
    gpus: Mapping[str, int]

    def has(self, fact: str, ask: Ask) -> bool:
        """Whether a node has as much of one of `FACTS` as a job asks for."""
        if fact == "gpus":
            return (self.gpus.get(ask.gpu_model, 0) if ask.gpu_model else sum(self.gpus.values())) >= ask.gpus
        return getattr(self, fact) >= getattr(ask, fact)

    def __str__(self) -> str:
        types = ", ".join(filter(None, self.gpus))
        node = _of_a_node(self.cpus, self.memory_mb, sum(self.gpus.values()), types)
        return f"{self.count} {'node' if self.count == 1 else 'nodes'} of {node}"


@dataclass(frozen=True)
class Partition:
    """A partition: its limits (infinite if it has none) and its nodes."""

    name: str
    default: bool
    minutes: float
    max_nodes: float
    nodes: tuple[Nodes, ...]

    def lacks(self, ask: Ask) -> list[str]:
        """Fields of an `Ask` for which a job could never start here; none if it could, or if that is unknown."""
        limited = not ask.qos
        beyond = ["minutes"] if limited and ask.minutes > self.minutes else []
        if not self.nodes:
            return beyond
        if ask.nodes > min(sum(some.count for some in self.nodes), self.max_nodes if limited else math.inf):
            return [*beyond, "nodes"]
        short = [fact for fact in FACTS if self._with([fact], ask) < ask.nodes]
        if not short and self._with(FACTS, ask) < ask.nodes:  # each is somewhere, but no node has all
            short = [fact for fact in FACTS if self._with([fact], ask) < sum(some.count for some in self.nodes)]
        if "gpus" in short and ask.gpu_model and "gpus" not in self.lacks(replace(ask, gpu_model="")):
            short[short.index("gpus")] = "gpu_model"
        return beyond + short

    def _with(self, facts: Sequence[str], ask: Ask) -> int:
        return sum(some.count for some in self.nodes if all(some.has(fact, ask) for fact in facts))

    def __str__(self) -> str:
        time = "without a time limit" if math.isinf(self.minutes) else f"{in_words(self.minutes)} at most"
        nodes = "; ".join(map(str, self.nodes[:SHOWN])) or "its nodes are not told"
        nodes += "; and others" if len(self.nodes) > SHOWN else ""
        most = "" if math.isinf(self.max_nodes) else f", at most {self.max_nodes:.0f} for a job"
        return f"partition {self.name}{' (the default)' if self.default else ''}: {time}; {nodes}{most}"


def _of_a_node(cpus: int, memory_mb: float, gpus: int, model: str) -> str:
    parts = [f"{cpus} {'processor' if cpus == 1 else 'processors'}", f"{memory_mb / GIB_MB:.4g} GiB"]
    if gpus:
        parts.append(f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}" + (f" ({model})" if model else ""))
    return ", ".join(parts)


def in_words(minutes: float) -> str:
    """A number of minutes as text, in whole days or hours where it is so many: `4 days`, `1 hour`, `90 minutes`."""
    units = ((1440, "day"), (60, "hour"), (1, "minute"))
    length, unit = next(((length, unit) for length, unit in units if minutes % length == 0), units[-1])
    count = round(minutes / length)
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def partitions() -> dict[str, Partition]:
    """Partitions of the cluster by name; none if Slurm does not answer.

    Then nothing is refused in advance: Slurm itself refuses, or says why a job waits.
    """
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
    found = {}
    rows = [line.split("|", 4) for line in nodes.splitlines() if line.count("|") >= 4]
    for line in limits.splitlines():
        told = dict(re.findall(r"(\w+)=(\S*)", line))
        name = told.get("PartitionName")
        if not name:
            continue
        cpus, memory = _limit(told.get("MaxCPUsPerNode")), _limit(told.get("MaxMemPerNode"))
        alike = [
            Nodes(int(count), int(min(int(has_cpus), cpus)), min(float(has_memory), memory), parse_gpus(gres))
            for partition, count, has_cpus, has_memory, gres in rows
            if partition == name
        ]
        found[name] = Partition(
            name,
            told.get("Default") == "YES",
            _minutes(told.get("MaxTime")),
            _limit(told.get("MaxNodes")),
            tuple(alike),
        )
    return found


def parse_gpus(gres: str) -> dict[str, int]:
    """Number of GPUs by type, of generic resources such as `gpu:h100:8(S:0-1),nvme:1` or `gpu:2`; '' is no type."""
    gpus: dict[str, int] = {}
    for model, count in re.findall(r"(?:^|,)gpu(?::([A-Za-z_][\w.-]*|\d[\w.-]*[A-Za-z][\w.-]*))?:(\d+)", gres):
        gpus[model] = gpus.get(model, 0) + int(count)
    return gpus


def _limit(text: str | None) -> float:
    return float(text) if text and text.isdigit() else math.inf


def _minutes(time: str | None) -> float:
    """Minutes of Slurm's `[days-]hours:minutes:seconds`; without a limit they are infinite."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", time or "")
    if not found:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
