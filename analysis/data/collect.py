"""Gathering finished runs of a paper into three frames: a line a step, a line a run, a line a score."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.predicted import with_predicted_seconds
from redraft.analysis.data.sequential import Looks, check_looks, read_looks
from redraft.analysis.data.speculation import with_measurements
from redraft.analysis.data.statistics import Blocks
from redraft.config import Benchmark, Clock, Experiments, Preset, id_of, run_fingerprint, sampling_fingerprint
from redraft.config.data import known_sizes
from redraft.config.decoding import Decoding
from redraft.data_dictionary import write_parquet
from redraft.errors import UserError
from redraft.files import hashes, numbers_of_records, read_parquet, sha256, write_json
from redraft.layout import Layout, check_cell
from redraft.messages import echo
from redraft.provenance import policies_of
from redraft.result_files import (
    SCORES,
    check_evaluation,
    check_hashes,
    check_manifest,
    check_run,
    read_manifest,
    read_record,
    read_typed,
)

FRAMES = ("runs", "steps", "scores")
COLLECTED = "collected.json"
"""Record of the collected files, with the hashes of the manifests and scores that they were made from, by path."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs.

    Attributes:
        runs: cell, seed, block (`Preset.unit`), fingerprint, manifest (path), initial (path of the initial policy's
            record), probe (protocol by which that policy was sampled on training prompts, empty without one), seconds.
        steps: cell, seed and every number of each step's record; stages as `seconds.<stage>`, those of repeats where
            there are any (`redraft.analysis.data.collect`).
        scores: cell, seed, step (done by the graded policy; 0 is the initial one), benchmark, role, correct, total and
            what else grading counts.
        looks: those of a sequential campaign.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    scores: pd.DataFrame
    looks: Looks = ()

    @cached_property
    def blocks(self) -> Blocks:
        """Block of each seed, and the looks."""
        known = zip(self.runs["seed"], self.runs["block"], strict=True) if "block" in self.runs else ()
        return Blocks(known, self.looks)

    def by(self, clock: Clock) -> "Runs":
        """The runs, whose steps are those of a clock."""
        return self._by_training_steps if clock == "training_steps" else self

    @cached_property
    def _by_training_steps(self) -> "Runs":
        """The same, with training steps as steps.

        A step's record counts for the training step that it ends in: those before it are done. A policy that no update
        separates from an evaluated one before is left out, since it is the same.
        """
        records = self.steps.assign(step=self.steps["training_step"] - self.steps["updated"].astype(int))
        key = ["cell", "seed", "step"]
        # A policy is named by the generation steps that it has done, one more than the number of its last record.
        done = self.steps[[*key, "training_step"]].assign(step=self.steps["step"] + 1)
        counted = self.scores.merge(done, on=key, how="left").sort_values("step", kind="stable")
        # The initial policy has done no step, so no record matches it.
        scores = counted.assign(step=counted["training_step"].fillna(0).astype(int)).drop(columns="training_step")
        return replace(self, steps=records, scores=scores.drop_duplicates([*key, "benchmark"]))

    def steps_of(self, cell: str) -> pd.DataFrame:
        """Records of a cell's steps, with all that only some methods measure."""
        return self._steps_by_cell.get(cell, self._measured.iloc[:0])

    @cached_property
    def _measured(self) -> pd.DataFrame:
        return with_measurements(self.steps)

    @cached_property
    def _steps_by_cell(self) -> dict[str, pd.DataFrame]:
        """Made once, since a paper's tables and claims ask for a cell's steps thousands of times."""
        return {str(cell): steps for cell, steps in self._measured.groupby("cell")}

    def manifests(self, cell: str, seeds: Iterable[int], of: str = "manifest") -> list[str]:
        """Paths of the manifests of a cell's runs by seed, or of the records of their `initial` policies."""
        wanted = set(seeds)
        return [run[of] for run in self._runs_by_cell.get(cell, []) if run["seed"] in wanted]

    @cached_property
    def _runs_by_cell(self) -> dict[str, list[dict[str, Any]]]:
        by_cell = self.runs.sort_values("seed").groupby("cell")
        return {str(cell): runs.to_dict("records") for cell, runs in by_cell}

    def save(self, folder: Path) -> None:
        """Write one Parquet file a frame, and a record of their hashes and those of the runs' manifests and scores."""
        for name in FRAMES:
            write_parquet(getattr(self, name), folder / f"{name}.parquet", name)
        manifests = [Path(str(manifest)) for manifest in self.runs.get("manifest", ())]
        sources = [file for m in manifests for file in (m, m.with_name("scores.json")) if file.exists()]
        made = {"sha256": hashes(*(folder / f"{name}.parquet" for name in FRAMES)), "looks": self.looks}
        write_json(folder / COLLECTED, made | {"made_from": {str(file): sha256(file) for file in sources}})

    @classmethod
    def load(cls, folder: Path) -> "Runs":
        """Read what `save` wrote.

        Raises:
            UserError: if a file is missing or is not the one that was written, or has a cell or seed that cannot be
                part of a path.
        """
        record = read_record(folder / COLLECTED)
        check_hashes(folder, record["sha256"], folder / COLLECTED)
        frames = {}
        for name, columns in COLUMNS.items():
            file = folder / f"{name}.parquet"
            frames[name] = read_parquet(file, ("cell", "seed", *columns))
            # Names of cells become paths and links of pages, and the file may be someone else's.
            for cell in frames[name]["cell"].unique():
                check_cell(cell, file)
            seeds = frames[name]["seed"]
            if len(seeds) and (not pd.api.types.is_integer_dtype(seeds) or seeds.min() < 0):
                raise UserError("seeds are whole numbers from 0 on", file=file, key="seed")
            _check_rows(name, frames[name], file)
        looks = record.get("looks")
        return cls(**frames, looks=check_looks(looks, folder / COLLECTED) if looks else ())


