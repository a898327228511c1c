"""How often the rewards of `redraft.tasks.rewards` differ: on finished runs' generations, and on published solutions.

The published solutions of the test sets serve as responses, each complete and without its last box.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from redraft.tasks.answers import boxed
from redraft.tasks.rewards import REWARDS

FOLDER = Path(__file__).parents[2] / "shared/data/benchmarks"
SOLUTIONS = {
    "aime24": lambda row: (row["solution"], row["answer"]),
    "math500": lambda row: (row["solution"], row["answer"]),
    "minerva_math": lambda row: (row["solution"], boxed(row["solution"])),
    "gsm8k": lambda row: (row["answer"], row["answer"].split("####")[1].strip()),
}
"""Test set to the solution and the answer in a line of its file."""


def unboxed(text: str) -> str:
    """A text whose last box is opened: `\\boxed{42}` becomes `42`."""
    content = boxed(text)
    return text if content is None else content.join(text.rsplit(f"\\boxed{{{content}}}", 1))


def line(name: str, pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Counts of a set of responses and answers: right by each rule, and right by one rule and not by the default."""
    verdicts = Counter(tuple(rule(*pair) for rule in REWARDS.values()) for pair in pairs)
    counts: dict[str, object] = {"responses": name, "number": verdicts.total()}
    for i, rule in enumerate(REWARDS):
        counts[f"right by `{rule}`"] = sum(n for found, n in verdicts.items() if found[i])
        if i:
            counts[f"`{rule}` differs"] = sum(n for found, n in verdicts.items() if found[i] != found[0])
    return counts


def solutions() -> Iterable[dict[str, object]]:
    """A line for each test set that is there, as published and unboxed."""
    for name, read in SOLUTIONS.items():
        file = FOLDER / f"{name}.jsonl"
        if file.exists():
            pairs = [read(json.loads(text)) for text in file.read_text(encoding="utf-8").splitlines()]
            yield line(f"{name}, as published", pairs)
            if any(boxed(text) is not None for text, _ in pairs):
                yield line(f"{name}, last box opened", [(unboxed(text), answer) for text, answer in pairs])


def generations(folder: Path) -> Iterable[dict[str, object]]:
    """A line for the trained policies and one for the initial ones of a preset's results."""
    for kind, files in (("trained", "runs/*/*/seed*"), ("initial", "initial/**")):
        frames = [pd.read_parquet(file) for file in sorted(folder.glob(f"{files}/generations.parquet"))]
        if frames:
            texts = pd.concat(frames)
            yield line(f"{folder.name}, {kind} policies", zip(texts["text"], texts["answer"], strict=True))


def main(folders: Sequence[str] = ()) -> None:
    """Print the table; `folders` are presets' results, such as `results/tiny`."""
    lines = [*solutions(), *(found for folder in folders for found in generations(Path(folder)))]
    print("\n## Rewards: right responses by rule, and those that differ from `last_box`\n")
    print(pd.DataFrame(lines).to_markdown(index=False) if lines else "no test set and no results here")


if __name__ == "__main__":
    main(sys.argv[1:])
