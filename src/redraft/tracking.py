"""Finished runs in MLflow. Runs write files; this imports them into one SQLite database, in one process."""

import logging
from pathlib import Path
from typing import Any

from redraft.files import read_json, read_json_lines, write_json
from redraft.layout import Layout


def import_runs(layout: Layout, paper: str) -> None:
    """Import each run of a paper that the database does not hold yet, and list all in `tracked.json`."""
    import mlflow
    from mlflow.tracking import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(f"sqlite:///{layout.tracking}")
    client = MlflowClient()
    experiment = _experiment(client, f"{layout.preset}/{paper}", layout)
    known = {run.data.tags.get("digest") for run in client.search_runs([experiment], max_results=5000)}
    imported = []
    for file in sorted((layout.folder / "runs" / paper).glob("*/seed*/manifest.json")):
        manifest = read_json(file)
        digest = manifest["sha256"]["steps.jsonl"]
        imported.append({"run": manifest["run"], "digest": digest})
        if digest not in known:
            _import(client, experiment, manifest, file.parent)
    write_json(layout.collected(paper) / "tracked.json", imported)


def _experiment(client: Any, name: str, layout: Layout) -> str:
    found = client.get_experiment_by_name(name)
    location = (layout.folder / "mlflow-artifacts").resolve().as_uri()
    return found.experiment_id if found else client.create_experiment(name, artifact_location=location)


def _import(client: Any, experiment: str, manifest: dict[str, Any], folder: Path) -> None:
    from mlflow.entities import Metric, Param, RunTag

    tags = {
        "digest": manifest["sha256"]["steps.jsonl"],
        "fingerprint": manifest["fingerprint"],
        "commit": str(manifest["git"]["commit"]),
        "manifest": str(folder / "manifest.json"),
    }
    run = client.create_run(experiment, run_name=manifest["run"], tags={})
    params = [Param(key, str(value)[:500]) for key, value in _flat(manifest["configuration"]).items()]
    metrics = [
        Metric(key, float(value), 0, record["step"])
        for record in read_json_lines(folder / "steps.jsonl")
        for key, value in _flat(record).items()
        if value is not None
    ]
    if (folder / "scores.json").exists():
        scores = read_json(folder / "scores.json")
        metrics += [Metric(f"accuracy.{name}", s["correct"] / s["total"], 0, 0) for name, s in scores.items()]
    client.log_batch(run.info.run_id, params=params, tags=[RunTag(k, v) for k, v in tags.items()])
    for start in range(0, len(metrics), 1000):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + 1000])
    client.set_terminated(run.info.run_id)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
