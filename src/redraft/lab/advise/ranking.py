"""Predicted seconds of each method, its savings with intervals over prompts, and the ranking.

A rollout is a batch, so its seconds are no mean over prompts: the longest response decides. The bootstrap therefore
samples prompts, since responses of one prompt are not independent, and composes batches of them. All methods have the
same batches in a replicate, so that differences between methods have intervals too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from redraft.lab.advise.sample import PLAIN
from redraft.lab.advise.work import Column, Device, Work
from redraft.lab.predict.jackknife import IntervalEstimate
from redraft.rollout.streams import stream

REPLICATES = 400
LEVEL = 0.95
COMPOSITIONS = 8
"""Random divisions of the prompts into batches, whose mean is the prediction."""


@dataclass(frozen=True, eq=False)
class MethodSeconds:
    """Predicted seconds of a rollout with a method.

    Attributes:
        seconds: of one rollout.
        saved: 1 - seconds / seconds of plain decoding.
        passes: forward passes of a rollout until its last response ends, the first included.
        replicates: seconds in the bootstrap's replicates, float64 (replicates,); none for a single prompt.
    """

    method: str
    seconds: IntervalEstimate
    saved: IntervalEstimate
    passes: float
    replicates: np.ndarray

    def tied(self, best: "MethodSeconds") -> bool:
        """Whether the interval of its seconds over those of the fastest method includes 1."""
        return _interval(1.0, self.replicates / best.replicates).low <= 1.0


def ranked(
    work: Mapping[str, Work], device: Device, batch: int, *, replicates: int = REPLICATES
) -> list[MethodSeconds]:
    """Methods, fastest first.

    Args:
        work: by method; all have the same prompts, and one is plain decoding.
        batch: prompts whose responses decode at once.
        replicates: of the bootstrap.
    """
    prompts = len(work[PLAIN].passes)
    rng = stream(0, "advise bootstrap")
    batches = [each for _ in range(COMPOSITIONS) for each in _batches(np.arange(prompts), batch, rng)]
    point = _measured(work, device, batches)
    # A single prompt has no interval.
    resampled = [
        _batches(rng.integers(prompts, size=prompts), batch, rng) for _ in range(replicates if prompts > 1 else 0)
    ]
    sampled = (
        np.array([_measured(work, device, of_replicate)[:, 0] for of_replicate in resampled]).reshape(-1, len(work)).T
    )
    names = list(work)
    plain = names.index(PLAIN)
    rows = [
        MethodSeconds(
            name,
            _interval(float(point[i, 0]), sampled[i]),
            _interval(float(1 - point[i, 0] / point[plain, 0]), 1 - sampled[i] / sampled[plain]),
            float(point[i, 1]),
            sampled[i],
        )
        for i, name in enumerate(names)
    ]
    return sorted(rows, key=lambda row: row.seconds.value)


Batch = tuple[np.ndarray, np.ndarray]
"""Prompts of a rollout and the variant of each, integer (n,) each."""


def _batches(prompts: np.ndarray, batch: int, rng: np.random.Generator) -> list[Batch]:
    """Rollouts of `batch` prompts each that together have every prompt at most once; one with repeats if there are
    fewer prompts than that."""
    if batch > len(prompts):
        chosen = [rng.choice(prompts, batch)]
    else:
        order, count = rng.permutation(prompts), len(prompts) // batch
        chosen = np.split(order[: count * batch], count)
    return [(each, rng.integers(1 << 30, size=batch)) for each in chosen]


def _measured(work: Mapping[str, Work], device: Device, batches: Sequence[Batch]) -> np.ndarray:
    """Mean seconds and passes of a rollout with each method, float64 (methods, 2)."""
    found = np.zeros((len(work), 2))
    for i, of in enumerate(work.values()):
        for prompts, variants in batches:
            passes, lookups = of.batch(prompts, variants)
            found[i] += device.seconds(passes, lookups), np.count_nonzero(passes[Column.FED])
    return found / len(batches)


def _interval(value: float, sampled: np.ndarray) -> IntervalEstimate:
    if not len(sampled):
        return IntervalEstimate(value, np.nan, np.nan)
    low, high = np.quantile(sampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return IntervalEstimate(value, float(low), float(high))
