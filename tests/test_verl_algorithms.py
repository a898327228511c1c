"""Algorithms, kinds of reuse and schedules under verl and vLLM on a processor, four steps each."""

import subprocess
import sys

import pandas as pd
import pytest

from tests.checkout import copy_to
from tests.verl_runs import LIMIT, MODEL, WITH_VLLM, add_cells, train

pytestmark = [pytest.mark.servers, pytest.mark.thorough, WITH_VLLM]

SCREENED, STAGED = "speed-adaptive", "staged-ppo"
VARIANTS = {
    SCREENED: {
        "algorithm": {"kind": "rloo"},
        "schedule": {"kind": "speed", "screening": 2, "stale": "stored"},
        "reuse": {"kind": "adaptive", "initial": 1, "budget": 0.001},
        "trainer": {"prompts_per_batch": 4, "updates_per_batch": 3},
    },
    STAGED: {
        "algorithm": {"kind": "ppo"},
        "trainer": {"warmup_steps": 2},
        "reuse": {"kind": "staged", "stage_size": 2, "replay": "stored", "lenience": 1},
    },
}
"""A run takes minutes, most of them imports, so that few runs show much: GRPO is that of the campaign (test_verl.py),
DAPO and weighted reuse are those on two nodes (test_two_nodes.py). Strategies see only the engine: other kinds of reuse
are tested on vLLM without verl (test_vllm_exact.py, test_engines.py)."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's workflow with these cells, and their initial policy."""
    folder = copy_to(tmp_path_factory.mktemp("verl"))
    add_cells(folder, VARIANTS)
    command = [
        sys.executable,
        "-m",
        "redraft.cli.app",
        "stage",
        "redraft.train.initial_policy:make_model",
        "verl-tiny",
        MODEL.name,
        str(MODEL),
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=LIMIT)
    return folder


def rollouts(folder, step):
    return pd.read_parquet(folder / "rollouts" / f"step-{step:04d}.parquet")


def test_speed_screens_and_continues_under_verl(copy, tmp_path):
    records = train(copy, tmp_path / "run", f"spec_rl/{SCREENED}")
    passed = set()
    for record in records:
        made = rollouts(tmp_path / "run", record["step"])
        groups = dict(list(made.groupby(["prompt", "visit"])))
        screened = {key: rows["reward"].mean() for key, rows in groups.items() if rows["sample"].min() == 0}
        assert record["prompts_screened"] == len(screened)
        assert record["rollouts"] == 2 * len(groups) == len(made)
        assert {key for key, rows in groups.items() if rows["sample"].min() == 2} <= passed
        assert record["updated"] == (record["trained_rollouts"] == 16)
        if record["updated"]:
            assert 0 < record["trained_reward"] < 1
            assert record["gradient_norm"] > 0
            assert record["log_prob_gap_max"] < 1e-3
        passed |= {key for key, mean in screened.items() if 0 < mean < 1}
    assert records[0]["rollouts"] == 32
    assert not records[0]["updated"]
    assert sum(record["tokens_reused"] for record in records) > 0
    assert records[0]["lenience"] == 1


def test_stages_and_replays_under_verl(copy, tmp_path):
    records, known = train(copy, tmp_path / "run", f"spec_rl/{STAGED}"), set()
    for record in records:
        made = rollouts(tmp_path / "run", record["step"])
        right = {prompt: bool((rows["reward"] > 0.5).any()) for prompt, rows in made.groupby("prompt")}
        assert {len(rows) for _, rows in made.groupby("prompt")} <= {2, 4}
        assert record["without_correct"] == pytest.approx(1 - sum(right.values()) / len(right))
        reused = {int(prompt) for prompt, rows in made.groupby("prompt") if rows["replayed_from"].iloc[0] >= 0}
        assert reused == {int(prompt) for prompt, correct in right.items() if not correct} & known
        known |= {int(prompt) for prompt, correct in right.items() if correct}
    assert all(record["updated"] for record in records)
    assert any(record["gradient_norm"] for record in records)
    assert all("critic_loss" in record for record in records)
    assert [(r["step"], r["epoch"]) for r in records] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [r["training_step"] for r in records] == [1, 2, 3, 4]
    assert max(record["log_prob_gap_max"] for record in records) < 1e-3
    assert (tmp_path / "run" / "policies" / "step-0004" / "model.safetensors").exists()
