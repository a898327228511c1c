"""`redraft evaluate`: sample any model on chosen benchmarks, grade the responses and tabulate the scores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.config import Evaluation, Experiments, fingerprint
from redraft.config.data import Benchmark, HubProblems, known_sizes
from redraft.config.trainer import EngineSettings, InProcessEngine
from redraft.errors import UserError
from redraft.evaluate.generate import generate, identity
from redraft.evaluate.grade import grade
from redraft.evaluate.lighteval import check_lighteval, grade_again
from redraft.files import read_json, write_json
from redraft.ops.devices import devices
from redraft.ops.gpus import available
from redraft.ops.lease import EVALUATION, lease
from redraft.ops.provenance import environment, git_state
from redraft.tasks.problems import checksums, load_problems, origin

GENERATIONS = "generations.parquet"
COMPARISON = "ifeval.json"
"""File that compares the two graders of IFEval."""


@dataclass(frozen=True)
class Asked:
    """The arguments of one call of `redraft evaluate`.

    Attributes:
        model: folder of a policy, of a run or of a verl checkpoint, or a hub id.
        protocol: name in experiments/benchmarks.yaml.
        names: benchmarks of that protocol, in order; all of them if empty.
        evaluation: backend and harness that sample, and whether lighteval grades too.
        engine: device, threads and batch sizes.
        seed: seed of the sampling streams.
        samples: samples per problem; the protocol's number if None.
        limit: number of problems per benchmark, the first ones; all of them if None.
        folder: folder of the results; if None, a folder named after the arguments.
    """

    model: str
    protocol: str
    names: list[str]
    evaluation: Evaluation
    engine: EngineSettings
    seed: int = 0
    samples: int | None = None
    limit: int | None = None
    folder: Path | None = None


def evaluate(asked: Asked, experiments: Experiments, root: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Sample, grade and record an evaluation; finished generations of the same evaluation are not sampled again.

    `evaluation.json` records the arguments, the code, the versions and the data.

    Args:
        asked: the arguments.
        experiments: the catalogue of benchmarks.
        root: parent of folders that are named after the arguments.

    Returns:
        The folder of results, and the scores by benchmark.

    Raises:
        UserError: for an unknown model, protocol or benchmark, and for what sampling or grading refuses.
    """
    benchmarks = chosen(asked, experiments)
    if asked.evaluation.lighteval:
        check_lighteval(benchmarks)
    policy = find_policy(asked.model)
    folder = asked.folder or root / _name(asked, policy)
    with lease(folder, EVALUATION) as held, devices(int(_on_gpu(asked.engine)), str(folder)) as taken:
        held.uses(taken)
        _sampled(asked, benchmarks, policy, folder, held.check)
    grade(folder / GENERATIONS, _limited(benchmarks, asked.limit), folder / "scores.json", asked.engine.threads)
    (folder / COMPARISON).unlink(missing_ok=True)  # it would compare earlier verdicts
    if asked.evaluation.lighteval:
        grade_again(folder / GENERATIONS, folder / "grades.parquet", folder / COMPARISON)
    scores = read_json(folder / "scores.json")["0"]
    return folder, {name: scores[name] for name in benchmarks}


def _sampled(
    asked: Asked, benchmarks: dict[str, Benchmark], policy: Path | str, folder: Path, check: Callable[[], None]
) -> None:
    """Make the generations unless a record says that they are there; the record is written last."""
    generations, record = folder / GENERATIONS, folder / "evaluation.json"
    problems = {name: load_problems(benchmark.data)[: asked.limit] for name, benchmark in benchmarks.items()}
    made_from = identity({0: policy}, benchmarks, problems, asked.seed, asked.evaluation)
    if generations.exists() and record.exists() and read_json(record).get("fingerprint") == made_from:
        return
    generations.unlink(missing_ok=True)
    generate({0: policy}, benchmarks, asked.seed, asked.engine, asked.evaluation, generations, asked.limit, check)
    content = {"fingerprint": made_from, "asked": _described(asked, benchmarks, policy)}
    write_json(record, content | _made_by(benchmarks))


