"""Sampling policies on benchmarks. Generations are saved with everything grading needs, and not graded here."""

import sys
from collections.abc import Mapping
from pathlib import Path

from redraft.config import Evaluation, benchmarks_fingerprint, fingerprint
from redraft.config.data import Benchmark
from redraft.config.trainer import Engine
from redraft.errors import UserError
from redraft.evaluate.backends import Backend, Request, Response, open_backend
from redraft.evaluate.parts import Parts
from redraft.tasks.problems import Problem, load_problems, missing
from redraft.tasks.prompts import encode
from redraft.train import models


def generate(
    policies: Mapping[int, Path | str], benchmarks: dict[str, Benchmark], seed: int, settings: Engine,
    evaluation: Evaluation, file: Path, limit: int | None = None,
) -> None:  # fmt: skip
    """Sample policies on every benchmark and write one Parquet file; what an interrupted call saved is not made again.

    All policies draw from the same streams, so that their differences are not of sampling alone.

    Args:
        policies: steps of training to a folder in transformers' format, or a hub id.
        benchmarks: what to sample, by name.
        seed: of the sampling streams.
        settings: where to execute.
        evaluation: what samples.
        file: where to write; one line a sample, with `redraft.evaluate.parts.COLUMNS`.
        limit: how many problems of each benchmark, the first ones; all if none is given.

    Raises:
        UserError: if problems or a policy cannot be read, or the policy cannot be asked these problems.
    """
    problems = {name: _problems(name, benchmark, limit) for name, benchmark in benchmarks.items()}
    parts = Parts(file, _identity(policies, benchmarks, seed, evaluation, limit))
    done = parts.done
    for step, policy in sorted(policies.items()):
        wanted = {
            name: [(i, s) for i in range(len(problems[name])) for s in range(benchmark.samples)
                   if (step, name, i, s) not in done]
            for name, benchmark in benchmarks.items()
        }  # fmt: skip
        wanted = {name: keys for name, keys in wanted.items() if keys}
        if not wanted:
            continue
        prompts = {name: _prompts(name, benchmarks[name], problems[name], policy) for name in wanted}
        if evaluation.harness == "lm-eval":
            _by_harness(step, policy, {n: benchmarks[n] for n in wanted}, seed, settings, evaluation, limit, parts)
            continue
        backend = open_backend(evaluation.backend, policy, settings)
        for name, keys in wanted.items():
            requests = [Request(i, s, prompts[name][i]) for i, s in keys]
            _sample(step, name, benchmarks[name], problems[name], requests, backend, seed, parts)
        backend.close()
    parts.finish({name: i for i, name in enumerate(benchmarks)})


def _problems(name: str, benchmark: Benchmark, limit: int | None) -> list[Problem]:
    problems = load_problems(benchmark.data)
    if lacking := missing(benchmark.data, len(problems)):
        print(f"{name}: {lacking}", file=sys.stderr)
    return problems[:limit]


def _identity(
    policies: Mapping[int, Path | str], benchmarks: dict[str, Benchmark], seed: int, evaluation: Evaluation,
    limit: int | None,
) -> str:  # fmt: skip
    """Fingerprint of what is sampled; of weights in a folder their names, sizes and times."""
    files = [
        [step, str(policy), [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in _weights(policy)]]
        for step, policy in sorted(policies.items())
    ]
    asked = benchmarks_fingerprint(benchmarks, graded=False)
    return fingerprint([files, asked, seed, evaluation.backend, evaluation.harness, limit])


def _weights(policy: Path | str) -> list[Path]:
    return sorted(policy.glob("*.safetensors")) if isinstance(policy, Path) else []


def _prompts(name: str, benchmark: Benchmark, problems: list[Problem], policy: Path | str) -> list[list[int]]:
    """Prompts as tokens.

    Raises:
        UserError: if one is empty, or with its response is longer than the model takes.
    """
    prompts = encode(models.load_tokenizer(policy), [problem.prompt for problem in problems], benchmark.chat)
    if [] in prompts:
        raise UserError("a problem has no tokens", key=f"{name}, problem", value=prompts.index([]))
    most = getattr(models.load_config(policy), "max_position_embeddings", None)
    length = max(map(len, prompts)) + benchmark.max_new_tokens
    if most is not None and length > most:
        raise UserError("prompt and response together are longer than this model takes", file=policy,
                        key=f"{name}, max_new_tokens", value=benchmark.max_new_tokens,
                        allowed=f"{most - length + benchmark.max_new_tokens}, for {most} in all")  # fmt: skip
    return prompts


def _sample(
    step: int, name: str, benchmark: Benchmark, problems: list[Problem], requests: list[Request], backend: Backend,
    seed: int, parts: Parts,
) -> None:  # fmt: skip
    """Sample what of a benchmark is not there yet."""

    def deliver(response: Response) -> None:
        problem = problems[response.problem]
        parts.add({
            "step": step, "benchmark": name, "problem": response.problem, "sample": response.sample,
            "prompt": problem.prompt, "answer": problem.answer, "tokens": response.tokens,
            "text": backend.tokenizer.decode(response.tokens, skip_special_tokens=True), "finish": response.finish,
        })  # fmt: skip

    parts.begin()
    try:
        backend.sample(name, requests, benchmark, seed, deliver)
    finally:
        parts.save()


def _by_harness(
    step: int, policy: Path | str, benchmarks: dict[str, Benchmark], seed: int, settings: Engine,
    evaluation: Evaluation, limit: int | None, parts: Parts,
) -> None:  # fmt: skip
    """Sample through lm-eval, which gives back whole benchmarks."""
    from redraft.evaluate.lm_eval import harness

    for name, benchmark in benchmarks.items():
        parts.begin()
        frame = harness.sample(policy, {name: benchmark}, seed, evaluation.backend, settings, limit)
        done = parts.done
        for row in frame.drop(columns="seconds").assign(step=step).to_dict("records"):
            if (step, name, row["problem"], row["sample"]) not in done:
                parts.add(row)
        parts.save()
