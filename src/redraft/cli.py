"""The command `redraft`, for what a person does between runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from redraft.config import Experiments, own, run_fingerprint, variants
from redraft.config.resolve import Settings
from redraft.errors import UserError
from redraft.files import NO_SPACE
from redraft.layout import Layout
from redraft.loading import loading
from redraft.stage_commands import StageGroup
from redraft.summary import aligned, number, summary
from redraft.summary import compare as compare_cells

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
stages = typer.Typer(cls=StageGroup, no_args_is_help=True, help="Single stages, as the workflow's rules run them.")
app.add_typer(stages, name="stage", hidden=True)


def _find(name: str) -> str:
    return Experiments().find(name)


def _take_cells(file: str | None) -> None:
    """Take a file of one's own as a paper, in this process and those that it starts."""
    if file is not None:
        os.environ[own.VARIABLE] = file
        own.cells_file()


Cell = Annotated[
    str, typer.Argument(help="paper/cell, such as spec_rl/grpo-spec-l0.5, or only a cell that one paper has.",
                        callback=_find)
]  # fmt: skip
Cells = Annotated[
    str | None, typer.Option("--cells", help="File of cells of one's own, taken as a paper.", callback=_take_cells,
                             is_eager=True, expose_value=False)
]  # fmt: skip
Preset = Annotated[str, typer.Option(help="A file under experiments/presets/.")]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
DEFAULT_PRESET = "tiny"
"""The same as in workflows/config.yaml."""


@app.command("list")
def list_cells(paper: str = "", preset: Preset = DEFAULT_PRESET, cells: Cells = None) -> None:
    """List all cells, their reuse, schedule and decoding if these are not the usual ones, and their finished runs."""
    experiments, layout = Experiments(), Layout(preset)
    experiments.preset(preset)
    listed, mistakes = experiments.readable([paper] if paper else experiments.papers)
    for cell in listed:
        done = sorted(path.parent.name for path in layout.run(cell.id, "*").parent.glob("seed*/scores.json"))
        schedule = cell.schedule.kind if cell.schedule else "-"
        decoding = getattr(cell.decoding, "when", "-")
        typer.echo(f"{cell.id:<42} {cell.reuse.kind:<12} {schedule:<8} {decoding:<10} {', '.join(done) or '-'}")
    for mistake in mistakes[:-1]:
        typer.echo(f"error: {mistake}", err=True)
    if mistakes:
        raise mistakes[-1]


@app.command()
def show(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    backend: Annotated[str, typer.Option(help="`verl`: its complete configuration instead.")] = "",
    cells: Cells = None,
) -> None:
    """Print one cell resolved to a complete run, and where each value of its trainer comes from."""
    experiments = Experiments()
    run = experiments.run(cell, seed, preset)
    if backend == "verl":
        with loading():
            from redraft.train.verl.config import show as verl_configuration

        layout = Layout(preset)
        typer.echo(verl_configuration(run, layout.model(run.model_role), layout.run(cell, seed)), nl=False)
        return
    if backend:
        raise UserError("no such backend", key="--backend", value=backend, allowed="verl")
    settings = experiments.trainer_settings(experiments.cell(cell), experiments.preset(preset))
    for key, value in {"fingerprint": run_fingerprint(run), **run.model_dump(mode="json")}.items():
        text = yaml.safe_dump({key: value}, sort_keys=False)
        typer.echo(_with_origins(text, settings) if key == "trainer" else text, nl=False)


def _with_origins(text: str, settings: Settings) -> str:
    """Lines of YAML, one a field of the trainer, with a comment that says where the value comes from."""
    heading, *fields = text.splitlines()
    width = max(map(len, fields))
    origins = [settings[field.partition(":")[0].strip()].origin for field in fields]
    lines = [f"{field:<{width}}  # {' '.join(origin.split())}" for field, origin in zip(fields, origins, strict=True)]
    return "\n".join([heading, *lines, ""])


