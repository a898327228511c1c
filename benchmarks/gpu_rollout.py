"""Time of a rollout step of the in-process engine on a GPU: SPEC-RL at fixed acceptance against vanilla.

`python -m benchmarks.gpu_rollout` takes a model of Qwen3-1.7B's shape with random weights in bfloat16. `--shape tiny`
tries the benchmark itself on any machine. Drafts are full-length responses of the same model, and no token ends a
response.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.controlled import SHARES, accepted, one_visit, tools_of
from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch_engine import TorchEngine
from redraft.rollout.strategies import vanilla
from redraft.rollout.strategies.tools import Strategy
from redraft.rollout.types import Group, Task


@dataclass(frozen=True)
class Shape:
    """Shape of a model, and size of a rollout step."""

    config: Qwen3Config
    prompts: int
    group: int
    prompt_tokens: int
    tokens: int
    rounds: int


def qwen3(**settings: int) -> Qwen3Config:
    return Qwen3Config(max_position_embeddings=8192, tie_word_embeddings=True, **settings)


SHAPES = {
    "1.7b": Shape(
        qwen3(vocab_size=151936, hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
              head_dim=128, intermediate_size=6144), prompts=32, group=8, prompt_tokens=128, tokens=1024, rounds=3),
    "tiny": Shape(
        qwen3(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
              head_dim=16, intermediate_size=64), prompts=4, group=2, prompt_tokens=8, tokens=32, rounds=2),
}  # fmt: skip


class Work:
    """The same rollout step for each alternative."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        with device:
            model = Qwen3ForCausalLM(shape.config).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
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
    """Print a table, or the reason why there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    name = parser.parse_known_args()[0].shape
    if name != "tiny" and not torch.cuda.is_available():
        print("gpu_rollout: skipped, since this machine has no GPU")
        return
    shape = SHAPES[name]
    work = Work(shape)
    strategies = {"vanilla": vanilla} | {f"SPEC-RL, {s:.0%} accepted": accepted(s) for s in SHARES}
    steps = {title: work.step(title, strategy) for title, strategy in strategies.items()}
    measured = seconds(f"rollout in process, {name}", steps, rounds=shape.rounds, clock=time.perf_counter)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    print(f"engine, {name} on {device}: a step of {shape.prompts * shape.group} rollouts x {shape.tokens} tokens")
    for (title, values), bound in zip(measured.items(), (1.0, *(1 - s for s in SHARES)), strict=True):
        print(line(title, values))
        verifying = statistics.median(work.verification[title][1:])
        rest, to_vanilla = statistics.median(values) - verifying, ratio(values, measured["vanilla"])
        print(f"    verification {verifying:.3f} s, the rest {rest:.3f} s; "
              f"{to_vanilla:.2f} of vanilla's seconds for {bound:.2f} of its tokens")  # fmt: skip


if __name__ == "__main__":
    main()
