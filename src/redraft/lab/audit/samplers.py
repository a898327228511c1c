"""Part two of the audit: responses that the in-process engines sample, tested against the enumerated distribution."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.self_speculation import Fixed, SelfSpeculativeEngine
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import GTest, g_test, samples_for
from redraft.lab.audit.tiny_models import PROMPT, ModelPolicy, drifting
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions
from redraft.methods.drafts.response import reuse_drafts
from redraft.methods.drafts.verification import stored_top_verifier
from redraft.methods.reuse import ReuseMethod
from redraft.methods.strategy import Strategy
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.engine import Engine, Residual
from redraft.rollout.memory import Memory
from redraft.rollout.types import Rollout, Task

T = TypeVar("T")
SPACE = Space(vocabulary=4, longest=3)
EPOCH_PASSES, DRIFT = 3, 0.12
DISTANCE = 0.05
"""A sampler at this total variation from the policy is rejected with probability `goodness.POWER`."""
SAMPLES = samples_for(len(SPACE.responses), DISTANCE)
METHODS = {
    name: setting for kind in ReuseMethod.registered() for name, setting in kind.sampled(SPACE.vocabulary).items()
}


class HalfResidual(ResidualRule):
    """A planted fault: the residual distribution subtracts only half of the accepted mass from the policy's."""

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """The wrong residual distribution."""
        first = super().residual(drafts, kept)
        return None if first is None else replace(first, left=(1.0 + first.left) / 2)


@dataclass(frozen=True)
class SharedUniforms(Streams):
    """A planted fault: the same uniforms accept drafts and sample tokens, in every pass."""

    def uniforms(self, use: str, prompt: int, sample: int, count: int) -> np.ndarray:
        """The same uniforms for every use and step."""
        return self.fixed_uniforms("shared", prompt, sample, count)


@dataclass(frozen=True)
class AuditedSampler:
    """A rollout strategy on a kind of engine. If it is not `exact`, the test must reject its distribution."""

    name: str
    engine: str
    strategy: Strategy
    retention: Retention
    exact: bool = True
    streams: type[Streams] = Streams


@dataclass(frozen=True)
class SamplerTest:
    """Test of a sampler's responses in the last pass, and the mean kept tokens in it."""

    sampler: AuditedSampler
    test: GTest
    kept: float

    @property
    def verdict(self) -> str:
        """Outcome of the test, in capitals if it is unexpected."""
        if self.sampler.exact:
            return "WRONG" if self.test.rejected else "not rejected"
        return "rejected, as expected" if self.test.rejected else "NOT REJECTED"

    @property
    def passes(self) -> bool:
        """True if an exact sampler is not rejected, or an inexact one is."""
        return self.test.rejected != self.sampler.exact


def samplers() -> Iterator[AuditedSampler]:
    """All samplers of the in-process engines, and planted faults."""
    for engine, capabilities in CAPABILITIES.items():
        yield from samplers_of(engine, capabilities)
    yield half_residual_fault("torch")
    name, method = "planted: the same random numbers for all", METHODS["residual"]
    yield AuditedSampler(name, "torch", method.strategy(), method.retention, exact=False, streams=SharedUniforms)


def samplers_of(engine: str, capabilities: frozenset[Capability]) -> Iterator[AuditedSampler]:
    """Samplers of all methods that an engine supports."""
    for name, method in METHODS.items():
        if method.needs <= capabilities:
            yield AuditedSampler(name, engine, method.strategy(), method.retention, method.exact)


def half_residual_fault(engine: str) -> AuditedSampler:
    """A sampler with `HalfResidual`, which the test must reject."""
    faulty, retention = reuse_drafts(stored_top_verifier(HalfResidual())), METHODS["residual"].retention
    return AuditedSampler("planted: half a residual", engine, faulty, retention, exact=False)


def _self_speculative(model: PreTrainedModel, **options: object) -> TorchEngine:
    return SelfSpeculativeEngine(model, Fixed(2), 2, bits=4, group=32, **options)


ENGINES: dict[str, Callable[..., TorchEngine]] = {"torch": TorchEngine, "torch, self-speculating": _self_speculative}
"""Engines by name; the second one's draft model is a 4-bit copy of the policy."""
CAPABILITIES = {"torch": TorchEngine.capabilities, "torch, self-speculating": SelfSpeculativeEngine.capabilities}


class RunnableEngine(Engine, Protocol):
    """An engine that also runs the coroutines which use it."""

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines to completion; return their results in order."""
        ...


def audit(
    sampler: AuditedSampler,
    models: Sequence[PreTrainedModel],
    samples: int = SAMPLES,
    space: Space = SPACE,
    temperature: float = 1.0,
) -> SamplerTest:
    """Run a sampler over epoch passes, one for each model, and test the last pass's responses."""
    options = {
        "stops": {0},
        "max_length": len(PROMPT) + space.longest,
        "max_rows": 1024,
        "temperature": temperature,
    }
    engines = [ENGINES[sampler.engine](model, **options) for model in models]
    return audit_engines(sampler, engines, ModelPolicy(space, models[-1], temperature), samples)


def audit_engines(
    sampler: AuditedSampler, engines: Sequence[RunnableEngine], policy: ModelPolicy, samples: int = SAMPLES
) -> SamplerTest:
    """As `audit`, with the engine of each pass; `policy` is that of the last engine."""
    rollouts = sample_last_pass(sampler.strategy, sampler.retention, engines, policy.space, samples, sampler.streams)
    counts_R, kept = count_responses(rollouts, policy.space)
    return SamplerTest(sampler, g_test(counts_R, policy.response_distribution()), kept)


def sample_last_pass(
    strategy: Strategy,
    retention: Retention,
    engines: Sequence[RunnableEngine],
    space: Space,
    samples: int,
    streams: type[Streams] = Streams,
) -> list[Rollout]:
    """Rollouts of the last of several epoch passes, one pass for each engine.

    A pass samples one group of `samples` responses to `PROMPT`. The drafts are the responses of the pass before, each
    sample having its own, so that the `samples` sequences of responses are independent of each other.
    """
    memory = Memory(retention)
    group = None
    for number, engine in enumerate(engines):
        context = RolloutContext(engine, _no_reward, memory, Meter(), streams(0, number), {0: PROMPT}, space.longest)
        (group,) = engine.run(strategy(Task(0, number, samples), context))
        memory.put(group)
    assert group is not None
    return group.rollouts


def count_responses(rollouts: Sequence[Rollout], space: Space) -> tuple[np.ndarray, float]:
    """Counts of each response, int64 (R,), and mean kept tokens."""
    indices = [space.index[tuple(map(int, rollout.tokens))] for rollout in rollouts]
    kept = float(np.mean([rollout.prefix_length for rollout in rollouts]))
    return np.bincount(indices, minlength=len(space.responses)), kept


async def _no_reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
    return np.zeros(len(rollouts), np.float32)


def policies() -> list[PreTrainedModel]:
    """Models of the passes."""
    return drifting(SPACE, EPOCH_PASSES, DRIFT)
