"""Seconds of runs that were trained again side by side (`redraft.train.local.side_by_side`), in place of their own."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from redraft.files import read_json, read_parquet
from redraft.layout import Layout
from redraft.provenance import check_hashes, hashes

SPREAD = "repeats_spread"
"""Column of steps: longest over shortest seconds of the step's rollouts among the rounds; NaN without rounds."""
GENERATION = ["seconds.verification", "seconds.rollout", "seconds.assembly"]
KEY = ["cell", "step"]


def with_repeats(
    steps: pd.DataFrame, manifests: Mapping[tuple[str, int], Path], layout: Layout, paper: str
) -> pd.DataFrame:
    """Steps with the median seconds of their repeats, for the seeds all of whose runs were repeated.

    Seconds of one seed are compared with each other, so all are of training, or all of repeats. `manifests` are
    those of the runs by cell and seed.

    Raises:
        UserError: if a file of repeats is not the one that its record names.
    """
    parts = []
    for seed, part in steps.groupby("seed", sort=False):
        file = layout.timing(paper, int(seed))  # type: ignore[call-overload]
        own = {cell: path for (cell, of), path in manifests.items() if of == seed}
        parts.append(_repeated(part, file) if _covers(file, own) else part.assign(**{SPREAD: math.nan}))
    return pd.concat(parts, ignore_index=True)


def _covers(file: Path, manifests: Mapping[str, Path]) -> bool:
    """Test for repeats of all these runs as they are now; if there are repeats of some, say of which there are none."""
    record = file.with_suffix(".json")
    if not record.exists():
        return False
    content = read_json(record)
    check_hashes(file.parent, content["sha256"], record)
    without = [cell for cell, path in manifests.items() if content["made_from"].get(cell) not in hashes(path).values()]
    if without:
        print(f"seconds are those of training, since {', '.join(without)} was not repeated: {file}", file=sys.stderr)
    return not without


def _repeated(steps: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Steps of one seed with the seconds of a file of repeats."""
    rounds = read_parquet(file, (*KEY, "round", *GENERATION))
    stages = [name for name in rounds if name.startswith("seconds.")]
    by_step = rounds.assign(generation=rounds[GENERATION].sum(axis=1)).groupby(KEY)
    seconds = by_step[stages].median()  # stages that are not repeated have one value, and NaN in the other rounds
    seconds["seconds.total"] = seconds.sum(axis=1)
    seconds[SPREAD] = by_step["generation"].max() / by_step["generation"].min()
    kept = steps.drop(columns=[name for name in seconds if name in steps])
    return kept.merge(seconds.reset_index(), on=KEY, validate="1:1")
