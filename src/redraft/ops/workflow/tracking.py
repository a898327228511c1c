"""Import of finished runs into MLflow. Runs only write files; one process at a time imports them into one database.

Steps and epochs count from 1 in MLflow, as in figures. A policy's step is the number of steps that it was trained for,
0 for the initial one. Start and end of a run are those of its training.
"""

import itertools
import logging
import os
import sqlite3
from collections import defaultdict
from contextlib import closing
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import AfterValidator, FiniteFloat, TypeAdapter

from redraft.config import fingerprint
from redraft.errors import UserError
from redraft.files import sha256, write_json
from redraft.layout import Layout
from redraft.messages import echo
from redraft.ops.workflow.code_hash import code_of
from redraft.result_files import (
    Hashes,
    Typed,
    check_own_hash,
    check_records,
    check_run,
    read_scores,
    read_steps,
    read_typed,
)

DIGEST = "digest"
"""Tag of a completely imported run, with the digest of its files."""
VERSION = code_of("redraft.ops.workflow.tracking:track")
"""Part of the digest: when this code changes, all runs are imported again."""
FOUND = 5000
"""Runs of one page of a search."""
COUNTED = ("step", "epoch")
"""Keys of a record that count from 0."""


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Time = Annotated[str, AfterValidator(_time)]


class _Commit(Typed):
    commit: str | None


class _Process(Typed):
    started: Time


class _Manifest(Typed):
    run: str
    fingerprint: str
    git: _Commit
    configuration: dict[str, Any]
    processes: list[_Process]
    finished: Time
    seconds: FiniteFloat
    sha256: Hashes


MANIFEST: TypeAdapter[Any] = TypeAdapter(_Manifest)
"""Types of what is imported of a manifest."""


def track(preset: str, paper: str) -> None:
    """Import the finished runs of a paper at a preset (rule `track`)."""
    import_runs(Layout(preset), paper)


def import_runs(layout: Layout, paper: str) -> None:
    """Bring the database up to date with the finished runs of a paper, and list them in `tracked.json`.

    A run that was trained or graded again since its import, or whose import was interrupted, is replaced.
    """
    record = layout.collected(paper) / "tracked.json"  # rejects a name that is no plain folder name, before writing
    layout.tracking.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{layout.tracking}.lock"):  # MLflow does not lock SQLite: two processes would both create its tables
        if reason := _unreadable(layout.tracking):
            names = (f"{layout.tracking.name}.old{number or ''}" for number in itertools.count())
            aside = next(each for name in names if not (each := layout.tracking.with_name(name)).exists())
            layout.tracking.rename(aside)
            echo(
                f"{layout.tracking}: {reason}; it is made again from the runs, and the old one is {aside.name}",
                err=True,
            )
            others = layout.collected("*").parent.glob("*/tracked.json")
            for other in sorted({file.parent.name for file in others} - {paper}):
                write_json(layout.collected(other) / "tracked.json", _tracked(layout, other))
        write_json(record, _tracked(layout, paper))


def _unreadable(database: Path) -> str:
    """Reason why MLflow cannot use a database; empty if it can, or if there is none.

    MLflow itself is not asked, since it keeps a connection to the file that it has rejected.
    """
    from mlflow.store.db.utils import _get_latest_schema_revision

    if not database.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):  # locked, or without permission: it may be intact
            raise UserError(f"the database cannot be opened ({error})", file=database) from None
        found = []
    except sqlite3.DatabaseError as error:
        return f"it is damaged ({error})"
    if found != [(_get_latest_schema_revision(),)]:
        return "it is of another version of MLflow"
    return ""


