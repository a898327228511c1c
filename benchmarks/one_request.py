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

from benchmarks.controlled import one_visit, tools_of
from benchmarks.side_by_side import line, ratio, seconds
from benchmarks.vllm_scoring import LARGER, TINY_VOCABULARY, Case
from redraft.config import TinyModel
from redraft.engines.vllm import local as vllm_local
from redraft.engines.vllm.engine import SAMPLING, VLLMEngine, VLLMSession, continuation_of, rows_of, seed_of
from redraft.methods.drafts.groups import reuse_drafts
from redraft.methods.drafts.response import Verification
from redraft.methods.drafts.verification import spec_rl_verifier, verify
from redraft.methods.strategy import Strategy
from redraft.methods.vanilla import vanilla
from redraft.rollout.context import RolloutContext
from redraft.rollout.engine import Continuation, Draws, Inversion, Residual, Session
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Rollout, Task
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

from benchmarks.cutting import CuttingScheduler, kept_of  # isort: skip  # after the environment variables of vllm_local

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
TOKENS, LONGEST_PROMPT, CHUNK = 256, 21, 64
LENIENCE = float(np.exp(0.3))
CASES = {
    "tiny preset's model": (Case(TinyModel(), TINY_VOCABULARY, 64, 5), 4),
    "hidden 384, 32k tokens": (Case(LARGER, 32_768, 16, 3), 4),
}
"""Models and numbers of rollouts and rounds; samples of a prompt."""


def save(case: Case, folder: Path) -> Path:
    """Save a model with random weights, large enough for laws that depend on what is before."""
    model = models.initialise(case.shape, make_tokenizer())
    if case.vocabulary != TINY_VOCABULARY:
        model.resize_token_embeddings(case.vocabulary, mean_resizing=False)
    for parameter in model.parameters():
        parameter.data *= 4 if parameter.ndim == 2 else 1
    model.config.max_position_embeddings = 2048
    model.save_pretrained(folder)
    return folder


class OneRequestSession(VLLMSession):
    """A session that can verify a draft by a rule's thresholds, and has the continuation then."""

    _made: Continuation | None = None

    async def verify(self, draft: np.ndarray, least: np.ndarray, limit: int, uniform: float) -> tuple[int, int]:
        """Keep the draft up to the first token whose log-probability is less than asked, and go on in the same request.

        Args:
            draft: int32 (n,), at least one token.
            least: float64 (n,).
            limit: tokens of the response.
            uniform: decides what is sampled behind.

        Returns:
            Tokens kept, and tokens scored.
        """
        settings = {
            **SAMPLING, "max_tokens": limit, "logprobs": True, "prompt_logprobs": 0, "flat_logprobs": True,
            "seed": seed_of(uniform), "ignore_eos": True, "stop_token_ids": sorted(self._engine.stops),
            "skip_reading_prefix_cache": len(self._prompt) == 1,
            "extra_args": {"scored_from": len(self._prompt) - 1, "least": least.astype(np.float64).tobytes(),
                           "draft_chunk": self._engine.chunk},
        }  # fmt: skip
        with self._engine.verification.running():
            output = await self._ask(draft, 1, settings)
        scored = len(output.extra_fields["prompt_logprobs"]) - 1
        log_probs = rows_of(output, scored, 0).log_probs[:, 0]
        if np.isnan(log_probs).any():  # the draft begins as another one in the cache; nothing was sampled behind
            scored, log_probs = len(draft), (await self.score(draft)).log_probs
        elif not self._is_whole(draft[: kept_of(log_probs, least[:scored])], limit):
            self._made = continuation_of(output, self._engine.stops, limit - kept_of(log_probs, least[:scored]))
        return kept_of(log_probs, least[:scored]), scored

    def _is_whole(self, kept: np.ndarray, limit: int) -> bool:
        return len(kept) >= limit or (len(kept) > 0 and int(kept[-1]) in self._engine.stops)

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


def in_one(least: Callable[[Rollout, RolloutContext], np.ndarray]) -> Strategy:
    """SPEC-RL by one request a draft; `least` makes the thresholds of its tokens."""

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        assert isinstance(session, OneRequestSession)
        uniform = context.streams.uniforms("sampling", draft.prompt, draft.sample, 1)[0]
        prefix, scored = await session.verify(draft.tokens, least(draft, context), context.limit, uniform)
        return Verification(prefix, draft.log_probs[:prefix], verified=scored)

    return reuse_drafts(verifier)


def in_two(share: float) -> Strategy:
    """SPEC-RL that keeps a share of each draft, by a request for each chunk and one for what follows."""

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        kept = int(share * draft.length)
        prefix, scores = await verify(
            draft.tokens, session, context, lambda _, places: max(0, min(kept, places.stop) - places.start)
        )
        return Verification(prefix, draft.log_probs[:prefix], verified=len(scores.log_probs))

    return reuse_drafts(verifier)


def of_share(share: float) -> Callable[[Rollout, RolloutContext], np.ndarray]:
    """Thresholds by which a share of the draft is kept."""
    return lambda draft, context: np.where(np.arange(draft.length) < int(share * draft.length), -np.inf, np.inf)


def of_rule(draft: Rollout, context: RolloutContext) -> np.ndarray:
    """Thresholds of the published rule."""
    u = context.streams.uniforms("acceptance", draft.prompt, draft.sample, draft.length)
    return np.log(u) - np.log(LENIENCE) + draft.log_probs.astype(np.float64)


