"""The command `redraft`: what a person does between runs."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from redraft.config import Experiments, Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import NO_SPACE, read_json, read_json_lines
from redraft.layout import Layout

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
stage = typer.Typer(no_args_is_help=True, help="Single stages, as the workflow's rules run them.")
app.add_typer(stage, name="stage", hidden=True)

Cell = Annotated[str, typer.Argument(help="paper/cell, such as spec_rl/grpo-spec-l0.5")]
Preset = Annotated[str, typer.Option(help="A file under experiments/presets/.")]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
DEFAULT_PRESET = "tiny"
"""As in workflows/config.yaml."""
SUMMARY = (
    "tokens_decoded", "tokens_verified", "rollout_seconds", "generation_seconds", "step_seconds", "fresh_reward",
    "reward",
)  # fmt: skip
"""Quantities of a run that are printed, besides its accuracies."""


@app.command("list")
def list_cells(paper: str = "", preset: Preset = DEFAULT_PRESET) -> None:
    """List all cells, and which of their runs are finished."""
    experiments, layout = Experiments(), Layout(preset)
    experiments.preset(preset)
    for name in [paper] if paper else experiments.papers:
        for cell in experiments.cells(name):
            done = sorted(path.parent.name for path in layout.run(cell.id, "*").parent.glob("seed*/scores.json"))
            typer.echo(f"{cell.id:<32} {cell.reuse.kind:<12} {', '.join(done) or '-'}")


@app.command()
def show(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    backend: Annotated[str, typer.Option(help="`verl`: its complete configuration instead.")] = "",
) -> None:
    """Print one cell resolved to a complete run."""
    run = Experiments().run(cell, seed, preset)
    if backend == "verl":
        from redraft.train.verl.config import show as verl_configuration

        layout = Layout(preset)
        typer.echo(verl_configuration(run, layout.model(run.model_role), layout.run(cell, seed)), nl=False)
        return
    if backend:
        raise UserError("no such backend", key="--backend", value=backend, allowed="verl")
    content = {"fingerprint": run_fingerprint(run), **run.model_dump(mode="json")}
    typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)


@app.command()
def run(
    cell: Cell,
    seed: Annotated[list[int], typer.Option(help="Seed of the run; may be given several times.")] = [0],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    cores: Annotated[int, typer.Option(help="Processor cores.")] = os.cpu_count() or 1,
) -> None:
    """Run one cell: make the model if need be, train, evaluate, and print what came out."""
    experiments, layout = Experiments(), Layout(preset)
    if twice := [s for s in seed if seed.count(s) > 1]:
        raise UserError("this seed is given twice", key="--seed", value=twice[0])
    for s in seed:
        experiments.run(cell, s, preset)
    folders = [layout.run(cell, s) for s in seed]
    targets = [str(folder / name) for folder in folders for name in ("scores.json", "diversity.parquet")]
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--config", f"preset={preset}", "--", *targets]
    if code := subprocess.run(command, check=False).returncode:
        raise typer.Exit(code)
    for s, folder in zip(seed, folders, strict=True):
        typer.echo(f"\n{cell} seed {s}: {folder}")
        _print_table(["quantity", "value"], [[name, _text(value)] for name, value in _summary(folder, cell, s).items()])
    config = "" if preset == DEFAULT_PRESET else f"--config preset={preset} "
    typer.echo(f"\n`snakemake {config}--forcerun collect` takes it into the tables.")


@app.command()
def compare(
    first: Cell,
    second: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
) -> None:
    """Print what two finished runs came to, side by side."""
    experiments, layout = Experiments(), Layout(preset)
    experiments.preset(preset)
    a, b = (_summary(_finished(experiments.run(cell, seed, preset), layout), cell, seed) for cell in (first, second))
    pairs = {name: (a.get(name, math.nan), b.get(name, math.nan)) for name in a | b}
    rows = [[name, _text(x), _text(y), _text(y / x if x else math.nan)] for name, (x, y) in pairs.items()]
    _print_table(["quantity", first, second, "second / first"], rows)


def _finished(run: Run, layout: Layout) -> Path:
    """The folder of a run that is trained and graded, as it is configured today."""
    cell = f"{run.paper}/{run.cell}"
    folder = layout.run(cell, run.seed)
    remedy = f"redraft run {cell} --seed {run.seed} --preset {run.preset}"
    for file in (folder / "manifest.json", folder / "scores.json"):
        if not file.exists():
            raise UserError("this run is not finished", file=file, key="cell", value=cell, allowed=f"after `{remedy}`")
    manifest = read_json(file := folder / "manifest.json")
    if not isinstance(manifest, dict) or "fingerprint" not in manifest:
        raise UserError("this manifest lacks a key", file=file, key="fingerprint", allowed=f"none; do `{remedy}` anew")
    if manifest["fingerprint"] != (today := run_fingerprint(run)):
        raise UserError("this run is of another configuration than today's", file=file, key="fingerprint",
                        value=manifest["fingerprint"], allowed=f"{today}, after `{remedy}`")  # fmt: skip
    return folder


def _summary(folder: Path, cell: str, seed: int) -> dict[str, float]:
    """The main quantities of a finished run, by the names that tables and claims use."""
    import pandas as pd

    from analysis.collect import Runs
    from analysis.quantities import ACCURACY, by_seed

    records, scores = read_json_lines(folder / "steps.jsonl"), read_json(folder / "scores.json")
    if not records:
        raise UserError("this file holds no step", file=folder / "steps.jsonl")
    steps = pd.json_normalize(records).apply(pd.to_numeric).assign(cell=cell, seed=seed)
    last = max(scores, key=int)
    key = {"cell": cell, "seed": seed, "step": int(last)}
    graded = pd.DataFrame([key | {"benchmark": name} | score for name, score in scores[last].items()])
    runs = Runs(runs=pd.DataFrame(), steps=steps, scores=graded)
    return {name: by_seed(runs, name, cell)[seed] for name in [*SUMMARY, *(ACCURACY + name for name in scores[last])]}


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if value.is_integer() else f"{value:.3f}"


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        first, *others = row
        typer.echo("  ".join([first.ljust(widths[0]), *(t.rjust(w) for t, w in zip(others, widths[1:], strict=True))]))


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
    """Sample a model on benchmarks, grade it, and print what came out. Interrupted, it goes on where it was."""
    from redraft.config.load import parse
    from redraft.config.trainer import Evaluation, InProcessEngine
    from redraft.evaluate import command

    how = {"backend": backend or command.usual_backend(), "harness": harness, "lighteval": lighteval}
    evaluation = parse(Evaluation, how, "redraft evaluate")
    names = [name.strip() for name in benchmarks.split(",") if name.strip()]
    engine = InProcessEngine(max_rows=rows, threads=threads)
    asked = command.Asked(model, protocol, names, evaluation, engine, seed, samples, limit, folder)
    where, scores = command.evaluate(asked, Experiments(), Path("results/evaluations"))
    _print_table(list(command.COLUMNS), command.table(scores))
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
) -> None:
    """Print what a campaign takes before it is launched: hours and storage by cell, and what each table adds."""
    import pandas as pd

    from analysis import cost as costs
    from analysis import cost_text
    from redraft.files import atomic

    experiments, layout = Experiments(), Layout(preset)
    settings, frames = experiments.preset(preset), []
    asked = [*(targets or ["reproduction"]), *(["extras"] if extras else [])]
    for name, wanted in costs.wanted(experiments, settings, asked).items():
        cells = costs.costs_of(wanted, experiments, settings, layout)
        parts = costs.part_costs(cells, costs.parts(experiments, name, "extras" in asked))
        rules = vocabulary.cost if (vocabulary := experiments.reported(name)) else None
        available = gpus or costs.devices(settings)
        typer.echo(cost_text.text(cells, parts, settings, available, rules.hardware if rules else None))
        frames.append(cost_text.frame(cells, parts, settings).assign(paper=name))
    if csv:
        with atomic(csv) as temporary:
            pd.concat(frames).to_csv(temporary, index=False, float_format="%.10g")


@app.command()
def status(
    paper: Annotated[str, typer.Argument(help="A folder under experiments/; empty for all of the preset's.")] = "",
    grid: Annotated[list[str], typer.Option(help="Only this grid; may be given several times.")] = [],  # noqa: B006
    preset: Preset = DEFAULT_PRESET,
    every: Annotated[bool, typer.Option("--all", help="Also list the runs that wait or are done.")] = False,
) -> None:
    """Say which runs are done, running, failed and missing, and how those that failed ended."""
    from redraft.ops.status import status as look
    from redraft.ops.status import text

    runs = look(Layout(preset), Experiments(), [paper] if paper else [], grid)
    typer.echo(text(runs, every=every))


@app.command()
def recover(
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel this campaign's jobs that Slurm still has.")] = False,
) -> None:
    """Clean up after a scheduler that was killed (dead owners, unfinished files, its lock), and say what was done."""
    from redraft.ops.recover import recover as clean

    typer.echo("\n".join(clean(Path("results"), cancel=cancel)) or "nothing to do")


@app.command()
def schema(check: Annotated[bool, typer.Option(help="Only say whether the files are up to date.")] = False) -> None:
    """Write what is generated: JSON schemas and the configuration reference, and lm-eval's task files."""
    from redraft.config.schema import write_schemas
    from redraft.evaluate.lm_eval.tasks import write_tasks

    if changed := write_schemas(Path("docs"), check) + write_tasks(Path("workflows/lm_eval"), check):
        if check:
            raise UserError("not up to date; run `redraft schema`", file=changed[0])
        typer.echo("\n".join(f"wrote {file}" for file in changed))