@app.command()
def run(
    cell: Cell,
    seed: Annotated[
        list[str], typer.Option("--seed", "--seeds", help="0, 0-2 or 0,2,5; may be given several times.")
    ] = ["0"],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    cores: Annotated[int, typer.Option(help="Processor cores.")] = os.cpu_count() or 1,
    settings: Annotated[
        list[str], typer.Option("--set", help="key=value: make a variant of the cell, such as trainer.group_size=16.")
    ] = [],  # noqa: B006
    name: Annotated[str, typer.Option(help="Name of the variant; one that follows from its settings if empty.")] = "",
    cells: Cells = None,
) -> None:
    """Run one cell: make its model, train, evaluate, and print the main quantities. `--set` makes a variant of it."""
    experiments, layout, seeds = Experiments(), Layout(preset), variants.seeds_of(seed)
    if name and not settings:
        raise UserError("only a variant gets a name", key="--name", value=name, allowed="together with --set")
    if settings:
        cell = variants.keep(experiments, cell, settings, name, [(s, preset) for s in seeds])
        experiments = Experiments()
        typer.echo(f"{cell}: {experiments.cells_of(own.OWN)}")
    for s in seeds:
        experiments.run(cell, s, preset).check_supported()
    folders = [layout.run(cell, s) for s in seeds]
    targets = [str(folder / name) for folder in folders for name in ("scores.json", "diversity.parquet")]
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--config", f"preset={preset}", "--", *targets]
    if code := subprocess.run(command, check=False).returncode:
        raise typer.Exit(code)
    for s, folder in zip(seeds, folders, strict=True):
        typer.echo(f"\n{cell} seed {s}: {folder}")
        rows = [[name, number(value)] for name, value in summary(folder, cell, s).items()]
        typer.echo(aligned(["quantity", "value"], rows))
    config = [] if preset == DEFAULT_PRESET else [f"preset={preset}"]
    if (base := experiments.cell(cell).base) is None:
        text = f"`snakemake {f'--config {config[0]} ' if config else ''}--forcerun collect` takes it into the tables."
    else:
        config.append(f"papers={cell.partition('/')[0]}")
        text = (
            f"`snakemake --config {' '.join(config)}` makes a table of it beside {base}, for all seeds of the preset."
        )
    typer.echo(f"\n{text}")


@app.command()
def compare(
    first: Cell,
    second: Cell,
    preset: Preset = DEFAULT_PRESET,
    cells: Cells = None,
) -> None:
    """Compare two cells over the seeds that both have finished: means, and paired intervals."""
    experiments, layout = Experiments(), Layout(preset)
    rows = compare_cells(first, second, experiments.preset(preset), experiments, layout)
    header = ["quantity", first, second, "second against first", "95 % interval", "seeds"]
    typer.echo(aligned(header, rows))


@app.command()
def prompts(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    file: Annotated[Path | None, typer.Option(help="CSV file; printed if empty.")] = None,
    cells: Cells = None,
) -> None:
    """Log of every prompt of a run: responses made, correct ones, and what memory gave."""
    from analysis.prompt_log import prompt_log

    log = prompt_log(Experiments().run(cell, seed, preset), Layout(preset).run(cell, seed))
    if file:
        log.to_csv(file, index=False)
    else:
        typer.echo(log.to_csv(index=False), nl=False)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of a policy, a run or a verl checkpoint, or a hub id.")],
    protocol: Annotated[str, typer.Option(help="Of experiments/benchmarks.yaml.")] = "spec_rl",
    benchmarks: Annotated[str, typer.Option(help="Of that protocol, with commas; empty for all.")] = "",
    backend: Annotated[str, typer.Option(help="torch, transformers or vllm; vllm on a GPU if empty, else torch.")] = "",
    harness: Annotated[str, typer.Option(help="redraft or lm-eval.")] = "redraft",
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", min=0)] = 0,
    samples: Annotated[int | None, typer.Option(help="Samples a problem, not the protocol's.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first problems.", min=1)] = None,
    rows: Annotated[int, typer.Option(help="Sequences at once.", min=1)] = 256,
    threads: Annotated[int, typer.Option(help="Processor threads.", min=1)] = os.cpu_count() or 1,
    lighteval: Annotated[bool, typer.Option("--lighteval", help="Grade IFEval by lighteval too.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where results go.")] = None,
) -> None:
    """Sample a model on benchmarks, grade it and print its scores. An interrupted call resumes when it is repeated."""
    from redraft.config.read import parse
    from redraft.config.trainer import Evaluation, InProcessEngine

    with loading():
        from redraft.evaluate import command

    how = {"backend": backend or command.usual_backend(), "harness": harness, "lighteval": lighteval}
    evaluation = parse(Evaluation, how, "redraft evaluate")
    names = [name.strip() for name in benchmarks.split(",") if name.strip()]
    engine = InProcessEngine(max_rows=rows, threads=threads)
    asked = command.Asked(model, protocol, names, evaluation, engine, seed, samples, limit, folder)
    where, scores = command.evaluate(asked, Experiments(), Path("results/evaluations"))
    typer.echo(aligned(list(command.COLUMNS), command.table(scores)))
    typer.echo("".join(f"{line}\n" for line in command.notes(scores, where)) + f"\n{where}")


