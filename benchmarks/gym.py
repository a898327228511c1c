"""Map of reasoning-gym's tasks for docs/reasoning-gym.md: lengths, times, guessing, and pass rates of a model.

`python -m benchmarks.gym` prints a line for each task. `python -m benchmarks.gym MODEL ANSWER_IN [TASK ...]` prints
pass rates of a model, a folder in transformers' format, on all tasks or on some, each as soon as it is known. ANSWER_IN
is `box` or `first_line`. `TASK={option: value}` sets options (YAML). Solved problems of the training split precede each
question, since small models write neither without an example.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import yaml

from redraft.config import GymProblems, InProcessEngine, gym
from redraft.config.data import Benchmark
from redraft.config.trainer import Evaluation
from redraft.errors import UserError
from redraft.tasks import gym as tasks
from redraft.tasks.answers import box
from redraft.tasks.rewards import rewards_of

PROBLEMS = 16
EXAMPLES, HELD_OUT, SAMPLES, MOST_TOKENS = 2, 8, 4, 24
"""Of pass rates: solved problems in a prompt, held-out problems, samples of each, and tokens of a sample."""
TEMPLATE = "Question: {problem}\nAnswer:"
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


def line(task: str) -> dict[str, object]:
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
    notes = (["not ASCII"] if not ascii_only else []) + ([f"its scorer fails on `{failing[0]}`"] if failing else [])
    return {
        "task": f"`{task}`",
        "options": options_of(task),
        "own answer": f"{sum(right):.0f}/{PROBLEMS}",
        "ms to make": round(1000 * each, 1),
        "ms to score": round(1000 * scored, 1),
        "prompt": int(pd.Series([len(text) for text in prompts]).median()),
        "answer": max(map(len, own)),
        "guess": f"{max(solved.values()):.0%}",
        "notes": ", ".join(notes),
    }


def pass_rate(data: GymProblems, model: Path, folder: Path) -> dict[str, object]:
    """Samples of a model on held-out problems of a task: those that are right, and all."""
    from redraft.evaluate.generate import generate

    benchmark = Benchmark(data=data, grading="reasoning_gym", samples=SAMPLES, max_new_tokens=MOST_TOKENS)
    engine = InProcessEngine(device="cpu", threads=1, dtype="float32")
    file = folder / "samples.parquet"
    generate({0: model}, {data.task: benchmark}, 0, engine, Evaluation(), file)
    samples = pd.read_parquet(file)
    right = sum(
        rewards_of([text], answer, "reasoning_gym")[0][0]
        for text, answer in zip(samples["text"], samples["answer"], strict=True)
    )
    return {"right": f"{right:.0f}", "samples": len(samples)}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables of tasks, or a model's pass rates."""
    if not arguments:
        print(pd.DataFrame(map(line, gym.tasks())).fillna("").to_markdown(index=False))
        print()
        others = [{"task": f"`{task}`", "unsupported because": reason} for task, reason in gym.UNSUPPORTED.items()]
        print(pd.DataFrame(others).to_markdown(index=False))
        return
    model, answer_in, *named_tasks = arguments
    print("| task | right | samples |\n|---|---|---|", flush=True)
    with TemporaryDirectory() as folder:
        for named in named_tasks or gym.tasks():
            task, _, options = named.partition("=")
            try:
                data = GymProblems(
                    task=task,
                    options=yaml.safe_load(options or "{}"),
                    answer_in=answer_in,
                    examples=EXAMPLES,
                    template=TEMPLATE,
                    size=HELD_OUT,
                    split="held-out",
                    scorer_errors="wrong",
                )
                cells = pass_rate(data, Path(model), Path(folder))
            except UserError as error:
                print(f"| `{named}` | {error.message} | |", flush=True)
                continue
            print(f"| `{named}` | {' | '.join(map(str, cells.values()))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
