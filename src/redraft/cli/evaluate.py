"""`redraft evaluate`: scores of any model on benchmarks; `redraft agreement`: comparison of two such evaluations;
`redraft sensitivity`: the same policy under several settings; `redraft regrade`: a run's responses graded again."""

import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.arguments import AsJson, Wide
from redraft.cli.process import gc_paused
from redraft.cli.terminal import document, filled, table
from redraft.messages import echo

RESULTS = Path("results/evaluations")
"""Default parent of the results; each evaluation's folder is named after its arguments."""
CORES = os.cpu_count() or 1
SHOWN_DIFFERENCES = 10
"""Number of differing responses that `redraft regrade` prints for each run."""


Model = Annotated[str, typer.Argument(help="Folder of a policy, a run or a verl checkpoint, or a hub id.")]
Protocol = Annotated[
    str, typer.Option(help="A protocol of experiments/benchmarks.yaml; if empty the run's, or the file's default.")
]
Benchmarks = Annotated[str, typer.Option(help="Benchmarks of the protocol, separated by commas; all if empty.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling.", min=0, max=2**32 - 1)]
Samples = Annotated[int | None, typer.Option(help="Samples per problem, instead of the protocol's.", min=1)]
Limit = Annotated[int | None, typer.Option(help="Only the first problems.", min=1)]
Greedy = Annotated[bool, typer.Option("--greedy", help="Temperature 0 and one response per problem.")]
Rows = Annotated[int, typer.Option(help="Sequences decoded at once.", min=1)]
Dtype = Annotated[str, typer.Option(help="Precision: auto (the backend's), float32 or bfloat16.")]
Threads = Annotated[int, typer.Option(help="Processor threads; vLLM chooses its number itself.", min=1)]
Folder = Annotated[Path | None, typer.Option(help="Folder of the results.")]


