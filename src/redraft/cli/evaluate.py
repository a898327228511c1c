"""`redraft evaluate`: the scores of any model on benchmarks; `redraft agreement`: how two such evaluations agree."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.arguments import AsJson, Wide
from redraft.cli.terminal import document, filled, table

RESULTS = Path("results/evaluations")
"""Parent of folders that are named after the arguments."""


def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of a policy, a run or a verl checkpoint, or a hub id.")],
    protocol: Annotated[
        str, typer.Option(help="Of experiments/benchmarks.yaml; if empty a run's own, else the file's default.")
    ] = "",
    benchmarks: Annotated[str, typer.Option(help="Of that protocol, with commas; empty for all.")] = "",
    backend: Annotated[str, typer.Option(help="torch, transformers or vllm; vllm on a GPU if empty, else torch.")] = "",
    harness: Annotated[str, typer.Option(help="redraft or lm-eval.")] = "redraft",
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", min=0)] = 0,
    samples: Annotated[int | None, typer.Option(help="Samples a problem, not the protocol's.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first problems.", min=1)] = None,
    rows: Annotated[int, typer.Option(help="Sequences at once.", min=1)] = 256,
    dtype: Annotated[str, typer.Option(help="Precision: auto (of the backend), float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(help="Processor threads.", min=1)] = os.cpu_count() or 1,
    lighteval: Annotated[bool, typer.Option("--lighteval", help="Grade IFEval by lighteval too.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where results go.")] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Sample a model on benchmarks, grade it and print its scores. An interrupted call resumes when it is repeated."""
    from redraft.cli.loading import loading
    from redraft.config import Evaluation, Experiments, InProcessEngine
    from redraft.config.read import parse
    from redraft.evaluate.evaluation_plan import EvaluationRequest, plan, usual_backend

    how = {"backend": backend or usual_backend(), "harness": harness, "lighteval": lighteval}
    evaluation = parse(Evaluation, how, "redraft evaluate")
    names = [name.strip() for name in benchmarks.split(",") if name.strip()]
    engine = parse(InProcessEngine, {"max_rows": rows, "threads": threads, "dtype": dtype}, "redraft evaluate")
    asked = EvaluationRequest(model, protocol, names, evaluation, engine, seed, samples, limit, folder)
    planned = plan(asked, Experiments(), RESULTS)
    typer.echo(filled(planned.text()), err=True)
    with loading():  # sampling and grading take heavy libraries
        from redraft.evaluate import command
    scores = command.evaluate(planned)
    notes = [command.failures(scores), *command.notes(scores, planned.folder)]
    if as_json:
        about = {"model": planned.request.model, "protocol": planned.protocol, "folder": planned.folder}
        documented = [{"benchmark": name, **score} for name, score in scores.items()]
        typer.echo(document("evaluate", about, documented, notes))
        return
    shown = None if wide else command.FIRST
    typer.echo(table(command.COLUMNS[:shown], [row[:shown] for row in command.table(scores)], wide=wide))
    typer.echo("\n".join(["", *map(filled, notes), "" if wide else "more columns: --wide", str(planned.folder)]))


def agreement(
    first: Annotated[Path, typer.Argument(help="Folder of an evaluation, as `redraft evaluate` prints it.")],
    second: Annotated[Path, typer.Argument(help="Folder of another one of the same problems.")],
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations response by response: paired difference of scores, equal verdicts, equal tokens."""
    from redraft.evaluate.agreement import COLUMNS, agreements

    rows = agreements(first, second)
    if as_json:
        asked = {"first": first, "second": second}
        typer.echo(document("agreement", asked, map(asdict, rows)))
        return
    typer.echo(f"first:  {first}\nsecond: {second}\nsecond - first with its paired 95 % interval\n")
    typer.echo(table(COLUMNS, [row.texts() for row in rows], wraps=COLUMNS[4:], wide=wide))
