"""How often verdicts are wrong, by simulated campaigns that go through the code which decides.

`python -m benchmarks statistics`. A campaign has one baseline and several cells, each compared with the baseline by one
claim about accuracy. Accuracies are a block's value plus a seed's; blocks are shared by all cells, as problems and
initial policies are, and the baseline by all claims, so comparisons are correlated. Claims of the primary family are as
many as SPEC-RL's. Nothing is measured here that depends on the machine.

The second table is of sequential campaigns (`redraft run-until`), beside campaigns of a fixed number of blocks that
decide as many claims.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from redraft.analysis.claims.campaign import next_blocks
from redraft.analysis.claims.verdicts import CONTRADICTED, REPRODUCED, judge
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.power import standardized
from redraft.analysis.data.sequential import Looks
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
LOOKS = (5, 8, 12, 18, 27)
"""Looks of sequential campaigns, the default of `redraft run-until`."""
SEQUENTIAL, SEQUENTIAL_CELLS = 10_000, 6
"""Sequential campaigns without an effect, and their comparisons; with effects there are `CAMPAIGNS`."""
FIXED = (5, 8, 10, 12, 14, 16, 18, 21)
"""Numbers of blocks of fixed campaigns, between which the equally powerful one is interpolated."""
EFFECTS = (
    *(0.14, 0.23, 0.33, 0.58, 0.74, 0.84, 0.89, 1.07, 1.3, 1.49, 1.88, 2.18, 2.33, 2.35, 2.49, 2.5, 2.52, 2.55, 2.71),
    *(2.88, 2.88, 3.13, 3.54, 3.92, 3.96, 4.21, 4.53, 4.56, 4.64, 5.1, 5.72, 6.36, 7.33, 8.48, 15.6, 67.9),
)
"""Distances of SPEC-RL's claims from their thresholds in the tiny campaign of 3 blocks, in standard deviations of a
block. Of three blocks they are too large on average, by 1 / `HEDGES`."""
HEDGES = 0.564
"""Hedges' correction of a standardized effect at two degrees of freedom: Γ(1) / Γ(1/2)."""


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

    def __init__(self, values: dict[str, dict[int, float]], blocks: int, looks: Looks = ()) -> None:
        lines = [
            {"cell": cell, "seed": seed, "manifest": "", "block": seed % blocks}
            for cell, by_seed in values.items()
            for seed in by_seed
        ]
        scores = pd.DataFrame(columns=["cell", "seed", "step", "benchmark", "role", "correct", "total"])
        super().__init__(Runs(pd.DataFrame(lines), pd.DataFrame(columns=["cell", "seed", "step"]), scores, looks))
        self.by_cell = values

    def values(self, quantity: str, cell: str, at: int | None = None, clock: Clock = "steps") -> dict[int, float]:
        """The accuracy of a cell by seed."""
        return self.by_cell[cell]


def claims(cells: int = CELLS) -> list[Claim]:
    """One claim for each cell: it is above the baseline."""
    return [
        Claim(
            id=f"claim-{i}",
            quotation="q",
            section="1",
            primary=i < PRIMARY,
            test=Compare(quantity=QUANTITY, cell=f"cell-{i}", baseline=BASELINE, expected="above", threshold=0.0),
        )
        for i in range(cells)
    ]


def campaign(rng: np.random.Generator, seeds: int, blocks: int, effects: np.ndarray) -> Simulated:
    """Accuracies with a true difference from the baseline for each cell, points."""
    levels = rng.normal(50, OF_BLOCK, blocks)
    names = [BASELINE, *(f"cell-{i}" for i in range(len(effects)))]
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
    # The level is that of the only significant one of its family.
    size = standardized(blocks, LEVEL / PRIMARY) * spread_of(seeds / blocks)
    effects = np.array([size, *np.zeros(CELLS - 1)])
    seen = [verdicts[0]["verdict"] == REPRODUCED for verdicts in judged(rng, seeds, blocks, effects)]
    primary, other = np.mean(wrong, axis=0)
    return Rates(float(primary), float(other), float(np.mean(covered)), float(size), float(np.mean(seen)))


def spread_of(seeds: float = 1.0) -> float:
    """Standard deviation, points, of a difference between two cells in a block of so many seeds."""
    return float(np.hypot(OF_EFFECT, OF_SEED / np.sqrt(seeds)) * np.sqrt(2))


