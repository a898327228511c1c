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

pytestmark = [pytest.mark.servers, WITH_VLLM]

PAGE = (Path(__file__).parents[1] / "docs/use-in-verl.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(TRAIN,) = (block for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) if "main_ppo" in block)


def start(folder):
    """Begin the page's command in a folder; the shell becomes verl's process, so that a kill reaches that."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1", "RAY_worker_niceness": "0"}
    variables = os.environ | quiet | {"PATH": path, "REDRAFT_TEST": str(folder)}
    script = TRAIN.replace("\npython -m verl", "\nexec python -m verl")
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