COLUMNS = {"runs": ["manifest"], "steps": ["step"], "scores": ["step", "benchmark", "correct", "total"]}
"""Columns that the collected files have besides cell and seed, at least."""
ROW = {"runs": [], "steps": ["step"], "scores": ["step", "benchmark"]}
"""Columns that, with cell and seed, name a row of the collected files."""


def _check_rows(name: str, frame: pd.DataFrame, file: Path) -> None:
    """Raise a UserError if a row occurs twice, or a score is no share of right answers."""
    row = ["cell", "seed", *ROW[name]]
    if frame.duplicated(row).any():
        twice = frame.loc[frame.duplicated(row), row].iloc[0]
        raise UserError("a row occurs twice", file=file, key=", ".join(row), value=", ".join(map(str, twice)))
    if name == "scores":
        wrong = frame[~(frame["total"].gt(0) & frame["correct"].between(0, frame["total"])).fillna(False)]
        if len(wrong):
            value = f"{wrong['correct'].iloc[0]} of {wrong['total'].iloc[0]}"
            raise UserError("this is no share of right answers", file=file, key="correct, total", value=value)


def collect(layout: Layout, paper: str, experiments: Experiments) -> Runs:
    """All complete runs of a paper's cells and of the cells they start from, also runs that were not requested this
    time.

    A cell of another paper goes by its id, `paper/cell`.
    A run whose configuration or benchmarks are not today's, or whose initial policy was not evaluated, is left out
    and named. Seeds of the preset without a finished run are named too.

    Raises:
        UserError: if there is no run, or a run's files do not belong together.
    """
    runs, steps, scores = [], [], []
    requested = experiments.preset(layout.preset)
    for name, manifest in _manifests(layout, paper, experiments):
        folder = manifest.parent
        seed = int(folder.name.removeprefix("seed"))
        key: dict[str, Any] = {"cell": name, "seed": seed}
        # Trained, and not evaluated yet.
        if not (folder / "scores.json").exists() or not (folder / "diversity.parquet").exists():
            continue
        content, scored = read_manifest(manifest, *NEEDED), read_typed(folder / "scores.json", SCORES)
        check_manifest(folder, content)
        protocol = _protocol(id_of(paper, name), paper, layout.preset, experiments)
        initial = layout.initial(protocol, content["configuration"]["model_role"], seed)
        first = read_typed(initial / "scores.json", SCORES) if (initial / "scores.json").exists() else {}
        # Both, since tables and curves compare a run's policies with its initial one.
        sampled = {_sampled(folder), _sampled(initial)}
        missing = [name for evaluated in (folder, initial) for name in _lacking(evaluated, evaluated == folder)]
        reason = _outdated(content, scored, first, sampled, layout.preset, experiments)
        reason = reason or (f"it was evaluated without {missing[0]}, by an earlier version" if missing else None)
        if reason:
            echo(f"left out, since {reason}: {folder}", err=True)
            continue
        run = experiments.run(id_of(paper, name), seed, layout.preset)
        check_run(folder, run.steps, large=True)
        check_evaluation(initial, large=True)
        own = {
            "manifest": str(manifest),
            "initial": str(initial / "generations.json"),
            "probe": requested.probe,
            "block": requested.unit(seed),
        }
        runs.append(key | {name: content[name] for name in ("fingerprint", "seconds")} | own)
        steps.append(_steps(folder, run.decoding).assign(**key))
        scores += [
            key | {"step": int(step), "benchmark": benchmark} | counts
            # Step 0 is only in the initial policy's scores: it is evaluated once for all cells that start from it.
            for step, by_benchmark in {**first, **scored}.items()
            for benchmark, counts in by_benchmark.items()
        ]
    if not runs:
        raise UserError("there is no finished run to collect", file=layout.folder / "runs" / paper)
    _warn_of_missing_seeds(pd.DataFrame(runs), paper, requested, experiments)
    manifests = {(run["cell"], run["seed"]): Path(run["manifest"]) for run in runs}
    timed = with_repeats(pd.concat(steps, ignore_index=True), manifests, layout, paper)
    return Runs(pd.DataFrame(runs), timed, pd.DataFrame(scores), read_looks(layout.looks(paper)))


