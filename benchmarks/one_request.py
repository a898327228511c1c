"""A draft's verification and what follows it in one request to vLLM (`benchmarks.cutting`) against two.

Steps are those of `benchmarks.vllm_rollout`: drafts are whole responses of the same model, no token ends a response,
and each step starts with an empty prefix cache. Alternatives take turns on one engine, whose scheduler and worker serve
both. Seconds are the processor's; an alternative's wall seconds stand beside them.

First of all, both are asked for the same responses: drafts whose stored log-probabilities are disturbed, cut by the
published rule with the same uniforms.
"""

import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.controlled import accepted, one_visit, tools_of
from benchmarks.side_by_side import line, ratio, seconds
from benchmarks.vllm_scoring import LARGER, TINY_VOCABULARY, Case, save
from redraft.config import TinyModel
from redraft.engines import vllm_engine, vllm_local
from redraft.engines.vllm_engine import SAMPLING, VLLMEngine, VLLMSession, continuation_of, rows_of, seed_of
from redraft.rollout.engine import Continuation, Draws, Residual, Session
from redraft.rollout.memory import Memory
from redraft.rollout.strategies import vanilla
from redraft.rollout.strategies.response import Cut, Kept
from redraft.rollout.strategies.reuse import reuse_drafts, verified
from redraft.rollout.strategies.tools import Strategy, Tools
from redraft.rollout.types import Group, Rollout, Task

from benchmarks.cutting import CuttingScheduler, kept_of  # isort: skip  # after the environment variables of vllm_local

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
TOKENS, LONGEST_PROMPT = 256, 21
LENIENCE = float(np.exp(0.3))
CASES = {
    "tiny preset's model": (Case(TinyModel(), TINY_VOCABULARY, 64, 5), 4),
    "hidden 384, 32k tokens": (Case(LARGER, 32_768, 16, 3), 4),
}
"""Models and numbers of rollouts and rounds; samples of a prompt."""


class OneRequestSession(VLLMSession):
    """A session that can verify a draft by a rule's thresholds, and has the continuation then."""

    _made: Continuation | None = None

    async def verify(self, draft: np.ndarray, least: np.ndarray, limit: int, uniform: float) -> int:
        """Keep the draft up to the first token whose log-probability is less than asked, and go on in the same request.

        Args:
            draft: int32 (n,), at least one token.
            least: float64 (n,).
            limit: tokens of the response.
            uniform: decides what is sampled behind.

        Returns:
            Tokens kept.
        """
        settings = {
            **SAMPLING, "max_tokens": limit, "logprobs": True, "prompt_logprobs": 0, "flat_logprobs": True,
            "seed": seed_of(uniform), "ignore_eos": True, "stop_token_ids": sorted(self._engine.stops),
            "skip_reading_prefix_cache": len(self._prompt) == 1,
            "extra_args": {"scored_from": len(self._prompt) - 1, "least": least.astype(np.float64).tobytes()},
        }  # fmt: skip
        with self._engine.verification.running():
            output = await self._ask(draft, 1, settings)
        log_probs = rows_of(output, len(draft), 0).log_probs[:, 0]
        if np.isnan(log_probs).any():  # the draft begins as another one in the cache; nothing was sampled behind
            return kept_of((await self.score(draft)).log_probs, least)
        kept = kept_of(log_probs, least)
        if kept < limit and not (kept == len(draft) and int(draft[-1]) in self._engine.stops):
            self._made = continuation_of(output, self._engine.stops, limit - kept)
        return kept

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Hand over what came with the scores."""
        if self._made is None:
            return await super().decode(prefix, max_new_tokens, draws, first, top)
        return self._made


class OneRequestEngine(VLLMEngine):
    """The engine with such sessions."""

    @asynccontextmanager
    async def session(self, prompt: Any) -> AsyncIterator[OneRequestSession]:
        """Open a session."""
        yield OneRequestSession(self, [int(token) for token in prompt])


def in_one(least: Callable[[Rollout, Tools], np.ndarray]) -> Strategy:
    """SPEC-RL by one request a draft; `least` makes the thresholds of its tokens."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        assert isinstance(session, OneRequestSession)
        uniform = tools.streams.uniforms("sampling", draft.prompt, draft.sample, 1)[0]
        prefix = await session.verify(draft.tokens, least(draft, tools), tools.limit, uniform)
        return Kept(prefix, draft.log_probs[:prefix], verified=draft.length)

    return reuse_drafts(cut)


def of_share(share: float) -> Callable[[Rollout, Tools], np.ndarray]:
    """Thresholds by which a share of the draft is kept."""
    return lambda draft, tools: np.where(np.arange(draft.length) < int(share * draft.length), -np.inf, np.inf)


def of_rule(draft: Rollout, tools: Tools) -> np.ndarray:
    """Thresholds of the published rule."""
    u = tools.streams.uniforms("acceptance", draft.prompt, draft.sample, draft.length)
    return np.log(u) - np.log(LENIENCE) + draft.log_probs.astype(np.float64)


