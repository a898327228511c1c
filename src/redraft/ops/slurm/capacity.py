"""Resources of Slurm's partitions that a campaign's jobs share, for the estimate of its time."""

from collections.abc import Iterable, Mapping

from redraft.ops.slurm.feasibility import candidates
from redraft.ops.slurm.partitions import JobRequest, Partition


def used_amounts(request: JobRequest, cluster: Mapping[str, Partition]) -> dict[str, int]:
    """Amounts of its partitions' resources that a job uses on all of its nodes, by names such as `gpu: processors`."""
    where = ",".join(partition.name for partition in candidates(request, cluster) if partition.nodes)
    amounts = {"processors": request.cpus, "MiB": int(request.memory_mb), "GPUs": request.gpus}
    return {f"{where}: {name}": amount * request.nodes for name, amount in amounts.items() if where and amount}


def shared_amounts(requests: Iterable[JobRequest], cluster: Mapping[str, Partition]) -> dict[str, int]:
    """Amounts of the resources that jobs share, by the names of `used_amounts`.

    Partitions with common nodes count as separate ones, so these are upper bounds. Each is at least what one job uses.
    """
    amounts: dict[str, int] = {}
    for request in set(requests):
        kinds = [kind for partition in candidates(request, cluster) for kind in partition.nodes]
        totals = {
            "processors": sum(kind.count * kind.cpus for kind in kinds),
            "MiB": int(sum(kind.count * kind.memory_mb for kind in kinds)),
            "GPUs": sum(kind.count * sum(kind.gpus.values()) for kind in kinds),
        }
        for name, used in used_amounts(request, cluster).items():
            amounts[name] = max(amounts.get(name, 0), totals[name.partition(": ")[2]], used)
    return amounts
