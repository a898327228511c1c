"""Algorithms, kinds of reuse and schedules under verl and vLLM on a processor, four steps each."""

import subprocess
import sys

import pandas as pd
import pytest

from tests.checkout import copy_to
from tests.verl_runs import LIMIT, MODEL, WITH_VLLM, add_cells, gathered, total, train

pytestmark = [pytest.mark.servers, pytest.mark.thorough, WITH_VLLM]

VARIANTS = {
    "ppo-weighted": {"algorithm": {"kind": "ppo"}, "reuse": {"kind": "weighted"}, "trainer": {"temperature": 0.7}},
    "dapo-adaptive": {"algorithm": {"kind": "dapo"}, "reuse": {"kind": "adaptive", "initial": 1, "budget": 0.001}},
}
"""PPO and DAPO, each with a kind of reuse that asks the trainer for more than the published rule: GRPO is that of the
campaign and of the stages, RLOO that of SPEED. A run takes minutes, most of them imports, and strategies see only the
engine: the other kinds are tested on vLLM without verl (test_vllm_exact.py, test_engines.py)."""
SCREENED = {
    "speed-spec": {
        "algorithm": {"kind": "rloo"},
        "schedule": {"kind": "speed", "screening": 2, "stale": "stored"},
        "reuse": {"kind": "speculative", "lenience": 1},
        "trainer": {"prompts_per_batch": 4, "updates_per_batch": 3},
    },
}
STAGED = {
    "staged": {
        "algorithm": {"kind": "grpo", "kl_loss_coef": 0, "std": "population"},
        "trainer": {"warmup_steps": 2},
        "reuse": {"kind": "staged", "stage_size": 2, "replay": "stored", "lenience": 1},
    },
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's workflow with these cells, and their initial policy."""
    folder = copy_to(tmp_path_factory.mktemp("verl"))
    add_cells(folder, VARIANTS | SCREENED | STAGED)
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_algorithms_and_methods_train_under_verl(copy, tmp_path, variant):
    records = train(copy, tmp_path / "run", f"spec_rl/{variant}")
    assert [(r["step"], r["epoch"]) for r in records] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert total(records, "tokens_reused", 0) == 0 < total(records, "tokens_reused", 1)
    assert all(r["rollouts"] == 64 for r in records)
    updates = [r for r in records if r["updated"]]
    assert [r["training_step"] for r in updates] == list(range(1, len(updates) + 1))
    assert all(r["log_prob_gap_max"] < 1e-3 for r in updates)
    assert any(r["gradient_norm"] > 0 for r in updates)
    assert [r["updated"] for r in records] == (gathered(records) if variant == "dapo-adaptive" else [True] * 4)
    assert ("critic_loss" in records[0]) == (variant == "ppo-weighted")
    assert total(records, "tokens_verified", 1) > 0
    assert (records[0].get("lenience") == 1) == (variant == "dapo-adaptive")
    weights = [r["mean_weight"] for r in updates if "mean_weight" in r]
    assert bool(weights) == (variant == "ppo-weighted")
    assert weights[:2] == pytest.approx([1, 1][: len(weights)], abs=1e-3), "epoch 1 has no drafts"
    assert all(0.2 < weight < 5 for weight in weights)
    assert (tmp_path / "run" / "policies" / "step-0004" / "model.safetensors").exists()


def rollouts(folder, step):
    return pd.read_parquet(folder / "rollouts" / f"step-{step:04d}.parquet")


def test_speed_screens_and_continues_under_verl(copy, tmp_path):
    records = train(copy, tmp_path / "run", "spec_rl/speed-spec")
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


def test_stages_and_replays_under_verl(copy, tmp_path):
    records, known = train(copy, tmp_path / "run", "spec_rl/staged"), set()
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