def collect_runs(preset: str, paper: str) -> None:
    """Gather all finished runs of a paper into files (rule `collect`)."""
    layout = Layout(preset)
    collect(layout, paper, Experiments()).save(layout.collected(paper))


def _manifests(layout: Layout, paper: str, experiments: Experiments) -> list[tuple[str, Path]]:
    """Manifests of the finished runs of a paper, and of the cells that its own start from, by the names of cells."""
    found = [(file.parents[1].name, file) for file in layout.manifests(paper)]
    for base in experiments.cell_file(paper).bases:
        found += [(base, file) for file in layout.manifests(*base.split("/"))]
    return found


def _protocol(cell: str, paper: str, preset: str, experiments: Experiments) -> str:
    """Protocol of a cell, or of its paper if there is no such cell any more."""
    try:
        return experiments.protocol_of(preset, cell)
    except UserError:
        return experiments.protocol_of(preset, paper)


NEEDED = ("run", "fingerprint", "configuration", "seconds", "sha256")
"""Keys of a manifest that are read here."""
DEFINING = ("model", "data", "algorithm", "reuse", "schedule", "decoding", "trainer")
"""Parts of a run's configuration that say what is learned."""

Scores = dict[str, dict[str, dict[str, Any]]]
"""`scores.json`: steps done to benchmark to counts."""


def _outdated(
    manifest: dict[str, Any], scored: Scores, first: Scores, sampled: set[str], preset: str, experiments: Experiments
) -> str | None:
    """Difference of a run, or of the scores of its initial policy, from those of today; None without one.

    `sampled` are the fingerprints of what its policies and the initial one were sampled on.
    """
    cell, _, seed = manifest["run"].rpartition("/seed")
    try:
        run = experiments.run(cell, int(seed), preset)
    except UserError:
        return "its cell changed"
    if manifest["fingerprint"] != run_fingerprint(run):
        return "its configuration changed"
    # A fingerprint leaves defaults out, so that a new field changes none; one whose default changed shows here.
    then, today = manifest["configuration"], run.model_dump(mode="json")
    if any(_differ(then.get(part), today[part]) for part in DEFINING):
        return "a default of its configuration changed"
    evaluated = experiments.preset_of(preset, cell).of_seed(int(seed))
    if not first:
        return "its initial policy was not evaluated"
    if sampled != {sampling_fingerprint(evaluated)}:
        return "its benchmarks, or what samples them, changed"
    for scores, steps in ((scored, policies_of(manifest)), (first, [0])):
        # By number: as texts step 10 would be before step 5.
        if sorted(scores, key=int) != [str(step) for step in steps]:
            return "its evaluated steps changed"
        if any(not _of_benchmarks(of_step, evaluated.benchmarks) for of_step in scores.values()):
            return "its benchmarks changed"
    return None


def _of_benchmarks(scores: dict[str, dict[str, Any]], benchmarks: dict[str, Benchmark]) -> bool:
    """Test for scores of today's benchmarks, whole or of copies that are known to lack problems."""
    totals = {name: {size * b.samples for size in known_sizes(b.data)} for name, b in benchmarks.items()}
    return scores.keys() == totals.keys() and all(score["total"] in totals[name] for name, score in scores.items())


def _sampled(folder: Path) -> str:
    """The fingerprint of what was sampled there; nothing if it was not recorded."""
    record = folder / "generations.json"
    return str(read_record(record, "sampled")["sampled"]) if record.exists() else ""


def _differ(then: Any, today: Any) -> bool:
    """Test for a key that both dumps have with different values."""
    if isinstance(then, dict) and isinstance(today, dict):
        # A field that one version lacks is no difference, else each new field would make all runs outdated.
        return any(_differ(then[key], today[key]) for key in then.keys() & today.keys())
    return then is not None and then != today


