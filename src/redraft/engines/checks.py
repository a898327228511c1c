"""Checks that every engine makes of what it is asked and of what it answers."""

from collections.abc import Collection

import numpy as np

from redraft.config.capability import Capability
from redraft.errors import UserError
from redraft.rollout.engine import Draws, Gumbel, Residual


def refuse_scores(capabilities: Collection[Capability], at: np.ndarray | None, top: int, draws: Gumbel | None) -> None:
    """Check that a request to score can be served exactly.

    Raises:
        UserError: if it cannot; it names the capability.
    """
    needs = {
        Capability.OTHER_SCORES: at is not None,
        Capability.TOP_LAW: top > 0,
        Capability.GUMBEL: draws is not None,
    }
    _refuse(capabilities, needs)


def refuse_draws(capabilities: Collection[Capability], draws: Draws, first: Residual | None, top: int) -> None:
    """Check that a request to decode can be served exactly.

    Raises:
        UserError: if it cannot; it names the capability.
    """
    needs = {
        Capability.GUMBEL: isinstance(draws, Gumbel),
        Capability.RESIDUAL: first is not None,
        Capability.TOP_LAW: top > 0,
    }
    _refuse(capabilities, needs)


def _refuse(capabilities: Collection[Capability], needs: dict[Capability, bool]) -> None:
    for capability, needed in needs.items():
        if needed and capability not in capabilities:
            raise UserError(
                "this engine cannot do exactly what a method asks of it", key="engine", value=str(capability),
                allowed=[str(has) for has in capabilities] or "sampling the policy and scoring a draft's own tokens",
            )  # fmt: skip


def checked(log_probs: np.ndarray) -> np.ndarray:
    """A copy of log-probabilities.

    Raises:
        UserError: if one is NaN, as those of a diverged policy are.
    """
    if np.isnan(log_probs).any():
        raise UserError(
            "the model's log-probabilities are NaN: it has diverged (then the learning rate was too high), "
            "or its weights are damaged"
        )
    return log_probs.copy()
