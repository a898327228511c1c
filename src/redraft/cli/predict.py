"""`redraft predict`: predicts the savings of reuse from saved rollouts (docs/predict.md)."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.lab.predict.inputs import PredictionInput
    from redraft.lab.predict.jackknife import IntervalEstimate
    from redraft.lab.predict.prediction import Prediction, Throughputs

LEGEND = (
    "kept: share of the drafts' tokens; whole: share of drafts kept to the end; saved: share of a new response's "
    "tokens; break-even: ratio of the throughputs of scoring and decoding; time: share of the time to decode a new "
    "response; ±: half of a 95 % interval over prompts."
)
"""Meaning of the table's columns."""
ASSUMPTIONS = (
    "Assumptions: the drafts are the responses of the last epoch pass, sampled without top-p, and none was reused "
    "before. The policy was trained on these drafts, as in a run. Except one-hot, exact rules therefore sample from "
    "the policy's distribution only if that training does not matter (docs/exact-reuse.md)."
)


def predict(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, or a Parquet file (docs/predict.md).")
    ],
    start: Annotated[int | None, typer.Option("--from", help="Step at which a run sampled the drafts.", min=0)] = None,
    stop: Annotated[
        int | None, typer.Option("--to", help="Number of steps after which a run's current policy was saved.", min=1)
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Folder of the current policy, with a file.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Folder of the policy that sampled a file's drafts.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature of a file's drafts; 1 if empty.", min=0.01)
    ] = None,
    rules: Annotated[str, typer.Option(help="Kinds of `reuse`, separated by commas; all if empty.")] = "",
    lenience: Annotated[
        str, typer.Option(help="Leniences of the published rule, separated by commas.")
    ] = "1,e^0.2,e^0.5",
    top: Annotated[int, typer.Option(help="Stored most probable tokens per distribution (top-k).", min=1)] = 32,
    scoring: Annotated[float | None, typer.Option(help="Throughput of scoring drafts, tokens/s.")] = None,
    decoding: Annotated[float | None, typer.Option(help="Throughput of decoding, tokens/s.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of the policies.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict the savings of reuse under every rule, from saved rollouts and a later policy. Nothing is sampled."""
    from redraft.lab.predict.draft_positions import read_positions
    from redraft.lab.predict.inputs import load_policies, prediction_input
    from redraft.lab.predict.prediction import candidates, chosen, log_prob_error
    from redraft.lab.predict.prediction import predict as predict_savings

    # Options first: loading two models takes minutes.
    speed, kinds = _throughputs(scoring, decoding), [kind for kind in rules.replace(" ", "").split(",") if kind]
    candidate_rules = chosen(candidates(_leniences(lenience), top), kinds)
    inputs = prediction_input(path, start, stop, policy, drafter, temperature)
    current, earlier = load_policies(inputs, device, path)
    positions = read_positions(inputs.saved.drafts, inputs.saved.prompts, current, earlier, top, inputs.temperature)
    offset = log_prob_error(positions, inputs.drafter)  # raises if the drafts are not the drafter's
    predictions = predict_savings(inputs.saved, positions, candidate_rules, speed)
    if as_json:
        options = {
            "path": path,
            "policy": inputs.policy,
            "drafter": inputs.drafter,
            "from": start,
            "to": stop,
            "rules": kinds,
            "lenience": lenience,
            "top": top,
            "scoring": scoring,
            "decoding": decoding,
            "temperature": inputs.temperature,
        }
        notes = [_inputs_text(inputs), _offset_text(offset), ASSUMPTIONS]
        echo(document("predict", options, [each.row() for each in predictions], notes))
        return
    notes = [LEGEND, *_unknown(predictions), _offset_text(offset), ASSUMPTIONS]
    echo("\n\n".join([filled(_inputs_text(inputs)), _table(predictions, speed), *map(filled, notes)]))


def _leniences(text: str) -> list[float]:
    from redraft.config.base import parse_lenience

    try:
        return [parse_lenience(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"a lenience {error}", key="--lenience", value=text) from None


def _throughputs(scoring: float | None, decoding: float | None) -> "Throughputs | None":
    from redraft.lab.predict.prediction import Throughputs

    if scoring is None and decoding is None:
        return None
    for key, value in (("--scoring", scoring), ("--decoding", decoding)):
        # Both or none: a ratio of throughputs needs the two.
        if value is None or not 0 < value < math.inf:
            raise UserError("the time needs both throughputs", key=key, value=value, allowed="a number above 0")
    assert scoring is not None
    assert decoding is not None
    return Throughputs(scoring, decoding)


def _inputs_text(inputs: "PredictionInput") -> str:
    """Numbers and mean lengths of the drafts, and their two policies."""
    saved = inputs.saved
    lengths = [len(draft.tokens) for draft in saved.drafts]
    later = [length for _, length in saved.later]
    return (
        f"{len(lengths)} drafts of {len(saved.prompts)} prompts, {sum(lengths) / len(lengths):.1f} tokens each; a new "
        f"response has {sum(later) / len(later):.1f}. {inputs.between[0].upper()}{inputs.between[1:]}."
    )


def _offset_text(offset: float | None) -> str:
    """Mean distance of the stored log-probabilities from those of the drafter's policy, in nats."""
    if offset is None:
        return "The policy that sampled the drafts is unknown: their stored log-probabilities are used unchecked."
    return f"On average, stored log-probabilities differ from the drafter policy's by {offset:.2g} nats."


def _unknown(predictions: "list[Prediction]") -> list[str]:
    """Rules without a prediction, by the reason."""
    reasons = dict.fromkeys(each.unknown for each in predictions if each.unknown)
    return [
        f"Unknown ({reason}): {', '.join(each.rule.name for each in predictions if each.unknown == reason)}."
        for reason in reasons
    ]


def _table(predictions: "list[Prediction]", speed: "Throughputs | None") -> str:
    """The table; ± is followed by half of a 95 % interval over prompts."""
    header = ["rule", "exact", "kept, %", "whole, %", "saved, %", "break-even"] + ["time, %"] * bool(speed)
    rows = [_cells(each)[: len(header)] for each in predictions if not each.unknown]
    return table(header, rows, left=["exact"], wraps=["rule"])


def _cells(each: "Prediction") -> list[str]:
    assert each.share
    assert each.whole
    assert each.saved
    assert each.break_even
    return [
        each.rule.name,
        "yes" if each.rule.exact else "no",
        _percent(each.share),
        f"{100 * each.whole.value:.0f}",
        _percent(each.saved),
        f"{each.break_even.value:.3g}",
        _percent(each.time_saved) if each.time_saved else "",
    ]


def _percent(estimate: "IntervalEstimate") -> str:
    """An estimate in percent, with half of its interval."""
    # A single prompt has no interval.
    half = f" ± {_rounded(100 * (estimate.high - estimate.value))}" if math.isfinite(estimate.high) else ""
    return f"{_rounded(100 * estimate.value)}{half}"


def _rounded(number: float) -> str:
    """A number as text: no decimals from 10, one below."""
    return f"{number:.0f}" if abs(number) >= 9.95 else f"{number:.1f}"
