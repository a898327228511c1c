"""The workflow as a user runs it, on the smoke preset, in a copy of the repository."""

import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft.analysis.data.sequential import write_looks
from redraft.cli.run_until import _targets
from redraft.config import Experiments
from redraft.config.taken_runs import taken_cells
from redraft.files import sha256
from redraft.ops.workflow.rule_inputs import STAGES
from tests.checkout import called, copy_to, snakemake

ROOT = Path(__file__).parents[1]
CELLS = ("grpo-vanilla", "grpo-spec-linf")
EVALUATE = "redraft.evaluate"
RUNS = 2 * (len(CELLS) + 3)
"""Runs of the finished campaign: two seeds of SPEC-RL's cells and of the three made-up ones."""


def planned(folder, *arguments, config=()):
    """Outputs' rules and wildcards that a dry run would make."""
    result = snakemake(folder, *config, "-n", *arguments)
    assert result.returncode == 0, result.stderr
    text = result.stdout + result.stderr
    return text, re.findall(r"^(?:local)?rule (\w+):", text, flags=re.M)


def test_the_files_are_lint_clean():
    lint = called(ROOT, "snakemake", "--lint")
    assert lint.returncode == 0, lint.stdout + lint.stderr


RULES = """
import sys
from pathlib import Path
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, ResourceSettings

with SnakemakeApi() as api:
    config = ConfigSettings(config={"preset": sys.argv[1]})
    parsed = api.workflow(ResourceSettings(cores=1), config_settings=config, snakefile=Path("Snakefile"))
    parsed.dag()
    workflow = parsed._workflow
    for rule in workflow.rules:
        local = rule.norun or rule.name in workflow._localrules
        print("local" if local else "submitted", rule.name)
"""
"""Script that prints each rule of a preset, and whether a cluster's job runs it."""


def test_beside_a_cluster_only_downloads_and_what_is_light_run_here(tmp_path):
    lines = called(copy_to(tmp_path), sys.executable, "-c", RULES, "smoke", real=True).stdout.splitlines()
    rules = {kind: {line.split()[1] for line in lines if line.startswith(kind)} for kind in ("local", "submitted")}
    targets = {"all", "reproduction", "extras", "timing", "laboratory"}
    downloads = {"import_model", "prepare_data", "prepare_benchmarks", "lighteval_environment"}
    light = {"distributions", "collect", "measure", "tables", "figures", "choose_cases", "cases", "claims", "report"}
    taken = {"take_run", "take_generations"}
    assert rules["local"] == targets | downloads | light | taken | {"track"}
    assert rules["submitted"] == set(STAGES)


@pytest.mark.parametrize(("preset", "made"), [("smoke", True), ("smol", False)])
def test_models_that_are_trained_are_jobs_and_no_other_is(preset, made, tmp_path):
    result = snakemake(copy_to(tmp_path), "-n", preset=preset)
    assert result.returncode == 0, result.stderr
    text = result.stdout + result.stderr
    assert set(re.findall(r"^(\w+_model) +\d+$", text, flags=re.M)) == {"make_model" if made else "import_model"}
    assert ("in_turn=0" in text) != made, "an import is in no group of submitted jobs"


def test_groups_of_grading_jobs_are_fewer_submissions_that_request_one_job_s_memory(tmp_path):
    folder = copy_to(tmp_path)
    (folder / "slurm").symlink_to("profiles/slurm")
    lines = []
    for groups in ([], ["--groups", "grade=grading", "diversity=grading", "--group-components", "grading=5"]):
        result = snakemake(folder, "seeds=2", "-n", "--profile", "slurm", *groups)
        assert result.returncode == 0, result.stderr
        lines.append(" ".join((result.stdout + result.stderr).split()))
    alone, grouped = lines
    assert "Slurm: 22 submissions of 22 jobs, at most 64 at a time" in alone
    assert "Slurm: 14 submissions of 22 jobs" in grouped
    assert "group grading has up to 5 jobs, one after another, and requests 1 processor, 3 GiB for 5 hours" in grouped


def cells_of(experiments, grids):
    return {cell.name for cell in experiments.cells("spec_rl", grids)}