WAYS: dict[str, tuple[type[VLLMEngine], int | None]] = {
    "two requests": (VLLMEngine, None),
    "one": (OneRequestEngine, None),
    f"requests for chunks of {CHUNK}": (VLLMEngine, CHUNK),
    f"one, in chunks of {CHUNK}": (OneRequestEngine, CHUNK),
}
"""Engines, and tokens of a chunk."""


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
        self, strategy: Strategy, memory: Memory, engine: type[VLLMEngine] = VLLMEngine, chunk: int | None = None,
        visit: int = 1, stops: tuple[int, ...] = (),
    ) -> list[Group]:  # fmt: skip
        """Groups of a step."""
        self.vllm.engine.reset_prefix_cache()
        of_step = engine(self.vllm, stops, self.longest, process_time, chunk)
        tools = tools_of(of_step, memory, self.prompts, TOKENS, visit)
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

    def alternatives(self) -> dict[str, Callable[[], object]]:
        """Vanilla, and each share by each way."""
        memory = self.drafts()
        steps: dict[str, Callable[[], object]] = {"vanilla": self._step("vanilla", vanilla, memory)}
        for share in SHARES:
            for way, (engine, chunk) in WAYS.items():
                strategy = in_two(share) if engine is VLLMEngine else in_one(of_share(share))
                name = f"{share:.0%} kept, {way}"
                steps[name] = self._step(name, strategy, memory, engine, chunk)
        return steps

    def _step(self, name: str, strategy: Strategy, memory: Memory, *how: Any) -> Callable[[], None]:
        def run() -> None:
            began = time.perf_counter()
            self.groups(strategy, memory, *how)
            self.wall.setdefault(name, []).append(time.perf_counter() - began)

        return run


def check(work: Work, stops: tuple[int, ...]) -> str:
    """Cut disturbed drafts by the published rule, in each way; tokens of `stops` end a response.

    Raises:
        AssertionError: if a response differs in its tokens, its cut or its end, or the prefix cache is left with keys
            and values of other tokens.
    """
    memory = work.drafts(stops, noise=0.3)
    made = {}
    for way, (engine, chunk) in WAYS.items():
        strategy = reuse_drafts(spec_rl_verifier(LENIENCE)) if engine is VLLMEngine else in_one(of_rule)
        made[way] = [r for group in work.groups(strategy, memory, engine, chunk, stops=stops) for r in group.rollouts]
        check_cache(work, made[way])
    first, *others = made.values()
    for a, b in ((a, b) for other in others for a, b in zip(first, other, strict=True)):
        assert (a.prefix_length, a.finish) == (b.prefix_length, b.finish), "the cuts differ"
        assert a.tokens.tolist() == b.tokens.tolist(), "the continuations differ"
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
    cuts, whole = {a.prefix_length for a in first}, sum(a.fully_reused for a in first)
    assert len(cuts) > len(first) // 4, "the drafts are cut at too few places to tell"
    return f"{len(first)} responses with cuts at {len(cuts)} places, {whole} drafts kept whole: the same of all ways"


def check_cache(work: Work, responses: list[Rollout]) -> None:
    """Compare laws behind responses, of what the prefix cache holds of them and of an empty one."""
    engine = VLLMEngine(work.vllm, (), work.longest)

    async def behind(response: Rollout) -> Continuation:
        async with engine.session(work.prompts[response.prompt]) as session:
            return await session.decode(response.tokens[:-1], 1, Inversion(np.full(1, 0.5)))

    left = work.vllm.run(*(behind(r) for r in responses))
    assert np.mean([c.cached for c in left]) > np.mean([r.length for r in responses]) / 3, "little of it is cached"
    work.vllm.engine.reset_prefix_cache()
    for a, b in zip(left, work.vllm.run(*(behind(r) for r in responses)), strict=True):
        assert a.tokens[0] == b.tokens[0], "the prefix cache holds other tokens"
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


def report(measured: dict[str, list[float]], wall: dict[str, list[float]]) -> None:
    """Print seconds of each alternative, and what each way takes of two requests."""
    print(line("vanilla", measured["vanilla"]))
    for share in SHARES:
        first, *_ = names = [f"{share:.0%} kept, {way}" for way in WAYS]
        for name in names:
            shares = [a / b for a, b in zip(measured[name], measured[first], strict=True)]
            print(f"{line(name, measured[name])}  {ratio(measured[name], measured['vanilla']):.3f} of vanilla, "
                  f"{statistics.median(shares):.3f} [{min(shares):.3f}, {max(shares):.3f}] of two requests, "
                  f"wall {ratio(wall[name][1:], wall[first][1:]):.3f}")  # fmt: skip


def main() -> None:
    """Print a table for each model."""
    for title, (case, group) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(case, Path(folder)), case, group)
            found = [check(work, stops) for stops in ((), (5,))]
            measured = seconds(f"one vLLM request, {title}", work.alternatives(), case.rounds, process_time)
            work.vllm.close()
        print(f"vLLM, {title}: a step of {case.count} rollouts x {TOKENS} tokens, CPU seconds")
        print("  " + "\n  ".join(found))
        report(measured, work.wall)


if __name__ == "__main__":
    main()
