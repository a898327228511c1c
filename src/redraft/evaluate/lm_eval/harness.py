"""Sampling of a policy through lm-eval: generations in this project's columns, and lm-eval's own metrics.

Any benchmark can be sampled, also one that only a preset lists. The benchmarks of protocols become the same tasks as in
the task files under workflows/lm_eval.
"""

import logging
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lm_eval import evaluate as evaluate_tasks
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.utils import set_torch_seed

from redraft.config.data import Benchmark
from redraft.config.trainer import EngineSettings
from redraft.errors import UserError
from redraft.evaluate.backends import open_backend
from redraft.evaluate.lm_eval import stock, task_functions
from redraft.evaluate.lm_eval.redraft_model import RedraftModel
from redraft.evaluate.lm_eval.tasks import task_config
from redraft.tasks.problems import load_problems
from redraft.tasks.prompts import encode
from redraft.train import models


@dataclass(frozen=True)
class Evaluated:
    """lm-eval's results.

    Attributes:
        generations: one line per sample, with the columns of `redraft.evaluate.generation_parts.SCHEMA` but the step.
        metrics: aggregated metrics by benchmark and name.
    """

    generations: pd.DataFrame
    metrics: dict[str, dict[str, float]]


def evaluate(
    policy: Path | str,
    benchmarks: dict[str, Benchmark],
    seed: int,
    kind: str,
    settings: EngineSettings,
    limit: int | None = None,
) -> Evaluated:
    """Sample and grade a policy on benchmarks through lm-eval.

    lm-eval's own models (`transformers` and `vllm`) return text only. The text is then tokenized again, so the stop
    token is missing, and a response counts as cut off if its tokens reach the length limit.

    Args:
        kind: `torch` for the model `redraft` with the in-process engine, `transformers` for lm-eval's `hf`, `vllm`
            for lm-eval's `vllm`. All other arguments are those of `redraft.evaluate.generate.generate`.

    Raises:
        UserError: if problems or a policy cannot be read, or if a prompt does not fit the policy.
    """
    results = list(sample(policy, benchmarks, seed, kind, settings, limit, graded=True))
    frames = pd.concat([frame for _, frame, _ in results], ignore_index=True)
    return Evaluated(frames, {name: metrics for name, _, metrics in results})


def sample(
    policy: Path | str,
    benchmarks: dict[str, Benchmark],
    seed: int,
    kind: str,
    settings: EngineSettings,
    limit: int | None = None,
    *,
    graded: bool = False,
) -> Iterator[tuple[str, pd.DataFrame, dict[str, float]]]:
    """Yield each benchmark's name, generations and lm-eval metrics when it is done; see `evaluate`."""
    with _quiet(), _opened(kind, policy, benchmarks, seed, settings, limit) as model:
        for name, benchmark in benchmarks.items():
            config = task_config(name, benchmark)
            config["generation_kwargs"] |= stock.generation(kind, policy, model.tokenizer)
            if not graded:
                config |= {"process_results": task_functions.ungraded, "metric_list": task_functions.UNGRADED}
            task = ConfigurableTask(config=config)
            # The model `redraft` applies the chat template itself.
            templated = not isinstance(model, RedraftModel) and benchmark.chat != "never"
            templated = templated and bool(getattr(model.tokenizer, "chat_template", None))
            results, seconds = _run(model, task, templated, seed, limit)
            rows = _rows(model, task.config.task, results["samples"][task.config.task], benchmark)
            metrics = {
                # lm-eval names a metric `name,filter`.
                metric.partition(",")[0]: float(value)
                for metric, value in results["results"][task.config.task].items()
                if "," in metric and not metric.partition(",")[0].endswith("_stderr")
            }
            yield name, pd.DataFrame(rows).assign(seconds=seconds / len(rows)), metrics


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval's warnings about custom data sets and settings, which this project checks itself."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _opened(
    kind: str,
    policy: Path | str,
    benchmarks: dict[str, Benchmark],
    seed: int,
    settings: EngineSettings,
    limit: int | None,
) -> Iterator[LM]:
    if kind not in stock.OPEN:
        with closing(open_backend(kind, policy, settings)) as backend:
            yield RedraftModel(backend, seed)
        return
    tokenizer = models.load_tokenizer(policy)
    length = max(
        len(prompt) + benchmark.max_new_tokens
        for benchmark in benchmarks.values()
        for prompt in encode(tokenizer, [p.prompt for p in load_problems(benchmark.data)[:limit]], benchmark.chat)
    )
    models.check_rotation(policy, length)
    model = stock.OPEN[kind](policy, length, seed, settings)
    try:
        if length > model.max_length:  # lm-eval would cut the prompts, and no result would show it
            raise UserError(
                "the longest prompt with its response is longer than the model allows",
                file=policy,
                key="max_new_tokens",
                value=length,
                allowed=f"{model.max_length} tokens in all",
            )
        yield model
    finally:
        stock.close(model)


@dataclass
class _Clock:
    """Wrapper that times an lm-eval model's generation, without the grading."""

    generate: Any
    seconds: float = field(default=0.0)

    def __call__(self, requests: list[Any]) -> list[str]:
        began = time.perf_counter()
        texts = self.generate(requests)
        self.seconds = time.perf_counter() - began
        return texts


def _run(
    model: LM, task: ConfigurableTask, templated: bool, seed: int, limit: int | None
) -> tuple[dict[str, Any], float]:
    """Run one task; returns lm-eval's results and the wall seconds of generation.

    This is lm-eval's `simple_evaluate` without its record of the environment, which runs pip and compilers.
    """
    clock = _Clock(model.generate_until)
    model.generate_until = clock
    random.seed(seed)
    np.random.seed(seed)
    set_torch_seed(seed)
    task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(seed)
    try:
        results = evaluate_tasks(
            model,
            # lm-eval's own tasks are 14,000 files, which would be indexed.
            TaskManager(include_defaults=False).load([task]),
            limit=limit,
            log_samples=True,
            apply_chat_template=templated,
            fewshot_as_multiturn=True,
        )
    finally:
        model.generate_until = clock.generate
    return results, clock.seconds


def _rows(model: LM, task: str, samples: list[dict[str, Any]], benchmark: Benchmark) -> list[dict[str, Any]]:
    """Lines of generations from lm-eval's log of a task."""
    rows = []
    for entry in samples:
        # A document has one request, which has all its samples.
        ((*texts,),) = entry["resps"]
        document = entry["doc"]
        for i, text in enumerate(texts):
            if isinstance(model, RedraftModel):
                response = model.responses[task, document["problem"], i]
                tokens, finish = response.tokens, response.finish
            else:
                tokens = np.asarray(model.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
                # A guess, since lm-eval's models return text alone.
                finish = "length" if len(tokens) >= benchmark.max_new_tokens else "stop"
            rows.append(
                {
                    "benchmark": document["benchmark"],
                    "problem": document["problem"],
                    "sample": i,
                    "prompt": document["prompt"],
                    "answer": document["answer"],
                    "tokens": tokens,
                    "text": text,
                    "finish": finish,
                }
            )
    return rows
