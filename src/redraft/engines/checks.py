"""What every engine looks for in its answers."""

import numpy as np

from redraft.errors import UserError


def checked(log_probs: np.ndarray) -> np.ndarray:
    """A copy of log-probabilities.

    Raises:
        UserError: if they are NaN, as those of a diverged policy are.
    """
    if np.isnan(log_probs).any():
        raise UserError(
            "the model's log-probabilities are NaN: it has diverged (then the learning rate was too high), "
            "or its weights are damaged"
        )
    return log_probs.copy()
