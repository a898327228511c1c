"""`redraft calibrate`, `redraft simulate` and `redraft replay`: when self-speculation pays off (docs/selfspec.md)."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, records, table
from redraft.errors import UserError
from redraft.messages import echo


def calibrate(
    sweep: Annotated[
        Path, typer.Argument(help="CSV of timed passes; measured on this machine and written if missing.")
    ],
    model: Annotated[Path, typer.Option(help="Folder of the model; for an existing sweep its config.json is enough.")],
    out: Annotated[Path, typer.Option(help="File of the calibration; a drawing is written next to it.")],
    tflops: Annotated[
        float | None, typer.Option(help="Throughput in 10^12 operations/s; measured together with a new sweep.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Memory bandwidth of the data sheet in TB/s, for the authors' released search.")
    ] = None,
    draft_bits: Annotated[int, typer.Option(help="Bits of the drafter's weights, 4 or 8.")] = 4,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of a sweep.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of a sweep on a CPU.", min=1)] = 1,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Precision of a sweep: that in which the policy decodes.")
    ] = "float32",
    as_json: AsJson = False,
) -> None:
    """Fit a roofline to a sweep of a model on a device, and print when self-speculation pays off there."""
    from redraft.analysis.figures.calibration_drawing import draw_roofline
    from redraft.lab.selfspec import command_results
    from redraft.selfspec.roofline import MARGIN

    tflops = _measure_if_missing(sweep, model, tflops, device, threads, dtype, draft_bits, as_json)
    measured, fit = command_results.calibrate(sweep, model, tflops, bandwidth, draft_bits, out)
    draw_roofline(fit.calibration, measured, out.with_suffix(".svg"))
    header, fitted = [measured.model, "fitted"], command_results.parameters(fit.calibration)
    lengths, batches = (
        ["length", *map(str, command_results.LENGTHS)],
        command_results.boundaries(fit.calibration, measured.gammas),
    )
    title = f"largest batch at which it pays off, all draft tokens accepted, margin {MARGIN}"
    files = f"{out} and {out.with_suffix('.svg').name}"
    if as_json:
        rows = [
            *(
                {"table": "fitted", "parameter": row["parameter"].strip(), "value": row["value"]}
                for row in records(["parameter", "value"], fitted)
            ),
            *({"table": title} | row for row in records(lengths, batches)),
        ]
        request = {"sweep": sweep, "model": measured.model, "out": out}
        echo(document("calibrate", request, rows, [*command_results.quality(fit, measured).splitlines(), files]))
        return
    echo(table(header, fitted))
    echo(f"{command_results.quality(fit, measured)}\n\n{title}:")
    echo(f"{table(lengths, batches)}\n\n{files}")


def _measure_if_missing(
    sweep: Path,
    model: Path,
    tflops: float | None,
    device: str,
    threads: int,
    dtype: str,
    draft_bits: int,
    as_json: bool,
) -> float:
    """Throughput in 10^12 operations/s, as given or measured; a missing sweep is measured and written."""
    if sweep.exists():
        if tflops is None:
            raise UserError("an existing sweep needs the throughput of its device", key="--tflops", allowed="a number")
        given = {"--device": (device, "auto"), "--threads": (threads, 1), "--dtype": (dtype, "float32")}
        for key, (value, default) in given.items():
            if value != default:
                raise UserError("this sweep exists, so nothing is measured", file=sweep, key=key, value=value)
        return tflops
    if not model.is_dir():
        raise UserError(
            "this sweep is missing, and measuring one needs the weights of the model",
            file=sweep,
            key="--model",
            value=str(model),
            allowed="a folder",
        )
    from redraft.lab.selfspec.machine import measure
    from redraft.lab.selfspec.sweep import write_sweep
    from redraft.result_files import write_own_hash
    from redraft.selfspec.constants import read_model
    from redraft.train.pretrained.precision import DTYPES

    read_model(model, draft_bits=draft_bits)  # rejects an unsupported model before minutes of passes
    lines, flops = measure(model, device, threads, draft_bits, DTYPES[dtype])
    write_sweep(sweep, lines)
    write_own_hash(sweep)
    throughput = tflops or flops / 1e12
    echo(f"{len(lines)} passes measured: {sweep}; {throughput:.4g} TFLOPS by matrix products\n", err=as_json)
    return throughput


def calibrate_preset(preset_name: str, role: str, bits: int, model: Path, file: Path) -> None:
    """Measure the roofline of a preset's model on this machine (rule `calibrate`).

    The sweep and a drawing are written next to the file.

    Raises:
        UserError: for a model that the roofline does not cover, or a sweep that it does not fit.
    """
    from redraft.analysis.figures.calibration_drawing import draw_roofline
    from redraft.config import Experiments
    from redraft.lab.selfspec import command_results
    from redraft.lab.selfspec.machine import measure
    from redraft.lab.selfspec.sweep import write_sweep
    from redraft.ops.locking.devices import devices
    from redraft.train.pretrained.precision import dtype_of

    engine, sweep = Experiments().preset(preset_name).engine_of(role), file.with_suffix(".csv")
    with devices(min(engine.gpus, 1), str(file.parent)):
        lines, flops = measure(model, engine.device, engine.threads, bits, dtype_of(engine))
    write_sweep(sweep, lines)
    measured, fit = command_results.calibrate(sweep, model, flops / 1e12, None, bits, file)
    draw_roofline(fit.calibration, measured, file.with_suffix(".svg"))
    echo(f"roofline of {role}: {command_results.quality(fit, measured)}")


def simulate(
    calibration: Annotated[Path, typer.Argument(help="File of `redraft calibrate`, or one published by the authors.")],
    lengths: Annotated[
        str,
        typer.Option(
            help="Response lengths: a file with one number per line, or quantiles such as 0:100,50:600,100:8192."
        ),
    ],
    gamma: Annotated[
        str, typer.Option(help="Draft length in tokens; several separated by commas form a ladder.")
    ] = "7",
    alpha: Annotated[
        str,
        typer.Option(
            help="Acceptance probability of a token; by position such as 0:0.98,2048:0.95; or a run's steps.jsonl."
        ),
    ] = "0.95",
    model: Annotated[Path | None, typer.Option(help="Folder or config.json of another model.")] = None,
    responses: Annotated[
        int | None, typer.Option(help="Responses of a rollout, if lengths are quantiles; 1024 if empty.", min=2)
    ] = None,
    engines: Annotated[int, typer.Option(help="Engines that share a rollout.", min=1)] = 1,
    slots: Annotated[int, typer.Option(help="Responses that an engine decodes at once.", min=1)] = 256,
    prompt: Annotated[float, typer.Option(help="Mean prompt length in tokens.", min=0)] = 200,
    threshold: Annotated[
        int, typer.Option(help="Largest number of active responses at which the toggle `threshold` is on.", min=1)
    ] = 32,
    rollouts: Annotated[int | None, typer.Option(help="Number of rollouts of a ladder; 20 if empty.", min=1)] = None,
    last_alpha: Annotated[float | None, typer.Option(help="Acceptance probability in the last rollout.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a rollout's decoding time in seconds without and with self-speculation. These are not measurements."""
    from redraft.lab.selfspec import command_results

    given = command_results.SimulationOptions(
        calibration, lengths, gamma, alpha, model, responses, engines, slots, prompt, threshold, rollouts, last_alpha
    )
    request = command_results.completed(given)
    header, rows = command_results.simulation(request)
    note = "Predicted decoding time, without prefill and scheduling (docs/selfspec.md)"
    if as_json:
        echo(document("simulate", asdict(request), records(header, rows), [note]))
    else:
        echo(f"{table(header, rows)}\n\n{note}")


