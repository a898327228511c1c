"""Time of a rollout step on vLLM: SPEC-RL at fixed acceptance against vanilla.

Drafts are full-length responses of the same model, and no token ends a response. So the work of each alternative is
known, and the share of decoded tokens is the lowest possible ratio to vanilla. vLLM runs in this process on one thread
and is timed in CPU seconds. Each step starts with an empty prefix cache, as after an update of the weights.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.controlled import SHARES, accepted, one_visit, tools_of
from benchmarks.side_by_side import line, ratio, seconds
from redraft.config import TinyModel
from redraft.engines.vllm import engine as vllm_engine
from redraft.engines.vllm import local as vllm_local
from redraft.methods.strategy import Strategy
from redraft.methods.vanilla import vanilla
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Group, Rollout, Task
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

from redraft.engines.vllm import in_process  # isort: skip  # after the environment variables of vllm_local

PROMPTS, GROUP, TOKENS = 16, 4, 256
LONGEST_PROMPT, TINY_VOCABULARY = 21, 44
SHAPES = {
    "tiny preset": (TinyModel(), 4),
    "larger": (TinyModel(hidden_size=384, layers=4, heads=6, head_dim=64, intermediate_size=1152), 2),
}
"""Models and numbers of measured rounds."""
PARTS = ("verification", "decoding", "transfer", "assembly")


def save(shape: TinyModel, folder: Path, vocabulary: int = TINY_VOCABULARY) -> Path:
    """Save a model with random weights and room for 2,048 positions."""
    model = models.initialise(shape, make_tokenizer())
    if vocabulary != TINY_VOCABULARY:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    model.config.max_position_embeddings = 2048
    model.save_pretrained(folder)
    return folder


class Stopwatch:
    """CPU seconds spent in wrapped functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def over(self, module: Any, name: str) -> Iterator[None]:
        """Time a function of a module within the block."""
        inner = getattr(module, name)

        def timed(*args: Any) -> Any:
            began = process_time()
            try:
                return inner(*args)
            finally:
                self.seconds += process_time() - began

        with patch.object(module, name, timed):
            yield


class Work:
    """The same rollout step for each alternative."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.longest = LONGEST_PROMPT + TOKENS + 1
        self.vllm = vllm_local.LocalVLLM(folder, self.longest, max_rows=PROMPTS * GROUP)
        self.prompts = [rng.integers(2, 44, int(n)).tolist() for n in rng.integers(9, LONGEST_PROMPT + 1, PROMPTS)]
        self.memory = one_visit()
        self.parts: dict[str, list[dict[str, float]]] = {}
        self.apart: dict[float, list[tuple[float, float]]] = {share: [] for share in SHARES}
        for group in self._step(vanilla, 0)[0]:
            self.memory.put(group)

    def _step(self, strategy: Strategy, epoch: int) -> tuple[list[Group], dict[str, float]]:
        """Groups of a step, and seconds of its parts.

        Verification and decoding are waiting times, may overlap, and include the transfer.
        """
        engine = vllm_engine.VLLMEngine(self.vllm, (), self.longest, process_time)
        tools, transfer = tools_of(engine, self.memory, self.prompts, TOKENS, epoch), Stopwatch()
        self.vllm.engine.reset_prefix_cache()
        with (
            transfer.over(in_process, "to_output"),
            transfer.over(vllm_engine, "rows_of"),
            transfer.over(vllm_engine, "scores_of"),
            transfer.over(vllm_engine, "continuation_of"),
        ):
            groups = self.vllm.run(*(strategy(Task(i, epoch, GROUP), tools) for i in range(PROMPTS)))
        usage = engine.usage
        values = (usage.verification_seconds, usage.decoding_seconds, transfer.seconds, tools.meter.assembly_seconds)
        cached = tools.meter.cached_tokens / (PROMPTS * GROUP)
        return groups, dict(zip(PARTS, values, strict=True)) | {"cached": cached}

    def step(self, name: str, strategy: Strategy) -> Callable[[], None]:
        """A function that runs one step and records its parts."""

        def run() -> None:
            self.parts.setdefault(name, []).append(self._step(strategy, 1)[1])

        return run

    def _all(self, one: Callable[[vllm_engine.VLLMSession, Rollout], Coroutine[Any, Any, object]]) -> float:
        """CPU seconds of the same request in a session of every draft."""
        engine = vllm_engine.VLLMEngine(self.vllm, (), self.longest, process_time)

        async def session(prompt: int, sample: int) -> None:
            draft = self.memory.drafts(prompt)[sample]
            async with engine.session(self.prompts[prompt]) as opened:
                await one(opened, draft)

        began = process_time()
        self.vllm.run(*(session(p, s) for p in range(PROMPTS) for s in range(GROUP)))
        return process_time() - began

    def phases(self, share: float) -> Callable[[], None]:
        """A function that first requests all scores, then all continuations, and records the seconds of both."""
        kept = int(share * TOKENS)

        async def go_on(session: vllm_engine.VLLMSession, draft: Rollout) -> None:
            numbers = uniforms(0, "benchmark", draft.prompt, draft.sample, count=TOKENS - kept)
            await session.decode(draft.tokens[:kept], TOKENS - kept, Inversion(numbers))

        def run() -> None:
            self.vllm.engine.reset_prefix_cache()
            scoring = self._all(lambda session, draft: session.score(draft.tokens))
            self.apart[share].append((scoring, self._all(go_on) if kept < TOKENS else 0.0))

        return run


def report(work: Work, measured: dict[str, list[float]]) -> None:
    """Print seconds, their parts and ratios, without the warm-up round."""
    for name, values in measured.items():
        if name not in work.parts:
            continue
        print(line(name, values))
        parts = work.parts[name][1:]
        medians = {part: statistics.median(of[part] for of in parts) for part in (*PARTS, "cached")}
        print("    with " + ", ".join(f"{part} {medians[part]:.3f} s" for part in PARTS))
        if name != "vanilla":
            share = SHARES[list(work.parts).index(name) - 1]
            to_vanilla = ratio(values, measured["vanilla"])
            print(
                f"    {to_vanilla:.2f} of vanilla's seconds for {1 - share:.2f} of its tokens; "
                f"{medians['cached']:.0f} tokens per rollout found in the cache"
            )
    print("  phases alone: all scores, then all continuations")
    for share, rounds in work.apart.items():
        scoring, going_on = (statistics.median(values) for values in zip(*rounds[1:], strict=True))
        print(f"    {share:4.0%} accepted: {scoring:8.3f} s + {going_on:8.3f} s")


def main() -> None:
    """Print a table for each shape."""
    for title, (shape, rounds) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(shape, Path(folder)))
            strategies = {"vanilla": vanilla} | {f"SPEC-RL, {s:.0%} accepted": accepted(s) for s in SHARES}
            steps: dict[str, Callable[[], None]] = {name: work.step(name, s) for name, s in strategies.items()}
            measured = seconds(
                f"vLLM rollout, {title}",
                steps | {f"phases {s:.0%}": work.phases(s) for s in SHARES},
                rounds=rounds,
                clock=process_time,
            )
            work.vllm.close()
        print(f"vLLM, {title} model: a step of {PROMPTS * GROUP} rollouts x {TOKENS} tokens, CPU seconds")
        report(work, measured)
