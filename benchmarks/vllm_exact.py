"""Requests and time of exact reuse on vLLM beside the published rule's two requests a draft, at fixed acceptance.

`python -m benchmarks.vllm_exact`. Every draft of 256 tokens is cut at the same share. Behind the cut the first token is
drawn from the policy (the published rule); from a residual, by a request with biased logits (what the engine does); or
from a residual within the request for all tokens, by a logits processor of this file. Residual reuse has the top of the
law scored, that of new tokens by one more request. Seconds are processor seconds of vLLM's CPU build on one thread in
this process; each step starts with an empty prefix cache.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.controlled import tools_of
from benchmarks.side_by_side import line, ratio, seconds
from benchmarks.vllm_rollout import GROUP, LONGEST_PROMPT, PROMPTS, SHAPES, TOKENS, save
from redraft.config.retention import Retention
from redraft.engines.vllm.engine import VLLMEngine, VLLMSession, bias_of
from redraft.engines.vllm.local import LocalOutput, LocalVLLM
from redraft.methods.drafts.groups import reuse_drafts
from redraft.methods.drafts.response import Verification
from redraft.methods.strategy import Strategy
from redraft.methods.vanilla import vanilla
from redraft.rollout.context import RolloutContext
from redraft.rollout.engine import Continuation, Inversion, Residual, Session
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Rollout, Task

# isort: split
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # behind what sets vLLM's environment variables

SHARES, TOP = (0.25, 0.5, 0.75), 32


class FirstBias(AdapterLogitsProcessor):
    """Adds `extra_args["bias"]` to the logits of a request's first token."""

    def is_argmax_invariant(self) -> bool:
        """Whether the most probable token stays it."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """The processor of a request that has such a bias."""
        bias = (params.extra_args or {}).get("bias")

        def apply(sampled: list[int], logits: torch.Tensor) -> torch.Tensor:
            if not sampled:
                logits[list(bias)] += torch.tensor(list(bias.values()))
            return logits

        return apply if bias else None


class SessionAtOnce(VLLMSession):
    """Asks for all tokens behind a cut in one request, of servers with that processor."""

    async def _sample_residual(self, prefix: np.ndarray, room: int, draws: Inversion, first: Residual) -> Continuation:
        return await self._sample(prefix, room, draws.uniforms[0], extra_args={"bias": bias_of(first)})


class AtOnce(VLLMEngine):
    """Engine of such sessions."""

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator[VLLMSession]:
        """Open a session."""
        yield SessionAtOnce(self, list(prompt))


def cut_at(share: float, left: int = 0, top: int = 0) -> Strategy:
    """Reuse that scores drafts and keeps a share of each.

    Args:
        share: 0 to 1.
        left: tokens of which half is left behind the cut; with 0 the policy is drawn from.
        top: most probable tokens that are scored.
    """

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        scores = await session.score(draft.tokens, top=top)
        prefix = int(share * draft.length)
        first = Residual(np.arange(left, dtype=np.int32), np.full(left, 0.5)) if left else None
        return Verification(prefix, scores.log_probs[:prefix], draft.length, first, scores.top)

    return reuse_drafts(verifier)


class Work:
    """The same rollout step for each alternative, and how many requests it makes."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.longest, self.requests = LONGEST_PROMPT + TOKENS + 1, 0
        self.vllm = LocalVLLM(folder, self.longest, max_rows=PROMPTS * GROUP, logits_processors=[FirstBias])
        self.prompts = [
            random.integers(2, 44, int(n)).tolist() for n in random.integers(9, LONGEST_PROMPT + 1, PROMPTS)
        ]
        self.drafts = {top: Memory(Retention(visits=1, top=top)) for top in (0, TOP)}
        for top, memory in self.drafts.items():
            for group in self.step(vanilla, top, number=0)():
                memory.put(group)

    async def generate(self, request_id: str, **asked: Any) -> LocalOutput:
        """Serve a request, and count it."""
        self.requests += 1
        return await self.vllm.generate(request_id, **asked)

    def step(
        self, strategy: Strategy, top: int = 0, engine: type[VLLMEngine] = VLLMEngine, number: int = 1
    ) -> Callable[[], list[Group]]:
        """A function that runs one step."""

        def run() -> list[Group]:
            used = engine(self, (), self.longest, process_time)
            tools = tools_of(used, self.drafts[top], self.prompts, TOKENS, number)
            self.vllm.engine.reset_prefix_cache()
            self.requests = 0
            return self.vllm.run(*(strategy(Task(i, number, GROUP), tools) for i in range(PROMPTS)))

        return run

    def draws(self, share: float) -> Callable[[], object]:
        """A function that draws one token from the policy behind a share of each draft."""
        engine = VLLMEngine(self, (), self.longest, process_time)

        async def draw(prompt: int, sample: int) -> None:
            async with engine.session(self.prompts[prompt]) as session:
                prefix = self.drafts[0].drafts(prompt)[sample].tokens[: int(share * TOKENS)]
                await session.decode(prefix, 1, Inversion(np.array([0.5])))

        return lambda: self.vllm.run(*(draw(p, s) for p in range(PROMPTS) for s in range(GROUP)))


def alternatives(work: Work, share: float) -> dict[str, Callable[[], object]]:
    """Functions that run a step each, by what they do."""
    return {
        "published": work.step(cut_at(share)),
        "one-hot": work.step(cut_at(share, left=1)),
        "one-hot, by a processor": work.step(cut_at(share, left=1), engine=AtOnce),
        f"residual, top {TOP}": work.step(cut_at(share, TOP, TOP), TOP),
        f"residual, top {TOP}, by a processor": work.step(cut_at(share, TOP, TOP), TOP, AtOnce),
        "one more draw behind each draft": work.draws(share),
    }


def report(work: Work, title: str, share: float, rounds: int) -> None:
    """Print seconds, ratios to the published rule and requests of a draft."""
    steps, requests = alternatives(work, share), {}
    for name, run in steps.items():
        work.requests = 0
        run()
        requests[name] = work.requests / (PROMPTS * GROUP)
    measured = seconds(f"vLLM exact rules, {title}, {share:.0%} kept", steps, rounds, process_time)
    print(f" {share:.0%} of each draft kept")
    for name, values in measured.items():
        print(f"{line(name, values)}  {ratio(values, measured['published']):.2f} of the published rule's, "
              f"{requests[name]:.2f} requests a draft")  # fmt: skip


def main() -> None:
    """Print a table for each shape and share."""
    for title, (shape, rounds) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(shape, Path(folder)))
            print(f"vLLM, {title} model: {PROMPTS * GROUP} rollouts x {TOKENS} tokens, CPU seconds")
            for share in SHARES:
                report(work, title, share, rounds)
            work.vllm.close()


if __name__ == "__main__":
    main()