@dataclass(frozen=True)
class Sequential:
    """Shares of sequential campaigns, or of their claims, and their runs.

    Attributes:
        primary: campaigns with a false verdict on a primary claim.
        other: campaigns with a false verdict on another claim.
        decided: claims with the right verdict.
        runs: mean number of runs of a campaign.
    """

    primary: float
    other: float
    decided: float
    runs: float


def sequential(rng: np.random.Generator, campaigns: int, sizes: Sequence[float], looks: Looks) -> Sequential:
    """Rates of sequential campaigns, or of fixed ones with a single look.

    Args:
        rng: random numbers.
        campaigns: number of campaigns.
        sizes: true effects in standard deviations of a block; each claim has one of them, of a random sign.
        looks: numbers of blocks.
    """
    declared, wrong, right, runs = claims(SEQUENTIAL_CELLS), [], [], []
    plan = looks if len(looks) > 1 else ()
    for _ in range(campaigns):
        effects = rng.choice(sizes, SEQUENTIAL_CELLS) * rng.choice([-1, 1], SEQUENTIAL_CELLS) * spread_of()
        whole = campaign(rng, looks[-1], looks[-1], effects).by_cell
        blocks, verdicts = dict.fromkeys(whole, 0), []
        wanted = dict.fromkeys(whole, looks[0])
        while wanted:
            blocks |= wanted
            values = {cell: {seed: whole[cell][seed] for seed in range(n)} for cell, n in blocks.items()}
            verdicts = judge(declared, Simulated(values, looks[-1], plan), True)
            wanted = next_blocks(verdicts) if plan else {}
        found = np.array([{REPRODUCED: 1, CONTRADICTED: -1}.get(verdict["verdict"], 0) for verdict in verdicts])
        false = (found != 0) & (found != np.sign(effects))
        wrong.append((false[:PRIMARY].any(), false[PRIMARY:].any()))
        right.append(np.mean((found != 0) & ~false))
        runs.append(sum(blocks.values()))
    primary, other = np.mean(wrong, axis=0)
    return Sequential(float(primary), float(other), float(np.mean(right)), float(np.mean(runs)))


def main() -> None:
    """Print the rates of each design, and of sequential campaigns."""
    rng = np.random.default_rng(0)
    rows = []
    for seeds, blocks in DESIGNS:
        found = rates(seeds, blocks, rng)
        shares = [f"{100 * rate:.1f} %" for rate in (found.primary, found.other, found.covered, found.seen)]
        rows.append([f"{seeds} in {blocks} blocks", *shares[:3], f"{found.size:.1f}", shares[3]])
    header = ["seeds", "false primary verdict", "false other verdict", "covered", "could show (points)", "showed it"]
    print(table(header, rows), flush=True)
    print_sequential(rng)


def print_sequential(rng: np.random.Generator) -> None:
    """Print the rates of sequential campaigns, and the runs of fixed ones that decide as many claims."""
    null = sequential(rng, SEQUENTIAL, [0.0], LOOKS)
    print(f"\n{SEQUENTIAL:,} sequential campaigns without an effect, looks after {', '.join(map(str, LOOKS))} blocks:")
    print(f"false primary verdict {100 * null.primary:.1f} %, false other verdict {100 * null.other:.1f} %, ", end="")
    print(f"{null.runs / (SEQUENTIAL_CELLS + 1):.1f} blocks a cell", flush=True)
    rows = []
    for name, factor in (("as measured", 1.0), ("corrected", HEDGES)):
        sizes = [factor * size for size in EFFECTS]
        found = sequential(rng, CAMPAIGNS, sizes, LOOKS)
        powers = [sequential(rng, CAMPAIGNS, sizes, (n,)).decided for n in FIXED]
        fixed = float(np.interp(found.decided, powers, FIXED)) * (SEQUENTIAL_CELLS + 1)
        shares = [f"{100 * share:.1f} %" for share in (found.decided, found.primary, found.other)]
        rows.append([name, *shares, f"{found.runs:.0f}", f"{fixed:.0f}", f"{100 * (1 - found.runs / fixed):.0f} %"])
    header = ["effects", "decided", "false primary", "false other", "runs", "fixed runs", "fewer"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