@stage.command()
def model(preset: str, role: str, folder: Path) -> None:
    """Make an initial policy."""
    from redraft import stages

    stages.make_model(preset, role, folder)


@stage.command()
def data(preset: str, role: str, folder: Path) -> None:
    """Read training problems."""
    from redraft import stages

    stages.prepare_data(preset, role, folder)


@stage.command()
def check(preset: str, cells: list[str]) -> None:
    """Have verl check the configurations of cells."""
    from redraft import stages

    stages.check(preset, cells)


@stage.command()
def train(preset: str, cell: str, seed: int, model: Path, folder: Path) -> None:
    """Train one run."""
    from redraft import stages

    stages.train(preset, cell, seed, model, folder)


@stage.command()
def generate(preset: str, seed: int, file: Path, policies: list[Path]) -> None:
    """Sample policies on the preset's benchmarks."""
    from redraft import stages

    stages.generate(preset, seed, file, policies)


@stage.command()
def grade(preset: str, generations: Path, file: Path, processes: int = 1) -> None:
    """Grade saved generations."""
    from redraft import stages

    stages.grade(preset, generations, file, processes)


@stage.command()
def lighteval(generations: Path, grades: Path, comparison: Path) -> None:
    """Grade IFEval's generations by lighteval too, and compare."""
    from redraft import stages

    stages.lighteval(generations, grades, comparison)


