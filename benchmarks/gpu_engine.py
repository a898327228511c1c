"""The in-process engine on a GPU: scoring beside its limit, decoding beside `generate` and vLLM, and its rounding.

`python -m benchmarks.gpu_engine` takes models of Qwen3-1.7B's and 0.6B's shapes with random weights in bfloat16, or one
of them (`--shape`). vLLM is measured where it is installed with its kernels for GPUs. The gap is that between the
log-probabilities that a rollout comes with and those that the trainer computes again for the same tokens. The engine
captures its CUDA graphs in the round that warms up; it is also timed without them, and as it decodes on a processor.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks import engine, scoring, shapes
from benchmarks.shapes import Shape
from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.loop import now
from redraft.rollout.engine import Continuation
from redraft.rollout.types import Rollout
from redraft.train.local.batch import Batch

SCORED = 16
"""Drafts of the comparison with the limit; logits of all their positions at 152k tokens are 10 GB."""
ROWS_PER_PASS = 8
"""Rows of the trainer's micro-batches."""
CACHE = 32 * 2**30
"""Bytes of vLLM's key-value cache: 256 responses of 1,152 tokens at 1.7B's shape need 31 GiB."""


def score(name: str, shape: Shape, model: Any) -> None:
    """Print seconds of scoring, its multiple of the limit, and the memory above the model's."""
    work = scoring.Work(model, SCORED, shape.prompt_tokens, shape.tokens)
    memory = {alternative: most_memory(run) for alternative, run in work.alternatives.items()}
    clock = partial(now, model.device)
    measured = seconds(f"scoring on a GPU, {name}", work.alternatives, shape.rounds, clock)
    print(f"scoring, {name} on {shapes.device_name()}: {SCORED} drafts x {shape.tokens} tokens")
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
        "generate, tokens and log-probs": lambda: work.generate(log_probs=True),
        "generate, tokens only": lambda: work.generate(log_probs=False),
    }
    gap = gaps(model, work.prompts, work.decode())
    with tempfile.TemporaryDirectory() as folder:
        if torch.cuda.is_available() and find_spec("vllm"):
            model.save_pretrained(folder)
            alternatives["vLLM"] = Served(folder, work).decode
        measured = seconds(f"decoding on a GPU, {name}", alternatives, shape.rounds, partial(now, model.device))
    print(f"decoding, {name} on {shapes.device_name()}: {rows} responses x {shape.tokens} tokens behind {length}")
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
    for rows, part in batch.parts(torch.arange(len(rollouts), device=model.device), ROWS_PER_PASS):
        again = part.log_probs(model)[0].cpu().numpy()
        for row, values in zip(rows.tolist(), again, strict=True):
            found.append(np.abs(values[: rollouts[row].length] - rollouts[row].log_probs))
    return np.concatenate(found)


class Served:
    """vLLM in this process, with its own CUDA graphs, on the same prompts."""

    def __init__(self, folder: str, work: engine.Work) -> None:
        from redraft.engines.vllm.local import LocalVLLM

        self.prompts = [prompt.tolist() for prompt in work.prompts]
        settings = {"dtype": "bfloat16", "enforce_eager": False}
        longest = max(map(len, self.prompts)) + work.count + 1
        self.vllm = LocalVLLM(folder, longest, work.rows, cache_bytes=CACHE, **settings)
        self.settings = {"max_tokens": work.count, "ignore_eos": True, "logprobs": True, "detokenize": False}

    def decode(self) -> None:
        """Sample responses, nothing of which is in the cache before."""
        self.vllm.engine.reset_prefix_cache()
        ask = partial(self.vllm.generate, sampling_params=self.settings)
        self.vllm.run(*(ask(str(i), prompt_ids=prompt) for i, prompt in enumerate(self.prompts)))


def main() -> None:
    """Print the tables of each shape, or the reason why there is none."""
    for name, shape in shapes.chosen("gpu_engine", __doc__):
        model = shapes.model_of(shape)
        model.generation_config.eos_token_id = None
        score(name, shape, model)
        decode(name, shape, model)


if __name__ == "__main__":
    main()