def _lacking(folder: Path, trained: bool) -> list[str]:
    """Names of the records of hashes that a folder of an evaluated policy should have and has not."""
    names = ("generations.json", "grades.json", *(["diversity.json"] * trained))
    return [name for name in names if not (folder / name).exists()]


def _warn_of_missing_seeds(runs: pd.DataFrame, paper: str, preset: Preset, experiments: Experiments) -> None:
    for cell, part in runs.groupby("cell", sort=False):
        wanted = experiments.seeds(experiments.cell(id_of(paper, str(cell))), preset)
        if missing := sorted(set(wanted) - set(part["seed"])):
            echo(f"without seed {', '.join(map(str, missing))}: {cell} has {len(part)} finished runs", err=True)


def _steps(folder: Path, decoding: Decoding) -> pd.DataFrame:
    """Records, predicted seconds and diversity of one run, a line a step."""
    records = with_predicted_seconds(folder / "steps.jsonl", decoding)
    # A measurement that an algorithm or method lacks is null in every record, which makes its column one of objects.
    frame = numbers_of_records(records)
    frame = frame.astype({name: float for name in frame if frame[name].dtype == object})
    measured = read_parquet(folder / "diversity.parquet", ("step", "epoch", "self_bleu_within"))
    if any(list(measured[key]) != list(frame[key]) for key in ("step", "epoch")):
        raise UserError(
            "this measures other steps or epochs than were recorded",
            file=folder / "diversity.parquet",
            key="step",
            value=len(measured),
            allowed=str(len(frame)),
        )
    # 1:1, since a step that occurs twice would double its tokens and seconds.
    return frame.merge(measured, on=["step", "epoch"], validate="1:1")


SPREAD = "repeats_spread"
"""Column of steps: longest over shortest seconds of the step's rollouts among the rounds; NaN without rounds."""
GENERATION = ["seconds.verification", "seconds.rollout", "seconds.assembly"]
REPEATS_KEY = ["cell", "step"]


def with_repeats(
    steps: pd.DataFrame, manifests: Mapping[tuple[str, int], Path], layout: Layout, paper: str
) -> pd.DataFrame:
    """Steps with the median seconds of their repeats, for the seeds all of whose runs were repeated.

    Seconds of one seed are compared with each other, so all are of training, or all of repeats. `manifests` are
    those of the runs by cell and seed.

    Raises:
        UserError: if a file of repeats is not the one that its record names.
    """
    parts = []
    for seed, part in steps.groupby("seed", sort=False):
        file = layout.timing(paper, int(seed))  # type: ignore[call-overload]
        own = {cell: path for (cell, of), path in manifests.items() if of == seed}
        parts.append(_repeated(part, file) if _covers(file, own) else part.assign(**{SPREAD: math.nan}))
    return pd.concat(parts, ignore_index=True)


def _covers(file: Path, manifests: Mapping[str, Path]) -> bool:
    """Test for repeats of all these runs as they are now; if there are repeats of some, say of which there are none."""
    record = file.with_suffix(".json")
    if not record.exists():
        return False
    content = read_record(record, "sha256", "made_from")
    check_hashes(file.parent, content["sha256"], record)
    # By hash and not by name: a run that was trained again is another one.
    without = [cell for cell, path in manifests.items() if content["made_from"].get(cell) not in hashes(path).values()]
    if without:
        echo(f"seconds are those of training, since {', '.join(without)} was not repeated: {file}", err=True)
    return not without


def _repeated(steps: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Steps of one seed with the times of a file of repeats; NaN for those that it lacks: no ratio mixes both."""
    rounds = read_parquet(file, (*REPEATS_KEY, "round", *GENERATION))
    stages = [name for name in rounds if name.startswith("seconds.")]
    by_step = rounds.assign(generation=rounds[GENERATION].sum(axis=1)).groupby(REPEATS_KEY)
    seconds = by_step[stages].median()  # stages that are not repeated have one value, and NaN in the other rounds
    # The sum of the medians and not the median of sums, so that stages add up to the total as in records.
    seconds["seconds.total"] = seconds.sum(axis=1)
    seconds[SPREAD] = by_step["generation"].max() / by_step["generation"].min()
    for name in steps.columns[steps.columns.str.endswith("_seconds")]:
        seconds[name] = by_step[name].median() if name in rounds else math.nan
    kept = steps.drop(columns=[name for name in seconds if name in steps])
    return kept.merge(seconds.reset_index(), on=REPEATS_KEY, how="left", validate="1:1")
