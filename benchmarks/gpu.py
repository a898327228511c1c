"""The in-process engine on a GPU: scoring against its limit, decoding against `generate` and vLLM, and a step.

`python -m benchmarks.gpu` takes models of Qwen3-1.7B's and 0.6B's shapes with random weights in bfloat16, or one of
them (`--shape`). vLLM is measured where it is installed with its kernels for GPUs. The gap is the difference between a
rollout's log-probabilities and the trainer's recomputed ones for the same tokens. The engine captures its CUDA graphs
in the round that warms up; it is also timed without them, and with the decoding of a CPU. In a rollout step of SPEC-RL
drafts are full-length responses of the same model, and no token ends a response.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks import engine, scoring
from benchmarks.controlled import SHARES, accepted, one_visit, tools_of
from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.loop import now
from redraft.methods.strategy import Strategy
from redraft.methods.vanilla import vanilla
from redraft.rollout.engine import Continuation
from redraft.rollout.types import Group, Rollout, Task
from redraft.train.local.learner import Batch

SCORED = 16
"""Drafts of the comparison with the limit; logits of all their positions at 152k tokens are 10 GB."""
ROWS_PER_PASS = 8
"""Rows of the trainer's micro-batches."""
CACHE = 32 * 2**30
"""Bytes of vLLM's key-value cache: 256 responses of 1,152 tokens at 1.7B's shape need 31 GiB."""


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
    """Configuration with Qwen3's tied embeddings and room for 8,192 tokens."""
    return Qwen3Config(max_position_embeddings=8192, tie_word_embeddings=True, **settings)


LARGE = {"prompts": 32, "group": 8, "prompt_tokens": 128, "tokens": 1024, "rounds": 3}
HEADS = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
SHAPES = {
    "1.7b": Shape(qwen3(vocab_size=151936, hidden_size=2048, intermediate_size=6144, **HEADS), **LARGE),
    "0.6b": Shape(qwen3(vocab_size=151936, hidden_size=1024, intermediate_size=3072, **HEADS), **LARGE),
    "tiny": Shape(
        qwen3(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=64,
        ),
        prompts=4,
        group=2,
        prompt_tokens=8,
        tokens=32,
        rounds=2,
    ),
}
"""The shapes of Qwen3-1.7B and Qwen3-0.6B, and one to try a benchmark with."""


def device() -> torch.device:
    """The GPU, or the processor where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Name of the device, for titles."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a processor"


def model_of(shape: Shape) -> Any:
    """A model with random weights on the device, bfloat16 on a GPU and float32 on a processor."""
    torch.manual_seed(0)
    with device():
        model = Qwen3ForCausalLM(shape.config)
    return model.to(torch.bfloat16 if torch.cuda.is_available() else torch.float32).eval()


def chosen() -> Iterator[tuple[str, Shape]]:
    """The shape of `--shape`, or both of Qwen3's; says so where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES)
    shape = parser.parse_args().shape
    for title in [shape] if shape else ["1.7b", "0.6b"]:
        if title == "tiny" or torch.cuda.is_available():
            yield title, SHAPES[title]
        else:
            print(
                f"gpu, {title}: skipped. It needs a GPU of 40 GiB that PyTorch's CUDA build sees; `--shape tiny` "
                "tries it on a processor"
            )


def score(name: str, shape: Shape, model: Any) -> None:
    """Print seconds of scoring, its multiple of the limit, and the memory above the model's."""
    work = scoring.Work(model, SCORED, shape.prompt_tokens, shape.tokens)
    memory = {alternative: most_memory(run) for alternative, run in work.alternatives.items()}
    clock = partial(now, model.device)
    measured = seconds(f"scoring on a GPU, {name}", work.alternatives, shape.rounds, clock)
    print(f"scoring, {name} on {device_name()}: {SCORED} drafts x {shape.tokens} tokens")
    limit = next(iter(measured.values()))
    for alternative, values in measured.items():
        rate = SCORED * shape.tokens / np.median(values)
        held = f"{memory[alternative]:9,.0f} MiB" if model.device.type == "cuda" else ""
        print(f"{line(alternative, values)}  {rate:10,.0f} tok/s  {ratio(values, limit):5.2f} of the limit  {held}")


