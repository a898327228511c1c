"""Sampling policies on benchmarks. Generations are saved with everything grading needs, and not graded here."""

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from redraft.config import Evaluation, fingerprint
from redraft.config.data import Benchmark, Sampling
from redraft.config.trainer import EngineSettings
from redraft.errors import UserError
from redraft.evaluate.backends import Backend, Request, Response, open_backend
from redraft.evaluate.parts import KEY, Parts
from redraft.tasks.problems import Problem, load_problems, missing
from redraft.tasks.prompts import encode
from redraft.train import models


def generate(
    policies: Mapping[int, Path | str], benchmarks: dict[str, Benchmark], seed: int, settings: EngineSettings,
    evaluation: Evaluation, file: Path, limit: int | None = None, check: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Sample policies on every benchmark and write one Parquet file; what an interrupted call saved is not made again.

    All policies draw from the same streams, so that their differences are not of sampling alone.

    Args:
        policies: steps of training to a folder in transformers' format, or a hub id.
        benchmarks: what to sample, by name.
        seed: of the sampling streams.
        settings: where to execute.
        evaluation: what samples.
        file: where to write; one line a sample, with `redraft.evaluate.parts.SCHEMA`.
        limit: how many problems of each benchmark, the first ones; all if none is given.
        check: raises if another process has taken the folder, called before anything is written into it.

    Raises:
        UserError: if problems or a policy cannot be read, or the policy cannot be asked these problems.
    """
    problems = {name: _problems(name, benchmark, limit) for name, benchmark in benchmarks.items()}
    parts = Parts(file, identity(policies, benchmarks, problems, seed, evaluation), check=check)
    for step, policy in sorted(policies.items()):
        wanted = {
            name: [(i, s) for i in range(len(problems[name])) for s in range(benchmark.samples)
                   if (step, name, i, s) not in parts.done]
            for name, benchmark in benchmarks.items()
        }  # fmt: skip
        wanted = {name: keys for name, keys in wanted.items() if keys}
        if not wanted:
            continue
        prompts = {name: _prompts(name, benchmarks[name], problems[name], policy) for name in wanted}
        if evaluation.harness == "lm-eval":
            asked = {name: benchmarks[name] for name in wanted}
            _by_harness(step, policy, asked, seed, settings, evaluation, limit, parts)
            continue
        longest = max(max(map(len, prompts[name])) + benchmarks[name].max_new_tokens for name in wanted)
        with closing(open_backend(evaluation.backend, policy, settings, longest)) as backend:
            for name, keys in wanted.items():
                requests = [Request(i, s, prompts[name][i]) for i, s in keys]
                _sample(step, name, benchmarks[name], problems[name], requests, backend, seed, parts)
        del backend  # else its weights stay beside the next one's
    parts.finish(list(benchmarks))


def _problems(name: str, benchmark: Benchmark, limit: int | None) -> list[Problem]:
    problems = load_problems(benchmark.data)
    if lacking := missing(benchmark.data, len(problems)):
        print(f"{name}: {lacking}", file=sys.stderr)
    return problems[:limit]


def identity(
    policies: Mapping[int, Path | str], benchmarks: dict[str, Benchmark], problems: dict[str, list[Problem]],
    seed: int, evaluation: Evaluation,
) -> str:  # fmt: skip
    """Fingerprint of everything that decides generations: policies, problems, sampling, and what samples."""
    how = set(Sampling.model_fields)
    asked = {
        name: [benchmark.model_dump(mode="json", include=how), [[p.prompt, p.answer] for p in problems[name]]]
        for name, benchmark in benchmarks.items()
    }
    files = [[step, _files(policy)] for step, policy in sorted(policies.items())]
    return fingerprint([files, asked, seed, evaluation.backend, evaluation.harness])


def _files(policy: Path | str) -> list[Any]:
    """Names, sizes and times of a policy's files; of one on the hub its commit."""
    if isinstance(policy, str):
        return [policy, getattr(models.load_config(policy), "_commit_hash", None)]
    models.load_config(policy)  # named, if there is none
    return [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(policy.iterdir()) if f.is_file()]


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

    def deliver(*responses: Response) -> None:
        parts.add(*(_row(step, name, problems[r.problem], r, backend.tokenizer) for r in responses))

    parts.begin()
    try:
        backend.sample(name, requests, benchmark, seed, deliver)
    finally:
        parts.save()


def _row(step: int, name: str, problem: Problem, response: Response, tokenizer: Any) -> dict[str, Any]:
    return {
        "step": step, "benchmark": name, "problem": response.problem, "sample": response.sample,
        "prompt": problem.prompt, "answer": problem.answer, "tokens": response.tokens,
        "text": tokenizer.decode(response.tokens, skip_special_tokens=True), "finish": response.finish,
    }  # fmt: skip


def _by_harness(
    step: int, policy: Path | str, benchmarks: dict[str, Benchmark], seed: int, settings: EngineSettings,
    evaluation: Evaluation, limit: int | None, parts: Parts,
) -> None:  # fmt: skip
    """Sample through lm-eval, which gives back whole benchmarks; each is saved when it is there."""
    from redraft.evaluate.lm_eval import harness

    for frame in harness.sample(policy, benchmarks, seed, evaluation.backend, settings, limit):
        rows = frame.assign(step=step).to_dict("records")
        parts.add(*(row for row in rows if tuple(row[key] for key in KEY) not in parts.done))
        parts.save()
