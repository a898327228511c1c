"""`redraft evaluate`: any model on chosen benchmarks, from sampling to a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.config import Evaluation, Experiments
from redraft.config.data import Benchmark
from redraft.config.trainer import Engine
from redraft.errors import UserError
from redraft.evaluate.generate import generate
from redraft.evaluate.grade import grade
from redraft.evaluate.lighteval import grade_again
from redraft.files import read_json, write_json
from redraft.provenance import environment, git_state
from redraft.tasks.problems import checksums, origin

COMPARISON = "ifeval.json"
"""Both graders of IFEval side by side."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        model: folder of a policy, of a run or of a verl checkpoint, or a hub id.
        protocol: name in experiments/benchmarks.yaml.
        names: benchmarks of that protocol, in order; all if empty.
        evaluation: what samples.
        engine: where.
        seed: of the sampling streams.
        samples: samples a problem instead of the protocol's.
        limit: only so many problems, the first ones.
        folder: where results go; one of its own under `root` if none is given.
    """

    model: str
    protocol: str
    names: list[str]
    evaluation: Evaluation
    engine: Engine
    seed: int = 0
    samples: int | None = None
    limit: int | None = None
    folder: Path | None = None


def evaluate(request: Request, experiments: Experiments, root: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Sample, grade, and write `evaluation.json` with what was asked for; generations that are there are kept.

    Returns:
        The folder of results, and the scores by benchmark.

    Raises:
        UserError: for an unknown model, protocol or benchmark, or what sampling and grading refuse.
    """
    benchmarks = chosen(request, experiments)
    policy = find_policy(request.model)
    folder = request.folder or root / _name(request)
    asked = _described(request, benchmarks, policy)
    record, generations = folder / "evaluation.json", folder / "generations.parquet"
    if not (generations.exists() and record.exists() and read_json(record)["asked"] == asked):
        write_json(record, {"asked": asked} | _made_by(benchmarks))
        generate({0: policy}, benchmarks, request.seed, request.engine, request.evaluation, generations, request.limit)
    grade(generations, _limited(benchmarks, request.limit), folder / "scores.json", request.engine.threads)
    if request.evaluation.lighteval:
        grade_again(generations, folder / "grades.parquet", folder / COMPARISON)
    scores = read_json(folder / "scores.json")["0"]
    return folder, {name: scores[name] for name in benchmarks}


def chosen(request: Request, experiments: Experiments) -> dict[str, Benchmark]:
    """The benchmarks that are asked for, as they are sampled."""
    known = experiments.protocol(request.protocol)
    for name in request.names:
        if name not in known:
            raise UserError(f"no such benchmark in the protocol {request.protocol}", key="--benchmarks", value=name,
                            allowed=known)  # fmt: skip
    changes = {} if request.samples is None else {"samples": request.samples}
    return {name: known[name].model_copy(update=changes) for name in request.names or known}


def find_policy(model: str) -> Path | str:
    """The folder of a policy in transformers' format, or a hub id.

    A run's folder stands for its last policy, and a checkpoint of verl's for the copy in transformers' format in it.

    Raises:
        UserError: for a path that holds none.
    """
    path = Path(model)
    if not path.exists():
        if model.count("/") != 1 or model.startswith((".", "/", "results/")):
            raise UserError("there is no such folder", file=path, key="model", value=model,
                            allowed="a model's folder, a run's folder, or a hub id such as owner/name")  # fmt: skip
        return model
    last = sorted(path.glob("policies/step-*"))[-1:]
    for folder in (path, *last, path / "actor/huggingface", path / "huggingface"):
        if (folder / "config.json").exists():
            return folder
    raise UserError("no model in transformers' format is here", file=path, key="model", value=model,
                    allowed="a folder with config.json, or one with policies/step-* or actor/huggingface")  # fmt: skip