def most_memory(run: Callable[[], object]) -> float:
    """MiB that a GPU held at most, above what it held before; 0 on a processor."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def decode(name: str, shape: Shape, model: Any) -> None:
    """Print tokens a second of the engine, `generate` and vLLM, and the gap to the trainer's log-probabilities."""
    rows, length = shape.prompts * shape.group, shape.prompt_tokens
    work = engine.Work(model, rows, shape.tokens, (length, length), passes=32768)
    alternatives: dict[str, Callable[[], object]] = {
        "engine, decoding": work.decode,
        "engine, without CUDA graphs": partial(without_graphs, work, work.engine.burst),
        "engine, and a look at each token": partial(without_graphs, work, 1),
        "generate, tokens only": lambda: work.generate(log_probs=False),
    }
    # `generate` keeps the logits of all tokens, which are then joined and normalised: three times float32.
    logits = 3 * 4 * rows * shape.tokens * shape.config.vocab_size
    if torch.cuda.is_available() and logits > torch.cuda.mem_get_info()[0] - 2 * CACHE:
        print(f"generate, tokens and log-probs: left out, since its logits need {logits / 2**30:.0f} GiB")
    else:
        alternatives["generate, tokens and log-probs"] = lambda: work.generate(log_probs=True)
    gap = gaps(model, work.prompts, work.decode())
    with tempfile.TemporaryDirectory() as folder:
        if torch.cuda.is_available() and find_spec("vllm"):
            model.save_pretrained(folder)
            alternatives["vLLM"] = Served(folder, work).decode
        measured = seconds(f"decoding on a GPU, {name}", alternatives, shape.rounds, partial(now, model.device))
    print(f"decoding, {name} on {device_name()}: {rows} responses x {shape.tokens} tokens after {length}")
    for alternative, values in measured.items():
        print(line(alternative, [rows * shape.tokens / value for value in values], "tok/s"))
    print(f"  gap to the trainer's log-probs: mean {gap.mean():.2e}, most {gap.max():.2e} nats a token")


def without_graphs(work: engine.Work, burst: int) -> None:
    """Sample responses by the same engine, with another burst, in passes that Python starts kernel by kernel."""
    before, work.engine.burst, work.engine.static = (work.engine.burst, work.engine.static), burst, False
    try:
        work.decode()
    finally:
        work.engine.burst, work.engine.static = before


@torch.inference_mode()
def gaps(model: Any, prompts: list[np.ndarray], responses: list[Continuation]) -> np.ndarray:
    """Differences of a rollout's log-probabilities from the trainer's, nats, of all tokens."""
    rollouts = [
        Rollout(0, i, r.tokens, r.log_probs, np.zeros(len(r.tokens), np.int32), r.finish)
        for i, r in enumerate(responses)
    ]
    batch = Batch.of([p.tolist() for p in prompts], rollouts, 0, model.device)
    found = []
    for rows, part in batch.parts(ROWS_PER_PASS):
        again = part.log_probs(model)[0].cpu().numpy()
        for row, values in zip(rows.tolist(), again, strict=True):
            found.append(np.abs(values[: rollouts[row].length] - rollouts[row].log_probs))
    return np.concatenate(found)


class Served:
    """vLLM in this process, with its own CUDA graphs, on the same prompts."""

    def __init__(self, folder: str, work: engine.Work) -> None:
        from redraft.engines.vllm.local import LocalVLLM

        self.prompts = [prompt.tolist() for prompt in work.prompts]
        # vLLM checks that its share of the whole GPU is free, also where the size of its cache is set.
        settings = {"dtype": "bfloat16", "enforce_eager": False, "gpu_memory_utilization": 0.1}
        longest = max(map(len, self.prompts)) + work.count + 1
        self.vllm = LocalVLLM(folder, longest, work.rows, cache_bytes=CACHE, **settings)
        self.settings = {"max_tokens": work.count, "ignore_eos": True, "logprobs": True, "detokenize": False}

    def decode(self) -> None:
        """Sample responses, nothing of which is in the cache before."""
        self.vllm.engine.reset_prefix_cache()
        ask = partial(self.vllm.generate, sampling_params=self.settings)
        self.vllm.run(*(ask(str(i), prompt_ids=prompt) for i, prompt in enumerate(self.prompts)))


class Step:
    """The same rollout step for each alternative."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        model = model_of(shape)
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


def roll_out(name: str, shape: Shape) -> None:
    """Print seconds of a rollout step at fixed acceptance beside vanilla."""
    work = Step(shape)
    strategies = {"vanilla": vanilla} | {f"SPEC-RL, {s:.0%} accepted": accepted(s) for s in SHARES}
    steps = {title: work.step(title, strategy) for title, strategy in strategies.items()}
    measured = seconds(f"rollout in process, {name}", steps, rounds=shape.rounds, clock=time.perf_counter)
    rollouts = shape.prompts * shape.group
    print(f"engine, {name} on {device_name()}: a step of {rollouts} rollouts x {shape.tokens} tokens")
    for (title, values), bound in zip(measured.items(), (1.0, *(1 - s for s in SHARES)), strict=True):
        print(line(title, values))
        verifying = statistics.median(work.verification[title][1:])
        rest, to_vanilla = statistics.median(values) - verifying, ratio(values, measured["vanilla"])
        print(
            f"    verification {verifying:.3f} s, the rest {rest:.3f} s; "
            f"{to_vanilla:.2f} of vanilla's seconds for {bound:.2f} of its tokens"
        )


def main() -> None:
    """Print the tables of each shape, or the reason why there is none."""
    for name, shape in chosen():
        model = model_of(shape)
        model.generation_config.eos_token_id = None
        score(name, shape, model)
        decode(name, shape, model)
        del model
        roll_out(name, shape)


if __name__ == "__main__":
    main()