class Work:
    """The same rollout step for each alternative."""

    def __init__(self, folder: Path, case: Case, group: int) -> None:
        rng = np.random.default_rng(0)
        self.group, self.longest = group, LONGEST_PROMPT + TOKENS + 1
        self.vllm = vllm_local.LocalVLLM(
            folder, self.longest, max_rows=case.count,
            scheduler_cls=CuttingScheduler, worker_cls="benchmarks.cutting.CuttingWorker",
        )  # fmt: skip
        sizes = rng.integers(9, LONGEST_PROMPT + 1, case.count // group)
        self.prompts = [rng.integers(2, case.vocabulary, int(n)).tolist() for n in sizes]
        self.wall: dict[str, list[float]] = {}

    def groups(
        self, strategy: Strategy, memory: Memory, one: bool = False, visit: int = 1, stops: tuple[int, ...] = ()
    ) -> list[Group]:
        """Groups of a step."""
        self.vllm.engine.reset_prefix_cache()
        engine = (OneRequestEngine if one else VLLMEngine)(self.vllm, stops, self.longest, process_time)
        tools = tools_of(engine, memory, self.prompts, TOKENS, visit)
        return self.vllm.run(*(strategy(Task(i, visit, self.group), tools) for i in range(len(self.prompts))))

    def drafts(self, stops: tuple[int, ...] = (), noise: float = 0.0) -> Memory:
        """A memory of responses; their log-probabilities are disturbed by so much."""
        memory, rng = one_visit(), np.random.default_rng(1)
        for group in self.groups(vanilla, memory, visit=0, stops=stops):
            rollouts = [(s, s.rollout, rng.normal(0, noise, s.rollout.length)) for s in group.samples]
            disturbed = (
                replace(s, rollout=replace(r, log_probs=(r.log_probs + n).astype(np.float32))) for s, r, n in rollouts
            )
            memory.put(replace(group, samples=tuple(disturbed)))
        return memory

    def alternatives(self) -> dict[str, Callable[[], None]]:
        """Vanilla, and each share by two requests and by one."""
        memory = self.drafts()
        strategies = {"vanilla": (vanilla, False)}
        for share in SHARES:
            strategies |= {f"{share:.0%} kept, two requests": (accepted(share), False),
                           f"{share:.0%} kept, one": (in_one(of_share(share)), True)}  # fmt: skip
        return {name: self._step(name, strategy, memory, one) for name, (strategy, one) in strategies.items()}

    def _step(self, name: str, strategy: Strategy, memory: Memory, one: bool) -> Callable[[], None]:
        def run() -> None:
            began = time.perf_counter()
            self.groups(strategy, memory, one)
            self.wall.setdefault(name, []).append(time.perf_counter() - began)

        return run


def check(work: Work, stop: int = 5) -> str:
    """Cut disturbed drafts by the published rule, with two requests and with one.

    Raises:
        AssertionError: if a response differs in its tokens, its cut or its end.
    """
    memory = work.drafts((stop,), noise=0.3)
    two = work.groups(reuse_drafts(verified(LENIENCE)), memory, stops=(stop,))
    one = work.groups(in_one(of_rule), memory, one=True, stops=(stop,))
    pairs = [(a, b) for x, y in zip(two, one, strict=True) for a, b in zip(x.rollouts, y.rollouts, strict=True)]
    for a, b in pairs:
        assert a.prefix_length == b.prefix_length and a.finish == b.finish, "the cuts differ"
        assert a.tokens.tolist() == b.tokens.tolist(), "the continuations differ"
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
    cuts, whole = {a.prefix_length for a, _ in pairs}, sum(a.fully_reused for a, _ in pairs)
    assert len(cuts) > len(pairs) // 4, "the drafts are cut at too few places to tell"
    return f"{len(pairs)} responses with cuts at {len(cuts)} places, {whole} drafts kept whole: the same of both"


def report(measured: dict[str, list[float]], wall: dict[str, list[float]]) -> None:
    """Print seconds of each alternative, and what one request takes of two."""
    print(line("vanilla", measured["vanilla"]))
    for share in SHARES:
        names = [f"{share:.0%} kept, {which}" for which in ("two requests", "one")]
        for name in names:
            print(f"{line(name, measured[name])}  {ratio(measured[name], measured['vanilla']):.3f} of vanilla's seconds")
        two, one = names
        shares = [a / b for a, b in zip(measured[one], measured[two], strict=True)]
        print(f"    one / two: processor {statistics.median(shares):.3f} [{min(shares):.3f}, {max(shares):.3f}], "
              f"wall {ratio(wall[one][1:], wall[two][1:]):.3f}")  # fmt: skip


def main() -> None:
    """Print a table for each model."""
    for title, (case, group) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(case, Path(folder)), case, group)
            found = check(work)
            measured = seconds(f"one vLLM request, {title}", work.alternatives(), case.rounds, process_time)
            work.vllm.close()
        print(f"vLLM, {title}: a step of {case.count} rollouts x {TOKENS} tokens, CPU seconds")
        print(f"  {found}")
        report(measured, work.wall)


if __name__ == "__main__":
    main()
