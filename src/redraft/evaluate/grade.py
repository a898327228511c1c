"""Grading of saved generations: one verdict per sample, and the scores of each policy and benchmark.

Mathematical answers are compared by the same grader that rewards training. Comparisons and checks of instructions run
in worker processes, so that a response on which the grader hangs or crashes costs one sample only. Pairs of equal
response and equal answer are graded once.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa

from redraft.config import Benchmark, Experiments
from redraft.config.data import known_sizes
from redraft.data_dictionary import described
from redraft.errors import UserError
from redraft.evaluate.generation_parts import KEY, read_without_tokens
from redraft.evaluate.metrics import score
from redraft.files import atomic, hashes, write_json
from redraft.result_files import check_hashes, read_record
from redraft.tasks.answers import SECONDS, GradedAnswer, Outcome, extract, grade_choice
from redraft.tasks.workers import InstructionVerdicts, check_instructions, compare_answers, run, score_answers

GRADES = pa.schema(
    {
        "step": pa.int64(),
        "benchmark": pa.string(),
        "problem": pa.int64(),
        "sample": pa.int64(),
        "outcome": pa.string(),
        "extracted": pa.string(),
        "length": pa.int64(),
        "truncated": pa.bool_(),
        "strict": pa.list_(pa.bool_()),
        "loose": pa.list_(pa.bool_()),
        "official_strict": pa.list_(pa.bool_()),
        "official_loose": pa.list_(pa.bool_()),
    }
)
"""Columns of `grades.parquet`. `strict` and `loose` are null except for instructions, the verdicts of the
unchanged checkers (`official_…`) are null except for prompts that count a character other than a letter."""
VERDICTS = ["strict", "loose", "official_strict", "official_loose"]

COMPARISON_LIMIT = 3 * SECONDS + 5.0
"""Seconds after which the worker of a comparison is killed; the grader's own limits come earlier."""
INSTRUCTIONS_LIMIT = 60.0
"""Seconds for the instructions of one response; a worker's first response also loads the checkers."""


def grade_policies(preset_name: str, protocol: str, generations: Path, file: Path, processes: int = 1) -> None:
    """Grade saved generations on the benchmarks of a protocol (`Preset.protocol_of`)."""
    record = read_record(generations.with_suffix(".json"), "seed", "sha256")
    check_hashes(generations.parent, record["sha256"], generations.with_suffix(".json"))
    seed = record["seed"]
    grade(generations, Experiments().preset(preset_name, protocol).of_seed(seed).benchmarks, file, processes)


def grade(generations: Path, benchmarks: dict[str, Benchmark], scores: Path, processes: int = 1) -> None:
    """Grade a file of generations.

    Writes `grades.parquet` next to `scores`, one line per sample; then `scores`, which maps step and benchmark to the
    numbers of `redraft.evaluate.metrics`; last `grades.json`, with the hashes of both and of the generations.

    Raises:
        UserError: if the generations do not match the benchmarks.
    """
    frame = read_generations(generations, benchmarks)
    notes = {}
    if with_instructions := [name for name, benchmark in benchmarks.items() if benchmark.grading == "instructions"]:
        from redraft.tasks.sentences import NOTE, sentence_splitter

        # Workers that start later inherit the splitter.
        notes = dict.fromkeys(with_instructions, "" if sentence_splitter() == "punkt_tab" else NOTE)
    kinds = frame["benchmark"].map(lambda name: benchmarks[name].grading)
    parts = [GRADERS[str(kind)](part, processes) for kind, part in frame.groupby(kinds)]
    graded = frame.join(pd.concat(parts)).assign(truncated=frame["finish"] == "length")
    with atomic(scores.with_name("grades.parquet")) as temporary:
        graded[GRADES.names].to_parquet(temporary, index=False, schema=described(GRADES, "grades"))
    write_json(
        scores,
        {
            str(step): {
                str(name): score(part, benchmarks[str(name)], notes.get(str(name), ""))
                for name, part in of_step.groupby("benchmark")
            }
            for step, of_step in graded.groupby("step")
        },
    )
    write_json(
        scores.with_name("grades.json"),
        {
            "sha256": hashes(scores.with_name("grades.parquet"), scores),
            "made_from": hashes(generations),
        },
    )


