"""The paper preset: what it says against the paper's own tables, and that the campaign is listed without any data."""

import csv
import re
import shutil
import time
from pathlib import Path

import pytest
import yaml

from redraft.config import Experiments, run_fingerprint
from tests.checkout import called

ROOT = Path(__file__).parents[1]
SIZES = {
    "amc23": 640,
    "aime24": 960,
    "math500": 500,
    "minerva": 272,
    "olympiad": 675,
    "mmlu_stem": 3018,
    "ifeval": 541,
}
"""What reported accuracies are multiples of: problems times samples."""


@pytest.fixture(scope="module")
def experiments():
    return Experiments(ROOT)


def snakemake(folder, *arguments, **config):
    pairs = [f"{key}={value}" for key, value in {"preset": "paper", **config}.items()]
    return called(folder, "snakemake", "-n", "-p", "reproduction", *arguments, "--config", *pairs)


def dry_run(folder, *arguments, **config):
    result = snakemake(folder, *arguments, **config)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


def copy_to(folder):
    for name in ("Snakefile", "config", "workflows", "profiles", "experiments", "envs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def test_every_cell_resolves_at_the_paper_s_scale(experiments):
    cells = experiments.cells("spec_rl")
    runs = {cell.name: experiments.run(cell.id, 0, "paper") for cell in cells}
    steps = {name: run.steps for name, run in runs.items()}
    assert steps.pop("simplerl-grpo-vanilla") == steps.pop("simplerl-grpo-spec-l0.5") == 100
    assert set(steps.values()) == {90}
    assert {run.model.kind for run in runs.values()} == {"pretrained"}
    assert {run.data.kind for run in runs.values()} == {"hub"}
    clocks = {name: (run.trainer.evaluate_every, run.trainer.evaluation_clock) for name, run in runs.items()}
    assert clocks == {name: (5, "training_steps") if "dapo" in name else (10, "steps") for name in runs}, "A.1"


def test_models_and_data_are_those_the_reported_tables_name(experiments):
    preset, named = experiments.preset("paper"), set()
    for file in sorted((ROOT / "experiments/spec_rl/reported").glob("*.csv")):
        with file.open() as lines:
            named |= {(row["model"], row["dataset"]) for row in csv.DictReader(lines)}
    assert {model for model, _ in named} <= set(preset.models)
    assert {data for _, data in named} <= set(preset.data)


def test_benchmarks_are_the_reported_columns_with_their_denominators(experiments):
    benchmarks = experiments.preset("paper").benchmarks
    assert {name: b.data.size * b.samples for name, b in benchmarks.items()} == SIZES
    with (ROOT / "experiments/spec_rl/reported/table01.csv").open() as file:
        columns = {row["column"] for row in csv.DictReader(file)}
    assert columns == set(benchmarks) | {"tokens_m", "speedup", "avg"}
    assert {name for name, b in benchmarks.items() if b.role == "out-of-distribution"} == {"mmlu_stem", "ifeval"}
    assert {(b.temperature, b.top_p, b.max_new_tokens) for b in benchmarks.values()} == {(1.0, 0.95, 16000)}


def test_the_whole_campaign_is_listed_in_seconds_without_any_data(experiments, tmp_path):
    folder = copy_to(tmp_path)
    began = time.perf_counter()
    text = dry_run(folder)
    seconds = time.perf_counter() - began
    preset = experiments.preset("paper")
    cells = [c for p in preset.default for c in experiments.cells(p, experiments.grids(p, beyond_paper=False))]
    reasons = dict(re.findall(r"^left out: (\S+): (.+)$", text, flags=re.M))
    speculating = {cell.id for cell in cells if cell.decoding.kind != "plain"}
    made_by_a_user = {cell.id for cell in cells if cell.data in ("numinamath", "simplerl-8k-medium")}
    assert reasons.keys() == speculating | made_by_a_user
    assert {id for id, reason in reasons.items() if "engine.kind verl" in reason} == speculating
    assert "data/numinamath-integer.jsonl does not exist" in reasons["speed_rl/numina-rloo"]
    wanted = [cell for cell in cells if cell.id not in reasons]
    assert {cell.paper for cell in wanted} == {"spec_rl", "speed_rl", "ar3po", "efficient_rollout"}
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", text, flags=re.M)}
    assert counts["train"] == len(wanted) * len(preset.seeds) == 198
    assert counts["import_model"] == len({cell.model for cell in wanted})
    summary = " ".join(text.rpartition("dry run: ")[2].split())
    assert f"198 runs to train, of {len(wanted)} cells: " in summary
    assert re.search(r"training: [\d,]{5,} GPU-hours by `redraft cost`, and \d+ runs of unknown hours ", summary)
    assert summary.endswith("next: snakemake -p reproduction --config preset=paper")
    assert seconds < 300  # about 30 on an idle machine
    assert not (folder / "results/paper/runs").exists()
    memory, nodes = {}, {}
    for job in re.findall(r"^rule train:\n((?: .*\n)+)", text, flags=re.M):
        cell, gib = re.search(r"runs/(\S+)/seed", job)[1], int(re.search(r"mem_mb=(\d+)", job)[1]) / 1024
        model = experiments.cell(cell).model
        memory.setdefault(model, set()).add(gib)
        nodes.setdefault(model, set()).add(re.search(r"nodes=(\d+)", job)[1] + "mpi" * ("mpi=srun" in job))
    assert (memory["qwen3-1.7b-base"], memory["qwen2.5-32b"]) == ({208}, {592}), "each job asks for its model's"
    assert (nodes["qwen3-1.7b-base"], nodes["qwen2.5-32b"]) == ({"1"}, {"2mpi"})


def test_cells_with_a_file_of_the_user_s_run_once_it_is_there_and_default_ones_need_it(tmp_path):
    folder = copy_to(tmp_path)
    preset = folder / "experiments/presets/tiny.yaml"
    content = yaml.safe_load(preset.read_text())
    content["data"]["numinamath"] = {"kind": "file", "path": "numina.jsonl", "size": 192}
    preset.write_text(yaml.safe_dump(content, sort_keys=False))
    options = {"preset": "tiny", "papers": "speed_rl"}
    assert "left out: speed_rl/numina-rloo: numina.jsonl does not exist" in dry_run(
        folder, "--quiet", "rules", **options
    )
    (folder / "numina.jsonl").touch()
    assert "left out" not in dry_run(folder, "--quiet", "rules", **options)
    (folder / "numina.jsonl").unlink()
    content["default"]["speed_rl"] = ["main"]
    preset.write_text(yaml.safe_dump(content, sort_keys=False))
    result = snakemake(folder, **options)
    assert result.returncode != 0
    assert "numina.jsonl" in result.stderr


def test_a_new_cell_or_a_field_at_its_default_changes_no_other_run(experiments, tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    cells_file, preset_file = (tmp_path / "experiments" / name for name in ("spec_rl/cells.yaml", "presets/paper.yaml"))
    content = yaml.safe_load(cells_file.read_text())
    lenience = next(grid for grid in content["grids"] if grid["name"] == "lenience")
    lenience["axes"]["lenience"]["l1.5"] = {"reuse": {"lenience": "e^1.5"}}
    lenience["exclude"][0]["when"]["lenience"].append("l1.5")
    cells_file.write_text(yaml.safe_dump(content, sort_keys=False))
    preset = yaml.safe_load(preset_file.read_text())
    preset["data"]["deepmath-6k"] |= {"revision": None, "template": "{problem}", "choices": None, "incomplete": {}}
    preset_file.write_text(yaml.safe_dump(preset, sort_keys=False))
    changed = Experiments(tmp_path)
    names = {cell.id for cell in changed.cells("spec_rl")}
    assert names - {cell.id for cell in experiments.cells("spec_rl")} == {"spec_rl/grpo-spec-l1.5"}
    for cell in experiments.cells("spec_rl"):
        before, after = (run_fingerprint(e.run(cell.id, 0, "paper")) for e in (experiments, changed))
        assert before == after, cell.id
    assert run_fingerprint(changed.run("spec_rl/grpo-spec-l1.5", 0, "paper")) != run_fingerprint(
        changed.run("spec_rl/grpo-spec-l0.5", 0, "paper")
    )
