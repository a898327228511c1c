"""What it takes to decide a claim: `redraft seeds`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.analysis.claims.verdicts import INCONCLUSIVE, REASONS
from redraft.analysis.cost.campaign_cost import training_line
from redraft.analysis.data.sequential import MOST_BLOCKS
from redraft.analysis.data.words import with_minus
from redraft.analysis.pages.claims_page import CLAIMS, is_untested, size_text
from redraft.config import Experiments, Preset
from redraft.config.base import near
from redraft.config.read import check_known
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.messages import counted
from redraft.result_files import read_with_hash


@dataclass(frozen=True)
class SeedsNeeded:
    """What it takes to decide a comparison of a claim.

    Attributes:
        comparison: its label.
        units: blocks (seeds, if the preset has no blocks) that it has.
        mean: measured value; None if it is no finite number.
        required: required value.
        could_show: smallest distance from the required value that so many units show in four of five campaigns, of
            ratios a factor; ∞ if the spread is not known.
        needed: units that show the measured distance in four of five campaigns; None beyond `MOST_BLOCKS`.
        decides: whether the claim's verdict depends on this comparison.
    """

    comparison: str
    units: int
    mean: float | None
    required: float
    could_show: str
    needed: int | None
    decides: bool


def seeds_needed(claim: Mapping[str, Any]) -> list[SeedsNeeded]:
    """What it takes to decide each tested comparison of a judged claim."""
    return [
        SeedsNeeded(
            with_minus(part["label"]),
            power["units"],
            part["mean"],
            part["threshold"],
            size_text(power["effect"], power["is_ratio"]),
            power["needed"],
            index == claim.get("deciding"),
        )
        for index, part in enumerate(claim["parts"])
        if (power := part.get("power"))
    ]


def judged_claim(layout: Layout, experiments: Experiments, name: str) -> tuple[str, dict[str, Any]]:
    """The paper and a judged claim, by its id or `paper/id`.

    Raises:
        UserError: with similar names if no paper has such a claim; if more than one has it, or if it has no verdict at
            the preset yet.
    """
    paper, _, claim_id = name.rpartition("/")
    ids = {each: [claim.id for claim in experiments.claims(each).claims] for each in experiments.papers}
    if paper:
        check_known([paper], ids, "no such paper", key="claim")
    having = [each for each in ([paper] if paper else ids) if claim_id in ids[each]]
    if not having:
        known = ids[paper] if paper else [*ids, *(claim for claims in ids.values() for claim in claims)]
        # All of a hundred claims help no one.
        similar = near(claim_id, known)
        files = f"the id of a claim in experiments/{paper or 'PAPER'}/claims.yaml"
        allowed = similar if similar != known else [*([] if paper else ids), files]
        raise UserError(
            "no such claim" if paper else "no such claim or paper", key="claim", value=name, allowed=allowed
        )
    if len(having) > 1:
        raise UserError(
            "several papers have this claim", key="claim", value=name, allowed=[f"{p}/{claim_id}" for p in having]
        )
    file = layout.claims(having[0])
    judged = {claim["id"]: claim for claim in read_with_hash(file, CLAIMS)} if file.exists() else {}
    if claim_id not in judged:
        hint = f"train and judge it first: snakemake --config preset={layout.preset} papers={having[0]}"
        raise UserError("this claim has no verdict yet", file=file, key="claim", value=name, hint=hint)
    return having[0], judged[claim_id]


def advice(
    claim: Mapping[str, Any],
    rows: Sequence[SeedsNeeded],
    paper: str,
    experiments: Experiments,
    preset: Preset,
    layout: Layout,
) -> list[str]:
    """What would decide an inconclusive claim, with the command and the runs that it starts, or why nothing would.

    Empty for a claim that is decided.
    """
    unit = "block" if preset.blocks > 1 else "seed"
    if not rows:
        return [f"nothing is tested: {claim['evidence']}"]
    if claim["verdict"] != INCONCLUSIVE:
        return []
    if claim.get("why") != "seeds":
        return [f"more {unit}s do not decide it: {REASONS.get(claim.get('why', ''), 'an earlier version judged it')}"]
    row = next(row for row in rows if row.decides)
    if row.needed is None:
        return [f"an effect as small as measured needs more than {MOST_BLOCKS:,} {unit}s"]
    if row.needed <= row.units:
        return [
            f"{row.needed} {unit}s decide an effect as measured in four of five campaigns; this is one of the others"
        ]
    more = row.needed - row.units
    # Without a test no effect is measured.
    untested = is_untested(claim["parts"][claim["deciding"]]["power"])
    what = "a test needs at least" if untested else "an effect as measured needs"
    found = [f"{what} {counted(more, f'more {unit}')}"]
    if preset.blocks > 1 and row.needed > preset.blocks:
        fix = f"one with `blocks: {row.needed}` and as many seeds has enough"
        return [*found, f"the preset has {preset.blocks} blocks; {fix}"]
    if not Path("Snakefile").exists():
        return [*found, "these results cannot be continued without their runs; in a checkout all of them are trained"]
    target, missing = _command(paper, set(claim["manifests"]), row.needed, experiments, preset, layout)
    cost = training_line(missing, experiments, preset, layout) or "hours unknown"
    command = f"snakemake {target}--config preset={preset.name} papers={paper} seeds={row.needed}"
    which, option = ("primary claims", "") if claim.get("primary") else ("claims", " --all")
    until = f"redraft run-until {paper} --preset {preset.name}{option}"
    if layout.looks(paper).exists():
        return [*found, f"this campaign is sequential; it goes on with: {until}"]
    found += [f"start them with: {command}", f"it trains {len(missing)} runs; {cost}"]
    return [*found, f"or add {unit}s until the paper's {which} are decided: {until}"]


def _command(
    paper: str, cells: set[str], seeds: int, experiments: Experiments, preset: Preset, layout: Layout
) -> tuple[str, list[str]]:
    """The smallest target of Snakemake that has these cells, and the cell of each run that it trains."""
    reproduction = experiments.grids(paper, beyond_paper=False)
    grids = {
        "": experiments.default_grids(preset, paper) or [],
        "reproduction ": reproduction,
        "extras ": reproduction + experiments.grids(paper, beyond_paper=True),
    }
    known = {
        target: [cell for cell in experiments.cells(paper, of) if not preset.lacks(cell)]
        for target, of in grids.items()
    }
    target = next((name for name, found in known.items() if cells <= {cell.name for cell in found}), "extras ")
    runs = [(cell, seed) for cell in known[target] for seed in range(seeds)]
    return target, [c.id for c, seed in runs if not (layout.run(c.id, seed) / "manifest.json").exists()]
