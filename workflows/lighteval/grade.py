"""Grading of saved IFEval generations by lighteval: `python grade.py GENERATIONS.parquet OUT.parquet`.

The generations go through lighteval's own pipeline: the task of tasks.py with one document per sample, and a model that
answers with the saved text. No network is needed. The script runs in the environment envs/lighteval.

OUT.parquet has one line per sample: step, benchmark, problem, sample, instructions, strict, loose (lists with one entry
per instruction) and failed. `failed` is the error of a checker, or empty; after an error both lists of verdicts are
null. OUT.json has lighteval's metrics by step and benchmark, and the sentence splitter. In these metrics a failed
sample counts as following no instruction.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from lighteval.pipeline import Pipeline

SAMPLE = ["step", "benchmark", "problem", "sample"]
TASK = Path(__file__).with_name("tasks.py")
NAME = "redraft:ifeval"


def main(generations: Path, out: Path) -> None:
    """Grade every generation whose answer is a prompt's instructions."""
    frame = pd.read_parquet(generations, columns=[*SAMPLE, "prompt", "answer", "text"])
    frame = frame[frame["answer"].map(is_instructions)].reset_index(drop=True)
    if frame.empty:
        raise SystemExit(f"error: {generations}: no generation has IFEval's instructions as its answer")
    with TemporaryDirectory(prefix="redraft-lighteval-") as scratch:
        # The hub's libraries read both variables on import.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": f"{scratch}/cache"}
        graded, summary = replay(frame, Path(scratch))
    graded.to_parquet(out, index=False)
    out.with_suffix(".json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def is_instructions(answer: str) -> bool:
    """True if an answer holds IFEval's instructions; answers of other benchmarks are values to compare with."""
    try:
        record = json.loads(answer)
    except ValueError:
        return False
    return isinstance(record, dict) and "instruction_id_list" in record


def replay(frame: pd.DataFrame, scratch: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Run lighteval's pipeline; returns the verdicts on every sample, and a summary with metrics and versions.

    Args:
        frame: generations, indexed from 0.
        scratch: an empty folder.
    """
    import tasks  # it searches the sentence splitter in $REDRAFT_DATA, which changes below

    write_documents(frame, scratch / tasks.ifeval.hf_repo)
    os.environ["REDRAFT_DATA"] = str(scratch)
    pipeline = run(list(frame["text"]), scratch)
    verdicts = pd.DataFrame([verdict(detail) for detail in pipeline.get_details()[f"{NAME}|0"]]).set_index("row")
    graded = frame[SAMPLE].join(verdicts)
    (task,) = pipeline.tasks_dict.values()
    summary = {
        "lighteval": version("lighteval"),
        "nltk": version("nltk"),
        "sentence_splitter": tasks.SPLITTER,
        "scores": scores(graded, task.aggregation()),
    }
    graded["strict"] = graded["inst_level_strict_acc"].where(graded["failed"] == "", None)
    graded["loose"] = graded["inst_level_loose_acc"].where(graded["failed"] == "", None)
    return graded.drop(columns=list(task.aggregation())), summary


def scores(graded: pd.DataFrame, metrics: dict[str, Callable[[list[Any]], float]]) -> dict[str, dict[str, float]]:
    """Metrics by step and benchmark, aggregated by lighteval's functions."""
    return {
        f"{step}/{benchmark}": {name: float(aggregate(list(part[name]))) for name, aggregate in metrics.items()}
        for (step, benchmark), part in graded.groupby(["step", "benchmark"])
    }


def write_documents(frame: pd.DataFrame, folder: Path) -> None:
    """Write the data set that the task loads, one line per generation.

    Parquet gives the instructions' arguments one type in all lines. For JSON Lines the library guesses a type per
    block.
    """
    folder.mkdir(parents=True)
    rows = [{"prompt": row.prompt} | json.loads(row.answer) for row in frame.itertuples()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")


def run(texts: list[str], scratch: Path) -> "Pipeline":
    """Run lighteval's pipeline and return it; reasoning stays in the responses, as for the other grader."""
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.registry import Registry

    parameters = PipelineParameters(
        launcher_type=ParallelismManager.CUSTOM,
        custom_tasks_directory=str(TASK),
        remove_reasoning_tags=False,
        bootstrap_iters=0,
    )
    tracker = EvaluationTracker(output_dir=str(scratch / "out"), save_details=False)
    with patch.object(Registry, "load_all_task_configs", only_this_task):
        pipeline = Pipeline(NAME, parameters, tracker, model=saved_generations(texts))
    pipeline.evaluate()
    return pipeline


def only_this_task(custom_tasks: str, load_multilingual: bool = False) -> dict[str, Any]:
    """Load the tasks of our file only; one of lighteval's own tasks needs a network on import."""
    from lighteval.tasks.registry import Registry

    return Registry._extract_configs(Registry.create_custom_tasks_module(custom_tasks))


def saved_generations(texts: list[str]) -> Any:
    """A lighteval model that answers document i with text i."""
    from lighteval.models.custom.custom_model import CustomModelConfig
    from lighteval.models.dummy.dummy_model import DummyModel
    from lighteval.models.model_output import ModelResponse

    class SavedGenerations(DummyModel):
        def __init__(self) -> None:
            self.config = CustomModelConfig(model_name="saved", model_definition_file_path=__file__)
            self._cache = SimpleNamespace(_init_registry=lambda registry: None)  # no cache is needed

        def greedy_until(self, docs: list[Any]) -> list[ModelResponse]:
            return [ModelResponse(text=[texts[int(doc.id)]]) for doc in docs]

    return SavedGenerations()


def verdict(detail: Any) -> dict[str, Any]:
    """lighteval's verdicts on one sample, as a line of the output."""
    specific = detail.doc.specific
    return {
        "row": int(detail.doc.id),
        "instructions": list(specific["instructions_id_list"]),
        "failed": specific.get("failed", ""),
        **detail.metric,
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: grade.py GENERATIONS.parquet OUT.parquet")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