def evaluate(
    model: Model,
    protocol: Protocol = "",
    benchmarks: Benchmarks = "",
    backend: Annotated[str, typer.Option(help="torch, transformers or vllm; if empty vllm on a GPU, else torch.")] = "",
    harness: Annotated[str, typer.Option(help="redraft or lm-eval.")] = "redraft",
    seed: Seed = 0,
    samples: Samples = None,
    limit: Limit = None,
    greedy: Greedy = False,
    rows: Rows = 256,
    dtype: Dtype = "auto",
    threads: Threads = CORES,
    lighteval: Annotated[bool, typer.Option("--lighteval", help="Also grade IFEval by lighteval.")] = False,
    folder: Folder = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Sample a model on benchmarks, grade it and print its scores. Repeat an interrupted call to resume it."""
    from redraft.config import Evaluation, Experiments, InProcessEngine
    from redraft.config.read import parse
    from redraft.evaluate.evaluation_plan import EvaluationRequest, plan, usual_backend

    options = {"backend": backend or usual_backend(), "harness": harness, "lighteval": lighteval}
    evaluation = parse(Evaluation, options, "redraft evaluate")
    names = _names(benchmarks)
    engine = parse(InProcessEngine, {"max_rows": rows, "threads": threads, "dtype": dtype}, "redraft evaluate")
    request = EvaluationRequest(model, protocol, names, evaluation, engine, seed, samples, limit, folder, greedy)
    planned = plan(request, Experiments(), RESULTS)
    # What will be sampled, before it takes minutes; not part of the result.
    echo(filled(planned.text()), err=True)
    with gc_paused():  # sampling and grading import large libraries
        from redraft.evaluate import command
    with redirect_stdout(sys.stderr):  # libraries print there, such as lm-eval
        scores = command.evaluate(planned)
    notes = [command.failures(scores), *command.notes(scores, planned.folder)]
    if as_json:
        about = {"model": planned.request.model, "protocol": planned.protocol, "folder": planned.folder}
        documented = [{"benchmark": name, **score} for name, score in scores.items()]
        echo(document("evaluate", about, documented, notes))
        return
    shown = None if wide else command.FIRST
    echo(table(command.COLUMNS[:shown], [row[:shown] for row in command.table(scores)], wide=wide))
    echo("\n".join(["", *map(filled, notes), "" if wide else "--wide: more columns", str(planned.folder)]))


def _names(benchmarks: str) -> list[str]:
    """Names separated by commas; a comma at the end names nothing."""
    return [name.strip() for name in benchmarks.split(",") if name.strip()]


def agreement(
    first: Annotated[Path, typer.Argument(help="Folder of an evaluation, as `redraft evaluate` prints it.")],
    second: Annotated[Path, typer.Argument(help="Folder of another evaluation of the same problems.")],
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations per response: paired difference of scores, shares of equal verdicts and equal tokens."""
    from redraft.evaluate.agreement import COLUMNS, agreements

    rows = agreements(first, second)
    if as_json:
        request = {"first": first, "second": second}
        echo(document("agreement", request, map(asdict, rows)))
        return
    echo(f"first:  {first}\nsecond: {second}\ndifference second - first with its paired 95 % interval\n")
    echo(table(COLUMNS, [row.texts() for row in rows], wraps=COLUMNS[4:], wide=wide))


def regrade(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of graded runs.")],
    as_json: AsJson = False,
) -> None:
    """Grade the saved responses of runs again; exit code 1 if a verdict or score is not the recorded one."""
    from redraft.evaluate import regrade as again

    found = [again.regrade(folder, CORES) for folder in folders]
    if as_json:
        echo(document("regrade", {"folders": folders}, map(asdict, found)))
    for run in [] if as_json else found:
        on = f"{run.run}: {run.responses:,} responses ({', '.join(run.benchmarks)}) graded again"
        if run.equal:
            echo(filled(f"{on}: all verdicts and scores are the recorded ones"))
            continue
        scores = "" if run.scores_equal else "; scores differ"
        echo(filled(f"{on}: {len(run.differences):,} differ{scores}"))
        shown = run.differences[:SHOWN_DIFFERENCES]
        if shown:
            echo(table(list(shown[0]), [list(map(str, row.values())) for row in shown], left=list(shown[0])))
    if not all(run.equal for run in found):
        sys.exit(1)


def sensitivity(
    model: Model,
    variant: Annotated[
        list[str], typer.Option(help="key=value[,key=value]: harness, backend, seed, rows, threads or dtype.")
    ] = [],  # noqa: B006
    other: Annotated[
        list[Path], typer.Option(help="Folder of `redraft evaluate` with this policy on another processor.")
    ] = [],  # noqa: B006
    protocol: Protocol = "",
    benchmarks: Benchmarks = "",
    seed: Seed = 0,
    samples: Samples = None,
    limit: Limit = None,
    greedy: Greedy = False,
    rows: Rows = 256,
    dtype: Dtype = "auto",
    threads: Threads = CORES,
    folder: Folder = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate one policy under several settings, each compared with the in-process engine, problem by problem."""
    from redraft.config import Evaluation, Experiments, InProcessEngine
    from redraft.config.read import parse
    from redraft.evaluate.evaluation_plan import EvaluationRequest

    with gc_paused():
        from redraft.evaluate import sensitivity as comparison
    engine = parse(InProcessEngine, {"max_rows": rows, "threads": threads, "dtype": dtype}, "redraft sensitivity")
    names = _names(benchmarks)
    request = EvaluationRequest(model, protocol, names, Evaluation(), engine, seed, samples, limit, folder, greedy)
    planned = comparison.plan_sensitivity(request, variant, other, Experiments(), RESULTS.with_name("sensitivity"))
    with redirect_stdout(sys.stderr):  # libraries print there, such as lm-eval
        found = comparison.sensitivity(planned)
    if as_json:
        echo(
            document(
                "sensitivity", {"model": model, "folder": planned.folder, "reference": planned.reference.folder}, found
            )
        )
        return
    echo(
        table(
            comparison.COLUMNS,
            comparison.texts(found),
            left=comparison.COLUMNS[:3],
            wraps=comparison.COLUMNS,
            wide=wide,
        )
    )
    echo("\n".join(["", *map(filled, comparison.NOTES), str(planned.folder)]))
