"""Grades saved generations of IFEval by lighteval: `python grade.py GENERATIONS.parquet OUT.parquet`.

Replays them through lighteval's own pipeline: the task of tasks.py with one document a sample, and a model that answers
with what was saved. Needs no network. OUT.parquet has one line a sample: step, benchmark, problem, sample,
instructions, strict, loose (lists, one entry an instruction) and failed (what went wrong in a checker, else empty; then
both lists of verdicts are null). OUT.json has lighteval's metrics of each step and benchmark, a sample that failed
counted as following nothing, and by what sentences were split. Runs in the environment envs/lighteval.
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
        raise SystemExit(f"error: {generations}: no generation has IFEval's instructions for an answer")
    with TemporaryDirectory(prefix="redraft-lighteval-") as scratch:
        # Both are read when the hub's libraries are imported.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": f"{scratch}/cache"}
        graded, summary = replay(frame, Path(scratch))
    graded.to_parquet(out, index=False)
    out.with_suffix(".json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def is_instructions(answer: str) -> bool:
    """Whether an answer is what IFEval's problems have for one; those of other benchmarks are compared with."""
    try:
        record = json.loads(answer)
    except ValueError:
        return False
    return isinstance(record, dict) and "instruction_id_list" in record


def replay(frame: pd.DataFrame, scratch: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Verdicts on every sample and metrics of every step, from lighteval's pipeline.

    Args:
        frame: generations, indexed 0, 1, 2 and so on.
        scratch: an empty folder.
    """
    import tasks  # before the data root changes, which may hold the sentence splitter

    write_documents(frame, scratch / tasks.ifeval.hf_repo)
    os.environ["REDRAFT_DATA"] = str(scratch)
    pipeline = run(list(frame["text"]), scratch)
    verdicts = pd.DataFrame([verdict(detail) for detail in pipeline.get_details()[f"{NAME}|0"]]).set_index("row")
    graded = frame[SAMPLE].join(verdicts)
    (task,) = pipeline.tasks_dict.values()
    summary = {
        "lighteval": version("lighteval"), "nltk": version("nltk"), "sentence_splitter": tasks.SPLITTER,
        "scores": scores(graded, task.aggregation()),
    }  # fmt: skip
    graded["strict"] = graded["inst_level_strict_acc"].where(graded["failed"] == "", None)
    graded["loose"] = graded["inst_level_loose_acc"].where(graded["failed"] == "", None)
    return graded.drop(columns=list(task.aggregation())), summary


def scores(graded: pd.DataFrame, metrics: dict[str, Callable[[list[Any]], float]]) -> dict[str, dict[str, float]]:
    """Metrics of every step and benchmark, aggregated by lighteval's functions."""
    return {
        f"{step}/{benchmark}": {name: float(aggregate(list(part[name]))) for name, aggregate in metrics.items()}
        for (step, benchmark), part in graded.groupby(["step", "benchmark"])
    }


def write_documents(frame: pd.DataFrame, folder: Path) -> None:
    """The data set that the task will load, a line a generation.

    Parquet, because its arguments then have one type in all lines; of JSON Lines the library guesses it by the block.
    """
    folder.mkdir(parents=True)
    rows = [{"prompt": row.prompt} | json.loads(row.answer) for row in frame.itertuples()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")


def run(texts: list[str], scratch: Path) -> "Pipeline":
    """lighteval's pipeline, finished; reasoning stays in the responses, as for the other grader."""
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.registry import Registry

    parameters = PipelineParameters(
        launcher_type=ParallelismManager.CUSTOM, custom_tasks_directory=str(TASK), remove_reasoning_tags=False,
        bootstrap_iters=0,
    )  # fmt: skip
    tracker = EvaluationTracker(output_dir=str(scratch / "out"), save_details=False)
    with patch.object(Registry, "load_all_task_configs", only_this_task):
        pipeline = Pipeline(NAME, parameters, tracker, model=saved_generations(texts))
    pipeline.evaluate()
    return pipeline


def only_this_task(custom_tasks: str, load_multilingual: bool = False) -> dict[str, Any]:
    """The tasks of our file; lighteval imports all others too, and one of them fetches something when imported."""
    from lighteval.tasks.registry import Registry

    return Registry._extract_configs(Registry.create_custom_tasks_module(custom_tasks))


def saved_generations(texts: list[str]) -> Any:
    """A model of lighteval that answers the document of a number with the text of that number."""
    from lighteval.models.custom.custom_model import CustomModelConfig
    from lighteval.models.dummy.dummy_model import DummyModel
    from lighteval.models.model_output import ModelResponse

    class SavedGenerations(DummyModel):
        def __init__(self) -> None:
            self.config = CustomModelConfig(model_name="saved", model_definition_file_path=__file__)
            self._cache = SimpleNamespace(_init_registry=lambda registry: None)  # nothing is computed, or kept

        def greedy_until(self, docs: list[Any]) -> list[ModelResponse]:
            return [ModelResponse(text=[texts[int(doc.id)]]) for doc in docs]

    return SavedGenerations()


def verdict(detail: Any) -> dict[str, Any]:
    """What lighteval says of one sample."""
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
