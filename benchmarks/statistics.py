"""How often verdicts are wrong, by simulated campaigns that go through the code which decides.

`python -m benchmarks statistics`. A campaign has one baseline and several cells, each compared with the baseline by one
claim about accuracy. Accuracies are a block's value plus a seed's; blocks are shared by all cells, as problems and
initial policies are, and the baseline by all claims, so comparisons are correlated. Claims of the primary family are as
many as SPEC-RL's. Nothing is measured here that depends on the machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from redraft.analysis.claims.verdicts import CONTRADICTED, REPRODUCED, judge
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.power import standardized
from redraft.analysis.data.statistics import LEVEL
from redraft.cli.terminal import table
from redraft.config import Claim, Clock, Compare

CAMPAIGNS = 1000
"""Simulated campaigns of each design, without an effect and with one; 5 % has a standard error of 0.7 points."""
CELLS = 36
"""Comparisons of a campaign, as many as the default one decides, of which the first `PRIMARY` are primary."""
PRIMARY = 3
QUANTITY, BASELINE = "accuracy:all", "grpo-vanilla"
OF_BLOCK, OF_EFFECT, OF_SEED = 3.0, 1.0, 1.5
"""Standard deviations, points: of a block's level, which comparisons cancel, of a cell's effect in a block, and of a
seed in a cell. The spread of a difference is that of tiny campaigns, about 2.5 points with one seed a block."""
DESIGNS = ((3, 3), (5, 5), (10, 5), (10, 10))
"""Seeds and blocks."""


@dataclass(frozen=True)
class Rates:
    """Shares of campaigns, or of comparisons.

    Attributes:
        primary: campaigns with a false verdict on a primary claim.
        other: campaigns with a false verdict on another claim.
        covered: 95 % intervals that contain the true difference.
        size: smallest difference, points, that a primary claim would see in four of five campaigns.
        seen: campaigns that see it, where it is the only true difference.
    """

    primary: float
    other: float
    covered: float
    size: float
    seen: float


class Simulated(Measured):
    """Accuracies of made-up runs."""

    def __init__(self, values: dict[str, dict[int, float]], blocks: int) -> None:
        seeds = sorted(values[BASELINE])
        lines = [
            {"cell": cell, "seed": seed, "manifest": "", "block": seed % blocks} for cell in values for seed in seeds
        ]
        scores = pd.DataFrame(columns=["cell", "seed", "step", "benchmark", "role", "correct", "total"])
        super().__init__(Runs(pd.DataFrame(lines), pd.DataFrame(columns=["cell", "seed", "step"]), scores))
        self._values = values

    def values(self, quantity: str, cell: str, at: int | None = None, clock: Clock = "steps") -> dict[int, float]:
        """The accuracy of a cell by seed."""
        return self._values[cell]


def claims() -> list[Claim]:
    """One claim for each cell: it is above the baseline."""
    return [
        Claim(
            id=f"claim-{i}",
            quotation="q",
            section="1",
            primary=i < PRIMARY,
            test=Compare(quantity=QUANTITY, cell=f"cell-{i}", baseline=BASELINE, expected="above", threshold=0.0),
        )
        for i in range(CELLS)
    ]


def campaign(rng: np.random.Generator, seeds: int, blocks: int, effects: np.ndarray) -> Simulated:
    """Accuracies with a true difference from the baseline for each cell, points."""
    levels = rng.normal(50, OF_BLOCK, blocks)
    names = [BASELINE, *(f"cell-{i}" for i in range(CELLS))]
    values = {}
    for name, effect in zip(names, (0.0, *effects), strict=True):
        in_block = levels + effect + rng.normal(0, OF_EFFECT, blocks)
        values[name] = {seed: float(in_block[seed % blocks] + rng.normal(0, OF_SEED)) for seed in range(seeds)}
    return Simulated(values, blocks)


def judged(rng: np.random.Generator, seeds: int, blocks: int, effects: np.ndarray) -> Iterator[list[dict]]:
    """Verdicts of `CAMPAIGNS` campaigns."""
    declared = claims()
    for _ in range(CAMPAIGNS):
        yield judge(declared, campaign(rng, seeds, blocks, effects), True)


def rates(seeds: int, blocks: int, rng: np.random.Generator) -> Rates:
    """Rates of a design: under no effect, and with the effects that it would see."""
    wrong, covered = [], []
    for verdicts in judged(rng, seeds, blocks, np.zeros(CELLS)):
        decided = [verdict["verdict"] in (REPRODUCED, CONTRADICTED) for verdict in verdicts]
        wrong.append((any(decided[:PRIMARY]), any(decided[PRIMARY:])))
        covered += [verdict["parts"][0]["low"] <= 0 <= verdict["parts"][0]["high"] for verdict in verdicts]
    # Of a difference between two cells in a block; the level is that of the only significant one of its family.
    spread = np.hypot(OF_EFFECT, OF_SEED / np.sqrt(seeds / blocks)) * np.sqrt(2)
    size = standardized(blocks, LEVEL / PRIMARY) * spread
    effects = np.array([size, *np.zeros(CELLS - 1)])
    seen = [verdicts[0]["verdict"] == REPRODUCED for verdicts in judged(rng, seeds, blocks, effects)]
    primary, other = np.mean(wrong, axis=0)
    return Rates(float(primary), float(other), float(np.mean(covered)), float(size), float(np.mean(seen)))


def main() -> None:
    """Print the rates of each design."""
    rng = np.random.default_rng(0)
    rows = []
    for seeds, blocks in DESIGNS:
        found = rates(seeds, blocks, rng)
        shares = [f"{100 * rate:.1f} %" for rate in (found.primary, found.other, found.covered, found.seen)]
        rows.append([f"{seeds} in {blocks} blocks", *shares[:3], f"{found.size:.1f}", shares[3]])
    header = ["seeds", "false primary verdict", "false other verdict", "covered", "could see (points)", "saw it"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