def replay(
    steps: Annotated[Path, typer.Argument(help="steps.jsonl of a run with self-speculation.")],
    gamma: Annotated[
        str, typer.Option(help="Draft length in tokens; several separated by commas form a ladder.")
    ] = "5,7,9,11",
    calibration: Annotated[
        Path | None, typer.Option(help="File of a roofline, which then decides instead of the threshold.")
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(
            help="Largest number of active responses at which speculation is on, without a roofline; 32 if empty.",
            min=1,
        ),
    ] = None,
    ramp: Annotated[int, typer.Option(help="Number of active responses that must be exceeded first.", min=0)] = 32,
    as_json: AsJson = False,
) -> None:
    """Replay another toggle and ladder on the recorded passes of a run, and print where it would have speculated."""
    from redraft.lab.selfspec import command_results

    if calibration:
        command_results.require_unset("--threshold", threshold, "without --calibration, whose roofline decides")
    elif threshold is None:
        threshold = 32
    header, rows = command_results.replayed(steps, gamma, calibration, threshold, ramp)
    note = "on at: active responses; after: passes before; blocks: passes afterwards"
    if as_json:
        did = header[1 : len(header) // 2 + 1]
        keys = ["step", *(f"recorded: {key}" for key in did), *(f"replayed: {key}" for key in did)]
        request = {"records": steps, "gamma": gamma, "calibration": calibration, "threshold": threshold, "ramp": ramp}
        echo(document("replay", request, records(keys, rows), [note]))
    else:
        echo(f"{table(header, rows)}\n\n{note}")
