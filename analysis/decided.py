"""How many claims the first blocks of a campaign decide: what a smaller campaign would have said, and its cost."""

from collections import Counter
from dataclasses import dataclass

from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REPRODUCED, judge
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured, MeasuredPoint, Measuring
from redraft.analysis.data.reported_tables import no_reported
from redraft.analysis.measuring import families_of
from redraft.analysis.tables.comparison import TableSource
from redraft.analysis.tables.resolved import Resolved
from redraft.config import Experiments
from redraft.layout import Layout

SIZES = (2, 3, 5, 10, 20, 30)
"""Numbers of blocks to judge, in addition to all blocks."""


@dataclass(frozen=True)
class DecidedClaims:
    """Counts of verdicts on a paper's claims, with only the first blocks.

    Attributes:
        units: blocks (seeds, if the preset has no blocks).
        runs: number of runs in these blocks.
        hours: total training time of these runs.
        reproduced, contradicted, inconclusive: claims with this verdict.
        primary: primary claims that are decided.
        of_primary: primary claims with runs.
    """

    units: int
    runs: int
    hours: float
    reproduced: int
    contradicted: int
    inconclusive: int
    primary: int
    of_primary: int


class FirstBlocks(Measuring):
    """The measurements of the first blocks alone, as of a fixed campaign."""

    def __init__(self, measured: Measured, units: int) -> None:
        runs = measured.runs
        unit = {int(seed): runs.blocks.get(int(seed), int(seed)) for seed in sorted(runs.runs["seed"].unique())}
        kept = list(dict.fromkeys(unit.values()))[:units]
        seeds = {seed for seed in unit if unit[seed] in kept}
        frames = (frame[frame["seed"].isin(seeds)] for frame in (runs.runs, runs.steps, runs.scores))
        kept_points = {key: _of(points, seeds) for key, points in measured.found.items()}
        super().__init__(Runs(*frames), kept_points)


def _of(points: list[MeasuredPoint], seeds: set[int]) -> list[MeasuredPoint]:
    kept = [
        MeasuredPoint(
            point.x,
            {seed: value for seed, value in point.values.items() if seed in seeds},
            {seed: value for seed, value in point.noise.items() if seed in seeds},
        )
        for point in points
    ]
    return [point for point in kept if point.values]


def decided_claims(preset: str, paper: str) -> list[DecidedClaims]:
    """Verdicts after the first 2, 3, 5, 10, 20 and 30 blocks and after all, as far as the collected runs go.

    Each line is judged as a fixed campaign with that many blocks: p-values are corrected over the comparisons of that
    line. The lines share runs, so they must not be read as repeated tests; for those see `redraft run-until`.

    Raises:
        UserError: if nothing of the paper was collected and measured.
    """
    experiments, folder = Experiments(), Layout(preset).collected(paper)
    measured, resolved = Measured.load(folder), Resolved.load(folder)
    claims, scale = experiments.claims(paper).claims, experiments.preset(preset).paper_scale
    seeds = measured.runs.runs["seed"]
    whole = len({measured.runs.blocks.get(seed, seed) for seed in seeds})
    found = []
    for units in sorted({whole, *(size for size in SIZES if size < whole)}):
        part = FirstBlocks(measured, units)
        families = families_of(TableSource(part, no_reported(), resolved), experiments)
        judged = [claim for claim in judge(claims, part, scale, families=families) if claim["verdict"] != NOT_RUN]
        count = Counter(claim["verdict"] for claim in judged)
        primary = [claim["verdict"] != INCONCLUSIVE for claim in judged if claim["primary"]]
        runs = part.runs.runs
        found.append(
            DecidedClaims(
                units,
                len(runs),
                float(runs["seconds"].sum()) / 3600,
                count[REPRODUCED],
                count[CONTRADICTED],
                count[INCONCLUSIVE],
                sum(primary),
                len(primary),
            )
        )
    return found
