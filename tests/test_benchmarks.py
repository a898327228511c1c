"""The catalogue of benchmarks, and the messages of mistakes in it."""

import shutil
from pathlib import Path

import pytest
import yaml

from redraft.config import Experiments
from redraft.errors import UserError

ROOT = Path(__file__).parents[1]
SIZES = {
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "math500": 500,
    "minerva": 272,
    "olympiad": 675,
    "mmlu_stem": 3018,
    "ifeval": 541,
    "gsm8k": 1319,
    "dapo1k": 1000,
    "dapo17k_prompts": 1000,
}


@pytest.fixture
def experiments(tmp_path):
    """A function that changes a copy of the catalogue and reads it."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    file = tmp_path / "experiments/benchmarks.yaml"

    def changed(edit):
        content = yaml.safe_load(file.read_text())
        edit(content)
        file.write_text(yaml.safe_dump(content))
        return Experiments(tmp_path)

    return changed


def test_sets_have_the_papers_sizes_and_name_where_they_come_from():
    sets = Experiments(ROOT).benchmark_file().sets
    hub = {name: s.data for name, s in sets.items() if s.data.kind == "hub"}
    assert {name: data.size for name, data in hub.items()} == SIZES
    assert all(data.id and data.split and data.files and data.local for data in hub.values())
    assert all(s.description for s in sets.values())
    assert {name for name in hub if sets[name].grading != "math"} == {"mmlu_stem", "ifeval"}


def test_protocols_sample_as_the_papers_do():
    experiments = Experiments(ROOT)
    spec, speed, ar3po = (experiments.protocol(name) for name in ("spec_rl", "speed_rl", "ar3po"))
    assert {name: b.denominator for name, b in spec.items()} == {
        "amc23": 640,
        "aime24": 960,
        "math500": 500,
        "minerva": 272,
        "olympiad": 675,
        "mmlu_stem": 3018,
        "ifeval": 541,
    }
    assert {name: b.samples for name, b in speed.items()} == {
        "dapo1k": 1,
        "math500": 1,
        "amc23": 4,
        "aime24": 16,
        "aime25": 16,
    }
    assert {name: b.samples for name, b in ar3po.items()} == {"math500": 8, "minerva": 8, "olympiad": 8, "aime24": 64}
    assert {(b.temperature, b.top_p, b.max_new_tokens) for b in spec.values()} == {(1.0, 0.95, 16000)}
    assert {b.max_new_tokens for b in (*speed.values(), *ar3po.values())} == {3072}
    assert {b.temperature for b in experiments.protocol("greedy").values()} == {0}
    assert {b.chat for b in spec.values()} == {"required"}
    assert spec["ifeval"].metric != spec["amc23"].metric


def test_a_benchmark_s_own_sampling_counts_before_its_protocol_s(experiments):
    def edit(content):
        protocol = content["protocols"]["tiny"]
        protocol["sampling"].update(temperature=0.5, samples=3, top_p=0.7)
        protocol["benchmarks"]["arithmetic"] = {"temperature": 0.1, "samples": 5}

    changed = experiments(edit).protocol("tiny")
    found = {name: (b.temperature, b.samples, b.top_p) for name, b in changed.items()}
    assert found.pop("arithmetic") == (0.1, 5, 0.7)
    assert set(found.values()) == {(0.5, 3, 0.7)}


def test_a_protocol_is_a_preset_s_benchmarks():
    experiments = Experiments(ROOT)
    assert experiments.preset("paper").benchmarks == experiments.protocol("spec_rl")
    assert experiments.preset("tiny").benchmarks == experiments.protocol("tiny")


def test_each_paper_is_evaluated_by_its_own_protocol_where_the_preset_says_so():
    experiments = Experiments(ROOT)
    paper = {name: experiments.preset_of("paper", name).benchmarks for name in experiments.papers}
    assert paper == {
        name: experiments.protocol(protocol)
        for name, protocol in {
            "spec_rl": "spec_rl",
            "speed_rl": "speed_rl",
            "ar3po": "ar3po",
            "efficient_rollout": "ar3po",
            "equal_budget": "ar3po",
            "exact_reuse": "spec_rl",
            "loss_by_scale": "spec_rl",
            "cheap_rollouts": "spec_rl",
        }.items()
    }
    for name in ("tiny", "smoke"):
        preset = experiments.preset(name)
        assert experiments.preset_of(name, "speed_rl").benchmarks == preset.benchmarks
    assert experiments.preset("smoke").protocol_of("ar3po") == "smoke"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c["protocols"]["tiny"]["benchmarks"].update(sums={}), ["no such benchmark", "sums", "arithmetic"]),
        (lambda c: c["protocols"]["tiny"]["benchmarks"].update(arithmetic={"sample": 3}), ["arithmetic", "sample"]),
        (lambda c: c["protocols"]["tiny"]["sampling"].update(temperature=-1), ["temperature", "-1"]),
        (lambda c: c["protocols"]["tiny"].update(benchmarks={}), ["protocols.tiny.benchmarks"]),
        (lambda c: c["sets"]["amc23"].update(grading="vibes"), ["sets.amc23.grading", "vibes", "math"]),
        (lambda c: c["sets"]["amc23"]["data"].update(size=0), ["sets.amc23.data.size", "0"]),
        (lambda c: c["sets"]["amc23"]["data"].update(template="solve"), ["must contain {problem}"]),
    ],
)
def test_a_mistake_in_the_catalogue_is_named(experiments, edit, words):
    with pytest.raises(UserError) as error:
        experiments(edit).protocol("tiny")
    assert "benchmarks.yaml" in str(error.value)
    for word in words:
        assert word in str(error.value)