@app.command()
def cost(
    targets: Annotated[
        list[str] | None, typer.Argument(help="reproduction, extras, a paper, a grid or paper/cell; else reproduction.")
    ] = None,
    preset: Preset = "paper",
    gpus: Annotated[int, typer.Option(help="GPUs (or cores) at hand; 0 for what one run takes.")] = 0,
    extras: Annotated[bool, typer.Option(help="With what goes beyond the paper.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write all lines to this file too.")] = None,
    cells: Cells = None,
) -> None:
    """Print the cost of a campaign before its launch: hours and storage by cell, and the addition of each table."""
    import pandas as pd

    from analysis import cost as costs
    from analysis import cost_text
    from redraft.files import atomic

    experiments, layout = Experiments(), Layout(preset)
    settings, frames = experiments.preset(preset), []
    asked = [*(targets or ["reproduction"]), *(["extras"] if extras else [])]
    for name, wanted in costs.wanted(experiments, settings, asked).items():
        lines = costs.costs_of(wanted, experiments, settings, layout)
        parts = costs.part_costs(lines, costs.parts(experiments, name, "extras" in asked))
        rules = vocabulary.cost if (vocabulary := experiments.reported(name)) else None
        available = gpus or costs.devices(settings)
        typer.echo(cost_text.text(lines, parts, settings, available, rules.hardware if rules else None))
        frames.append(cost_text.frame(lines, parts, settings).assign(paper=name))
    if csv:
        with atomic(csv) as temporary:
            pd.concat(frames).to_csv(temporary, index=False, float_format="%.10g")


