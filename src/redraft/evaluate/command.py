"""`redraft evaluate`: sample a model on benchmarks, grade the responses and tabulate the scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redraft.config.data import Benchmark, HubProblems
from redraft.evaluate.evaluation_plan import EvaluationPlan, device_name, on_gpu
from redraft.evaluate.generate import generate, identity
from redraft.evaluate.grade import grade
from redraft.evaluate.lighteval import grade_again
from redraft.files import hashes
from redraft.ops.locking.devices import devices
from redraft.ops.locking.lease import EVALUATION, lease
from redraft.provenance import environment, git_state, model_files
from redraft.result_files import OBJECT, read_record, read_scores, read_with_hash, write_with_hash
from redraft.tasks.problems import checksums, load_problems, origin
from redraft.train import models

GENERATIONS = "generations.parquet"
COMPARISON = "ifeval.json"
"""File that compares the two graders of IFEval."""


def evaluate(planned: EvaluationPlan) -> dict[str, dict[str, Any]]:
    """Sample, grade and record an evaluation; finished generations of the same evaluation are reused.

    `evaluation.json` records the arguments, the code, the versions and the data.

    Returns:
        The scores by benchmark.

    Raises:
        UserError: if sampling or grading rejects the policy, the problems or the generations.
    """
    request, benchmarks, folder = planned.request, planned.benchmarks, planned.folder
    with lease(folder, EVALUATION) as folder_lease, devices(int(on_gpu(request.engine)), str(folder)) as gpus:
        folder_lease.record_devices(gpus)
        _sample_once(planned, folder_lease.check)
    # After the block: grading takes minutes, and others may use the GPU.
    grade(folder / GENERATIONS, _limited(benchmarks, request.limit), folder / "scores.json", request.engine.threads)
    (folder / COMPARISON).unlink(missing_ok=True)  # a comparison of earlier verdicts
    if request.evaluation.lighteval:
        grade_again(folder / GENERATIONS, folder / "grades.parquet", folder / COMPARISON)
    scores = read_scores(folder)["0"]
    return {name: scores[name] for name in benchmarks}


def _sample_once(planned: EvaluationPlan, check: Callable[[], None]) -> None:
    """Sample unless `evaluation.json` says that these generations are complete; it is written last."""
    request, benchmarks, policy, folder = planned.request, planned.benchmarks, planned.policy, planned.folder
    generations, record = folder / GENERATIONS, folder / "evaluation.json"
    problems = {name: load_problems(benchmark.data)[: request.limit] for name, benchmark in benchmarks.items()}
    made_from = identity({0: policy}, benchmarks, problems, request.seed, request.evaluation, request.engine.dtype)
    if generations.exists() and record.exists() and read_record(record).get("fingerprint") == made_from:
        return
    # Of another evaluation, or of one that was cut off; samples in parts (`GenerationParts`) are kept.
    generations.unlink(missing_ok=True)
    machines = generate(
        {0: policy}, benchmarks, request.seed, request.engine, request.evaluation, generations, request.limit, check
    )
    about = {
        "model": request.model,
        "policy": str(policy),
        "protocol": planned.protocol,
        "seed": request.seed,
        "limit": request.limit,
        "evaluation": request.evaluation.model_dump(),
        "dtype": request.engine.dtype,
        "rows": request.engine.max_rows,
        "threads": request.engine.threads,
        "benchmarks": {n: b.model_dump(mode="json") | {"metric": b.metric} for n, b in benchmarks.items()},
    }
    data = {n: {"origin": origin(b.data), "sha256": checksums(b.data)} for n, b in benchmarks.items()}
    content = {"fingerprint": made_from, "asked": about, "git": git_state(), "data": data} | environment()
    content |= {
        "device": device_name(request.engine),
        "machines": machines,
        "weights": weights(policy),
        "sha256": hashes(generations),
    }
    write_with_hash(record, content)


def weights(policy: Path | str) -> dict[str, str]:
    """Hashes of a policy's files by name, or the commit of a policy of the hub: the same policy on every machine."""
    if isinstance(policy, Path):
        return {name: file["sha256"] for name, file in model_files(policy, {}).items()}
    return {"commit": getattr(models.load_config(policy), "_commit_hash", None) or ""}


