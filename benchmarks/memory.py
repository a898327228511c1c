"""Peak resident memory of a method's memory at the paper's scale: filling it, saving it, and loading it elsewhere.

The paper: 1,024 prompts x 8 rollouts a step, about 6 steps an epoch; here 1,000 tokens a response in the mean. Two
visits are kept, and a third replaces the first, in another order of the prompts. The formats that `rollout/storage.py`
does not use are measured beside its own; all are written and read batch by batch.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from redraft.config.retention import Retention
from redraft.files import atomic
from redraft.rollout.columns import SCHEMA, batches, groups_of
from redraft.rollout.memory import Memory
from redraft.rollout.storage import load_groups, save_groups
from redraft.rollout.types import Finish, Group, Rollout, Sample

PROMPTS = 1024
GROUP = 8
STEPS = 6
VISITS = 3
KEPT = Retention(visits=2)
MEAN, LIMIT = 1000, 4096
"""Tokens of a response: mean (before the limit) and most."""
VOCABULARY = 151_936
MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """MiB of resident memory above that of a process with an empty memory, at most and afterwards; seconds."""

    peak: float
    held: float
    seconds: float
    processor: float


@dataclass(frozen=True)
class Format:
    save: Callable[[Path, list[Group]], None]
    load: Callable[[Path], list[Group]]


def stream(compression: str | None) -> Format:
    """Arrow's stream: a file that is cut between batches passes for a whole one."""

    def save(file: Path, groups: list[Group]) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with atomic(file) as temporary, pa.ipc.new_stream(str(temporary), SCHEMA, options=options) as writer:
            for batch in batches(groups):
                writer.write_batch(batch)

    def load(file: Path) -> list[Group]:
        with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
            return list(groups_of(reader))

    return Format(save, load)


def compressed(compression: str) -> Format:
    """Arrow's file with compressed buffers, whose uncompressed lengths are claims that no file size bounds."""

    def save(file: Path, groups: list[Group]) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with atomic(file) as temporary, pa.ipc.new_file(str(temporary), SCHEMA, options=options) as writer:
            for batch in batches(groups):
                writer.write_batch(batch)

    return Format(save, load_groups)


def parquet(compression: str) -> Format:
    def save(file: Path, groups: list[Group]) -> None:
        with atomic(file) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression=compression) as writer:
            for batch in batches(groups):
                writer.write_batch(batch)

    def load(file: Path) -> list[Group]:
        with pq.ParquetFile(file, pre_buffer=False) as opened:
            rows = (opened.read_row_group(number) for number in range(opened.num_row_groups))
            return list(groups_of(piece.combine_chunks().to_batches()[0] for piece in rows))

    return Format(save, load)


FORMATS = {
    "Arrow file": Format(save_groups, load_groups),
    "Arrow file, LZ4": compressed("lz4"),
    "Arrow file, Zstandard": compressed("zstd"),
    "Arrow stream": stream(None),
    "Parquet": parquet("none"),
    "Parquet, Zstandard": parquet("zstd"),
}


def resident(key: str) -> float:
    """MiB, of this process: VmRSS now, VmHWM at most since `forget_peak`. (A child's ru_maxrss can be its parent's.)"""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def forget_peak() -> None:
    """Set VmHWM to VmRSS."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def response(prompt: int, sample: int, step: int, rng: np.random.Generator) -> Rollout:
    """A response with random content and length."""
    length = min(LIMIT, 1 + int(rng.gamma(2.0, MEAN / 2)))
    tokens = rng.integers(0, VOCABULARY, length, dtype=np.int32)
    log_probs = -rng.standard_exponential(length, dtype=np.float32)
    return Rollout(prompt, sample, tokens, log_probs, np.full(length, step, np.int32), Finish.EOS)


def filled(prompts: int) -> Memory:
    """A memory after the visits, filled as training does: a whole step's groups at a time."""
    memory, rng = Memory(KEPT), np.random.default_rng(0)
    for visit in range(VISITS):
        for step, batch in enumerate(np.split(rng.permutation(prompts * STEPS), STEPS), visit * STEPS):
            for group in [group_of(int(prompt), visit, step, rng) for prompt in batch]:
                memory.put(group)
    return memory


def group_of(prompt: int, visit: int, step: int, rng: np.random.Generator) -> Group:
    return Group(prompt, visit, tuple(Sample(response(prompt, s, step, rng), float(s % 2)) for s in range(GROUP)))


def groups_in(memory: Memory) -> list[Group]:
    return [group for prompt in memory.prompts() for group in memory._groups[prompt]]


def measured(work: Callable[[], Any], baseline: float) -> tuple[Cost, Any]:
    """Cost of some work, and its result."""
    forget_peak()
    began, worked = time.perf_counter(), time.process_time()
    result = work()
    seconds, processor = time.perf_counter() - began, time.process_time() - worked
    return Cost(resident("VmHWM") - baseline, resident("VmRSS") - baseline, seconds, processor), result


def used_once(folder: Path) -> None:
    """Use every format once, so that no cost is that of loading libraries."""
    for form in FORMATS.values():
        form.save(folder / "used-once", [group_of(0, 0, 0, np.random.default_rng(0))])
        form.load(folder / "used-once")


def fill_and_save(folder: Path, prompts: int) -> tuple[dict[str, Cost], int, int]:
    """Costs of filling, and of saving in each format in the same process; rollouts and tokens that are kept."""
    used_once(folder)
    baseline = resident("VmRSS")
    filling, memory = measured(lambda: filled(prompts), baseline)
    groups = groups_in(memory)
    costs = {"": filling}
    for name, form in FORMATS.items():
        costs[name], _ = measured(lambda form=form, name=name: form.save(folder / name, groups), baseline)
    return costs, len(memory), sum(r.length for group in groups for r in group.rollouts)


def load(file: Path, name: str) -> Cost:
    """Cost of loading."""
    used_once(file.parent)
    return measured(lambda: Memory(KEPT)._filled(FORMATS[name].load(file)), resident("VmRSS"))[0]


def lines(folder: Path, prompts: int) -> Iterator[str]:
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        saving, rollouts, tokens = processes.submit(fill_and_save, folder, prompts).result()
        yield f"memory: {rollouts:,} rollouts, {tokens:,} tokens of two visits"
        yield f"{'':<24} {'peak MiB':>9} {'then':>6} {'bytes/token':>12} {'seconds':>8} {'CPU s':>6} {'file MiB':>9}"

        def line(name: str, cost: Cost, size: str = "") -> str:
            per_token = cost.peak * MIB / tokens
            numbers = f"{cost.peak:9.0f} {cost.held:6.0f} {per_token:12.2f} {cost.seconds:8.1f} {cost.processor:6.1f}"
            return f"{name:<24} {numbers} {size:>9}"

        yield line("filling", saving.pop(""))
        for name, cost in saving.items():
            yield f"{name}"
            yield line("  saving, same process", cost, f"{(folder / name).stat().st_size / MIB:.0f}")
            yield line("  loading, new process", processes.submit(load, folder / name, name).result())


def main(prompts: int = PROMPTS) -> None:
    """Print memory, bytes a token, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(Path(folder), prompts):
            print(line, flush=True)


if __name__ == "__main__":
    main()