def _name(request: Request) -> Path:
    """A folder for these results: the model's path, then how it was asked."""
    model = "-".join(part for part in Path(request.model).parts if part not in ("/", ".", "..", "results"))
    how = [request.protocol, request.evaluation.harness, request.evaluation.backend, f"seed{request.seed}"]
    how += [f"samples{request.samples}"] * (request.samples is not None)
    how += [f"first{request.limit}"] * (request.limit is not None)
    return Path(model) / "-".join([*how, *(request.names)])


def _described(request: Request, benchmarks: dict[str, Benchmark], policy: Path | str) -> dict[str, Any]:
    """What decides the generations, in JSON."""
    files = sorted(policy.glob("*.safetensors")) if isinstance(policy, Path) else []
    return {
        "model": request.model, "policy": str(policy), "weights": [[f.name, f.stat().st_size] for f in files],
        "written": max((f.stat().st_mtime_ns for f in files), default=None), "protocol": request.protocol,
        "benchmarks": {name: benchmark.model_dump(mode="json") for name, benchmark in benchmarks.items()},
        "evaluation": request.evaluation.model_dump(exclude={"lighteval"}), "seed": request.seed,
        "limit": request.limit,
    }  # fmt: skip


def _made_by(benchmarks: dict[str, Benchmark]) -> dict[str, Any]:
    """By which code, where, and from which files."""
    data = {n: {"origin": origin(b.data), "sha256": checksums(b.data)} for n, b in benchmarks.items()}
    return {"git": git_state(), "data": data} | environment()


def _limited(benchmarks: dict[str, Benchmark], limit: int | None) -> dict[str, Benchmark]:
    """Benchmarks of so many problems, for grading."""
    if limit is None:
        return benchmarks

    def cut(benchmark: Benchmark) -> Benchmark:
        size = min(limit, benchmark.data.size)
        return benchmark.model_copy(update={"data": benchmark.data.model_copy(update={"size": size})})

    return {name: cut(benchmark) for name, benchmark in benchmarks.items()}


COLUMNS = (
    "benchmark", "correct", "accuracy", "95 % interval", "pass@k", "majority", "tokens", "p50", "p90", "truncated",
    "no answer", "time-outs", "errors",
)  # fmt: skip


def table(scores: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The scores as rows of `COLUMNS`."""
    return [_row(name, score) for name, score in scores.items()]


def _row(name: str, score: dict[str, Any]) -> list[str]:
    k = max((int(key.removeprefix("pass_at_")) for key in score if key.startswith("pass_at_")), default=None)
    return [
        name, f"{score['correct']}/{score['total']}", f"{score['correct'] / score['total']:.1%}",
        f"{score['accuracy_low']:.1%} to {score['accuracy_high']:.1%}",
        "-" if k in (None, 1) else f"{score[f'pass_at_{k}']:.1%} (k={k})",
        f"{score['majority']:.1%}" if score.get("samples", 1) > 1 and "majority" in score else "-",
        f"{score['mean_tokens']:,.0f}", f"{score['tokens_p50']:,.0f}", f"{score['tokens_p90']:,.0f}",
        *(str(score.get(key, "-")) for key in ("truncated", "without_answer", "timeouts", "errors")),
    ]  # fmt: skip


def notes(scores: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """What must be said beside the numbers, a line each."""
    lines = []
    for name, score in scores.items():
        if "instructions" in score:
            parts = [f"{key} {score[key]}" for key in ("prompt_strict", "prompt_loose")]
            parts += [f"{k} {score[k]}/{score['instructions']}" for k in ("instructions_strict", "instructions_loose")]
            lines.append(f"{name}: {', '.join(parts)}")
        if score.get("note"):
            lines.append(f"{name}: {score['note']}")
    return lines + _compared(folder / COMPARISON)


def _compared(file: Path) -> list[str]:
    """IFEval's metrics by both graders, if there are two."""
    if not file.exists():
        return []
    content = read_json(file)
    metrics = [f"{m['metric']} {m['lm_eval']:.2%} and {m['lighteval']:.2%}" for m in content["metrics"]]
    return [f"lm-eval and lighteval: {', '.join(metrics)}; {len(content['disagreements'])} verdicts differ"]
