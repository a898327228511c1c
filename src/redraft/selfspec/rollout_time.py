"""Seconds that the recorded passes of a rollout would take with another model on another device, by a roofline.

Each pass has the responses, lengths and proposals that were recorded, and all of them are in one engine. Not counted:
the prompts' first pass, which all methods have; sampling; scheduling; the host's search for proposals; and the training
of a learned head. Proposals of a pass are those of the response that has most, since the in-process engine pads to it.
"""

from collections.abc import Callable, Iterable

import numpy as np

from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import VALUE_BYTES, ModelConstants
from redraft.selfspec.controller import Stretch
from redraft.selfspec.roofline import draft_seconds, target_seconds, verify_seconds

ProposalSeconds = Callable[[int, np.ndarray], np.ndarray | float]
"""Seconds of one proposal of every response, from their number and their mean lengths in tokens, float64 (passes,)."""


def no_seconds(batch: int, lengths: np.ndarray) -> float:
    """Proposals that no model computes."""
    return 0.0


def seconds_of_quantised(calibration: Calibration) -> ProposalSeconds:
    """Proposals of a quantised copy: its passes."""
    return lambda batch, lengths: draft_seconds(calibration, batch, lengths)


def seconds_of_head(calibration: Calibration, model: ModelConstants, width: int) -> ProposalSeconds:
    """Proposals of a learned head: its weights and the model's output layer, without a residual time a response.

    Args:
        width: of the head's feed-forward layer, as a multiple of the hidden size (`decoding.width`).
    """
    # A layer that fuses state and embedding, and the three matrices of the feed-forward layer.
    weights = (2 + 3 * width) * model.hidden**2 + model.head_parameters
    reading = VALUE_BYTES * weights / calibration.bandwidth
    return lambda batch, lengths: max(reading, 2 * weights * batch / calibration.flops)


def rollout_seconds(
    calibration: Calibration, passes: Iterable[Stretch], scored: float, proposal: ProposalSeconds
) -> float:
    """Seconds of decoding passes, of their proposals, and of the drafts that were scored before.

    Args:
        scored: tokens of drafts, which one pass computes.
        proposal: the drafter.
    """
    total = 0.0
    for stretch in passes:
        lengths = stretch.lengths
        if gamma := stretch.proposals:
            each = verify_seconds(calibration, stretch.active, lengths, gamma)
            each = each + gamma * np.broadcast_to(proposal(stretch.active, lengths), each.shape)
        else:
            each = target_seconds(calibration, stretch.active, lengths)
        total += float(each.sum())
    if scored:
        costs = calibration.costs
        reading = costs.target_bytes / calibration.bandwidth
        total += max(reading, costs.dense_flops * scored / calibration.flops)
    return total
