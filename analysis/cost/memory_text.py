"""Memory of a GPU by model, as rows and as a table."""

from collections.abc import Iterable
from typing import Any

from redraft.cli.terminal import filled, table
from redraft.config import Run
from redraft.config.trainer import VerlEngine
from redraft.ops.sizing.gpu_memory import GIB, gpu_memory, parts_text
from redraft.ops.sizing.learner_time import learner_seconds, most_tokens
from redraft.ops.sizing.shapes import shape_of

Row = dict[str, Any]

ABOUT = (
    "GiB of a GPU while vLLM samples and at the peak of an update, of the cell that needs most; paper-scale.md has "
    "the formulas. Cached: tokens whose keys and values all replicas hold. Learner: seconds of log-probabilities and "
    "updates of a step on H100s if all responses have their longest length."
)


def memory_rows(runs: Iterable[Run]) -> list[Row]:
    """A row by model of runs under verl on GPUs: of the run that needs most; models of unknown sizes are left out."""
    rows: dict[str, Row] = {}
    for run in runs:
        shape, engine = shape_of(run.model), run.engine
        if shape is None or not isinstance(engine, VerlEngine) or not engine.gpus:
            continue
        found = gpu_memory(run, shape)
        row: Row = {
            "model": run.model_role,
            "cell": f"{run.paper}/{run.cell}",
            "gpus": engine.gpus * engine.nodes,
            "tensor_parallel": engine.tensor_parallel,
            "share": engine.gpu_memory_utilization,
            "offload": engine.offload,
            "rollout": sum(found.rollout.values()) / GIB,
            "update": sum(found.update.values()) / GIB,
            "available": engine.gpu_memory,
            "cached_tokens": max(round(found.cached_tokens), 0),
            "learner_seconds": learner_seconds(run, shape, most_tokens(run)),
            "faults": found.faults,
        }
        before = rows.get(run.model_role)
        # The larger of the two peaks decides whether a run fits.
        if before is None or max(row["rollout"], row["update"]) > max(before["rollout"], before["update"]):
            rows[run.model_role] = row
    return list(rows.values())


def memory_table(rows: list[Row]) -> str:
    """The rows as a table, with the faults of those that do not fit."""
    header = ["model", "GPUs", "TP", "share", "offload", "rollout", "update", "of GiB", "cached", "learner s"]
    cells = [
        [
            row["model"],
            str(row["gpus"]),
            str(row["tensor_parallel"]),
            f"{row['share']:g}",
            "yes" if row["offload"] else "no",
            f"{row['rollout']:.1f}",
            f"{row['update']:.1f}",
            "?" if row["available"] is None else f"{row['available']:g}",
            f"{row['cached_tokens'] / 1e6:.2f}M",
            f"{row['learner_seconds']:,.0f}",
        ]
        for row in rows
    ]
    faults = [filled(f"{row['cell']}: {fault}") for row in rows for fault in row["faults"]]
    return "\n".join([table(header, cells, left=["model"]), "", filled(ABOUT), *faults])


def memory_lines(run: Run) -> list[str]:
    """Memory of one run in lines; none without verl and GPUs, or if the sizes of its model are unknown."""
    shape = shape_of(run.model)
    if shape is None or not isinstance(run.engine, VerlEngine) or not run.engine.gpus:
        return []
    found = gpu_memory(run, shape)
    lines = [
        f"GiB of a GPU while vLLM samples: {parts_text(found.rollout)}",
        f"vLLM's share: {parts_text(found.vllm)}; {max(round(found.cached_tokens), 0):,} tokens cached by all replicas",
        f"GiB of a GPU at the peak of an update: {parts_text(found.update)}",
    ]
    return lines + [f"does not fit: {fault}" for fault in found.faults]
