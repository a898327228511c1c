"""IFEval for lighteval by SPEC-RL's protocol: lighteval's own prompt, checkers and metrics, and 16,000 tokens.

    lighteval accelerate "model_name=...,generation_parameters={temperature:1.0,top_p:0.95}" redraft:ifeval \
        --custom-tasks workflows/lighteval/tasks.py --no-remove-reasoning-tags

lighteval's own task stops at 1,280 tokens. Its prompts are a file `ifeval.jsonl` or a folder `google/IFEval` in
`$REDRAFT_DATA` where that is set and has one, else the hub's data set. Runs in the environment envs/lighteval.
"""

import logging
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from langdetect import DetectorFactory

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from redraft.tasks.sentences import sentence_splitter

SPLITTER = sentence_splitter()
with patch("nltk.download"):  # of a model that it looks for and never uses, and that NLTK waits for without a network
    from lighteval.tasks.tasks.ifeval.main import IFEvalMetrics, ifeval, ifeval_metrics

SEED = 0
"""Of the language detector and of the letter that a prompt without one gets, as in redraft.tasks.instructions."""
FAILED = "failed"
"""Key of what went wrong in a checker, in a document's own data."""

DetectorFactory.seed = SEED


class SeededMetrics(IFEvalMetrics):
    """lighteval's verdicts, each independent of what was graded before; a checker that fails costs one sample."""

    def compute(self, doc: Any, model_response: Any, **kwargs: Any) -> dict[str, Any]:
        """Verdicts on one response, by metric; none is true where a checker fails."""
        random.seed(SEED)
        logging.disable(logging.ERROR)  # whole responses, when their language is not recognised
        try:
            return super().compute(doc, model_response, **kwargs)
        except Exception as error:
            doc.specific[FAILED] = f"{type(error).__name__}: {error}"
            none = [False] * len(doc.specific["instructions_id_list"])
            return {name: none if name.startswith("inst") else 0 for name in ifeval_metrics.metric_name}
        finally:
            logging.disable(logging.NOTSET)


def prompts() -> str:
    """What lighteval loads the prompts from: a folder, or the hub's id."""
    root = Path(os.environ.get("REDRAFT_DATA") or "/nonexistent")
    if (root / "ifeval.jsonl").exists():
        return _alone(root / "ifeval.jsonl")
    folder = root / ifeval.hf_repo
    return str(folder) if folder.is_dir() else ifeval.hf_repo


def _alone(file: Path) -> str:
    """A folder with this file only: lighteval reads all of a folder."""
    _KEPT.append(TemporaryDirectory(prefix="redraft-ifeval-"))
    (Path(_KEPT[-1].name) / "train.jsonl").symlink_to(file.resolve())
    return _KEPT[-1].name


_KEPT: list[TemporaryDirectory] = []

TASKS_TABLE = [
    replace(
        ifeval,
        name="redraft:ifeval",
        hf_repo=prompts(),
        metrics=[replace(ifeval_metrics, sample_level_fn=SeededMetrics())],
        generation_size=16000,
    )
]