@pytest.mark.parametrize("seeds", [None, 2])
def test_grids_of_more_seeds_are_trained_with_them_unless_the_call_gives_a_number(tmp_path, seeds):
    folder = copy_to(tmp_path)
    experiments = Experiments(folder)
    preset, cells = experiments.preset("smol"), experiments.cells("spec_rl", ["pretrained"])
    pair = {cell.id for cell in experiments.cells("spec_rl", ["pair"])}
    assert preset.more_seeds == {"spec_rl": {"pair": [1, 2]}}
    result = snakemake(folder, *([f"seeds={seeds}"] if seeds else []), "-n", preset="smol")
    assert result.returncode == 0, result.stderr
    text = result.stdout + result.stderr
    trained = re.findall(r"output: results/smol/runs/(\S+)/seed(\d+)/manifest.json", text)
    of = {cell.id: range(seeds or (3 if cell.id in pair else 1)) for cell in cells}
    assert sorted(trained) == sorted((cell, str(seed)) for cell, its in of.items() for seed in its)
    initial = re.search(r"^generate_initial +(\d+)$", text, flags=re.M)
    assert initial
    assert int(initial[1]) == (seeds or 3)


def test_a_grid_of_more_seeds_that_there_is_not_is_refused_before_anything_starts(tmp_path):
    folder = copy_to(tmp_path)
    preset = folder / "experiments/presets/smol.yaml"
    preset.write_text(preset.read_text().replace("{pair: [1, 2]}", "{pairs: [1, 2]}"))
    result = snakemake(folder, "-n", preset="smol")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in ("smol.yaml", "more_seeds.spec_rl", "'pairs'")), result.stderr


PROBED = {"speed_rl/dapo17k-rloo", "speed_rl/7b-dapo17k-rloo"}
"""Cells of SPEED-RL's Figure 2, which shows pass rates under their initial policies."""


def test_each_target_trains_and_evaluates_its_cells_with_every_seed_and_no_others(tmp_path):
    """A call without a target wants the preset's first papers, one for all cells every paper."""
    folder = copy_to(tmp_path)
    experiments = Experiments(folder)
    preset = experiments.preset("tiny")
    assert len(preset.seeds) >= 3
    assert preset.first == ["spec_rl"]
    grids = {p: [experiments.grids(p, beyond_paper=b) for b in (False, True)] for p in preset.default}
    named = ("--config", "preset=tiny", "papers=ar3po,speed_rl")
    wanted = {
        (): {"spec_rl": ["core"]},
        named: {"ar3po": ["core"], "speed_rl": ["core"]},
        ("reproduction",): {p: of_paper for p, (of_paper, _) in grids.items()},
        ("extras",): {p: preset.default[p] + beyond for p, (_, beyond) in grids.items()},
        ("reproduction", "extras"): {p: of_paper + beyond for p, (of_paper, beyond) in grids.items()},
    }
    for arguments, of_papers in wanted.items():
        asked = [cell for p, names in of_papers.items() for cell in experiments.cells(p, names)]
        cells = {cell.id: cell for cell in asked}
        targets = arguments if arguments == named else ("--", *arguments)
        result = snakemake(folder, "-n", "-p", *targets, preset="tiny")  # without -p, two jobs of each rule are listed
        assert result.returncode == 0, result.stderr
        text = result.stdout + result.stderr
        assert "left out" not in text
        trained = re.findall(r"output: results/tiny/runs/(\S+)/seed(\d+)/manifest.json", text)
        assert set(trained) == {(cell, str(seed)) for cell in cells for seed in preset.seeds}
        models = {cell.model for cell in cells.values()}
        counts = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", text, flags=re.M)}
        taken = len([cell for cell, _ in trained if cell in taken_cells(experiments, preset)])
        assert counts.get("take_run", 0) == counts.get("take_generations", 0) == taken
        assert counts["train"] == counts["generate"] == counts["diversity"] - taken == len(trained) - taken
        assert counts["make_model"] == len(models) * min(preset.blocks, len(preset.seeds))
        by_roofline = {c.model for c in cells.values() if experiments.run(c.id, 0, "tiny").calibration}
        assert counts.get("calibrate", 0) == len(by_roofline)
        probed = {cell.model for name, cell in cells.items() if name in PROBED}
        assert counts["generate_initial"] == (len(models) + len(probed)) * len(preset.seeds)
        assert counts["grade"] == len(trained) + counts["generate_initial"]


