"""Group strategies: the rollouts of one prompt. Each method is written here, once, for every engine and trainer."""

from redraft.config.reuse import (
    AdaptiveReuse,
    BlockReuse,
    CoupledReuse,
    DelayedReuse,
    OneHotReuse,
    RandomReuse,
    ReleaseVariant,
    ResidualReuse,
    Reuse,
    Speculative,
    Staged,
    Vanilla,
    WeightedReuse,
)
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.strategies.exact import as_certain, by_stored_laws, coupled, weighted
from redraft.methods.strategies.groups import vanilla
from redraft.methods.strategies.reuse import at_random, reuse_drafts, verified
from redraft.methods.strategies.staged import staged
from redraft.methods.strategies.tools import Strategy

__all__ = ["strategy", "vanilla"]


def strategy(method: Reuse) -> Strategy:
    """The strategy of a configured method."""
    match method:
        case Vanilla():
            return vanilla
        case Speculative(lenience=lenience, fresh_every=fresh):
            return reuse_drafts(verified(lenience), fresh_every=fresh)
        case AdaptiveReuse(initial=lenience, fresh_every=fresh):
            return reuse_drafts(verified(lenience), fresh_every=fresh)
        case WeightedReuse(lenience=lenience, fresh_every=fresh):
            return reuse_drafts(weighted(WeightedRule(lenience)), fresh_every=fresh)
        case ResidualReuse(lenience=lenience, fresh_every=fresh):
            return reuse_drafts(by_stored_laws(ResidualRule(lenience)), fresh_every=fresh)
        case BlockReuse(fresh_every=fresh):
            return reuse_drafts(by_stored_laws(BlockRule()), fresh_every=fresh)
        case OneHotReuse(fresh_every=fresh):
            return reuse_drafts(as_certain(ResidualRule()), fresh_every=fresh)
        case CoupledReuse(fresh_every=fresh):
            cut, draw = coupled(fresh)
            return reuse_drafts(cut, fresh_every=fresh, draw=draw)
        case RandomReuse():
            return reuse_drafts(at_random)
        case DelayedReuse(lenience=lenience):
            return reuse_drafts(verified(lenience), visits_ago=2)
        case ReleaseVariant(lenience=lenience, fixed_uniforms=fixed, refreshed_log_probs=refreshed):
            return reuse_drafts(verified(lenience, fixed, refreshed))
        case Staged(lenience=lenience):
            return staged(method, None if lenience is None else verified(lenience))