def _tracked(layout: Layout, paper: str) -> list[dict[str, str]]:
    """Import a paper's runs that changed; returns the names and digests of all its runs."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # mlflow reads it on import
    import mlflow
    from mlflow.tracking import MlflowClient

    # alembic prints a line for each migration of a new database.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(f"sqlite:///{layout.tracking}")
    client = MlflowClient()
    experiment = _experiment(client, f"{layout.preset}/{paper}", layout)
    known = defaultdict(list)
    page, token = None, None
    while page is None or token:
        # Of all pages: a run that is not found would be imported a second time.
        page = client.search_runs([experiment], max_results=FOUND, page_token=token)
        token = page.token
        for run in page:
            known[run.info.run_name].append(run)
    tracked = []
    for file in layout.manifests(paper):
        manifest, digest = read_typed(file, MANIFEST), _digest(file.parent)
        check_own_hash(file, optional=True)  # manifests of earlier versions have none
        name = manifest["run"]
        tracked.append({"run": name, "digest": digest})
        if [run.data.tags.get(DIGEST) for run in known[name]] != [digest]:
            # MLflow would append to a run's metrics and not replace them.
            for run in known[name]:
                client.delete_run(run.info.run_id)
            _import(client, experiment, manifest, file.parent)
    return tracked


def _digest(folder: Path) -> str:
    """Hash of a run's manifest, which contains the hash of its records, of its scores, and of `VERSION`."""
    both = (folder / "manifest.json", folder / "scores.json")
    return fingerprint({"version": VERSION} | {file.name: sha256(file) for file in both if file.exists()})


def _experiment(client: Any, name: str, layout: Layout) -> str:
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage != "active":
        echo(f"{layout.tracking}: the experiment {name} was deleted; it is restored", err=True)
        client.restore_experiment(found.experiment_id)
    location = (layout.folder / "mlflow-artifacts").resolve().as_uri()
    return found.experiment_id if found else client.create_experiment(name, artifact_location=location)


def _import(client: Any, experiment: str, manifest: dict[str, Any], folder: Path) -> None:
    from mlflow.entities import Metric, Param, RunTag

    tags = {
        "fingerprint": manifest["fingerprint"],
        "commit": str(manifest["git"]["commit"]),
        "manifest": str(folder / "manifest.json"),
    }
    graded = (folder / "scores.json").exists()
    if graded:
        check_run(folder)
    else:
        check_records(folder, manifest)
    records = read_steps(folder / "steps.jsonl")
    times = _times(manifest, records)
    run = client.create_run(experiment, start_time=times[0], run_name=manifest["run"], tags={})
    params = [Param(key, str(value)[:500]) for key, value in _flat(manifest["configuration"]).items()]
    metrics = [
        Metric(key, float(value + 1 if key in COUNTED else value), times[done], done)
        for done, record in enumerate(records, start=1)
        for key, value in _flat(record).items()
        if value is not None and not isinstance(value, list)
    ]
    metrics.append(Metric("training_seconds", manifest["seconds"], times[-1], len(records)))
    if graded:
        scores = read_scores(folder)
        metrics += [
            Metric(f"accuracy.{name}", s["correct"] / s["total"], times[int(step)], int(step))
            for step, of_step in scores.items()
            for name, s in of_step.items()
        ]
    client.log_batch(run.info.run_id, params=params, tags=[RunTag(k, v) for k, v in tags.items()])
    for start in range(0, len(metrics), 1000):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + 1000])
    client.set_terminated(run.info.run_id, end_time=times[-1])
    client.set_tag(run.info.run_id, DIGEST, _digest(folder))  # last: a run without it was not imported completely


def _times(manifest: dict[str, Any], records: list[dict[str, Any]]) -> list[int]:
    """Times of the start of training and of the end of each step, in milliseconds since 1970.

    Records contain the duration of a step (processor time on a CPU) but not its end. So the time between the start of
    the first process and the end is divided in proportion; pauses between processes are spread over all steps.
    """
    end = datetime.fromisoformat(manifest["finished"]).timestamp()
    processes = manifest["processes"]
    start = datetime.fromisoformat(processes[0]["started"]).timestamp() if processes else end - manifest["seconds"]
    elapsed = [0.0, *accumulate(record["seconds"]["total"] for record in records)]
    return [
        round(1000 * (start + (end - start) * (seconds / elapsed[-1] if elapsed[-1] else 1))) for seconds in elapsed
    ]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
