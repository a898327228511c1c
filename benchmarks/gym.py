"""Map of reasoning-gym's tasks for docs/reasoning-gym.md: lengths, times, guessing, and pass rates of a model.

`python -m benchmarks.gym [MODEL]` prints a line for each task; MODEL is a folder in transformers' format. Its tokenizer
counts the tokens, and it answers each problem `SAMPLES` times. Without it characters are counted.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.config import GymProblems, InProcessEngine, gym
from redraft.config.data import Benchmark
from redraft.config.trainer import Evaluation
from redraft.errors import UserError
from redraft.tasks import gym as tasks
from redraft.tasks.answers import box
from redraft.tasks.prompts import encode
from redraft.tasks.rewards import rewards_of

PROBLEMS, SAMPLES, MOST_TOKENS = 16, 4, 64
GUESSES = ("0", "1", "-1", "2", "No", "Yes", "True", "False", "[]", "[[1]]", "nan", "None", "a", "1/2", "A")
"""Fixed answers, besides each problem's own; the largest share of problems that one of them solves is `guess`."""


def options_of(task: str) -> str:
    """Options of a task with their defaults."""
    configuration = type(gym.build(task, {}).config)
    kept = [each for each in dataclasses.fields(configuration) if each.name not in gym.OF_THE_DATA]
    defaults = {each.name: getattr(gym.build(task, {}).config, each.name) for each in kept}
    short = {name: value for name, value in defaults.items() if isinstance(value, bool | int | float | str)}
    texts = [f"{name} {str(short[name])[:12]}" if name in short else name for name in defaults]
    return ", ".join(f"`{text}`" for text in texts)


def line(task: str, tokenizer: Any) -> dict[str, object]:
    """Figures of a supported task with its default options; `notes` has the error if its problems cannot be had."""
    data = GymProblems(task=task, size=PROBLEMS, scorer_errors="wrong")
    try:
        began = time.process_time()
        made = tasks.sample_problems(data)
        each = (time.process_time() - began) / PROBLEMS
        held_out = tasks.sample_problems(data.model_copy(update={"split": "held-out"}))
    except UserError as error:
        return {"task": f"`{task}`", "options": options_of(task), "notes": error.message}
    assert not {p.question for p in made} & {p.question for p in held_out}
    prompts = [data.template.replace("{problem}", problem.question) for problem in made]
    own = [problem.source.answer for problem in made]
    began = time.process_time()
    right = [rewards_of([box(answer)], p.answer, "reasoning_gym")[0][0] for answer, p in zip(own, made, strict=True)]
    scored = (time.process_time() - began) / PROBLEMS
    guesses = dict.fromkeys([*GUESSES, *own])
    solved = {g: sum(rewards_of([box(g)], p.answer, "reasoning_gym")[0][0] for p in made) / PROBLEMS for g in guesses}
    failing = [g for g in GUESSES if any(str(tasks.compare(g, p.answer)) == "error" for p in made)]
    ascii_only = all(text.isascii() for text in prompts)
    lengths = [len(tokens) for tokens in encode(tokenizer, prompts)] if tokenizer and ascii_only else map(len, prompts)
    notes = (["not ASCII"] if not ascii_only else []) + ([f"its scorer fails on `{failing[0]}`"] if failing else [])
    return {
        "task": f"`{task}`",
        "options": options_of(task),
        "own answer": f"{sum(right):.0f}/{PROBLEMS}",
        "ms to make": round(1000 * each, 1),
        "ms to score": round(1000 * scored, 1),
        "prompt": int(pd.Series(list(lengths)).median()),
        "answer": max(map(len, own)),
        "guess": f"{max(solved.values()):.0%}",
        "notes": ", ".join(notes),
    }


def passed(task: str, model: Path, folder: Path) -> float:
    """Share of a model's samples on held-out problems of a task that are right."""
    from redraft.evaluate.generate import generate
    from redraft.evaluate.grade import grade
    from redraft.files import read_json

    data = GymProblems(task=task, size=PROBLEMS, split="held-out", scorer_errors="wrong")
    benchmark = Benchmark(data=data, grading="reasoning_gym", samples=SAMPLES, max_new_tokens=MOST_TOKENS)
    file = folder / f"{task}.parquet"
    generate({0: model}, {task: benchmark}, 0, InProcessEngine(device="cpu"), Evaluation(), file)
    grade(file, {task: benchmark}, folder / f"{task}.json")
    scores = read_json(folder / f"{task}.json")["0"][task]
    return scores["correct"] / scores["total"]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table of supported tasks, then that of the others."""
    from tempfile import TemporaryDirectory

    from redraft.train import models

    model = Path(arguments[0]) if arguments else None
    tokenizer = models.load_tokenizer(model) if model else None
    lines = []
    with TemporaryDirectory() as folder:
        for task in gym.tasks():
            found = line(task, tokenizer)
            if model and "guess" in found:
                try:
                    found["pass rate"] = f"{passed(task, model, Path(folder)):.1%}"
                except UserError as error:
                    found["notes"] = ", ".join(filter(None, (str(found["notes"]), error.message)))
            lines.append(found)
    print(pd.DataFrame(lines).fillna("").to_markdown(index=False))
    print()
    others = [{"task": f"`{task}`", "unsupported because": reason} for task, reason in gym.UNSUPPORTED.items()]
    print(pd.DataFrame(others).to_markdown(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
