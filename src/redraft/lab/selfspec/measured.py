"""Acceptance by position in the response as a run has measured it, for the simulator.

A run's records count proposals and what is kept of them by the part of the response in which their block begins
(docs/metrics.md).
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import UserError
from redraft.files import read_json_lines
from redraft.lab.selfspec.simulate import Acceptance
from redraft.selfspec.roofline import token_acceptance

Blocks = list[tuple[int, float, float]]
"""Draft length γ, blocks and kept proposals of each step."""


def measured_acceptance(file: Path) -> Acceptance:
    """Acceptance over all steps of a run, by position.

    For each part it is the α at which the blocks that began there would have had as many tokens as they had (equation 1
    of EfficientRollout, summed over steps, whose draft lengths may differ). A part in which no block began has the
    acceptance of the one before; the first parts, if none began in them, that of the first measured one.

    Args:
        file: `steps.jsonl` of a run.

    Raises:
        UserError: if it is missing or damaged, or holds no block.
    """
    by_start = _blocks(read_json_lines(file))
    if not by_start:
        raise UserError("these records hold no speculated block", file=file, key="proposed_from",
                        allowed="steps.jsonl of a run with self-speculation")  # fmt: skip
    _, *starts = sorted(by_start)
    return Acceptance(tuple(_acceptance(by_start[start]) for start in sorted(by_start)), (0.0, *map(float, starts)))


def _blocks(records: list[Mapping[str, Any]]) -> dict[int, Blocks]:
    """What began in each part, by its first position."""
    found: dict[int, Blocks] = defaultdict(list)
    for record in records:
        for start, proposed in record.get("proposed_from", {}).items():
            gamma = record["draft_length"]
            found[int(start)].append((gamma, proposed / gamma, record["kept_from"][start]))
    return found


def _acceptance(steps: Blocks) -> float:
    gamma, blocks, kept = np.array(steps, float).T
    return float(token_acceptance(kept, gamma, blocks))
