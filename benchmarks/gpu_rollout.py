"""Time of a rollout step of the in-process engine on a GPU: SPEC-RL at fixed acceptance against vanilla.

`python -m benchmarks.gpu_rollout` takes models of Qwen3-1.7B's and 0.6B's shapes with random weights in bfloat16, or
one of them (`--shape`). Drafts are full-length responses of the same model, and no token ends a response.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks import shapes
from benchmarks.controlled import SHARES, accepted, one_visit, tools_of
from benchmarks.shapes import Shape
from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.engine import TorchEngine
from redraft.methods.strategy import Strategy
from redraft.methods.vanilla import vanilla
from redraft.rollout.types import Group, Task


class Work:
    """The same rollout step for each alternative."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        model = shapes.model_of(shape)
        rows = shape.prompts * shape.group
        self.engine = TorchEngine(
            model, stops=(), max_length=shape.prompt_tokens + shape.tokens, max_rows=rows, max_batched_tokens=32768
        )
        rng = np.random.default_rng(0)
        self.prompts = rng.integers(2, shape.config.vocab_size, (shape.prompts, shape.prompt_tokens)).tolist()
        self.memory = one_visit()
        self.verification: dict[str, list[float]] = {}
        for group in self._step(vanilla, 0):
            self.memory.put(group)

    def _step(self, strategy: Strategy, epoch: int) -> list[Group]:
        tools = tools_of(self.engine, self.memory, self.prompts, self.shape.tokens, epoch)
        tasks = [Task(prompt, epoch, self.shape.group) for prompt in range(self.shape.prompts)]
        groups = self.engine.run(*(strategy(task, tools) for task in tasks))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return groups

    def step(self, name: str, strategy: Strategy) -> Callable[[], None]:
        """A function that runs one step and records the seconds of its verification."""

        def run() -> None:
            before = self.engine.usage.verification_seconds
            self._step(strategy, 1)
            self.verification.setdefault(name, []).append(self.engine.usage.verification_seconds - before)

        return run


def main() -> None:
    """Print a table for each shape, or the reason why there is none."""
    for name, shape in shapes.chosen("gpu_rollout", __doc__):
        report(name, shape)


def report(name: str, shape: Shape) -> None:
    """Print the table of one shape."""
    work = Work(shape)
    strategies = {"vanilla": vanilla} | {f"SPEC-RL, {s:.0%} accepted": accepted(s) for s in SHARES}
    steps = {title: work.step(title, strategy) for title, strategy in strategies.items()}
    measured = seconds(f"rollout in process, {name}", steps, rounds=shape.rounds, clock=time.perf_counter)
    rollouts = shape.prompts * shape.group
    print(f"engine, {name} on {shapes.device_name()}: a step of {rollouts} rollouts x {shape.tokens} tokens")
    for (title, values), bound in zip(measured.items(), (1.0, *(1 - s for s in SHARES)), strict=True):
        print(line(title, values))
        verifying = statistics.median(work.verification[title][1:])
        rest, to_vanilla = statistics.median(values) - verifying, ratio(values, measured["vanilla"])
        print(f"    verification {verifying:.3f} s, the rest {rest:.3f} s; "
              f"{to_vanilla:.2f} of vanilla's seconds for {bound:.2f} of its tokens")  # fmt: skip


if __name__ == "__main__":
    main()
