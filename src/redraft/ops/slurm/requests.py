"""Refusal of jobs that could never start, before any is submitted; and what is said of one that waits for ever."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.ops.slurm.partitions import KEYS, Ask, Partition, partitions

REACH = "a run goes on in the next attempt from its last checkpoint, so its limit may be shorter: add --retries"


def check_requests(workflow: Any, stages: Mapping[str, str], site: Path) -> None:
    """Reject a campaign with jobs that could never start on this Slurm; call it in `onstart`. `stages` is by rule.

    Raises:
        UserError: if there are such jobs, with what they ask for, what the partition has, and the keys to set.
    """
    if not on_slurm(workflow):
        return
    asks = ((stages[job.rule.name], ask_of(job)) for job in workflow.dag.needrun_jobs() if not job.is_local)
    refusal(largest(asks), partitions(), site)


def largest(asks: Iterable[tuple[str, Ask]]) -> list[tuple[str, Ask]]:
    """Of a stage's asks that differ in memory alone, as those of several models do, the one for the most."""
    found: dict[tuple[str, Ask], tuple[str, Ask]] = {}
    for stage, ask in sorted(set(asks), key=lambda each: (each[0], each[1].memory_mb, str(each[1]))):
        found[stage, replace(ask, memory_mb=0)] = (stage, ask)
    return list(found.values())


def on_slurm(workflow: Any) -> bool:
    """Whether the plugin for Slurm is Snakemake's executor."""
    return hasattr(workflow.scheduler._executor, "run_uuid")


def ask_of(job: Any) -> Ask:
    """What a submitted job of Snakemake asks of Slurm; the plugin refuses options of sbatch that would change it."""
    has = job.resources.get
    _, *model, gpus = (has("gres") or "gpu:0").split(":")
    return Ask(
        has("runtime", 0),
        has("cpus_per_task", 1),
        has("mem_mb", 0),
        int(gpus),
        "".join(model),
        has("nodes", 1),
        tuple(filter(None, (has("slurm_partition") or "").split(","))),
        has("qos") or "",
    )


def candidates(ask: Ask, cluster: Mapping[str, Partition]) -> list[Partition]:
    """Partitions that a job may go to, of those that are known."""
    if ask.partitions:
        return [cluster[name] for name in ask.partitions if name in cluster]
    return [partition for partition in cluster.values() if partition.default]


def refusal(asks: Iterable[tuple[str, Ask]], cluster: Mapping[str, Partition], site: Path) -> None:
    """Raise a UserError if jobs of a stage could start on none of their partitions; if none is known, do nothing."""
    said = []
    for stage, ask in asks:
        where = candidates(ask, cluster)
        if unknown := [name for name in ask.partitions if cluster and name not in cluster]:
            said.append(
                f"{stage} goes to partition {', '.join(unknown)}, which is not there; set partition to one of "
                f"{', '.join(sorted(cluster))}"
            )
        elif where and all(partition.lacks(ask) for partition in where):
            said.append(f"{stage} {mismatch(stage, ask, where, site)}")
    if said:
        raise UserError("\n  ".join(["these jobs could never start, so none was submitted", *said]), file=site)


def mismatch(stage: str, ask: Ask, where: Sequence[Partition], site: Path, keys: Sequence[str] = ()) -> str:
    """What a job asks for, what its partitions have, and which keys to set, `keys` among them."""
    short = dict.fromkeys(KEYS[fact] for partition in where for fact in partition.lacks(ask))
    wanted = [key for key in dict.fromkeys([*short, *keys]) if key != "partition"]
    named = [f"{key} of the preset" if key.startswith("engine.") else f"stages.{stage}.{key}" for key in wanted]
    instead = f", or else stages.{stage}.partition," if named else f"stages.{stage}.partition"
    lines = [f"asks for {ask}", *(f"  {partition}" for partition in where)]
    lines.append(f"  set {' and '.join(named)}{instead} in {site}")
    if "runtime" in wanted and stage == "train":
        lines.append(f"  ({REACH})")
    return "\n  ".join(lines)
