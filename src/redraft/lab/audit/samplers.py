"""Part two of the audit: responses that the in-process engines sample, tested against the enumerated distribution.

The models' next token depends strongly on the tokens before it, so that an engine which conditions on wrong tokens is
detected. Planted faults show that it is: their distribution is enumerated, and with it the number of samples that
detects each.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.engines.torch.draft_head import HeadDrafter
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.matched import NGramDrafter, SuffixDrafter
from redraft.engines.torch.speculation import Fixed, SpeculativeEngine
from redraft.lab.audit.context_faults import (
    FED_TWICE,
    LATE,
    LEFT_OUT,
    OTHER_NOISE,
    STALE,
    ContextFault,
    CoupledRule,
    RunnableEngine,
)
from redraft.lab.audit.enumeration import (
    ContinuedBy,
    Space,
    WeightedResponses,
    class_distribution,
    reuse_distribution,
    total_variation,
    unweighted,
    weight_classes,
    weighted_distribution,
    weighted_responses,
)
from redraft.lab.audit.goodness import GTest, g_test, samples_against, samples_for
from redraft.lab.audit.tiny_models import PROMPT, ModelPolicy, drifting
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.drafts.response import reuse_drafts
from redraft.methods.drafts.verification import stored_top_verifier
from redraft.methods.reuse import ReuseMethod, StoredTop
from redraft.methods.strategy import Strategy
from redraft.rollout.context import Meter, RolloutContext, Streams, no_reward
from redraft.rollout.engine import Residual
from redraft.rollout.history import ResponseHistory
from redraft.rollout.memory import Memory
from redraft.rollout.types import Rollout, Task

SPACE = Space(vocabulary=4, longest=3)
EPOCH_PASSES, DRIFT, SEED = 3, 0.17, 47
SCALE, HEAD_SCALE = 0.6, 0.2
"""Standard deviations of the models' weights: the next token depends on those before it, and is not certain. The seed
was chosen for needing few samples for all planted faults."""
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


class BlockWithResidual(BlockRule):
    """A planted fault: block verification's acceptance probabilities with the residual of the residual rule."""

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """The wrong residual distribution."""
        return ResidualRule().residual(drafts, kept)


@dataclass(frozen=True)
class Planted:
    """A planted fault whose distribution of responses is enumerated.

    Attributes:
        rule: that keeps prefixes of drafts, with the whole distribution stored.
        context: what the engine gets wrong.
    """

    rule: Rule
    context: ContextFault | None = None

    def distribution(self, before: ModelPolicy, policy: ModelPolicy) -> np.ndarray:
        """Distribution of the faulty responses, float64 (R,); with weights that of their classes, float64 (3 R,).

        Args:
            before: policy of the pass that sampled the drafts.
        """
        if isinstance(self.rule, WeightedRule):
            return class_distribution(self._weighted(self.rule, before, policy), policy.space)
        drafts_R, vocabulary = before.response_distribution(), policy.space.vocabulary
        return reuse_distribution(
            self.rule, drafts_R, before, policy, vocabulary, continued_by=self._continued_by(policy)
        )

    def distance(self, before: ModelPolicy, policy: ModelPolicy) -> float:
        """Exact total variation of the faulty responses from the policy, by weight if they have weights."""
        if isinstance(self.rule, WeightedRule):
            wrong_R = weighted_distribution(self._weighted(self.rule, before, policy), policy.space)
        else:
            wrong_R = self.distribution(before, policy)
        return total_variation(wrong_R, policy.response_distribution())

    def _weighted(self, rule: WeightedRule, before: ModelPolicy, policy: ModelPolicy) -> WeightedResponses:
        vocabulary, by = policy.space.vocabulary, self._continued_by(policy)
        return weighted_responses(rule, unweighted(before), before, policy, vocabulary, continued_by=by)

    def _continued_by(self, policy: ModelPolicy) -> ContinuedBy | None:
        return self.context.continued_by(policy) if self.context else None


@dataclass(frozen=True)
class AuditedSampler:
    """A rollout strategy on a kind of engine. If it is not `exact`, the test must reject its distribution.

    Attributes:
        planted: a fault of the last pass, before which the engine and the strategy are right.
        weighted: rule with importance weights; None if all are 1.
        both: of the stored tokens, only those count that the engine reports as most probable ones, as under vLLM.
    """

    name: str
    engine: str
    strategy: Strategy
    retention: Retention
    exact: bool = True
    streams: type[Streams] = Streams
    planted: Planted | None = None
    weighted: WeightedRule | None = None
    both: bool = False

    def expected(self, policies: Sequence[ModelPolicy]) -> np.ndarray:
        """Distribution of a right sampler's responses in the last of some passes, float64 (R,).

        With weights it is that of the classes of weighted responses, float64 (3 R,). The mean weights of a correct
        sampler need too many samples to be tested: a few responses have most of the weight.
        """
        space = policies[-1].space
        if self.weighted is None:
            return policies[-1].response_distribution()
        top, responses = min(self.retention.top, space.vocabulary), unweighted(policies[0])
        for before, now in pairwise(policies):
            responses = weighted_responses(self.weighted, responses, before, now, top, self.both)
        return class_distribution(responses, space)


