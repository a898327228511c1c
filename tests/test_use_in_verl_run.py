"""The first run of docs/use-in-verl.md as the page has it: stock `main_ppo` on a processor, a kill and a resume."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.files import read_json_lines
from redraft.integrations.verl.store import files_of
from tests.processes import processes_of, until
from tests.verl_runs import LIMIT, WITH_VLLM

pytestmark = [pytest.mark.servers, pytest.mark.thorough, WITH_VLLM]

PAGE = (Path(__file__).parents[1] / "docs/use-in-verl.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(TRAIN,) = (block for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) if "main_ppo" in block)


def start(folder, *settings):
    """Begin the page's command in a folder; the shell becomes verl's process, so that a kill reaches that.

    Args:
        settings: of verl, besides the page's.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1", "RAY_worker_niceness": "0"}
    variables = os.environ | quiet | {"PATH": path, "REDRAFT_TEST": str(folder)}
    script = TRAIN.replace("\npython -m verl", "\nexec python -m verl").rstrip() + " " + " ".join(settings)
    with (folder / "log").open("ab") as output:
        return subprocess.Popen(["bash", "-ec", script], cwd=folder, env=variables, stdout=output, stderr=output)


def metrics(folder):
    """Metrics of each step that trained."""
    records = read_json_lines(folder / "metrics.jsonl")
    return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


def test_a_stock_run_reuses_drafts_from_the_second_epoch_on_also_after_a_kill(tmp_path):
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True, capture_output=True)
    process = start(tmp_path)
    until((tmp_path / "checkpoints/global_step_3/data.pt").exists, LIMIT, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not processes_of(str(tmp_path)), 120)
    before = metrics(tmp_path)  # verl's logger begins a new file
    drafts = tmp_path / "checkpoints" / "redraft_drafts"
    assert [step for step in files_of(drafts) if step <= 3] == [1, 2, 3]
    process = start(tmp_path)
    assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()[-3000:]
    found = before | metrics(tmp_path)
    assert found[1]["redraft/with_draft"] == found[2]["redraft/with_draft"] == 0
    assert found[4]["redraft/with_draft"] == 1, "the drafts of step 2, read after the kill"
    assert 0 < found[4]["redraft/kept_share"] < 1
    assert found[4]["redraft/rule_replaced"] == 0
    assert not [name for name in found[4] if name.startswith("redraft/own_response")]
    assert max(step["training/rollout_probs_diff_max"] for step in found.values()) < 1e-4


def test_dialogues_with_a_tool_have_drafts_over_several_servers_under_verl_s_other_trainer(tmp_path):
    """Two vLLM servers, the V0 trainer, and a calculator that is called again for each dialogue."""
    from tests import verl_tools  # imports verl, which takes seconds

    subprocess.run([sys.executable, verl_tools.__file__], cwd=tmp_path, check=True, capture_output=True)
    rollout = "actor_rollout_ref.rollout"
    process = start(
        tmp_path,
        f"{rollout}.agent.default_agent_loop=redraft_tools",
        f"{rollout}.multi_turn.enable=True",
        f"{rollout}.multi_turn.function_tool_path={verl_tools.__file__}",
        f"{rollout}.multi_turn.format={verl_tools.FORMAT}",
        f"{rollout}.multi_turn.max_assistant_turns=2",
        "trainer.use_v1=False",
        "trainer.n_gpus_per_node=2",
        "++ray_kwargs.ray_init.num_gpus=2",
        "trainer.total_training_steps=3",
        "trainer.save_freq=-1",
    )
    assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()[-3000:]
    found = metrics(tmp_path)
    assert found[1]["redraft/with_draft"] == found[2]["redraft/with_draft"] == 0
    third = found[3]
    assert 0.5 < third["redraft/with_draft"] < 1, "a second turn has one if the first was kept whole"
    assert third["redraft/kept_share"] > 0.1
    assert third["num_turns/max"] == 4, "prompt, call, answer of the tool, box"
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    # Each response beyond the first of its dialogue follows a call; validation calls too.
    turns = sum(int(step["redraft/responses"]) - 64 for step in found.values())
    assert len(calls) >= turns > 100
    assert max(step["training/rollout_probs_diff_max"] for step in found.values()) < 1e-4
    servers = set(re.findall(r"vLLMHttpServer pid=(\d+)", (tmp_path / "log").read_text()))
    assert len(servers) == 2
