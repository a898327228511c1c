"""`redraft predict`: what would reuse save? (docs/predict.md)"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError

if TYPE_CHECKING:
    from redraft.lab.predict.inputs import PredictionInput
    from redraft.lab.predict.jackknife import IntervalEstimate
    from redraft.lab.predict.prediction import Prediction, Throughputs

MEANT = (
    "kept: of the tokens of drafts; whole: drafts; saved: of the tokens of a new response; break-even: throughput of "
    "scoring over that of decoding; time: of decoding a new response; ±: half of a 95 % interval over prompts."
)
ASSUMED = (
    "Assumed: drafts are the responses of the last visit, sampled without top-p, and none has been reused before. The "
    "policy was trained on these drafts, as in a run, so that exact rules but one-hot sample from the policy's "
    "distribution "
    "only as far as that does not matter (docs/exact-reuse.md)."
)


def predict(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a run; or a Parquet file (docs/predict.md).")],
    start: Annotated[int | None, typer.Option("--from", help="Step of a run's drafts.", min=0)] = None,
    stop: Annotated[int | None, typer.Option("--to", help="Steps behind a run's current policy.", min=1)] = None,
    policy: Annotated[Path | None, typer.Option(help="Folder of the current policy, for a file.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Folder of the policy that sampled a file's drafts.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of a file's drafts; 1 if empty.", min=0.01)] = None,
    rules: Annotated[str, typer.Option(help="Kinds of `reuse`, with commas; all if empty.")] = "",
    lenience: Annotated[str, typer.Option(help="Of the published rule, with commas.")] = "1,e^0.2,e^0.5",
    top: Annotated[int, typer.Option(help="Most probable tokens of a distribution that are stored.", min=1)] = 32,
    scoring: Annotated[float | None, typer.Option(help="Tokens/s of scoring drafts.")] = None,
    decoding: Annotated[float | None, typer.Option(help="Tokens/s of decoding.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of the policies.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict what reuse would save, by every rule, from saved rollouts and a later policy; nothing is sampled."""
    from redraft.config.base import parse_lenience
    from redraft.lab.predict.draft_positions import read_positions
    from redraft.lab.predict.inputs import load_policies, prediction_input
    from redraft.lab.predict.prediction import candidates, chosen, log_prob_error
    from redraft.lab.predict.prediction import predict as predicted

    speed, kinds = _throughputs(scoring, decoding), [kind for kind in rules.replace(" ", "").split(",") if kind]
    try:
        leniences = [parse_lenience(part) for part in lenience.split(",")]
    except ValueError as error:
        raise UserError(f"a lenience {error}", key="--lenience", value=lenience) from None
    judged = chosen(candidates(leniences, top), kinds)
    asked = prediction_input(path, start, stop, policy, drafter, temperature)
    current, earlier = load_policies(asked, device, path)
    positions = read_positions(asked.saved.drafts, asked.saved.prompts, current, earlier, top, asked.temperature)
    far = log_prob_error(positions, asked.drafter)
    found = predicted(asked.saved, positions, judged, speed)
    if as_json:
        options = {
            "path": path,
            "policy": asked.policy,
            "drafter": asked.drafter,
            "from": start,
            "to": stop,
            "rules": kinds,
            "lenience": lenience,
            "top": top,
            "scoring": scoring,
            "decoding": decoding,
            "temperature": asked.temperature,
        }
        notes = [_judged(asked), _checked(far), ASSUMED]
        typer.echo(document("predict", options, [each.row() for each in found], notes))
        return
    behind = [MEANT, *_unknown(found), _checked(far), ASSUMED]
    typer.echo("\n\n".join([filled(_judged(asked)), _table(found, speed), *map(filled, behind)]))


def _throughputs(scoring: float | None, decoding: float | None) -> "Throughputs | None":
    from redraft.lab.predict.prediction import Throughputs

    if scoring is None and decoding is None:
        return None
    for key, value in (("--scoring", scoring), ("--decoding", decoding)):
        if value is None or not 0 < value < math.inf:
            raise UserError("seconds need both throughputs", key=key, value=value, allowed="a number above 0")
    assert scoring is not None
    assert decoding is not None
    return Throughputs(scoring, decoding)


def _judged(asked: "PredictionInput") -> str:
    """What is judged, in numbers."""
    saved = asked.saved
    lengths = [len(draft.tokens) for draft in saved.drafts]
    later = [length for _, length in saved.later]
    return (
        f"{len(lengths)} drafts of {len(saved.prompts)} prompts, {sum(lengths) / len(lengths):.1f} tokens each; a new "
        f"response has {sum(later) / len(later):.1f}. {asked.between[0].upper()}{asked.between[1:]}."
    )


def _checked(far: float | None) -> str:
    """How well the drafter's policy fits."""
    if far is None:
        return "The policy that sampled the drafts is not known: their stored log-probabilities are taken as they are."
    return f"Stored log-probabilities are {far:.2g} nats off those of the drafter's policy, in the mean."


def _unknown(found: "list[Prediction]") -> list[str]:
    """Rules of which nothing is known, by the reason."""
    reasons = dict.fromkeys(each.unknown for each in found if each.unknown)
    return [f"Not known ({why}): {', '.join(e.rule.name for e in found if e.unknown == why)}." for why in reasons]


def _table(found: "list[Prediction]", speed: "Throughputs | None") -> str:
    """The table; half a 95 % interval over prompts stands behind a number."""
    header = ["rule", "exact", "kept, %", "whole, %", "saved, %", "break-even"] + ["time, %"] * bool(speed)
    rows = [_cells(each)[: len(header)] for each in found if not each.unknown]
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


def _percent(found: "IntervalEstimate") -> str:
    """In percent, with half its interval."""
    half = f" ± {_rounded(100 * (found.high - found.value))}" if math.isfinite(found.high) else ""
    return f"{_rounded(100 * found.value)}{half}"


def _rounded(number: float) -> str:
    """Two digits, or a decimal."""
    return f"{number:.0f}" if abs(number) >= 9.95 else f"{number:.1f}"
