"""Speed of the grade stage in samples per second, with two workers, on the answers of the real test sets.

"Distinct" has three samples per problem: the answer boxed in another notation, a wrong answer, and the answer without a
box. "Repeated" has the same responses several times, as samples of a problem repeat answers.
"""

import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from redraft.config.data import ArithmeticProblems, Benchmark
from redraft.evaluate.grade import grade
from redraft.tasks.answers import boxed

FOLDER = Path(__file__).parents[2] / "shared/data/benchmarks"
PROCESSES = 2
REPEATS = 8
LENGTH = 4000
"""Characters before the box of each response."""
ANSWERS = {
    "math500": lambda row: row["answer"],
    "minerva_math": lambda row: boxed(row["solution"]),
    "olympiadbench": lambda row: row["final_answer"][0],
}


def answers(name: str) -> list[str]:
    """The answers of a test set, or small integers if its file is missing."""
    file = FOLDER / f"{name}.jsonl"
    if not file.exists():
        return [str(i) for i in range(500)]
    return [ANSWERS[name](json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def responses(own: list[str], repeats: int) -> pd.DataFrame:
    """Three samples per problem, `repeats` times."""
    texts = [
        [f"\\boxed{{{spaced(answer)}}}", f"\\boxed{{{other}}}", f"It is {answer}."]
        for answer, other in zip(own, own[1:] + own[:1], strict=True)
    ]
    rows = [
        {"problem": i, "answer": own[i], "text": "w " * (LENGTH // 2) + text}
        for i, of_problem in enumerate(texts) for text in of_problem * repeats
    ]  # fmt: skip
    frame = pd.DataFrame(rows).assign(step=0, benchmark="answers", prompt="", finish="stop", seconds=0.0)
    frame["sample"] = np.tile(np.arange(3 * repeats), len(own))
    return frame.assign(tokens=[np.zeros(LENGTH // 4, np.int32)] * len(frame))


def spaced(answer: str) -> str:
    """The same answer in another notation, so that the texts differ."""
    return re.sub(r"\\frac\b", r"\\dfrac", answer.replace("$", "")) + "\\,"


def main() -> None:
    """Print samples per second, and counts of outcomes."""
    print(f"grading, {PROCESSES} workers, {LENGTH:,} characters per response")
    for name in ANSWERS:
        for kind, repeats in (("distinct", 1), (f"repeated {REPEATS} times", REPEATS)):
            own = answers(name)
            settings = {"answers": Benchmark(data=ArithmeticProblems(size=len(own)), samples=3 * repeats)}
            with tempfile.TemporaryDirectory() as folder:
                file, scores = Path(folder) / "generations.parquet", Path(folder) / "scores.json"
                responses(own, repeats).to_parquet(file)
                began = time.perf_counter()
                grade(file, settings, scores, PROCESSES)
                seconds = time.perf_counter() - began
                score = json.loads(scores.read_text())["0"]["answers"]
            outcomes = ", ".join(f"{score[key]:,} {key}" for key in ("correct", "without_answer", "timeouts", "errors"))
            speed = f"{score['total']:>7,} samples {seconds:6.1f} s {score['total'] / seconds:8,.0f} per second"
            print(f"  {name:<14} {kind:<18} {speed}; {outcomes}")


if __name__ == "__main__":
    main()
