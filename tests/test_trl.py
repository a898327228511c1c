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
PAGE = (ROOT / "docs/use-in-trl.md").read_text()

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
        "TORCH_COMPILE_DISABLE": "1",
    }
    command = [PYTHON, *map(str, arguments)]
    result = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_the_example_of_the_page_runs_and_its_rollouts_are_certified(tmp_path):
    """The second part is the example of docs/certify.md."""
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", PAGE, flags=re.S)[1])
    lines = re.findall(r"epoch (\d): reward [\d.]+, kept (\d+)%", in_trl(tmp_path, "train.py"))
    assert [epoch for epoch, _ in lines] == ["1", "2", "3"]
    assert [int(kept) > 10 for _, kept in lines] == [False, True, True], lines
    assert (tmp_path / "run/checkpoint-12/redraft/index.json").exists()
    page = (ROOT / "docs/certify.md").read_text().partition("## Rollouts of TRL")[2]
    (tmp_path / "certified.py").write_text(re.search(r"```python\n(.*?)```", page, flags=re.S)[1])
    prompts, certify = re.search(r"```sh\n(.*?)```", page, flags=re.S)[1].splitlines()
    subprocess.run(["bash", "-c", prompts], cwd=tmp_path, check=True)
    command, *arguments = certify.split()
    assert command == "redraft"
    assert "passes" in in_trl(tmp_path, "-m", "redraft", *arguments)


def test_the_example_with_trl_s_vllm_runs(tmp_path):
    first, second = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)[:2]
    (replaced,) = re.findall(r"^trainer = .*\n", first, flags=re.M)
    (tmp_path / "train.py").write_text(first.replace(replaced, second))
    lines = re.findall(r"epoch (\d): reward [\d.]+, kept (\d+)%", in_trl(tmp_path, "train.py"))
    assert [epoch for epoch, _ in lines] == ["1", "2", "3"]
    assert [int(kept) > 10 for _, kept in lines] == [False, True, True], lines


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of `trl_run.py`."""
    out = in_trl(tmp_path_factory.mktemp("trl"), ROOT / "tests/trl_run.py")
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def with_vllm(tmp_path_factory):
    """Results of `trl_vllm_run.py`."""
    out = in_trl(tmp_path_factory.mktemp("trl_vllm"), ROOT / "tests/trl_vllm_run.py")
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


def test_vllm_without_reuse_gives_the_responses_of_trl_s_own_loop(with_vllm):
    """The same tokens and log-probabilities, from the same random numbers."""
    assert with_vllm["equal"] == [True, True]


@pytest.mark.parametrize(("rule", "exact"), [("one_hot", True), ("residual", True), ("published", False)])
def test_responses_of_vllm_s_third_pass_have_the_policy_s_distribution_if_the_rule_is_exact(rule, exact, with_vllm):
    space, results = Space(3, 3), with_vllm[rule]
    policy = ModelPolicy(space, drifting(space, 3, drift=0.5, scale=0.6)[-1])
    expected = policy.response_distribution()
    counts = np.bincount(results["indices"], minlength=len(expected))
    assert g_test(counts, expected).rejected != exact
    assert results["kept_share"] > 0.1
    if exact:  # the policy's log-probabilities, also of kept tokens and of those from a residual
        np.testing.assert_allclose(np.exp(results["totals"]), expected[results["indices"]], rtol=1e-4)


def test_vllm_has_the_weights_of_each_update_and_drafts_from_the_second_pass_on(with_vllm):
    """Also if two trainings begin with the same step."""
    assert with_vllm["trained"]["drafts"] == [0, 1, 1, 0]
    assert with_vllm["trained"]["difference"] < 1e-4


def test_what_trl_s_vllm_cannot_do_is_an_error(with_vllm):
    """A setting, TRL's own way of copying weights on a CPU, and drafts scored at another temperature than 1."""
    assert with_vllm["errors"] == {key: key for key in with_vllm["errors"]}
    assert len(with_vllm["errors"]) == 6
    rejected = ["temperature"] * 3
    assert with_vllm["temperature"] == {"0.8": ["temperature", "", ""], "0.005": rejected, "3.0": rejected}