@app.command()
def calibrate(
    sweep: Annotated[Path, typer.Argument(help="CSV of passes; measured here and written if it does not exist.")],
    model: Annotated[Path, typer.Option(help="Its folder, or config.json of a sweep that exists.")],
    out: Annotated[Path, typer.Option(help="File of the calibration; a drawing goes beside it.")],
    tflops: Annotated[float | None, typer.Option(help="Throughput, 10^12 operations/s; measured with a sweep.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="TB/s of its data sheet, for the released search.")] = None,
    draft_bits: Annotated[int, typer.Option(help="Bits of the drafter's weights, 4 or 8.")] = 4,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of a sweep.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of a sweep on a processor.", min=1)] = 1,
) -> None:
    """Fit a roofline to a sweep of a model on a device: when does self-speculation pay there?"""
    from analysis.roofline import draw_roofline
    from redraft.selfspec import report
    from redraft.selfspec.roofline import MARGIN
    from redraft.selfspec.sweep import write_sweep

    if not sweep.exists() and not model.is_dir():
        raise UserError("this sweep is missing, and to measure one takes the weights of the model", file=sweep,
                        key="--model", value=str(model), allowed="a folder")  # fmt: skip
    if not sweep.exists():
        from redraft.selfspec.constants import read_model
        from redraft.train.sweep import measure

        read_model(model, draft_bits=draft_bits)  # refused, if it has to be, before minutes of passes
        lines, flops = measure(model, device, threads, draft_bits)
        write_sweep(sweep, lines)
        tflops = tflops or flops / 1e12
        typer.echo(f"{len(lines)} passes measured: {sweep}; {tflops:.4g} TFLOPS by products of matrices\n")
    elif tflops is None:
        raise UserError("a sweep that exists needs the throughput of its device", key="--tflops", allowed="a number")
    measured, found = report.calibrate(sweep, model, tflops, bandwidth, draft_bits, out)
    typer.echo(aligned([measured.model, "fitted"], report.parameters(found.calibration)))
    typer.echo(f"{report.quality(found)}\n")
    typer.echo(f"largest batch at which it pays, drafts accepted whole, margin {MARGIN}:")
    lengths = [str(length) for length in report.LENGTHS]
    typer.echo(aligned(["length", *lengths], report.boundaries(found.calibration, measured.gammas)))
    draw_roofline(found.calibration, measured, out.with_suffix(".svg"))
    typer.echo(f"\n{out} and {out.with_suffix('.svg').name}")


@app.command()
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
) -> None:
    """Predict a rollout's seconds of decoding without and with self-speculation. These are not measurements."""
    from redraft.selfspec import report

    asked = report.Asked(calibration, lengths, gamma, alpha, model, responses, engines, slots, prompt, threshold,
                         rollouts, last_alpha)  # fmt: skip
    typer.echo(aligned(*report.simulation(asked)))
    typer.echo("\nPredicted, decoding alone: no prefill, sampling, scheduling (docs/selfspec.md)")


@app.command()
def replay(
    records: Annotated[Path, typer.Argument(help="steps.jsonl of a run with self-speculation.")],
    gamma: Annotated[str, typer.Option(help="Tokens of a draft; several with commas are a ladder.")] = "5,7,9,11",
    calibration: Annotated[Path | None, typer.Option(help="File of a roofline, which then is the rule.")] = None,
    threshold: Annotated[int, typer.Option(help="Active responses from which it is on, without one.", min=1)] = 32,
    ramp: Annotated[int, typer.Option(help="Active responses to be exceeded before.", min=0)] = 32,
) -> None:
    """Replay another toggle and ladder on the passes that a run has recorded: where would it have speculated?"""
    from redraft.selfspec import report

    header, rows = report.replayed(records, gamma, calibration, threshold, ramp)
    typer.echo(aligned(header, rows))
    typer.echo("\non at: active responses; after: passes before; blocks: passes behind")


@app.command()
def status(
    paper: Annotated[str, typer.Argument(help="A folder under experiments/; empty for all of the preset's.")] = "",
    grid: Annotated[list[str], typer.Option(help="Only this grid; may be given several times.")] = [],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    every: Annotated[bool, typer.Option("--all", help="Also list the runs that wait or are done.")] = False,
    cells: Cells = None,
) -> None:
    """Print the state of every run, and the end of each failed one."""
    from redraft.ops.status import status as look
    from redraft.ops.status import text

    runs = look(Layout(preset), Experiments(), [paper] if paper else [], grid)
    typer.echo(text(runs, every=every))


@app.command()
def recover(
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel this campaign's jobs that Slurm still has.")] = False,
) -> None:
    """Clean up after a killed scheduler: leases of dead owners, unfinished files, its lock."""
    from redraft.ops.recover import recover as clean

    typer.echo("\n".join(clean(Path("results"), cancel=cancel)) or "nothing to do")


@app.command()
def schema(check: Annotated[bool, typer.Option(help="Only say whether the files are up to date.")] = False) -> None:
    """Write the generated files: JSON schemas, the configuration reference and lm-eval's tasks."""
    from redraft.config.schema import write_schemas
    from redraft.evaluate.lm_eval.tasks import write_tasks

    if changed := write_schemas(Path("docs"), check) + write_tasks(Path("workflows/lm_eval"), check):
        if check:
            raise UserError("not up to date; run `redraft schema`", file=changed[0])
        typer.echo("\n".join(f"wrote {file}" for file in changed))


def main(arguments: list[str] | None = None, command: Callable[..., Any] = app) -> None:
    """Entry point: a user's mistake or a full disk ends in one message and exit code 2, all else in a traceback."""
    try:
        command(args=arguments)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        typer.echo(f"error: {error.filename or 'a file'}: no space left; what was finished is intact", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