@stage.command()
def diversity(folder: Path, seed: int, file: Path) -> None:
    """Measure the diversity of a run's rollouts."""
    from redraft import stages

    stages.diversity(folder, seed, file)


@stage.command()
def collect(preset: str, paper: str) -> None:
    """Gather all finished runs of a paper."""
    from analysis import stages

    stages.collect_runs(preset, paper)


@stage.command()
def table(preset: str, paper: str, number: int) -> None:
    """Regenerate a table."""
    from analysis import stages

    stages.table(preset, paper, number)


@stage.command()
def figure(preset: str, paper: str, number: int) -> None:
    """Regenerate a figure."""
    from analysis import stages

    stages.figure(preset, paper, number)


@stage.command()
def choose_cases(folder: Path, file: Path) -> None:
    """Choose the case studies of a finished run."""
    from redraft import stages

    stages.choose_cases(folder, file)


@stage.command()
def cases(preset: str, paper: str) -> None:
    """Render the case studies."""
    from analysis import stages

    stages.cases(preset, paper)


@stage.command()
def main_result(preset: str, paper: str) -> None:
    """Write the comparisons of a paper's first table for the report."""
    from analysis import stages

    stages.main_result(preset, paper)


@stage.command()
def reported_speedups(preset: str, paper: str) -> None:
    """Every kind of speedup, from the reported times alone."""
    from analysis import stages

    stages.reported_speedups(preset, paper)


@stage.command()
def counterparts(preset: str, paper: str) -> None:
    """List the reported rows without a reproduced counterpart."""
    from analysis import stages

    stages.counterparts(preset, paper)


@stage.command()
def claims(preset: str, paper: str) -> None:
    """Judge the claims of a paper."""
    from analysis import stages

    stages.judge_claims(preset, paper)


@stage.command()
def report(preset: str, papers: list[str]) -> None:
    """Write the report."""
    from analysis import stages

    stages.report(preset, papers)


@stage.command()
def track(preset: str, paper: str) -> None:
    """Import finished runs into MLflow."""
    from redraft import stages

    stages.track(preset, paper)


def main(arguments: list[str] | None = None, command: Callable[..., Any] = app) -> None:
    """Entry point: a mistake of the user's ends in one message and exit code 2, anything else in a traceback."""
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