def test_runs_are_timed_again_if_that_is_asked_for_and_tables_wait_for_it(tmp_path):
    folder = copy_to(tmp_path)
    papers = len(Experiments(folder).preset("smoke").default)
    for targets, seeds, named in (([], 0, 1), (["timing"], 2, 1), (["reproduction", "timing"], 2, papers)):
        result = snakemake(folder, "-n", "-p", "--", *targets)  # -p lists every job
        assert result.returncode == 0, result.stderr
        text = result.stdout + result.stderr
        assert len(re.findall(r"^rule time_runs:", text, flags=re.M)) == seeds * named
        collect = next(part for part in text.split("rule collect:")[1:] if "collected/spec_rl" in part).split(
            "output:"
        )[0]
        assert collect.count("results/smoke/timing/spec_rl/seed") == seeds


def test_a_roofline_s_file_that_a_preset_names_must_be_there(tmp_path):
    folder = copy_to(tmp_path)
    file = folder / "experiments/presets/smoke.yaml"
    preset = yaml.safe_load(file.read_text())
    preset["engine"]["calibrations"] = {"qwen2.5-7b": "here.json"}
    file.write_text(yaml.safe_dump(preset, sort_keys=False))
    result = snakemake(folder, "-n")
    assert result.returncode == 2
    words = ["error:", "engine.calibrations.qwen2.5-7b", "here.json", "redraft calibrate"]
    assert all(word in result.stderr for word in words), result.stderr
    (folder / "here.json").touch()
    assert snakemake(folder, "-n").returncode == 0


def test_cells_beyond_the_paper_are_not_in_its_reproduction():
    experiments = Experiments(ROOT)
    papers, beyond = (cells_of(experiments, experiments.grids("spec_rl", b)) for b in (False, True))
    assert {"14b-dapo-spec-l0.15", "simplerl-grpo-vanilla", "2k-grpo-spec-l0.5", "grpo-random"} <= papers
    assert beyond == {name for name in beyond if re.search(r"rloo|release|residual|block|one-hot|-u\d|-lr[\d.]", name)}
    assert not papers & beyond


def test_every_run_leaves_its_records_rollouts_scores_and_manifest(campaign):
    for cell in CELLS:
        for seed in (0, 1):
            folder = campaign / f"results/smoke/runs/spec_rl/{cell}/seed{seed}"
            records = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
            assert [record["step"] for record in records] == list(range(6))
            assert len(list((folder / "rollouts").glob("*.parquet"))) == 6
            scores = json.loads((folder / "scores.json").read_text())
            assert list(scores) == ["2", "4", "6"], "steps done by the policies that are evaluated"
            assert {s["total"] for of_step in scores.values() for s in of_step.values()} == {20}
            assert [path.name for path in sorted((folder / "policies").iterdir())] == [
                f"step-{int(step):04d}" for step in scores
            ]
            manifest = json.loads((folder / "manifest.json").read_text())
            assert manifest["configuration"]["seed"] == seed
            assert {"fingerprint", "git", "lock_sha256", "machine", "seconds", "packages", "sha256"} <= set(manifest)


def test_initial_policies_are_evaluated_with_every_seed(campaign):
    for seed, role in enumerate(("qwen3-1.7b-base", "qwen3-1.7b-base@1")):
        folder = campaign / f"results/smoke/initial/smoke/{role}/seed{seed}"
        scores = json.loads((folder / "scores.json").read_text())
        assert list(scores) == ["0"]
        assert {s["total"] for s in scores["0"].values()} == {20}


def test_seeds_of_different_blocks_share_neither_policy_nor_problems(campaign):
    runs = [campaign / f"results/smoke/runs/spec_rl/grpo-vanilla/seed{seed}" for seed in (0, 1)]
    first, second = (json.loads((run / "manifest.json").read_text())["inputs"] for run in runs)
    assert all(first[name] != second[name] for name in ("initial_policy", "problems"))
    answered = [set(pd.read_parquet(run / "generations.parquet")["prompt"]) for run in runs]
    assert len(answered[0] & answered[1]) < len(answered[0]) / 4
    collected = pd.read_parquet(campaign / "results/smoke/collected/spec_rl/runs.parquet")
    assert (collected["block"] == collected["seed"]).all()