@dataclass(frozen=True, eq=False)
class SamplerTest:
    """Test of a sampler's responses in the last pass, and the mean kept tokens in it.

    Attributes:
        counts: int64 (R,), responses; with weights int64 (3 R,), their classes.
        distance: exact total variation of a planted fault; None if it was not enumerated.
        detected_from: samples that detect the planted fault with probability `goodness.POWER`.
    """

    sampler: AuditedSampler
    counts: np.ndarray
    test: GTest
    kept: float
    distance: float | None = None
    detected_from: int | None = None

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
        for sampler in samplers_of(engine, capabilities):
            if engine not in AGREEING or sampler.name in REPRESENTATIVE:
                yield sampler
    yield half_residual_fault("torch")
    name, method = "planted: the same random numbers accept and sample, in all passes", METHODS["residual"]
    yield AuditedSampler(name, "torch", method.strategy(), method.retention, exact=False, streams=SharedUniforms)
    name, rule = "planted: block's acceptance, residual's residual", BlockWithResidual()
    yield AuditedSampler(name, "torch", _by_stored_top(rule), method.retention, exact=False, planted=Planted(rule))
    for fault in (FED_TWICE, LEFT_OUT, STALE, LATE):
        yield context_fault("residual", Planted(ResidualRule(), fault))
    yield context_fault("block", Planted(BlockRule(), LEFT_OUT))
    yield context_fault("weighted, l = e^0.5", Planted(WeightedRule(math.exp(0.5)), LEFT_OUT))
    yield context_fault("Gumbel", Planted(CoupledRule(), OTHER_NOISE))


def samplers_of(engine: str, capabilities: frozenset[Capability]) -> Iterator[AuditedSampler]:
    """Samplers of all methods that an engine supports."""
    for name, method in METHODS.items():
        if method.needs <= capabilities:
            yield AuditedSampler(
                name,
                engine,
                method.strategy(),
                method.retention,
                # With its weights an inexact rule is exact in expectation; the classes of weights are tested.
                exact=method.exact or method.importance is not None,
                weighted=_weights_of(method),
                # Such an engine reports only its own most probable tokens, not any that the draft's policy stored.
                both=Capability.OTHER_SCORES not in capabilities,
            )


def half_residual_fault(engine: str) -> AuditedSampler:
    """A sampler with `HalfResidual`, which the test must reject."""
    rule, retention = HalfResidual(), METHODS["residual"].retention
    name = "planted: half a residual"
    return AuditedSampler(name, engine, _by_stored_top(rule), retention, exact=False, planted=Planted(rule))


def context_fault(name: str, planted: Planted, engine: str = "torch") -> AuditedSampler:
    """A sampler of a method by its name, on an engine with a fault of context."""
    assert planted.context
    title, method = f"planted: {planted.context.name}, {name}", METHODS[name]
    wrong = AuditedSampler(title, engine, method.strategy(), method.retention, exact=False, planted=planted)
    return replace(wrong, weighted=_weights_of(method))


def _weights_of(method: ReuseMethod) -> WeightedRule | None:
    rule = method.rule() if isinstance(method, StoredTop) else None
    return rule if isinstance(rule, WeightedRule) else None


def _by_stored_top(rule: Rule) -> Strategy:
    return reuse_drafts(stored_top_verifier(rule))


def _self_speculative(model: PreTrainedModel, **options: object) -> TorchEngine:
    return SpeculativeEngine(model, QuantisedDrafter(model, bits=4, group=32), Fixed(2), 2, **options)


def _by_ngrams(model: PreTrainedModel, **options: object) -> TorchEngine:
    return SpeculativeEngine(model, NGramDrafter(longest=3, shortest=1), Fixed(2), 2, **options)


def _by_suffixes(model: PreTrainedModel, **options: object) -> TorchEngine:
    # Without a history the responses of this rollout that have ended are proposed; fewer rows, so that some have.
    drafter = SuffixDrafter(ResponseHistory(1), longest=3, shortest=1, least_share=0.0)
    return SpeculativeEngine(model, drafter, Fixed(2), 2, **options | {"max_rows": 64})


