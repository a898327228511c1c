"""Part two of the audit: responses that the engines in this process draw, against the policy's enumerated
distribution."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.self_speculation import Fixed, SelfSpeculativeEngine
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import Tested, draws_for, g_test
from redraft.lab.audit.models import PROMPT, ModelPolicy, drifting
from redraft.lab.audit.sampling import Running, SharedUniforms, counts, last_visit
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions
from redraft.methods.drafts.response import reuse_drafts
from redraft.methods.drafts.verification import stored_top_verifier
from redraft.methods.reuse import ReuseMethod
from redraft.methods.strategy import Strategy
from redraft.rollout.context import Streams
from redraft.rollout.engine import Residual

SPACE = Space(vocabulary=4, longest=3)
VISITS, DRIFT = 3, 0.12
DISTANCE = 0.05
"""Total variation from the policy's distribution that is found with probability `goodness.POWER`."""
DRAWS = draws_for(len(SPACE.responses), DISTANCE)
METHODS = {
    name: setting for kind in ReuseMethod.registered() for name, setting in kind.sampled(SPACE.vocabulary).items()
}


class HalfResidual(ResidualRule):
    """A fault to be found: half of what was accepted is taken off the policy's distribution."""

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """The wrong distribution."""
        first = super().residual(drafts, kept)
        return None if first is None else replace(first, left=(1.0 + first.left) / 2)


@dataclass(frozen=True)
class Sampler:
    """A strategy on a kind of engine; if it is not `exact`, the test must refute its distribution."""

    name: str
    engine: str
    strategy: Strategy
    retention: Retention
    exact: bool = True
    streams: type[Streams] = Streams


@dataclass(frozen=True)
class Drawn:
    """Result of a sampler: its test, and mean kept tokens in the last visit."""

    sampler: Sampler
    tested: Tested
    kept: float

    @property
    def verdict(self) -> str:
        """What the test says."""
        if self.sampler.exact:
            return "WRONG" if self.tested.wrong else "not told from right"
        return "found wrong" if self.tested.wrong else "NOT FOUND"

    @property
    def passes(self) -> bool:
        """True if the distribution is what it should be, as far as the test can tell."""
        return self.tested.wrong != self.sampler.exact


def samplers() -> Iterator[Sampler]:
    """All samplers of this process, and planted faults."""
    for engine, capabilities in ENGINES_CAN.items():
        yield from of_engine(engine, capabilities)
    yield half_a_residual("torch")
    name, method = "planted: the same random numbers for all", METHODS["residual"]
    yield Sampler(name, "torch", method.strategy(), method.retention, exact=False, streams=SharedUniforms)


def of_engine(engine: str, capabilities: frozenset[Capability]) -> Iterator[Sampler]:
    """Samplers of the methods that an engine can do."""
    for name, method in METHODS.items():
        if method.needs <= capabilities:
            yield Sampler(name, engine, method.strategy(), method.retention, method.exact)


def half_a_residual(engine: str) -> Sampler:
    """A planted fault."""
    faulty, kept = reuse_drafts(stored_top_verifier(HalfResidual())), METHODS["residual"].retention
    return Sampler("planted: half a residual", engine, faulty, kept, exact=False)


def _self_speculative(model: PreTrainedModel, **options: object) -> TorchEngine:
    return SelfSpeculativeEngine(model, Fixed(2), 2, bits=4, group=32, **options)


ENGINES: dict[str, Callable[..., TorchEngine]] = {"torch": TorchEngine, "torch, self-speculating": _self_speculative}
"""Engines by name; the second speculates by a copy of the policy in 4 bits."""
ENGINES_CAN = {"torch": TorchEngine.capabilities, "torch, self-speculating": SelfSpeculativeEngine.capabilities}


def audit(
    sampler: Sampler,
    models: Sequence[PreTrainedModel],
    draws: int = DRAWS,
    space: Space = SPACE,
    temperature: float = 1.0,
) -> Drawn:
    """Draw with a sampler over visits of these policies at a temperature, and test the last visit's responses."""
    options = {
        "stops": {0},
        "max_length": len(PROMPT) + space.longest,
        "max_rows": 1024,
        "temperature": temperature,
    }
    engines = [ENGINES[sampler.engine](model, **options) for model in models]
    return judge(sampler, engines, ModelPolicy(space, models[-1], temperature), draws)


def judge(sampler: Sampler, engines: Sequence[Running], policy: ModelPolicy, draws: int = DRAWS) -> Drawn:
    """Draw with a sampler over visits of these engines, and test the last visit's responses against its policy."""
    drawn = last_visit(sampler.strategy, sampler.retention, engines, policy.space, draws, sampler.streams)
    found, kept = counts(drawn, policy.space)
    return Drawn(sampler, g_test(found, policy.responses()), kept)


def policies() -> list[PreTrainedModel]:
    """Models of the visits."""
    return drifting(SPACE, VISITS, DRIFT)
