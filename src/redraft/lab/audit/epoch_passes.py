"""Distributions of responses over many epoch passes, where each response is the draft of the next pass.

Extends `redraft.lab.audit.enumeration` by two things: uniforms that passes share (`redraft.lab.audit.uniforms`), and
stored log-probabilities that stay with a token from the pass in which it was sampled, as in SPEC-RL's published rule.

Shapes: C cells of the uniforms, R responses of the space.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.lab.audit.enumeration import Policy, Response, Space, residual_distribution, stored_distributions
from redraft.lab.audit.uniforms import CommonUniforms, IndependentUniforms, Uniforms
from redraft.methods.acceptance.rule import Rule
from redraft.rollout.engine import Residual

Origin = tuple[int, ...]
"""For each position of a response, the number of the pass whose distribution is stored with the token."""
State = dict[Origin, np.ndarray]
"""Joint distribution of origin and response, given each cell, float64 (C or 1, R) for each origin."""


@dataclass(frozen=True, eq=False)
class EpochPass:
    """Distribution of a pass's responses, float64 (R,), and the mean kept and total tokens of its drafts."""

    distribution: np.ndarray
    kept: float
    draft: float


class StoredPolicy(Policy):
    """The distributions stored with a response whose tokens were sampled in several passes."""

    def __init__(self, policies: Sequence[Policy], origin: Origin) -> None:
        self.space, self._policies, self._origin = policies[0].space, policies, origin

    def distribution(self, prefix: Response) -> np.ndarray:
        """Stored distribution of the token after a prefix, float64 (V,)."""
        return self._policies[self._origin[len(prefix)]].distribution(prefix)


class Continuations:
    """Distributions of whole responses given a prefix, under a policy and the uniforms that sample from it."""

    def __init__(self, policy: Policy, uniforms: Uniforms) -> None:
        self._policy, self._uniforms = policy, uniforms
        self._cache: dict[Response, np.ndarray] = {}

    def after(self, prefix: Response, first: Residual | None = None) -> np.ndarray:
        """Distribution of responses given a prefix, float64 (C or 1, R); the first new token follows the residual."""
        if first is not None:
            return self._sum_over_tokens(prefix, residual_distribution(self._policy.distribution(prefix), first))
        if prefix not in self._cache:
            space = self._policy.space
            if prefix in space.index:
                self._cache[prefix] = np.eye(1, len(space.responses), space.index[prefix])
            else:
                self._cache[prefix] = self._sum_over_tokens(prefix, self._policy.distribution(prefix))
        return self._cache[prefix]

    def _sum_over_tokens(self, prefix: Response, distribution: np.ndarray) -> np.ndarray:
        tokens_VC = self._uniforms.tokens(len(prefix), distribution).T
        terms = [tokens_VC[token][:, None] * self.after((*prefix, token)) for token in range(len(tokens_VC))]
        return np.sum(np.broadcast_arrays(*terms), axis=0)


@dataclass(frozen=True)
class PassChain:
    """A sequence of epoch passes, one for each policy, in which a rule keeps prefixes of drafts.

    Attributes:
        top: most probable tokens of the draft's distribution that are stored; 0 for a one-hot distribution.
        renewed: true if a kept token's stored distribution is replaced by that of the policy that verified it; false
            if it stays that of the pass in which the token was sampled, as in SPEC-RL's published rule.
        shared: true if all passes use the same uniforms, false if each pass has new ones.
    """

    rule: Rule
    policies: Sequence[Policy]
    top: int = 0
    renewed: bool = True
    shared: bool = False

    @property
    def space(self) -> Space:
        """Response space of the policies."""
        return self.policies[0].space

    def passes(self, uniforms: Uniforms) -> list[EpochPass]:
        """All passes with drafts. The pass before them samples its policy with the same uniforms."""
        lengths_R = np.array([len(response) for response in self.space.responses])
        state: State = {(0,) * self.space.longest: Continuations(self.policies[0], uniforms).after(())}
        drafts_R, passes = _marginal(state, uniforms), []
        for number in range(1, len(self.policies)):
            if not self.shared:  # new uniforms: responses no longer depend on the cell
                state = {origin: _cell_mean(joint, uniforms)[None] for origin, joint in state.items()}
            state, kept = self._next(state, number, uniforms)
            passes.append(EpochPass(_marginal(state, uniforms), kept, float(drafts_R @ lengths_R)))
            drafts_R = passes[-1].distribution
        return passes

    def _next(self, before: State, number: int, uniforms: Uniforms) -> tuple[State, float]:
        """State after pass `number`, and the mean number of kept tokens in it."""
        policy, after, mean_kept = self.policies[number], State(), 0.0
        continuations = Continuations(policy, uniforms)
        for origin, joint_CR in before.items():
            stored = StoredPolicy(self.policies, origin)
            for index, draft in enumerate(self.space.responses):
                distributions = stored_distributions(draft, stored, policy, self.top)
                for kept, probability_C in enumerate(uniforms.kept(self.rule, self.rule.acceptance(distributions)).T):
                    mass_C = joint_CR[:, index] * probability_C
                    # Continuations of impossible cases are costly and add nothing.
                    if mass_C.any():
                        continued_CR = continuations.after(draft[:kept], self.rule.residual(distributions, kept))
                        # Renewed tokens count as sampled in this pass.
                        kept_origin = () if self.renewed else origin[:kept]
                        # Padded to the longest response, so that responses of all lengths share a key.
                        new_origin = (*kept_origin, *[number] * (self.space.longest - len(kept_origin)))
                        after[new_origin] = after.get(new_origin, 0.0) + mass_C[:, None] * continued_CR
                        mean_kept += kept * float(_cell_mean(mass_C, uniforms))
        return after, mean_kept


def _marginal(state: State, uniforms: Uniforms) -> np.ndarray:
    """Distribution of responses, summed over origins and averaged over cells, float64 (R,)."""
    return np.sum([_cell_mean(joint, uniforms) for joint in state.values()], axis=0)


def _cell_mean(values: np.ndarray, uniforms: Uniforms) -> np.ndarray:
    """Mean over cells, (C or 1, ...) to (...)."""
    return uniforms.weights @ np.broadcast_to(values, (len(uniforms.weights), *values.shape[1:]))


def common_uniforms(chain: PassChain, sampling: bool) -> CommonUniforms:
    """Uniforms that accept a chain's drafts, one per position, and with `sampling` also sample its tokens."""
    # a first run records all thresholds; they depend on drafts and policies, not on the uniforms
    recorder = IndependentUniforms()
    chain.passes(recorder)
    return CommonUniforms(recorder.thresholds(sampling), sampling)
