"""`redraft advise`: predicted savings of cheap rollouts, from a run's rollouts and a roofline (docs/advise.md)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.files import atomic
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.lab.advise.advice import Advice, Row
    from redraft.lab.advise.replayed import Drafters
    from redraft.lab.predict.jackknife import IntervalEstimate

LEGEND = (
    "seconds: of one step's rollout; saved: saved share of plain decoding's seconds; passes: forward passes until the "
    "last response ends; in brackets: 95 % interval over prompts, by the bootstrap."
)
LEFT_OUT = (
    "The roofline leaves out sampling, scheduling, padding of blocks, building indices of earlier rollouts, and "
    "prefixes that responses of a prompt share. All responses of a batch start at once. Drafts are verified whole, and "
    "drafters propose in every pass. Later epochs may drift less or more than these two (docs/advise.md)."
)


def advise(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run without reuse.")],
    roofline: Annotated[
        str, typer.Option(help="Device: a100, h100, or a file that `redraft calibrate` wrote (docs/advise.md).")
    ] = "a100",
    model: Annotated[
        Path | None, typer.Option(help="Predict for another model with the same responses: its folder or config.json.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Epoch to replay, counted from 0; the last one if empty.", min=1)
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts whose responses decode at once; as in a step if empty.", min=1)
    ] = None,
    lenience: Annotated[str, typer.Option(help="Lenience of the published rule.")] = "e^0.5",
    draft_length: Annotated[
        int | None,
        typer.Option(help="Most proposals of a drafter in a pass; each decoding's default if empty.", min=1, max=64),
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="Longest match of ngram and suffix, tokens; their defaults if empty.", min=1)
    ] = None,
    shortest: Annotated[
        int | None, typer.Option(help="Shortest match of ngram and suffix, tokens; their defaults if empty.", min=1)
    ] = None,
    lookup: Annotated[float, typer.Option(help="Time of one lookup of a context, microseconds.", min=0)] = 10.0,
    with_policies: Annotated[
        bool, typer.Option("--policies/--no-policies", help="Acceptance from saved policies, or from tokens only.")
    ] = True,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device for the saved policies.")] = "auto",
    csv: Annotated[Path | None, typer.Option(help="Also write all rows to this CSV file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long a step's rollout takes with each cheap method, from two epochs of a run without reuse."""
    from redraft.lab.advise.advice import advice
    from redraft.lab.advise.work import Device
    from redraft.lab.predict.saved_run import open_run
    from redraft.selfspec.constants import read_model
    from redraft.selfspec.devices import calibration_of

    # Options first: reading rollouts may take minutes.
    drafters = _drafters(draft_length, longest, shortest)
    factor = _lenience(lenience)
    calibration_of(roofline, read_model(model) if model else None)
    run = open_run(folder)
    drafters = replace(drafters, limit=run.configuration.trainer.max_response_tokens)
    constants = read_model(model or run.any_policy)
    seconds = Device(calibration_of(roofline, constants), 1e-6 * lookup)
    found = advice(run, seconds, drafters, factor, epoch, prompts, device, with_policies=with_policies)
    notes = [found.sentence, *found.unknown, LEGEND, LEFT_OUT]
    used = f"Roofline: {roofline}; model: {constants.name}; {found.batch} prompts decode at once. {found.text}"
    rows = [_record(row) for row in found.rows]
    if csv:
        _write(csv, rows)
    if as_json:
        request = {
            "path": folder,
            "roofline": roofline,
            "model": model,
            "epoch": epoch,
            "prompts": found.batch,
            "lenience": lenience,
            "draft_length": draft_length,
            "longest": longest,
            "shortest": shortest,
            "lookup": lookup,
            "policies": with_policies,
        }
        echo(document("advise", request, rows, [used, *notes]))
        return
    echo("\n\n".join([filled(used), _table(found), *map(filled, notes)]))


def _drafters(draft_length: int | None, longest: int | None, shortest: int | None) -> "Drafters":
    """The decodings' defaults, but for the options that are given."""
    from redraft.lab.advise.replayed import Drafters

    defaults = Drafters()
    lengths = {"draft_lengths": [draft_length]} if draft_length else {}
    matches = {name: value for name, value in (("longest", longest), ("shortest", shortest)) if value}
    for decoding in (defaults.ngram, defaults.suffix):
        most, least = longest or decoding.longest, shortest or decoding.shortest
        if least > most:
            key, value = ("--shortest", shortest) if shortest else ("--longest", longest)
            allowed = f"1 to {most}" if shortest else f"{least} or more, {decoding.kind}'s shortest match"
            raise UserError("no context is both", key=key, value=value, allowed=allowed)
    return Drafters(
        defaults.ngram.model_copy(update=lengths | matches),
        defaults.suffix.model_copy(update=lengths | matches),
        defaults.head.model_copy(update=lengths),
        defaults.self_speculation.model_copy(update=lengths),
    )


def _lenience(text: str) -> float:
    from redraft.config.base import parse_lenience

    try:
        return parse_lenience(text)
    except ValueError as error:
        raise UserError(f"a lenience {error}", key="--lenience", value=text) from None


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pandas as pd

    with atomic(file) as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)


def _record(row: "Row") -> dict[str, Any]:
    """Row of the JSON document and of the CSV file; ends of intervals have the suffixes `_low` and `_high`."""
    record: dict[str, Any] = {"method": row.method, "exact": row.exact, "source": row.source, "tied": row.tied}
    for name, value in (("seconds", row.seconds), ("saved", row.saved)):
        record |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return record | {"passes": row.passes}


def _table(found: "Advice") -> str:
    header = ["method", "exact", "seconds", "saved, %", "passes", "from"]
    cells = [
        [
            row.method,
            "yes" if row.exact else "no",
            f"{row.seconds.value:.3g}" if math.isfinite(row.seconds.value) else "unknown",
            _percent(row.saved),
            f"{row.passes:.0f}" if math.isfinite(row.passes) else "-",
            row.source,
        ]
        for row in found.rows
    ]
    return table(header, cells, left=["exact", "from"], wraps=["method"])


def _percent(of: "IntervalEstimate") -> str:
    if not math.isfinite(of.value):
        return f"{100 * of.low:.0f} to {100 * of.high:.0f}" if math.isfinite(of.high) else "unknown"
    if of.low == of.high:  # plain decoding's
        return f"{100 * of.value:.0f}"
    return f"{100 * of.value:.0f}" + (f" [{100 * of.low:.0f}, {100 * of.high:.0f}]" if math.isfinite(of.low) else "")
