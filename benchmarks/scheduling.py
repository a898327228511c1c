"""What the order of waiting responses is worth: a step's decoding time when there are more responses than rows.

`python -m benchmarks.scheduling`. A simulation: a pass over n rows takes 1 + n / `HALF` (a fixed part, mostly reading
the weights, and one that grows with the batch); a row that ends is taken by the next response that waits. Lengths have
long tails, and those of a prompt are alike. A draft is kept up to a place that is known once it is verified, and the
response behind it has the law of those responses to its prompt that are longer. Verification takes no time here.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LIMIT, GROUP, HALF, STEPS = 4096, 8, 512, 20
"""Tokens of the longest response, responses of a prompt, rows at which a pass takes twice as long, and repetitions."""
MEDIAN, OF_PROMPTS, WITHIN = 700, 0.7, 0.45
"""Of lengths, tokens; standard deviations of their logarithms between the prompts and within one."""
KEPT_WHOLE = 0.4
"""Share of drafts that are kept whole; others are cut uniformly."""
CASES = {(2048, 1024): "paper's replica", (2048, 256): "few rows", (512, 384): "one wave and a half"}
"""Responses and rows."""
WITHOUT_DRAFTS = (0.0, 0.125, 1.0)
"""Shares of responses without a draft; samples that take turns to be drawn anew are an eighth of a group of 8."""


@dataclass(frozen=True)
class Step:
    """Responses of a step.

    Attributes:
        left: int64 (n,), tokens that each will decode; nobody knows.
        draft: int64 (n,), of its draft, 0 without one.
        kept: int64 (n,), of the draft.
    """

    left: np.ndarray
    draft: np.ndarray
    kept: np.ndarray


def a_step(responses: int, without: float, seed: int) -> Step:
    """Responses in the order in which they are submitted: by prompt."""
    numbers = np.random.default_rng(seed)
    prompts = np.repeat(numbers.normal(np.log(MEDIAN), OF_PROMPTS, responses // GROUP), GROUP)

    def lengths() -> np.ndarray:
        drawn = np.exp(prompts + WITHIN * numbers.normal(size=len(prompts)))
        return np.minimum(drawn, LIMIT).astype(np.int64).clip(min=1)

    draft = np.where(numbers.random(len(prompts)) < without, 0, lengths())
    whole = (numbers.random(len(prompts)) < KEPT_WHOLE) & (draft > 0)
    kept = np.where(whole, draft, (numbers.random(len(prompts)) * draft).astype(np.int64))
    ends = lengths()
    for _ in range(50):
        ends = np.where(ends > kept, ends, lengths())
    return Step(np.where(whole, 0, np.maximum(ends - kept, 1).clip(max=LIMIT - kept)), draft, kept)


ORDERS: dict[str, Callable[[Step], np.ndarray]] = {
    "submission": lambda step: np.arange(len(step.left)),
    "longest draft first, others last": lambda step: np.argsort(-step.draft, kind="stable"),
    "no draft first, then longest": lambda step: np.argsort(-np.where(step.draft, step.draft, LIMIT), kind="stable"),
    "longest expected continuation": lambda step: np.argsort(
        -np.where(step.draft, step.draft - step.kept, step.draft.max(initial=1)), kind="stable"
    ),
    "bound: longest continuation": lambda step: np.argsort(-step.left, kind="stable"),
}  # fmt: skip
"""The third is the in-process engine's. The fourth knows the cuts, as an engine can that gives rows after verification.
"""


def seconds(left: np.ndarray, rows: int) -> tuple[float, float]:
    """Time of decoding in an order, and the share of it in which fewer than a tenth of the most rows are active."""
    waiting, ends, clock, tail, now = list(left[left > 0][::-1]), [], 0.0, 0.0, 0
    most = min(rows, len(waiting))
    while waiting or ends:
        while waiting and len(ends) < rows:
            heapq.heappush(ends, now + waiting.pop())
        active, upto = len(ends), ends[0]
        took = (upto - now) * (1 + active / HALF)
        clock, now = clock + took, upto
        tail += took if active < 0.1 * most else 0.0
        while ends and ends[0] == now:
            heapq.heappop(ends)
    return clock, tail / clock


def main() -> None:
    """Print a table for each size and share of drafts: time over that of submission, and the tail."""
    for (responses, rows), name in CASES.items():
        for without in WITHOUT_DRAFTS:
            print(f"{name}: {responses} responses on {rows} rows, {without:.0%} without a draft")
            steps = [a_step(responses, without, seed) for seed in range(STEPS)]
            base = np.array([seconds(step.left, rows)[0] for step in steps])
            for order, of in ORDERS.items():
                found = np.array([seconds(step.left[of(step)], rows) for step in steps])
                shares = found[:, 0] / base
                spread = f"[{shares.min():.3f}, {shares.max():.3f}]"
                print(f"  {order:<34} {shares.mean():.3f} {spread}  tail {found[:, 1].mean():5.1%}")


if __name__ == "__main__":
    main()
