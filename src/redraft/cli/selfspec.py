"""`redraft calibrate`, `redraft simulate` and `redraft replay`: when self-speculation pays (docs/selfspec.md)."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, records, table
from redraft.errors import UserError


def calibrate(
    sweep: Annotated[Path, typer.Argument(help="CSV of passes; measured here and written if it does not exist.")],
    model: Annotated[Path, typer.Option(help="Its folder, or config.json of a sweep that exists.")],
    out: Annotated[Path, typer.Option(help="File of the calibration; a drawing goes beside it.")],
    tflops: Annotated[float | None, typer.Option(help="Throughput, 10^12 operations/s; measured with a sweep.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="TB/s of its data sheet, for the released search.")] = None,
    draft_bits: Annotated[int, typer.Option(help="Bits of the drafter's weights, 4 or 8.")] = 4,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of a sweep.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of a sweep on a processor.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Fit a roofline to a sweep of a model on a device: when does self-speculation pay there?"""
    from redraft.analysis.figures.calibration_drawing import draw_roofline
    from redraft.lab.selfspec import report
    from redraft.lab.selfspec.sweep import write_sweep
    from redraft.selfspec.roofline import MARGIN

    if not sweep.exists() and not model.is_dir():
        raise UserError(
            "this sweep is missing, and to measure one takes the weights of the model",
            file=sweep,
            key="--model",
            value=str(model),
            allowed="a folder",
        )
    if not sweep.exists():
        from redraft.lab.selfspec.machine import measure
        from redraft.selfspec.constants import read_model

        read_model(model, draft_bits=draft_bits)  # refused, if it has to be, before minutes of passes
        lines, flops = measure(model, device, threads, draft_bits)
        write_sweep(sweep, lines)
        tflops = tflops or flops / 1e12
        said = f"{len(lines)} passes measured: {sweep}; {tflops:.4g} TFLOPS by products of matrices\n"
        typer.echo(said, err=as_json)
    elif tflops is None:
        raise UserError("a sweep that exists needs the throughput of its device", key="--tflops", allowed="a number")
    measured, found = report.calibrate(sweep, model, tflops, bandwidth, draft_bits, out)
    draw_roofline(found.calibration, measured, out.with_suffix(".svg"))
    header, fitted = [measured.model, "fitted"], report.parameters(found.calibration)
    lengths, batches = ["length", *map(str, report.LENGTHS)], report.boundaries(found.calibration, measured.gammas)
    title = f"largest batch at which it pays, drafts accepted whole, margin {MARGIN}"
    files = f"{out} and {out.with_suffix('.svg').name}"
    if as_json:
        rows = [
            *(
                {"table": "fitted", "parameter": row["parameter"].strip(), "value": row["value"]}
                for row in records(["parameter", "value"], fitted)
            ),
            *({"table": title} | row for row in records(lengths, batches)),
        ]
        asked = {"sweep": sweep, "model": measured.model, "out": out}
        typer.echo(document("calibrate", asked, rows, [*report.quality(found).splitlines(), files]))
        return
    typer.echo(table(header, fitted))
    typer.echo(f"{report.quality(found)}\n\n{title}:")
    typer.echo(f"{table(lengths, batches)}\n\n{files}")


def calibrate_preset(preset_name: str, role: str, bits: int, model: Path, file: Path) -> None:
    """Measure the roofline of a preset's model on this machine; sweep and drawing are written beside the file.

    Raises:
        UserError: for a model that the roofline does not cover, or a sweep that it does not describe.
    """
    from redraft.analysis.figures.calibration_drawing import draw_roofline
    from redraft.config import Experiments
    from redraft.lab.selfspec import report
    from redraft.lab.selfspec.machine import measure
    from redraft.lab.selfspec.sweep import write_sweep
    from redraft.ops.locking.devices import devices

    engine, sweep = Experiments().preset(preset_name).engine, file.with_suffix(".csv")
    with devices(min(engine.gpus, 1), str(file.parent)):
        lines, flops = measure(model, engine.device, engine.threads, bits)
    write_sweep(sweep, lines)
    measured, found = report.calibrate(sweep, model, flops / 1e12, None, bits, file)
    draw_roofline(found.calibration, measured, file.with_suffix(".svg"))
    print(f"roofline of {role}: {report.quality(found)}", flush=True)


def simulate(
    calibration: Annotated[Path, typer.Argument(help="File that `redraft calibrate` wrote, or one of the authors.")],
    lengths: Annotated[str, typer.Option(help="File, a number a line; or quantiles, 0:100,50:600,100:8192.")],
    gamma: Annotated[str, typer.Option(help="Tokens of a draft; several with commas are a ladder.")] = "7",
    alpha: Annotated[
        str, typer.Option(help="Of a token; by position 0:0.98,2048:0.95; or a run's steps.jsonl.")
    ] = "0.95",
    model: Annotated[Path | None, typer.Option(help="Folder or config.json of another model.")] = None,
    responses: Annotated[int, typer.Option(help="In a rollout, if lengths are quantiles.", min=2)] = 1024,
    engines: Annotated[int, typer.Option(help="That share a rollout.", min=1)] = 1,
    slots: Annotated[int, typer.Option(help="Responses that an engine decodes at once.", min=1)] = 256,
    prompt: Annotated[float, typer.Option(help="Mean tokens of a prompt.", min=0)] = 200,
    threshold: Annotated[int, typer.Option(help="Active responses from which `threshold` is on.", min=1)] = 32,
    rollouts: Annotated[int, typer.Option(help="Of a ladder.", min=1)] = 20,
    last_alpha: Annotated[float | None, typer.Option(help="Acceptance in the last of them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a rollout's seconds of decoding without and with self-speculation. These are not measurements."""
    from redraft.lab.selfspec import report

    asked = report.Asked(
        calibration, lengths, gamma, alpha, model, responses, engines, slots, prompt, threshold, rollouts, last_alpha
    )
    header, rows = report.simulation(asked)
    note = "Predicted, decoding alone: no prefill, sampling, scheduling (docs/selfspec.md)"
    if as_json:
        typer.echo(document("simulate", asdict(asked), records(header, rows), [note]))
    else:
        typer.echo(f"{table(header, rows)}\n\n{note}")


def replay(
    steps: Annotated[Path, typer.Argument(help="steps.jsonl of a run with self-speculation.")],
    gamma: Annotated[str, typer.Option(help="Tokens of a draft; several with commas are a ladder.")] = "5,7,9,11",
    calibration: Annotated[Path | None, typer.Option(help="File of a roofline, which then is the rule.")] = None,
    threshold: Annotated[int, typer.Option(help="Active responses from which it is on, without one.", min=1)] = 32,
    ramp: Annotated[int, typer.Option(help="Active responses to be exceeded before.", min=0)] = 32,
    as_json: AsJson = False,
) -> None:
    """Replay another toggle and ladder on the passes that a run has recorded: where would it have speculated?"""
    from redraft.lab.selfspec import report

    header, rows = report.replayed(steps, gamma, calibration, threshold, ramp)
    note = "on at: active responses; after: passes before; blocks: passes behind"
    if as_json:
        did = header[1 : len(header) // 2 + 1]
        keys = ["step", *(f"recorded: {key}" for key in did), *(f"replayed: {key}" for key in did)]
        asked = {"records": steps, "gamma": gamma, "calibration": calibration, "threshold": threshold, "ramp": ramp}
        typer.echo(document("replay", asked, records(keys, rows), [note]))
    else:
        typer.echo(f"{table(header, rows)}\n\n{note}")