def read_generations(file: Path, benchmarks: dict[str, Benchmark]) -> pd.DataFrame:
    """Read generations, in the order of step, benchmark, problem and sample.

    Raises:
        UserError: if the file is missing or damaged, if its benchmarks, problems or samples are not the configured
            ones, if a sample occurs twice, or if a problem has no answer.
    """
    frame = read_without_tokens(file)
    if frame.empty:
        raise UserError("there are no generations in this file", file=file)
    if unknown := set(frame["benchmark"]) - set(benchmarks):
        raise UserError(
            "generations of another benchmark", file=file, key="benchmark", value=sorted(unknown), allowed=benchmarks
        )
    if (twice := frame.duplicated(KEY)).any():
        raise UserError(
            "a sample occurs twice",
            file=file,
            key=", ".join(KEY),
            value=", ".join(map(str, frame.loc[twice, KEY].iloc[0])),
        )
    if (without := frame["answer"] == "").any():
        raise UserError(
            "a problem has no answer to compare with",
            file=file,
            key="benchmark, problem",
            value=", ".join(map(str, frame.loc[without, ["benchmark", "problem"]].iloc[0])),
        )
    for step, part in frame.groupby("step"):
        for name, benchmark in benchmarks.items():
            _check_count(part[part["benchmark"] == name], benchmark, file, f"step {step}, {name}")
    # `metrics.score` reads consecutive lines as the samples of a problem.
    return frame.sort_values(KEY, ignore_index=True)


def _check_count(part: pd.DataFrame, benchmark: Benchmark, file: Path, key: str) -> None:
    """Check the number of samples and the largest indices; no sample occurs twice, so then none is missing."""
    problems = part["problem"].nunique()
    sizes = known_sizes(benchmark.data)
    allowed = " or ".join(f"{size} problems x {benchmark.samples} samples" for size in sorted(sizes, reverse=True))
    if problems not in sizes or len(part) != problems * benchmark.samples:
        raise UserError("wrong number of generations", file=file, key=key, value=len(part), allowed=allowed)
    last = (int(part["problem"].max()), int(part["sample"].max()))
    if last != (problems - 1, benchmark.samples - 1) or part[["problem", "sample"]].to_numpy().min() < 0:
        raise UserError(
            "problems or samples are not numbered from 0",
            file=file,
            key=f"{key}: last problem, last sample",
            value=last,
            allowed=allowed,
        )


def _grade_answers(
    extracted: Callable[[str, str], GradedAnswer | str],
    compare: Callable[[tuple[str, str]], Outcome],
    part: pd.DataFrame,
    processes: int,
) -> pd.DataFrame:
    """Grade what one function takes out of each response, by another one, which runs in worker processes."""
    contents = [extracted(text, answer) for text, answer in zip(part["text"], part["answer"], strict=True)]
    compared = list(zip(contents, part["answer"], strict=True))
    pairs = list(dict.fromkeys((content, answer) for content, answer in compared if isinstance(content, str)))
    outcomes = dict(zip(pairs, run(compare, pairs, processes, COMPARISON_LIMIT, _lost), strict=True))
    return _verdicts(
        part,
        [
            GradedAnswer(outcomes[content, answer], content) if isinstance(content, str) else content
            for content, answer in compared
        ],
    )


def _gym_answer(text: str, answer: str) -> GradedAnswer | str:
    from redraft.tasks.gym import extract_answer  # loads a grader, which only these benchmarks need

    return extract_answer(text, answer)


def _lost(item: object, error: Exception) -> Outcome:
    if isinstance(error, UserError):
        raise error  # the fault lies in the problem or its scorer
    return Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ERROR


def _verdicts(part: pd.DataFrame, verdicts: list[GradedAnswer]) -> pd.DataFrame:
    columns = {"outcome": [str(v.outcome) for v in verdicts], "extracted": [v.extracted for v in verdicts]}
    return pd.DataFrame(columns | dict.fromkeys(VERDICTS), index=part.index)


def _grade_instructions(part: pd.DataFrame, processes: int) -> pd.DataFrame:
    responses = list(part[["prompt", "text", "answer"]].itertuples(index=False, name=None))
    items = list(dict.fromkeys(responses))
    verdicts = run(check_instructions, items, processes, INSTRUCTIONS_LIMIT, _lost_instructions)
    graded = dict(zip(items, verdicts, strict=True))
    lines = [(str(outcome), "", *of_item) for outcome, *of_item in (graded[item] for item in responses)]
    return pd.DataFrame(lines, columns=["outcome", "extracted", *VERDICTS], index=part.index)


def _lost_instructions(item: tuple[str, str, str], error: Exception) -> InstructionVerdicts:
    """Count no instruction as followed, so that the denominators stay the same.

    Raises:
        UserError: if the fault lies in the problem, not in the response.
    """
    outcome = _lost(item, error)
    none = [False] * len(json.loads(item[2])["instruction_id_list"])
    return outcome, none, none, None, None


GRADERS: dict[str, Callable[[pd.DataFrame, int], pd.DataFrame]] = {
    "math": partial(_grade_answers, lambda text, _: extract(text), compare_answers),
    "choice": lambda part, _: _verdicts(
        part, [grade_choice(text, answer) for text, answer in zip(part["text"], part["answer"], strict=True)]
    ),
    "instructions": _grade_instructions,
    "reasoning_gym": partial(_grade_answers, _gym_answer, score_answers),
}
"""Graders by a benchmark's `grading`. Each maps generations and a number of processes to the columns outcome,
extracted and `VERDICTS`."""
