"""Two papers, made up for tests: one with a table, figures and claims in its own words, one with nothing but a cell.

The files of the first are those of docs/adding-a-paper.md."""

import re
from pathlib import Path

import yaml

PAGE = (Path(__file__).parents[1] / "docs/adding-a-paper.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`experiments/(second/\S+)`:\n\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL))
"""Content of each file of the documented paper, by its path in experiments/."""
BARE = {
    "title": "Nothing but a cell",
    "source": "made up too",
    "grids": [
        {
            "name": "one",
            "axes": {"a": {"alone": {}}},
            "cell": {
                "model": "qwen3-1.7b-base",
                "data": "deepmath-6k",
                "algorithm": {"kind": "grpo"},
                "reuse": {"kind": "vanilla"},
            },
        }
    ],
}

DEFAULT = """  second: [both]
  bare: [one]
"""
"""The lines that a preset gets, at its end: the grids of these papers."""
FIRST, WITH_THEM = "first: [spec_rl]", "first: [spec_rl, second, bare]"
"""The preset's papers that run without being named."""


def write_papers(experiments):
    """The files of the two papers; everything that they add."""
    files = FILES | {
        "bare/cells.yaml": yaml.safe_dump(BARE, sort_keys=False),
        "bare/hyperparameters.yaml": FILES["second/hyperparameters.yaml"],
    }
    for name, content in files.items():
        file = experiments / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
