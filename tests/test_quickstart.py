"""docs/quickstart.md: its files are valid, its commands exist, its cells and grids of one's own run as it says.

The runs of one's own are those of the page, in its order, in one copy of the workflow.
"""

import json
import re
import shutil
import string
import subprocess
from functools import partial
from pathlib import Path

import click
import pandas as pd
import pytest
import tokenizers
import typer
import yaml
from transformers import PreTrainedTokenizerFast

from redraft.cli.app import app
from redraft.config import Experiments, Preset, TinyModel
from redraft.config.read import parse
from redraft.config.site import Site
from redraft.train import models
from tests.checkout import copy_to, snakemake
from tests.forked_commands import environment, forked_commands

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
SECTIONS = {part.splitlines()[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
OWN, GRID, MODEL, CLUSTER = "One cell of my own", "A grid of my own", "Another model, another benchmark", "A cluster"


def fenced(section, language):
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], flags=re.DOTALL)


def commands(section):
    return [line.split() for block in fenced(section, "sh") for line in block.splitlines()]


COMMANDS = [line for section in SECTIONS for line in commands(section)]


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_commands_take_the_options_that_they_get(line):
    if line[0] == "redraft":
        group = typer.main.get_command(app)
        context = click.Context(group)
        _, command, rest = group.resolve_command(context, line[1:])
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known
    elif line[0] == "snakemake":
        assert {word.partition("=")[0] for word in line if "=" in word} <= {"preset", "papers", "cells", "seeds"}
        assert {word for word in line if word.startswith("-")} <= {"--config", "--profile", "-n"}
    else:
        assert line[:2] == ["export", "REDRAFT_SLURM_SITE=~/redraft-site.yaml"]


def test_the_preset_of_its_own_resolves_the_cell_that_it_names(tmp_path):
    content = yaml.safe_load(fenced(MODEL, "yaml")[0])
    copy_to(tmp_path)
    (tmp_path / "experiments/presets/mine.yaml").write_text(fenced(MODEL, "yaml")[0])
    experiments = Experiments(tmp_path)
    run = experiments.run("spec_rl/grpo-spec-l0.5", 1, "mine")
    assert run.model.path == "/data/my-model"
    assert run.steps == content["trainer"]["epochs"] * 64 // 16
    assert set(experiments.preset_of("mine", "spec_rl").benchmarks) == {"mine-held-out"}
    assert {cell.name for cell in experiments.cells("spec_rl", ["pair"])} == {"grpo-vanilla", "grpo-spec-l0.5"}
    parse(Preset, content, "quickstart.md")


def test_the_grid_has_the_cells_that_its_table_and_figure_name(tmp_path):
    file = tmp_path / "my_cells.yaml"
    file.write_text(fenced(GRID, "yaml")[0])
    experiments = Experiments(ROOT, file)
    names = ["g2-none", "g2-l0.4", "g2-linf", "g4-l0.4"]
    assert [cell.name for cell in experiments.cells("my_cells")] == names
    assert [row.cell for row in experiments.tables("my_cells").tables[0].rows] == [*names[:3], "spec_rl/grpo-spec-l0.5"]
    assert experiments.figures("my_cells").figures[0].panels[0].cells == names[:3]
    for cell in names:
        experiments.run(f"my_cells/{cell}", 0, "smoke")


def test_the_site_file_is_one():
    site = parse(Site, yaml.safe_load(fenced(CLUSTER, "yaml")[0]), "quickstart.md")
    assert (site.partition, site.account, site.stages["train"].runtime) == ("gpu", "my-project", "2d")


def test_links_lead_to_files():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


def _called(line, folder, **options):
    result = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=900, check=False, **options)
    assert result.returncode == 0, (line, result.stderr[-3000:])
    return result.stdout


@pytest.fixture
def started(tmp_path, tmp_path_factory):
    """A copy of the workflow, and an environment in which its jobs start quickly."""
    with forked_commands(tmp_path_factory.mktemp("commands")):
        yield copy_to(tmp_path), environment()


@pytest.mark.servers
def test_a_cell_and_a_grid_of_ones_own_run_as_the_page_says(started):
    tmp_path, environment = started
    called = partial(_called, env=environment)
    run, show, status, compare, table = commands(OWN)
    called(run, tmp_path)
    name = "own/grpo-spec-l0.5-group_size16-lenience0.4"
    assert yaml.safe_load(called(show, tmp_path))["reuse"]["lenience"] == "e^0.4"
    assert "2 done" in called(status, tmp_path)
    called(table, tmp_path)
    assert name in called(compare, tmp_path)
    rows = pd.read_csv(tmp_path / "results/smoke/tables/own/table101.csv")
    ratio = rows[(rows["column"] == "tokens_relative") & (rows["cell"] == name)].iloc[0]
    assert (ratio["n_seeds"], ratio["verdict"] == "baseline") == (2, False)
    assert ratio["reproduced"] > 2, "groups of 16, in place of 2, with less reuse of their drafts"
    assert set(rows["cell"]) == {name, "spec_rl/grpo-spec-l0.5"}
    manifests = " ".join(rows["manifests"])
    assert "runs/spec_rl/grpo-spec-l0.5/seed0" in manifests, "the base's own runs, not copies"
    assert "Your runs" in (tmp_path / "results/smoke/report/tables.html").read_text()
    manifest = tmp_path / "results/smoke/runs" / name / "seed0/manifest.json"
    before = manifest.stat().st_mtime_ns
    called(run, tmp_path)
    assert manifest.stat().st_mtime_ns == before, "an unchanged repeat is no run"

    (tmp_path / "my_cells.yaml").write_text(smaller(fenced(GRID, "yaml")[0]))
    listed, cost, sweep = commands(GRID)
    assert "g2-l0.4" in called(listed, tmp_path)
    assert "l0.4" in called(cost, tmp_path)
    called([*sweep, "seeds=1"], tmp_path)
    rows = pd.read_csv(tmp_path / "results/smoke/tables/my_cells/table101.csv")
    assert set(rows["cell"]) == {"my_cells/g2-l0.4", "spec_rl/grpo-spec-l0.5"}
    assert (tmp_path / "results/smoke/figures/my_cells/figure101.svg").exists()
    code = next(iter((tmp_path / "results/smoke/code").glob("*/experiments/my_cells/cells.yaml")))
    assert code.read_text() == (tmp_path / "my_cells.yaml").read_text()
    planned = snakemake(tmp_path, "seeds=1", "-n").stderr
    assert "results/smoke/collected/own/runs.parquet" in planned, "finished runs of one's own are in the report"
    assert "runs/own/" not in planned, "and none is made"