def test_full_reuse_decodes_nothing_after_the_first_epoch(campaign):
    file = campaign / "results/smoke/runs/spec_rl/grpo-spec-linf/seed0/steps.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["tokens_decoded"] == 0 for record in records] == [record["epoch"] > 0 for record in records]


def test_tables_hold_the_contract_and_numbers_point_to_manifests(campaign):
    table = pd.read_csv(campaign / "results/smoke/tables/spec_rl/table03.csv")
    assert {"row", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"} <= set(table)
    made = table[table["n_seeds"] > 0]
    assert set(made["cell"]) == {f"spec_rl/{cell}" for cell in CELLS}
    for manifests in made["manifests"]:
        assert all((campaign / path).exists() for path in manifests.split())
    for suffix in ("md", "tex", "html"):
        assert "SPEC-RL" in (campaign / f"results/smoke/tables/spec_rl/table03.{suffix}").read_text()
    for number in ("02", "04", "06"):
        assert all(
            (campaign / f"results/smoke/figures/spec_rl/figure{number}.{s}").stat().st_size
            for s in ("csv", "png", "svg")
        )


def test_the_report_stands_by_itself_and_its_links_lead_somewhere(campaign):
    folder = campaign / "results/smoke/report"
    for page in [campaign / "results/smoke/report.html", *folder.rglob("*.html")]:
        found = page.read_text()
        assert not re.findall(r'src="(?!data:)', found)
        links = set(re.findall(r'href="([^#"]+)', found)) - {
            f"https://arxiv.org/abs/{Experiments().cell_file('spec_rl').source.split()[1]}"
        }
        assert all((page.parent / link).exists() for link in links), page
    assert len(list(folder.glob("runs/spec_rl/*.html"))) == 4
    text = (folder / "index.html").read_text()
    claims = json.loads((campaign / "results/smoke/claims/spec_rl.json").read_text())
    assert {claim["verdict"] for claim in claims} <= {"reproduced", "contradicted", "inconclusive", "not run"}
    assert all(claim["quotation"].replace('"', "&#34;") in text for claim in claims)


def test_runs_are_in_mlflow(campaign):
    with sqlite3.connect(campaign / "results/smoke/mlflow.db") as database:
        names = {name for (name,) in database.execute("select name from runs")}
        (metrics,) = database.execute("select count(*) from metrics where key = 'fresh_reward'").fetchone()
    assert {name for name in names if name.startswith("spec_rl/")} == {
        f"spec_rl/{cell}/seed{seed}" for cell in CELLS for seed in (0, 1)
    }
    assert len(names) == RUNS
    assert metrics == RUNS * 6


def test_the_terminal_says_what_runs_how_far_and_how_long(campaign):
    text = (campaign / "terminal").read_text()
    assert re.search(r"^\[ *\d+/\d+\] train spec_rl grpo-vanilla 0 .*elapsed, about .* left", text, flags=re.M)
    done, totals = zip(*((int(i), int(n)) for i, n in re.findall(r"^\[ *(\d+)/(\d+)\]", text, flags=re.M)), strict=True)
    assert len(set(totals)) == 1
    assert done == tuple(range(1, totals[0])), "all but the target itself"
    assert re.search(r"grpo-vanilla seed 0 +\d+/6 .* s left", text)
    assert text.index("nothing left") < text.index("\nthis call took "), "the call's line is the last one"


LINE = re.compile(r"^\[ *\d+/\d+\] .*; (.*) elapsed, about (.*) left$", re.M)
UNITS = {"s": 1, "min": 60, "h": 3600}


def seconds_of(text):
    words = text.split()
    return sum(int(count) * UNITS[unit] for count, unit in zip(words[::2], words[1::2], strict=True))


def test_the_time_left_that_the_terminal_says_is_near_the_truth(campaign):
    text = (campaign / "terminal").read_text()
    said = [(seconds_of(gone), seconds_of(left)) for gone, left in LINE.findall(text)]
    assert len(said) == len(re.findall(r"^\[ *\d+/\d+\]", text, flags=re.M)) - 1, "the last one says `nothing left`"
    end = calls(campaign)[0]["wall_seconds"]
    ratios = [left / (end - gone) for gone, left in said if 0.1 * end < gone < 0.8 * end]
    assert 1 / 2.5 < statistics.median(ratios) < 2.5
    assert re.search(r"^  about \d+ (s|min) left$", text, flags=re.M), "before the first job too"


def calls(campaign):
    return [json.loads(line) for line in (campaign / "results/smoke/calls.jsonl").read_text().splitlines()]


def seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_call_leaves_and_says_its_wall_time_and_its_processor_seconds(campaign):
    record = calls(campaign)[0]
    jobs = int(re.search(r"^(\d+) jobs:", (campaign / "terminal").read_text(), flags=re.M)[1]) - 1
    assert (sum(record["jobs"].values()), record["jobs"]["train"], record["finished"]) == (jobs, RUNS, True)
    assert 0 < record["processor_seconds"] < os.cpu_count() * record["wall_seconds"]
    assert record["wall_seconds"] > max(record["mean_seconds"].values()) > 1
    assert (
        "and {:,.0f} processor seconds for all jobs".format(record["processor_seconds"])
        in (campaign / "terminal").read_text()
    )


def test_snakemake_s_report_has_all_tables_figures_claims_and_pages_and_needs_no_network(
    campaign, tmp_path, monkeypatch
):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nothing listens
    result = snakemake(campaign, "--report", str(tmp_path / "all.zip"))
    assert result.returncode == 0, result.stderr
    page = zipfile.ZipFile(tmp_path / "all.zip").read("all/report.html").decode()
    categories, results = (
        json.loads(re.search(rf"^ *var {name} = (\{{.*\}});?$", page, flags=re.M)[1])
        for name in ("categories", "results")
    )
    folder = campaign / "results/smoke"
    papers = {path.name for path in (folder / "tables").iterdir()}
    expected = {
        "Tables": {f"tables/{paper}/table*.html" for paper in papers},
        "Figures": {f"figures/{paper}/figure*.svg" for paper in papers},
        "Claims": {"claims/*.json"},
        "Pages": {"report/**/*.html"},
    }
    for category, patterns in expected.items():
        files = {str(file.relative_to(campaign)) for pattern in patterns for file in folder.glob(pattern)}
        assert {path for paths in categories[category].values() for path in paths} == files, category
    assert set(categories) == set(expected)
    assert len(results) >= 30
    assert set(categories["Pages"]) == {"all papers", "spec_rl", "second", "bare"}
    of_table = results["results/smoke/tables/spec_rl/table03.html"]
    assert "Table 03 of" in of_table["caption"]
    assert of_table["labels"] == {"table": "03"}
    assert "Reproduction of papers" in page


def test_each_job_leaves_its_resources_next_to_its_log_and_nothing_takes_them_for_results(campaign):
    folder = campaign / "results/smoke"
    jobs = sum(calls(campaign)[0]["jobs"].values())
    files = list(folder.rglob("*resources.tsv"))
    assert len(files) == jobs
    for file in files:
        row = pd.read_csv(file, sep="\t").iloc[0]
        assert row["s"] > 0
        assert any(
            (file.parent / log).exists() for log in (f"{file.name.removesuffix('.resources.tsv')}.log", "log.txt")
        )
    read = [*folder.glob("report/*.html"), *folder.rglob("manifest.json"), *folder.rglob("*sha256*")]
    assert len(read) > jobs / 2
    assert not [file for file in read if "resources.tsv" in file.read_text()]


def test_a_second_call_does_nothing(campaign):
    result = snakemake(campaign)
    assert result.returncode == 0
    assert "Nothing to be done" in result.stderr


def test_adding_a_cell_reruns_no_other(campaign, tmp_path):
    folder = copy_with_results(campaign, tmp_path)
    path = folder / "experiments/spec_rl/cells.yaml"
    content = yaml.safe_load(path.read_text())
    smoke = next(grid for grid in content["grids"] if grid["name"] == "smoke")
    smoke["axes"]["method"]["grpo-spec-l1.5"] = {"reuse": {"kind": "speculative", "lenience": "e^1.5"}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    text, rules = planned(folder)
    assert rules.count("train") == 2
    assert "runs/spec_rl/grpo-spec-l1.5/seed0/manifest.json" in text
    assert "make_model" not in rules


def test_a_changed_setting_reruns_the_cells_it_concerns(campaign, tmp_path):
    folder = copy_with_results(campaign, tmp_path)
    path = folder / "experiments/presets/smoke.yaml"
    path.write_text(path.read_text().replace("learning_rate: 1.0e-4", "learning_rate: 2.0e-4"))
    assert planned(folder)[1].count("train") == RUNS
    path.write_text(
        path.read_text().replace("learning_rate: 2.0e-4", "learning_rate: 1.0e-4").replace("threads: 1", "threads: 2")
    )
    assert planned(folder)[1].count("train") == 0


def test_rewording_a_benchmark_makes_nothing_anew_and_another_role_only_grades(campaign, tmp_path):
    folder = copy_with_results(campaign, tmp_path)
    path = folder / "experiments/presets/smoke.yaml"
    path.write_text(path.read_text().replace("unseen problems that", "new problems which"))
    assert planned(folder)[1] == []
    path.write_text(path.read_text().replace("role: out-of-distribution", "role: in-distribution"))
    rules = planned(folder)[1]
    assert {rule: rules.count(rule) for rule in ("generate", "generate_initial", "grade")} == {
        "generate": 0,
        "generate_initial": 0,
        "grade": RUNS + 2,
    }


def test_the_next_look_of_a_sequential_campaign_is_planned_with_its_initial_policies_and_then_collected(
    campaign, tmp_path
):
    folder = copy_with_results(campaign, tmp_path)
    experiments = Experiments(folder)
    files = list(_targets({"grpo-vanilla": 3}, "spec_rl", experiments, experiments.preset("smoke")))
    assert snakemake(folder, "--touch").returncode == 0
    found = Counter(planned(folder, "--", *files, config=["papers=spec_rl"])[1])
    # Of the third seed: its initial policy, which is another block's, the run, and grades of both.
    assert found == {"make_model": 1, "generate_initial": 1, "train": 1, "generate": 1, "grade": 2, "diversity": 1}
    again = ["papers=spec_rl", "seeds=2"]
    assert "collect" not in planned(folder, config=again)[1]
    (folder / "results/smoke/looks").mkdir()
    write_looks(folder / "results/smoke/looks/spec_rl.json", (2, 3))
    assert "collect" in planned(folder, config=again)[1], "a new plan is collected"
    assert snakemake(folder, "--touch").returncode == 0
    assert "collect" not in planned(folder, config=again)[1]
    assert {"collect", "measure", "claims", "report"} <= set(planned(folder, "--forcerun", "collect", config=again)[1])


def test_a_changed_problem_file_reruns_what_reads_it(campaign, tmp_path):
    folder = copy_with_results(campaign, tmp_path)
    path = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(path.read_text())
    content["data"]["deepmath-6k"] = {"kind": "file", "path": "train.jsonl", "size": 16}
    content["benchmarks"]["arithmetic"]["data"] = {"kind": "file", "path": "test.jsonl", "size": 10}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    for name in ("train.jsonl", "test.jsonl"):
        (folder / name).write_text("{}")
    assert snakemake(folder, "--touch").returncode == 0
    assert planned(folder)[1] == []
    (folder / "test.jsonl").write_text("{ }")
    rules = planned(folder)[1]
    assert (rules.count("train"), rules.count("generate"), rules.count("generate_initial")) == (0, RUNS, 2)
    (folder / "train.jsonl").write_text("{ }")
    assert planned(folder)[1].count("train") == RUNS


def test_redraft_run_takes_what_is_finished_and_says_how_to_go_on(campaign):
    result = called(campaign, "redraft", "run", "spec_rl/grpo-spec-linf", "--seed", "1", "--preset", "smoke")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^accuracy:arithmetic-longer +[\d.]+$", result.stdout, flags=re.M)
    assert "`snakemake --config preset=smoke --forcerun collect`" in result.stdout


def copy_with_results(campaign, tmp_path):
    """A copy of a finished campaign that Snakemake takes for the same one."""
    return Path(shutil.copytree(campaign, tmp_path / "copy", symlinks=True))


def test_a_killed_campaign_goes_on_and_ends_as_an_undisturbed_one(campaign, tmp_path):
    folder = copy_to(tmp_path)
    shutil.copytree(campaign / "results/smoke/models", folder / "results/smoke/models")
    run = Path("results/smoke/runs/spec_rl/grpo-spec-linf/seed1")
    command = ["snakemake", "--config", "preset=smoke", "--", str(run / "manifest.json")]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    records = folder / run / "steps.jsonl"
    deadline = time.monotonic() + 120
    while not (records.exists() and len(records.read_text().splitlines()) >= 3):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / run / "manifest.json").exists()
    assert snakemake(folder, "--unlock").returncode == 0
    before = seconds_of_children()
    again = snakemake(folder, "--", str(run / "manifest.json"), real=True)
    used = seconds_of_children() - before
    assert again.returncode == 0, again.stderr[-2000:]
    said = calls(folder)[-1]["processor_seconds"]
    assert 0.75 * used < said < used + 0.1, "those of the job, which are most, and of Snakemake"
    hashes = [json.loads((root / run / "manifest.json").read_text())["sha256"] for root in (folder, campaign)]
    policies = [f"policies/step-{step:04d}/model.safetensors" for step in (2, 4, 6)]
    assert [hashes[0][policy] for policy in policies] == [hashes[1][policy] for policy in policies]
    assert without_seconds(folder / run) == without_seconds(campaign / run)


TIMES = ("seconds", "grading_seconds", "tail_share")


def without_seconds(run):
    records = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


@pytest.mark.parametrize(
    ("damage", "stage", "words"),
    [
        (
            "generations.parquet",
            [f"{EVALUATE}.grade:grade_policies", "smoke", "smoke", "generations.parquet", "new.json"],
            ["generations.parquet", "differs from the hash in generations.json"],
        ),
        (
            "rollouts/step-0003.parquet",
            [f"{EVALUATE}.diversity:measure_run", ".", "0", "new.parquet"],
            ["step-0003.parquet", "manifest.json"],
        ),
        (
            "policies/step-0006/model.safetensors",
            [
                f"{EVALUATE}.generate:generate_policies",
                "smoke",
                "smoke",
                "0",
                "new.parquet",
                "policies/step-0004",
                "policies/step-0006",
            ],
            ["policies/step-0006", "damaged"],
        ),
    ],
)
def test_a_truncated_file_is_named_and_nothing_is_written(campaign, tmp_path, mistake, damage, stage, words):
    run = Path(shutil.copytree(campaign / "results/smoke/runs/spec_rl/grpo-vanilla/seed0", tmp_path / "run"))
    shutil.copytree(ROOT / "experiments", run / "experiments")
    (run / damage).write_bytes((run / damage).read_bytes()[:200])
    text = mistake(run, "stage", *stage)
    assert all(word in text for word in words), text
    assert {path.name for path in run.glob("new.*")} <= {"new.parquet.parts"}  # what was sampled before it was noticed


def test_generations_of_other_benchmarks_or_counts_are_refused(campaign, tmp_path, mistake):
    run = campaign / "results/smoke/runs/spec_rl/grpo-vanilla/seed0"
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    frame = pd.read_parquet(run / "generations.parquet")
    for changed, word in (
        (frame.iloc[:-1], "wrong number"),
        (frame.assign(benchmark=frame["benchmark"].replace("arithmetic", "aime24")), "another benchmark"),
    ):
        changed.to_parquet(tmp_path / "generations.parquet")
        record = json.loads((run / "generations.json").read_text())
        record["sha256"]["generations.parquet"] = sha256(tmp_path / "generations.parquet")
        (tmp_path / "generations.json").write_text(json.dumps(record))
        call = [
            "stage",
            f"{EVALUATE}.grade:grade_policies",
            "smoke",
            "smoke",
            "generations.parquet",
            "scores.json",
        ]
        assert word in mistake(tmp_path, *call)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("preset=none", "value: 'none'"),
        ("presets=tiny", "key: presets"),
        ("seeds=0", "key: seeds value: 0"),
        ("seeds=some", "value: 'some'"),
    ],
)
def test_a_wrong_call_is_one_message(tmp_path, argument, says):
    result = called(copy_to(tmp_path), "snakemake", "-n", "--config", argument)
    assert result.returncode != 0
    assert "error:" in result.stderr
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