def _limited(benchmarks: dict[str, Benchmark], limit: int | None) -> dict[str, Benchmark]:
    """The benchmarks with `limit` problems each, which is the number that the grader then expects."""
    if limit is None:
        return benchmarks
    limited = {}
    for name, benchmark in benchmarks.items():
        data = benchmark.data
        changes: dict[str, Any] = {"size": min(limit, data.size)}
        if isinstance(data, HubProblems):
            # Copies with more problems than the limit are all cut to it; smaller ones stay whole.
            changes["incomplete"] = {size: note for size, note in data.incomplete.items() if size < limit}
        data = data.model_copy(update=changes)
        limited[name] = benchmark.model_copy(update={"data": data})
    return limited


COLUMNS = (
    "benchmark",
    "correct",
    "accuracy",
    "95 % interval",
    "pass@k",
    "tokens",
    "majority",
    "p50",
    "p90",
    "truncated",
    "no answer",
    "time-outs",
    "errors",
)
FIRST = 6
"""Number of leading columns that fit into 80 characters."""
FAILURES = {"truncated": "truncated", "no answer": "without_answer", "time-outs": "timeouts", "errors": "errors"}
"""Columns that count responses without a verdict on their answer, and their keys in the scores."""


def table(scores: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The scores as rows of `COLUMNS`."""
    rows = []
    for name, score in scores.items():
        k = max((int(key.removeprefix("pass_at_")) for key in score if key.startswith("pass_at_")), default=None)
        rows.append(
            [
                name,
                f"{score['correct']}/{score['total']}",
                f"{score['correct'] / score['total']:.1%}",
                f"{score['accuracy_low']:.1%} to {score['accuracy_high']:.1%}",
                "-" if k in (None, 1) else f"{score[f'pass_at_{k}']:.1%} (k={k})",
                f"{score['mean_tokens']:,.0f}",
                f"{score['majority']:.1%}" if score.get("samples", 1) > 1 and "majority" in score else "-",
                f"{score['tokens_p50']:,.0f}",
                f"{score['tokens_p90']:,.0f}",
                *(str(score.get(key, "-")) for key in FAILURES.values()),
            ]
        )
    return rows


def failures(scores: dict[str, dict[str, Any]]) -> str:
    """The counts of `FAILURES` over all benchmarks, in one line."""
    responses = sum(score["total"] for score in scores.values())
    counts = {column: sum(score.get(key, 0) for score in scores.values()) for column, key in FAILURES.items()}
    return f"of {responses:,} responses: " + ", ".join(f"{count:,} {column}" for column, count in counts.items())


def notes(scores: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """Notes to print below the table, one line each: IFEval's metrics, incomplete copies, the second grader."""
    lines = []
    for name, score in scores.items():
        if "instructions" in score:
            parts = [f"{key} {score[key]}" for key in ("prompt_strict", "prompt_loose")]
            parts += [f"{k} {score[k]}/{score['instructions']}" for k in ("instructions_strict", "instructions_loose")]
            lines.append(f"{name}: {', '.join(parts)}")
        if score.get("note"):
            lines.append(f"{name}: {score['note']}")
    if (file := folder / COMPARISON).exists():
        content = read_with_hash(file, OBJECT, "metrics", "disagreements")
        metrics = [f"{m['metric']} {m['lm_eval']:.2%} and {m['lighteval']:.2%}" for m in content["metrics"]]
        both = f"lm-eval and lighteval: {', '.join(metrics)}"
        lines.append(f"{both}; {len(content['disagreements'])} verdicts differ")
    return lines
