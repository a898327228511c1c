"""Runs as training and grading would leave them, made by hand."""

import json

from redraft.config import Experiments, run_fingerprint
from redraft.files import hashes
from redraft.layout import Layout

CELLS = ("spec_rl/grpo-vanilla", "spec_rl/grpo-spec-l0")
RECORD = {
    "step": 0,
    "epoch": 0,
    "tokens_decoded": 1200,
    "tokens_verified": 0,
    "reward": 0.5,
    "fresh_reward": None,
    "passes": [[8, 0, 3, 1.0, 3.0]],
}
STEPS = 30
"""Steps of a cell at the preset tiny."""
SECONDS = {"rollout": 2.0, "verification": 0.5, "assembly": 0.0, "total": 4.0}


PROCESSES = (("08:00:00", "08:01:00"), ("08:30:00", "08:31:00"))
"""Starts and ends of the two processes that trained a run, for 90 seconds in steps."""


def finish(folder, cell, seed=0, correct=3, **values):
    """A run in two epochs, as training and grading would leave it; the last step takes longest."""
    run, configured = Layout("tiny", folder / "results").run(cell, seed), Experiments(folder).run(cell, seed, "tiny")
    run.mkdir(parents=True)
    steps = configured.steps
    seconds = [SECONDS] * (steps - 1) + [SECONDS | {"total": 4 * SECONDS["total"]}]
    records = [RECORD | {"step": i, "epoch": 2 * i // steps, "seconds": seconds[i]} | values for i in range(steps)]
    (run / "steps.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    manifest = {
        "run": f"{cell}/seed{seed}",
        "fingerprint": run_fingerprint(configured),
        "git": {"commit": None},
        "configuration": {"seed": seed},
        "processes": [{"started": f"2026-11-01T{a}+00:00", "ended": f"2026-11-01T{b}+00:00"} for a, b in PROCESSES],
        "finished": "2026-11-01T08:31:02+00:00",
        "seconds": 90.25,
        "sha256": hashes(run / "steps.jsonl") | removed(steps, 9, steps),
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    grade(run, correct, steps)
    return run


def trained(folder, run, **values):
    """A run of which only the records and the manifest are needed."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"step": i, "epoch": 0, "seconds": {"total": 1.0}} for i in range(run.steps)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    digests = hashes(folder / "steps.jsonl") | removed(run.steps, 9, run.steps)
    named = {"run": f"{run.paper}/{run.cell}/seed{run.seed}", "fingerprint": run_fingerprint(run), "sha256": digests}
    (folder / "manifest.json").write_text(json.dumps(named | values))


def removed(steps, *policies):
    """Hashes in a manifest of the rollouts and policies of a run, which were removed to save space."""
    rollouts = [f"rollouts/step-{step:04d}.parquet" for step in range(steps)]
    return dict.fromkeys([*rollouts, *(f"policies/step-{p:04d}/model.safetensors" for p in policies)], "removed")


def grade(run, correct, steps=STEPS):
    """Scores of the policies after 9 steps and after the last one; as text 9 is the larger."""
    scores = {
        str(step): {"arithmetic": {"correct": k, "total": 4, "role": "in-distribution"}}
        for step, k in ((9, 0), (steps, correct))
    }
    (run / "scores.json").write_text(json.dumps(scores))
    (run / "grades.parquet").write_text("grades")
    generations = {"sha256": {"generations.parquet": "removed"}, "made_from": hashes(run / "manifest.json")}
    (run / "generations.json").write_text(json.dumps(generations))
    graded = {"sha256": hashes(run / "grades.parquet", run / "scores.json"), "made_from": generations["sha256"]}
    (run / "grades.json").write_text(json.dumps(graded))
