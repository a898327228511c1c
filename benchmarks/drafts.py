"""Peak memory of the draft store at the paper's scale: filling it, saving it, and loading it in a new process.

The paper: 1,024 prompts x 8 rollouts a step, about 6 steps an epoch; here 1,000 tokens a response in the mean. Two
epochs are kept, and a third replaces the first, in another order of the prompts.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from redraft.rollout.drafts import DraftStore
from redraft.rollout.types import Finish, Rollout

PROMPTS = 1024
GROUP = 8
STEPS = 6
EPOCHS = 3
MEAN, LIMIT = 1000, 4096
"""Tokens of a response: mean (before the limit) and most."""
VOCABULARY = 151_936
MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """What a stage took: MiB of resident memory above that of a process with an empty store, and wall seconds."""

    peak: float
    held: float
    seconds: float
    rollouts: int
    tokens: int


def resident(key: str) -> float:
    """MiB, of this process: VmRSS now, VmHWM at most until now. (A child's ru_maxrss can be its parent's.)"""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def response(prompt: int, sample: int, step: int, rng: np.random.Generator) -> Rollout:
    """A response with random content and length."""
    length = min(LIMIT, 1 + int(rng.gamma(2.0, MEAN / 2)))
    tokens = rng.integers(0, VOCABULARY, length, dtype=np.int32)
    log_probs = -rng.standard_exponential(length, dtype=np.float32)
    return Rollout(prompt, sample, tokens, log_probs, np.full(length, step, np.int32), Finish.EOS)


def filled(prompts: int) -> DraftStore:
    """A store after the epochs, filled as training does: a whole step's rollouts at a time."""
    store, rng = DraftStore(), np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(np.split(rng.permutation(prompts * STEPS), STEPS), epoch * STEPS):
            rollouts = [response(int(p), s, step, rng) for p in batch for s in range(GROUP)]
            for rollout in rollouts:
                store.put(rollout, epoch)
    return store


def measured(work: Callable[[], DraftStore], baseline: float) -> tuple[Cost, DraftStore]:
    """A stage's cost and the store it leaves."""
    began = time.perf_counter()
    store = work()
    seconds = time.perf_counter() - began
    tokens = sum(rollout.length for by_epoch in store._rollouts.values() for rollout in by_epoch.values())
    return Cost(resident("VmHWM") - baseline, resident("VmRSS") - baseline, seconds, len(store), tokens), store


def fill_and_save(file: Path, prompts: int) -> dict[str, Cost]:
    """Costs of filling and of saving; the peak of saving is at least that of filling, which went before."""
    baseline = resident("VmRSS")
    filling, store = measured(lambda: filled(prompts), baseline)

    def saved() -> DraftStore:
        store.save(file)
        return store

    return {"filling": filling, "saving (same process)": measured(saved, baseline)[0]}


def load(file: Path) -> dict[str, Cost]:
    """Cost of loading."""
    return {"loading (new process)": measured(lambda: DraftStore.load(file), resident("VmRSS"))[0]}


def main(prompts: int = PROMPTS) -> None:
    """Print memory, bytes a token, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "drafts.safetensors"
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            costs = processes.submit(fill_and_save, file, prompts).result()
            costs |= processes.submit(load, file).result()
        size = file.stat().st_size
    kept = costs["filling"]
    print(f"draft store: {kept.rollouts:,} rollouts, {kept.tokens:,} tokens of two epochs")
    for name, cost in costs.items():
        memory = f"peak {cost.peak:8.0f} MiB ({cost.peak * MIB / kept.tokens:5.2f} bytes/token)"
        print(f"  {name:<28} {memory}, then {cost.held:8.0f} MiB, {cost.seconds:6.1f} s")
    print(f"  {'file':<28}      {size / MIB:8.0f} MiB ({size / kept.tokens:5.2f} bytes/token)")


if __name__ == "__main__":
    main()