def usual_backend() -> str:
    """Default backend: `vllm` where there is a GPU, else `torch`."""
    return "vllm" if _on_gpu(InProcessEngine()) else "torch"


def _on_gpu(engine: EngineSettings) -> bool:
    """True if sampling takes a GPU.

    CUDA is not asked: once initialised, it would ignore which GPU this process then takes.
    """
    import torch

    return engine.device != "cpu" and torch.version.cuda is not None and bool(available())


def chosen(asked: Asked, experiments: Experiments) -> dict[str, Benchmark]:
    """The chosen benchmarks by name, with the number of samples that was asked for.

    Raises:
        UserError: for an unknown protocol or benchmark.
    """
    known = experiments.protocol(asked.protocol)
    for name in asked.names:
        if name not in known:
            raise UserError(f"no such benchmark in the protocol {asked.protocol}", key="--benchmarks", value=name,
                            allowed=known)  # fmt: skip
    changes = {} if asked.samples is None else {"samples": asked.samples}
    return {name: known[name].model_copy(update=changes) for name in asked.names or known}


def find_policy(model: str) -> Path | str:
    """The folder of a policy in transformers' format, or a hub id.

    A run's folder stands for the run's last policy. A verl checkpoint stands for the copy in transformers' format that
    it holds.

    Raises:
        UserError: if the folder does not exist or holds no policy.
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
    raise UserError("there is no model in transformers' format in this folder", file=path, key="model", value=model,
                    allowed="a folder with config.json, or one with policies/step-* or actor/huggingface")  # fmt: skip


def _name(asked: Asked, policy: Path | str) -> Path:
    """Folder name of the results: the model's name with a hash of its path, then the settings."""
    if isinstance(policy, Path):
        model = f"{Path(asked.model).name}-{fingerprint(str(policy.resolve()))[:8]}"
    else:
        model = policy.replace("/", "-")
    how = [asked.protocol, asked.evaluation.harness, asked.evaluation.backend, f"seed{asked.seed}"]
    how += [f"samples{asked.samples}"] * (asked.samples is not None)
    how += [f"first{asked.limit}"] * (asked.limit is not None)
    return Path(model) / "-".join([*how, *asked.names])


def _described(asked: Asked, benchmarks: dict[str, Benchmark], policy: Path | str) -> dict[str, Any]:
    """The arguments as JSON values."""
    return {
        "model": asked.model, "policy": str(policy), "protocol": asked.protocol, "seed": asked.seed,
        "limit": asked.limit, "evaluation": asked.evaluation.model_dump(),
        "benchmarks": {
            name: benchmark.model_dump(mode="json") | {"metric": benchmark.metric}
            for name, benchmark in benchmarks.items()
        },
    }  # fmt: skip


def _made_by(benchmarks: dict[str, Benchmark]) -> dict[str, Any]:
    """Commit, machine and versions, and the data files with their hashes."""
    data = {n: {"origin": origin(b.data), "sha256": checksums(b.data)} for n, b in benchmarks.items()}
    return {"git": git_state(), "data": data} | environment()


def _limited(benchmarks: dict[str, Benchmark], limit: int | None) -> dict[str, Benchmark]:
    """The benchmarks cut to `limit` problems, as the grader is to expect them."""
    if limit is None:
        return benchmarks

    def cut(benchmark: Benchmark) -> Benchmark:
        if limit >= min(known_sizes(benchmark.data)):
            return benchmark
        cut_down: dict[str, Any] = {"size": limit}
        if isinstance(benchmark.data, HubProblems):
            cut_down["incomplete"] = {}
        return benchmark.model_copy(update={"data": benchmark.data.model_copy(update=cut_down)})

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
    """Notes to print below the table, one line each: IFEval's metrics, incomplete copies, the second grader."""
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
    """IFEval's metrics by both graders; an empty list if lighteval did not grade."""
    if not file.exists():
        return []
    content = read_json(file)
    metrics = [f"{m['metric']} {m['lm_eval']:.2%} and {m['lighteval']:.2%}" for m in content["metrics"]]
    return [f"lm-eval and lighteval: {', '.join(metrics)}; {len(content['disagreements'])} verdicts differ"]