def _by_a_head(model: PreTrainedModel, **options: object) -> TorchEngine:
    drafter = HeadDrafter(model, width=2, generator=torch.Generator().manual_seed(0))
    return SpeculativeEngine(model, drafter, Fixed(2), 2, **options)


ENGINES: dict[str, Callable[..., TorchEngine]] = {
    "torch": TorchEngine,
    "torch, self-speculating": _self_speculative,
    "torch, n-grams": _by_ngrams,
    "torch, suffixes": _by_suffixes,
    "torch, head": _by_a_head,
}
"""Engines by name. The draft model of the self-speculating one is a 4-bit copy of the policy; the head is untrained."""
AGREEING = ("torch, n-grams", "torch, suffixes", "torch, head")
"""Engines that verify by agreement."""
REPRESENTATIVE = ("vanilla", "residual", "block", "Gumbel")
"""Methods with which these are audited: each way of sampling, and a residual first token. The tokens are those of the
plain engine, which is audited with all methods."""
CAPABILITIES = {name: TorchEngine.capabilities for name in ENGINES}


def audit(
    sampler: AuditedSampler,
    models: Sequence[PreTrainedModel],
    samples: int | None = None,
    space: Space = SPACE,
    temperature: float = 1.0,
) -> SamplerTest:
    """Run a sampler over epoch passes, one for each model, and test the last pass's responses.

    Args:
        samples: number of responses; `SAMPLES` by default, or as many as detect a planted fault that needs more.
    """
    options = {
        "stops": {0},
        "max_length": len(PROMPT) + space.longest + 1,  # one more for a token that a fault feeds twice
        "max_rows": 1024,
        "temperature": temperature,
    }
    kinds = [ENGINES[sampler.engine]] * len(models)
    if sampler.planted and sampler.planted.context:
        # In the last pass only: its drafts are then right, and the faulty distribution can be enumerated.
        kinds[-1] = sampler.planted.context.engine
    engines = [kind(model, **options) for kind, model in zip(kinds, models, strict=True)]
    return audit_engines(sampler, engines, [ModelPolicy(space, model, temperature) for model in models], samples)


def audit_engines(
    sampler: AuditedSampler,
    engines: Sequence[RunnableEngine],
    policies: Sequence[ModelPolicy],
    samples: int | None = None,
) -> SamplerTest:
    """As `audit`, with the engine and the policy of each pass.

    A planted fault needs no more than two passes, since the drafts of its pass are right.
    """
    planted, distance, detected_from = sampler.planted, None, None
    if planted:
        engines, policies = engines[-2:], policies[-2:]
    space, expected = policies[-1].space, sampler.expected(policies)
    if planted:
        distance = planted.distance(*policies)
        detected_from = samples_against(planted.distribution(*policies), expected)
    # A fault that is hard to see gets as many samples as detect it; else its test would prove nothing.
    samples = samples or max(SAMPLES, detected_from or 0)
    if planted and planted.context:
        engines = [engines[0], planted.context.plant(engines[1])]
    rollouts = sample_last_pass(sampler.strategy, sampler.retention, engines, space, samples, sampler.streams)
    indices = response_indices(rollouts, space)
    if sampler.weighted:
        indices = weight_classes(indices, np.array([_log_weight(rollout) for rollout in rollouts]))
    counts = np.bincount(indices, minlength=len(expected))
    return SamplerTest(sampler, counts, g_test(counts, expected), mean_kept(rollouts), distance, detected_from)


def _log_weight(rollout: Rollout) -> float:
    return 0.0 if rollout.log_weights is None else float(rollout.log_weights.sum(dtype=np.float64))


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
        context = RolloutContext(engine, no_reward, memory, Meter(), streams(0, number), {0: PROMPT}, space.longest)
        (group,) = engine.run(strategy(Task(0, number, samples), context))
        # The drafts of the next pass.
        memory.put(group)
    assert group is not None
    return group.rollouts


def count_responses(rollouts: Sequence[Rollout], space: Space) -> tuple[np.ndarray, float]:
    """Counts of each response, int64 (R,), and mean kept tokens."""
    return np.bincount(response_indices(rollouts, space), minlength=len(space.responses)), mean_kept(rollouts)


def response_indices(rollouts: Sequence[Rollout], space: Space) -> np.ndarray:
    """Index of each response in the space, int64 (N,)."""
    return np.array([space.index[tuple(map(int, rollout.tokens))] for rollout in rollouts])


def mean_kept(rollouts: Sequence[Rollout]) -> float:
    """Mean number of kept tokens."""
    return float(np.mean([rollout.prefix_length for rollout in rollouts]))


def policies() -> list[PreTrainedModel]:
    """Models of the passes."""
    return drifting(SPACE, EPOCH_PASSES, DRIFT, SEED, SCALE, HEAD_SCALE)
