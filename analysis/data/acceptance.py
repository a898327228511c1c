"""How far drafts are kept, by position in the response, from the rollouts that runs keep."""

from itertools import pairwise

import numpy as np
import pandas as pd

PARTS = 8
"""Parts of the longest draft that get a line each."""


def by_position(rollouts: pd.DataFrame) -> pd.DataFrame:
    """What becomes of drafts along the response, a line a part.

    Args:
        rollouts: columns prefix_length and draft_length, in tokens, a line a rollout; 0 without a draft.

    Returns:
        columns first and last, the positions of the part, the response's first token being 1; drafts, the number of
        drafts that have its first token; reached, the share of these that is kept up to there; tokens, the number of
        draft tokens in the part that a decision fell on; kept, the share of them that is kept. A decision falls on each
        token that is kept and on the first one behind, if the draft goes on. Empty without drafts.
    """
    kept, length = rollouts["prefix_length"].to_numpy(), rollouts["draft_length"].to_numpy()
    edges = np.unique(np.linspace(0, max(length, default=0), PARTS + 1).round().astype(int))
    return pd.DataFrame([_part(kept, length, int(low), int(high)) for low, high in pairwise(edges)])


def _part(kept: np.ndarray, length: np.ndarray, low: int, high: int) -> dict[str, float]:
    there = length > low
    decided = np.where(kept < length, kept + 1, kept)
    tokens = int((decided.clip(low, high) - low).sum())
    return {
        "first": low + 1,
        "last": high,
        "drafts": int(there.sum()),
        "reached": float((kept[there] >= low).mean()),
        "tokens": tokens,
        "kept": float((kept.clip(low, high) - low).sum()) / tokens if tokens else float("nan"),
    }
