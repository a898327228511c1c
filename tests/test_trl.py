"""TRL itself, in its own environment, with the rollout function."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import g_test
from redraft.lab.audit.tiny_models import ModelPolicy, drifting

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-trl/bin/python"

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(not PYTHON.exists(), reason="TRL's environment is not there; `make trl` makes it"),
]


def in_trl(folder, *arguments):
    """Standard output of TRL's Python in a folder."""
    variables = {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, *map(str, arguments)]
    result = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_the_example_of_the_page_runs(tmp_path):
    page = (ROOT / "docs/use-in-trl.md").read_text()
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", page, flags=re.S)[1])
    lines = re.findall(r"epoch (\d): reward [\d.]+, kept (\d+)%", in_trl(tmp_path, "train.py"))
    assert [epoch for epoch, _ in lines] == ["1", "2", "3"]
    assert [int(kept) > 10 for _, kept in lines] == [False, True, True], lines
    assert (tmp_path / "run/checkpoint-12/redraft/index.json").exists()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of `trl_run.py`."""
    out = in_trl(tmp_path_factory.mktemp("trl"), ROOT / "tests/trl_run.py")
    return json.loads(out.splitlines()[-1])


def test_a_resumed_training_equals_the_uninterrupted_one(found):
    """Weights and logs, with evaluations in between."""
    assert found["resumed"] == found["whole"]
    assert len(found["whole"]["logs"]) == 3


def test_drafts_save_tokens_from_the_second_pass_on_and_the_first_is_that_of_no_rule(found):
    first, *later = found["whole"]["logs"]
    assert (first["reuse/saved_tokens"], first["reuse/drafts"]) == (0, 0)
    assert all(each["reuse/drafts"] == 1 and each["reuse/saved_tokens"] > 0 for each in later)
    assert first == found["none"]["logs"][0]
    assert all(each["reuse/saved_tokens"] == 0 for each in found["none"]["logs"])
    assert found["none"]["weights"] != found["whole"]["weights"]


def test_an_unchanged_policy_keeps_all_drafts_under_mixed_precision_and_several_iterations(found):
    """TRL calls once per `steps_per_generation * num_iterations` micro-batches."""
    assert found["still"]["kept"] == [None, 1.0, 1.0]
    assert found["still"]["calls"] == [8] * 3


def test_log_probabilities_and_prompts_are_those_of_trl(found):
    assert found["log_prob_gap"] < 1e-4
    assert found["prompts_equal"] == [True, True]


def test_a_setting_that_is_not_supported_ends_the_training(found):
    assert "does not support this setting" in found["error"]
    assert "top_k" in found["error"]


@pytest.mark.parametrize("loop", ["own", "function"])
def test_responses_without_reuse_have_the_distribution_of_trl_s_own_loop(loop, found):
    """Both are compared with the enumerated distribution at the trainer's temperature, 0.8, and not with that at 1."""
    space = Space(3, 3)
    (model,) = drifting(space, 1, 0, scale=0.6)
    counts = np.array(found["counts"][loop])
    for temperature in (0.8, 1.0):
        expected = ModelPolicy(space, model, temperature).response_distribution()
        assert g_test(counts, expected).rejected == (temperature == 1.0)


def test_steps_with_the_same_responses_are_those_of_trl_s_own_loop(found):
    """Advantages, losses, gradients and weights, with two optimizer steps in each of two iterations."""
    steps = found["steps"]
    assert steps["function"] == steps["own"]
    assert len(steps["own"]["logs"]) == 4
    assert len(set(steps["own"]["advantages"][0])) > 4
