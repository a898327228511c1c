"""IFEval for lighteval by SPEC-RL's protocol: lighteval's own prompt, checkers and metrics, up to 16,000 tokens.

    lighteval accelerate "model_name=...,generation_parameters={temperature:1.0,top_p:0.95}" redraft:ifeval \
        --custom-tasks workflows/lighteval/tasks.py --no-remove-reasoning-tags

lighteval's own task stops at 1,280 tokens. The prompts come from the file `ifeval.jsonl` or the folder `google/IFEval`
in `$REDRAFT_DATA` if one is there, else from the hub. This file runs in the environment envs/lighteval.
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
with patch("nltk.download"):  # lighteval fetches a model that it never uses; without a network NLTK would wait for it
    from lighteval.tasks.tasks.ifeval.main import IFEvalMetrics, ifeval, ifeval_metrics

SEED = 0
"""Seed of the language detector and of the letter counter, as in redraft.tasks.instructions."""
FAILED = "failed"
"""Key of a checker's error in a document's own data."""

DetectorFactory.seed = SEED


class SeededMetrics(IFEvalMetrics):
    """lighteval's metrics with seeded checkers; verdicts ignore earlier samples, and an error costs one sample."""

    def compute(self, doc: Any, model_response: Any, **kwargs: Any) -> dict[str, Any]:
        """Verdicts on one response, by metric; all are false if a checker fails."""
        random.seed(SEED)
        logging.disable(logging.ERROR)  # lighteval logs whole responses whose language it does not recognise
        try:
            return super().compute(doc, model_response, **kwargs)
        except Exception as error:
            doc.specific[FAILED] = f"{type(error).__name__}: {error}"
            none = [False] * len(doc.specific["instructions_id_list"])
            return {name: none if name.startswith("inst") else 0 for name in ifeval_metrics.metric_name}
        finally:
            logging.disable(logging.NOTSET)


def prompts() -> str:
    """The source of the prompts: a local folder or the hub id."""
    root = Path(os.environ.get("REDRAFT_DATA") or "/nonexistent")
    if (root / "ifeval.jsonl").exists():
        return _alone(root / "ifeval.jsonl")
    folder = root / ifeval.hf_repo
    return str(folder) if folder.is_dir() else ifeval.hf_repo


def _alone(file: Path) -> str:
    """A folder with this file only, since lighteval reads all files of a folder."""
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
