"""Whether sampler and policies stay the same while they are tested: fixed probes, scored again and again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from redraft.certify.positions import Response, scored
from redraft.certify.protocol import Policy, Sampler, blamed
from redraft.errors import UserError

PROBED = 8
"""Prompts or responses in a probe."""


class Probes:
    """Log-probabilities that have to stay the same.

    Args:
        tolerance: mean absolute difference that may be rounding, nats.

    Attributes:
        names: what is probed.
        count: number of checks.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.names, self.count = tolerance, list[str](), 0
        self._scores: list[tuple[Callable[[], np.ndarray], np.ndarray]] = []

    def add_sampler(self, sampler: Sampler, prompts: list[list[int]]) -> None:
        """Probe a sampler that has a method `probe`, if it gives log-probabilities."""
        if (probe := getattr(sampler, "probe", None)) is None:
            return

        def score() -> np.ndarray:
            with blamed("the sampler's probe"):
                return np.asarray(probe([list(prompt) for prompt in prompts[:PROBED]]), dtype=np.float64)

        self._add("the sampler", score)

    def add_policies(
        self, policies: Mapping[str, Policy], prompts: list[list[int]], responses: Sequence[Response]
    ) -> None:
        """Probe policies with some of the responses."""
        tested = [each for each in responses if each.sampled.tokens]
        tested = tested[:: max(len(tested) // PROBED, 1)][:PROBED]

        def score(policy: Policy) -> np.ndarray:
            found = [known.sampled for known in scored(policy, prompts, tested) if known.sampled is not None]
            return np.concatenate(found) if found else np.empty(0)

        for name, policy in policies.items():
            self._add(name, partial(score, policy))

    def _add(self, name: str, score: Callable[[], np.ndarray]) -> None:
        if len(first := score()):
            self.names.append(name)
            self._scores.append((score, first))

    def check(self, when: str) -> None:
        """Score all probes again.

        Raises:
            UserError: if one differs from the first time.
        """
        self.count += 1
        for name, (score, first) in zip(self.names, self._scores, strict=True):
            now = score()
            same_shape = now.shape == first.shape
            with np.errstate(invalid="ignore"):  # -inf twice
                difference = np.nan_to_num(np.abs(now - first), nan=0.0, posinf=np.inf).mean() if same_shape else np.inf
            if difference > self.tolerance:
                raise UserError(
                    f"{name} changed {when}: the same tokens have other log-probabilities, so that there is no one "
                    "distribution to test",
                    value=f"mean absolute difference {difference:.3g} nats",
                    allowed=f"up to the tolerance, {self.tolerance:g}",
                    hint="another model, new weights, dropout or noise",
                )