@pytest.mark.servers
def test_a_model_and_problems_of_ones_own_run_as_the_page_says(started):
    """The page's preset and problem with other paths, fewer problems and shorter responses, for one seed."""
    folder, environment = started
    random_model(folder / "my-model")
    content = yaml.safe_load(fenced(MODEL, "yaml")[0])
    problem = json.loads(fenced(MODEL, "json")[0])
    content["models"]["qwen3-1.7b-base"]["path"] = str(folder / "my-model")
    content["trainer"]["max_response_tokens"] = content["benchmarks"]["mine-held-out"]["max_new_tokens"] = 8
    files = content["data"]["deepmath-6k"], content["benchmarks"]["mine-held-out"]["data"]
    for data, size in zip(files, (16, 4), strict=True):
        data |= {"size": size, "path": str(folder / Path(data["path"]).name)}
        Path(data["path"]).write_text((json.dumps(problem) + "\n") * size)
    (folder / "experiments/presets/mine.yaml").write_text(yaml.safe_dump(content))
    called = partial(_called, env=environment)
    show, run, _ = commands(MODEL)
    template = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert yaml.safe_load(called(show, folder))["data"]["template"] == template
    called(["0" if word == "0-1" else word for word in run], folder)
    trained = folder / "results/mine/runs/spec_rl/grpo-spec-l0.5/seed0"
    prompts = pd.read_parquet(trained / "generations.parquet")["prompt"]
    assert set(prompts) == {template.replace("{problem}", problem["problem"])}
    scores = json.loads((trained / "scores.json").read_text())["2"]["mine-held-out"]
    assert (scores["total"], "the prompt may not ask" in scores["note"]) == (16, True), "a random model writes no box"
    assert (trained / "log.txt").read_text().count("in epoch 1 no response earned a reward") == 1


def random_model(folder):
    """A random model of a few thousand parameters, with one token for each character."""
    vocabulary = {character: index for index, character in enumerate("\0\4" + string.printable)}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), behavior="isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="\0", eos_token="\4")
    shape = TinyModel(hidden_size=16, layers=1, heads=2, head_dim=8, intermediate_size=32)
    models.initialise(shape, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.servers
def test_the_preset_of_the_page_runs_to_its_report(started, tiny_model):
    """Its benchmarks have one role, and its model and problems are files."""
    tmp_path, environment = started
    data = tmp_path / "data"
    shutil.copytree(tiny_model, data / "my-model")
    problems = [{"problem": f"{i % 8}{'abcdefgh'[i % 8]}=", "answer": str(1 + i % 2)} for i in range(100)]
    for name, number in (("train", 64), ("test", 100)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in problems[:number]))
    page = fenced(MODEL, "yaml")[0]
    file = tmp_path / "experiments/presets/mine.yaml"
    file.write_text(page)
    missing = subprocess.run(
        ["snakemake", "-n", "--config", "preset=mine", "papers=spec_rl"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (missing.returncode, missing.stderr.count("error:")) == (2, 1), missing.stderr
    assert "mine.yaml: no such file or folder\n  key:     models.qwen3-1.7b-base.path" in missing.stderr
    content = yaml.safe_load(page.replace("/data/", f"{data}/"))
    for problems_of in (content["data"]["deepmath-6k"], content["benchmarks"]["mine-held-out"]["data"]):
        problems_of["template"] = "{problem}"  # the tiny model has no tokens for the sentence of the default
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    show, run, report = commands(MODEL)
    for line in (show, run, report):
        _called(line, tmp_path, env=environment)
    assert (tmp_path / "results/mine/report.html").exists()
    rows = pd.concat(pd.read_csv(table) for table in (tmp_path / "results/mine/tables/spec_rl").glob("table??.csv"))
    rows = rows[rows["cell"] == "spec_rl/grpo-spec-l0.5"]
    assert set(rows.loc[rows["column"] == "mine-held-out", "verdict"]) == {"not comparable"}
    assert "not applicable" in set(rows["verdict"]), "there is no benchmark of the other role"


def smaller(text):
    """The grid of the page with one cell, whose base has been run, and without its table."""
    content = yaml.safe_load(text)
    grid = content["grids"][0]
    grid["axes"] = {"size": {"g2": grid["axes"]["size"]["g2"]}, "reuse": {"l0.4": grid["axes"]["reuse"]["l0.4"]}}
    del grid["exclude"], content["tables"]
    content["figures"][0]["panels"][0]["cells"] = ["g2-l0.4", "spec_rl/grpo-spec-l0.5"]
    return yaml.safe_dump(content, sort_keys=False)


def test_a_file_that_is_not_there_is_one_message_of_the_workflow(tmp_path):
    copy_to(tmp_path)
    result = snakemake(tmp_path, "cells=nothing.yaml", "-n")
    assert result.returncode == 2
    assert "no such file of cells" in result.stderr
    assert "Traceback" not in result.stderr
