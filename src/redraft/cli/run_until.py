"""`redraft run-until`: a sequential campaign, which ends when its claims are decided."""

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Cells, Preset
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.analysis.claims.campaign import Judged
    from redraft.config import Experiments
    from redraft.config import Preset as PresetModel
    from redraft.layout import Layout

LOOKS = (5, 8, 12, 18, 27)
"""Looks of a campaign that declares none."""
LOOKS_TEXT = ",".join(map(str, LOOKS))
TARGETS = ("", "reproduction", "extras")


def run_until(
    paper: Annotated[str, typer.Argument(help="Paper: a folder under experiments/.")],
    target: Annotated[str, typer.Option(help="Cells: reproduction or extras; the default ones if empty.")] = "",
    looks: Annotated[
        str,
        typer.Option(help=f"Numbers of blocks after which claims are tested; the saved plan, else {LOOKS}, if empty."),
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Continue until all claims are decided, not only the primary ones.")
    ] = False,
    hours: Annotated[
        float, typer.Option(min=0, help="Start no further look after so many hours of this call; 0: no limit.")
    ] = 0.0,
    preset: Preset = DEFAULT_PRESET,
    cores: Annotated[int, typer.Option(help="Processor cores.")] = os.cpu_count() or 1,
    snakemake: Annotated[str, typer.Option(help='Further options of snakemake, such as "--profile slurm".')] = "",
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Add blocks of seeds to a paper's campaign until its claims are decided.

    After each look (a test after a planned number of blocks), only the cells of undecided claims get more runs. The
    same command resumes a stopped campaign.
    """
    from redraft.analysis.claims.campaign import next_blocks, next_look
    from redraft.cli.extras import require_module
    from redraft.config import Experiments
    from redraft.layout import Layout, require, require_writable
    from redraft.ops.workflow.plan import check_paper

    require("Snakefile")
    require_module("snakemake")
    require_writable(Path("results"))
    experiments, layout, began = Experiments(), Layout(preset), time.monotonic()
    settings = experiments.preset(preset)
    further = _check(paper, target, every, snakemake, experiments)
    check_paper(experiments, settings, paper)
    planned = _plan(layout, paper, looks, settings)
    options = ["--cores", str(cores), *further, "--config", f"preset={preset}", f"papers={paper}"]
    campaign = [*options, f"seeds={planned[0]}", "--", *filter(None, [target])]
    _call(campaign, layout, as_json)
    tried: dict[str, int] = {}
    while True:
        watched = [claim for claim in _judged(layout, paper) if claim["primary"] or every]
        _print_look(watched, settings, as_json)
        # A claim that lacks values of some runs has not reached the look that its runs did.
        going = {claim["id"]: look for claim in watched if (look := next_look(claim) or 0) > tried.get(claim["id"], 0)}
        if not going:
            ended = "no other claim is likely to be decided by more runs"
            break
        if hours and time.monotonic() - began >= 3600 * hours:
            ended = f"the budget of {hours:g} hours is used up; the same command goes on"
            break
        tried |= going
        wanted = next_blocks(claim for claim in watched if claim["id"] in going)
        _call([*options, "--", *dict.fromkeys(_targets(wanted, paper, experiments, settings))], layout, as_json)
        # The runs of further seeds are no inputs of `collect`, which gathers all that are finished.
        _call(["--forcerun", "collect", *campaign], layout, as_json)
    _print_end(watched, ended, preset, paper, as_json)


def _check(paper: str, target: str, every: bool, snakemake: str, experiments: "Experiments") -> list[str]:
    """The further options of Snakemake; a UserError for a request that cannot be met."""
    if target not in TARGETS:
        raise UserError("no such target", key="--target", value=target, allowed=TARGETS[1:])
    experiments.cell_file(paper)
    if not any(claim.primary or every for claim in experiments.claims(paper).claims):
        raise UserError("this paper has no primary claims", key="paper", value=paper, hint="`--all` takes all claims")
    try:
        return shlex.split(snakemake)
    except ValueError as error:
        raise UserError(f"these are no shell options: {error}", key="--snakemake", value=snakemake) from None


def _targets(
    wanted: "Mapping[str, int]", paper: str, experiments: "Experiments", preset: "PresetModel"
) -> "Iterator[str]":
    """Files of finished runs, and of their evaluated initial policies, of the first seeds of some cells."""
    from redraft.layout import Layout

    layout = Layout(preset.name)
    for name, blocks in wanted.items():
        cell = name if "/" in name else f"{paper}/{name}"
        for seed in range(blocks):
            run, role = layout.run(cell, seed), preset.role(experiments.cell(cell).model, seed)
            yield from (str(run / file) for file in ("scores.json", "diversity.parquet"))
            yield str(layout.initial(experiments.protocol_of(preset.name, cell), role, seed) / "scores.json")


def _plan(layout: "Layout", paper: str, looks: str, preset: "PresetModel") -> tuple[int, ...]:
    """The looks of the campaign, which are written before its first one and do not change."""
    from redraft.analysis.data.sequential import planned, read_looks, write_looks
    from redraft.analysis.pages.claims_page import is_untested

    file = layout.looks(paper)
    known, judged = read_looks(file), _judged(layout, paper)
    if known and not looks:
        return known
    asked = _asked(looks, preset)
    if known and (asked == known or planned(asked, known[0]) == known):
        return known
    if known and judged:
        raise UserError(
            "the looks of a campaign that has begun cannot change",
            file=file,
            key="looks",
            value=looks,
            allowed=",".join(map(str, known)),
            hint="changing looks after seeing verdicts raises the error rate; use another preset",
        )
    if preset.blocks > 1 and asked[-1] > preset.blocks:
        raise UserError(
            "the last look needs more blocks than the preset has",
            key="--looks",
            value=looks or LOOKS_TEXT,
            allowed=f"at most {preset.blocks}",
        )
    # Verdicts that exist were a look, which is the campaign's first one.
    seen = max(
        (
            power["units"]
            for claim in judged
            for part in claim["parts"]
            if (power := part.get("power")) and not is_untested(power)
        ),
        default=0,
    )
    found = planned(asked, seen)
    if found[-1] <= seen:
        raise UserError(
            "the claims were already tested after as many blocks",
            key="--looks",
            value=looks or LOOKS_TEXT,
            allowed=f"above {seen}",
        )
    write_looks(file, found)
    return found


def _asked(looks: str, preset: "PresetModel") -> tuple[int, ...]:
    """The looks that `--looks` lists, or those of the default looks that the preset's blocks allow."""
    from redraft.analysis.data.sequential import check_looks

    fitting = [look for look in LOOKS if preset.blocks == 1 or look <= preset.blocks]
    if not looks and not fitting:
        raise UserError(
            f"the first default look is after {LOOKS[0]} blocks, and the preset has fewer",
            key="blocks",
            value=preset.blocks,
            hint="plan other looks with --looks",
        )
    try:
        return check_looks([int(number) for number in looks.split(",")] if looks else fitting, "", "--looks")
    except ValueError:
        raise UserError(
            "this is no list of whole numbers", key="--looks", value=looks, allowed=f"such as {LOOKS_TEXT}"
        ) from None


def _judged(layout: "Layout", paper: str) -> "Sequence[Judged]":
    """The judged claims; none before the first look."""
    from redraft.analysis.pages.claims_page import CLAIMS
    from redraft.result_files import read_with_hash

    file = layout.claims(paper)
    found: Sequence[Judged] = read_with_hash(file, CLAIMS) if file.exists() else []
    return found


def _call(options: list[str], layout: "Layout", as_json: bool) -> None:
    from redraft.ops.workflow.call import call

    # Snakemake's output does not mix with the JSON document on standard output.
    if code := call([sys.executable, "-m", "snakemake", *options], layout.root, sys.stderr if as_json else None):
        raise typer.Exit(code)


def _rows(claims: "Sequence[Judged]") -> list[dict[str, Any]]:
    from redraft.analysis.claims.campaign import next_look
    from redraft.analysis.claims.verdicts import NOT_RUN, REASONS

    rows = []
    for claim in claims:
        if claim["verdict"] == NOT_RUN:
            continue
        units = [part["power"]["units"] for part in claim["parts"] if part.get("power")]
        rows.append(
            {
                "claim": claim["id"],
                "verdict": claim["verdict"],
                "why": REASONS.get(claim.get("why", ""), ""),
                "blocks": min(units, default=None),
                "p": claim.get("p_corrected"),
                "next_look": next_look(claim),
            }
        )
    return rows


def _print_look(claims: "Sequence[Judged]", preset: "PresetModel", as_json: bool) -> None:
    unit = "block" if preset.blocks > 1 else "seed"
    header = ["claim", "verdict", f"{unit}s", "corrected p", f"next look ({unit}s)"]
    shown = [
        [
            row["claim"],
            row["verdict"] + (f": {row['why']}" if row["why"] else ""),
            "–" if row["blocks"] is None else str(row["blocks"]),
            "–" if row["p"] is None else f"{row['p']:.2g}",
            str(row["next_look"] or "–"),
        ]
        for row in _rows(claims)
    ]
    echo("\n" + table(header, shown, left=["claim", "verdict"], wraps=["claim", "verdict"]) + "\n", err=as_json)


def _print_end(claims: "Sequence[Judged]", ended: str, preset: str, paper: str, as_json: bool) -> None:
    rows = _rows(claims)
    decided = sum(row["verdict"] in ("reproduced", "contradicted") for row in rows)
    note = f"{decided} of {len(rows)} claims are decided; {ended}" if rows else "none of the claims was run"
    if absent := len(claims) - len(rows):
        note += f"; not run: {absent}"
    if as_json:
        echo(document("run-until", {"preset": preset, "paper": paper}, rows, [note]))
    else:
        echo(filled(note, "  "))
