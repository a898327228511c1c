"""Rules that no shipped preset runs on a CPU: lm-eval as the harness, lighteval as a second grader."""

import json
import subprocess

import pandas as pd
import pytest
import yaml

from redraft.files import read_json
from tests.checkout import ROOT, copy_to

LIGHTEVAL = ROOT / ".venv-lighteval"
pytestmark = pytest.mark.servers
TWO = ["keywords:existence", "change_case:english_lowercase"]
ASKED = [
    {"problem": "1a+2b=", "answer": {"key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}},
    {"problem": "3a-1b=", "answer": {"key": 2, "instruction_id_list": TWO, "kwargs": [{"keywords": ["boxed"]}, {}]}},
]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The smoke preset's initial policy on sums and on instructions, graded twice."""
    if not (LIGHTEVAL / ".ready").exists():
        pytest.skip("lighteval's environment is not there; `make lighteval` makes it")
    folder = copy_to(tmp_path_factory.mktemp("evaluation"))
    (folder / ".venv-lighteval").symlink_to(LIGHTEVAL)
    (folder / "src").symlink_to(ROOT / "src")
    (folder / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ASKED))
    file = folder / "experiments/presets/smoke.yaml"
    preset = yaml.safe_load(file.read_text())
    preset["evaluation"] = {"harness": "lm-eval", "lighteval": True}
    preset["benchmarks"]["asked"] = {
        "data": {"kind": "file", "path": "asked.jsonl", "size": 2},
        "grading": "instructions",
        "samples": 3,
        "max_new_tokens": 24,
    }
    file.write_text(yaml.safe_dump(preset))
    where = folder / "results/smoke/initial/smoke/qwen3-1.7b-base/seed0"
    command = ["snakemake", "--config", "preset=smoke", "--", str((where / "ifeval.json").relative_to(folder))]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return where


def test_lm_eval_s_generations_are_whole_and_graded(evaluated):
    generations = pd.read_parquet(evaluated / "generations.parquet")
    assert generations.groupby("benchmark").size().to_dict() == {"arithmetic": 20, "arithmetic-longer": 20, "asked": 6}
    scores = read_json(evaluated / "scores.json")["0"]
    assert (scores["asked"]["total"], scores["asked"]["instructions"]) == (6, 9)
    assert {name: scores[name]["total"] for name in ("arithmetic", "arithmetic-longer")} == {
        "arithmetic": 20,
        "arithmetic-longer": 20,
    }


def test_both_graders_of_instructions_agree(evaluated):
    comparison = read_json(evaluated / "ifeval.json")
    assert comparison["disagreements"] == []
    scores = read_json(evaluated / "scores.json")["0"]["asked"]
    for line in comparison["metrics"]:
        kind, level = line["metric"].split("_level_")
        key, total = ("prompt", 6) if kind == "prompt" else ("instructions", 9)
        expected = scores[f"{key}_{level.removesuffix('_acc')}"] / total
        assert line["lm_eval"] == pytest.approx(line["lighteval"]) == pytest.approx(expected)
        assert line["samples"] == 6
    assert 0 < scores["instructions_strict"] < 9  # no commas in this vocabulary; keywords hardly ever
