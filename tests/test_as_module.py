"""The workflow in Snakemake's ecosystem: its layout, and its use as a module as docs/snakemake.md says."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from redraft.layout import Layout
from redraft.ops.workflow.plan import Call
from tests.checkout import ROOT, called, snakemake

PAGE = (ROOT / "docs/snakemake.md").read_text(encoding="utf-8")
(OUTER,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
"""The Snakefile of the page."""
HOSTED = r"github\(.*\)"


def write_outer(folder, source, text=OUTER):
    """Write a Snakefile that uses the workflow, as snakedeploy does, at the preset smoke."""
    written, count = re.subn(HOSTED, source, text)
    assert count == 1
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(written)
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copytree(ROOT / "profiles", folder / "profiles")
    config = folder / "config/config.yaml"
    config.write_text(config.read_text().replace("preset: tiny", "preset: smoke"))


def of_checkout():
    return repr(str(ROOT / "workflow/Snakefile"))


def of_git(folder):
    """The workflow's Snakefiles in a repository, from which Snakemake reads them without its other files."""
    folder.mkdir()
    for name in ("Snakefile", "workflow/Snakefile"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    user = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*user, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return f'gitfile({str(folder)!r}, path="workflow/Snakefile", ref="main")'


def test_the_layout_is_that_of_snakemake_s_catalog():
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment"}
    assert usage["software-stack-deployment"] == {
        "conda": False,
        "apptainer": True,
        "apptainer+conda": False,
        "report": True,
    }
    keys = re.findall(r"^\| `(\w+)` \|", (ROOT / "config/README.md").read_text(), flags=re.M)
    assert keys == ["preset", "papers", "grids", "seeds", "cells", "without_unfitting", "container"]
    assert set(keys) == set(Call.model_fields)


@pytest.mark.parametrize("hosted", [False, True], ids=["checkout", "git"])
def test_another_snakefile_uses_all_rules_and_the_module_s_experiments(tmp_path, hosted):
    folder = tmp_path / "outer"
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments/notes.txt").touch()  # of something else
    write_outer(folder, of_git(tmp_path / "git") if hosted else of_checkout())
    result = called(folder, "snakemake", "-n")
    assert result.returncode == 0, result.stderr
    assert "4 runs to train, of 2 cells: 2 of spec_rl" in " ".join((result.stdout + result.stderr).split())
    assert not (folder / "results").exists()


def test_experiments_of_the_working_directory_replace_those_of_the_module(tmp_path):
    write_outer(tmp_path, of_checkout())
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("own"))
    preset = tmp_path / "experiments/presets/smoke.yaml"
    preset.write_text(preset.read_text().replace("seeds: [0, 1]", "seeds: [0]"))
    result = called(tmp_path, "snakemake", "-n")
    assert "2 runs to train, of 2 cells: 2 of spec_rl" in " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("use rule * from redraft", "use rule * from redraft as a_*"), ("use rule", "'as a_*'", "without `as`")),
        (("    config:", '    prefix: "x"\n    config:'), ("module", "'x/results'", "prefix")),
        (
            ("    config:", '    replace_prefix: {"results/smoke": "x"}\n    config:'),
            ("module", "replace_prefix"),
        ),
        (("preset: smoke", "preset: smoke\nsamples: s.tsv"), ("samples",)),
    ],
    ids=["names", "paths", "some paths", "config"],
)
def test_a_use_that_cannot_work_is_one_message(tmp_path, change, words):
    write_outer(tmp_path, of_checkout())
    for file in ("workflow/Snakefile", "config/config.yaml"):
        (tmp_path / file).write_text((tmp_path / file).read_text().replace(*change))
    result = called(tmp_path, "snakemake", "-n")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in ("error:", *words)), result.stderr


AROUND = """
import shutil
onstart:
    shell("touch before")
{module}
use rule distributions from redraft with:
    benchmark: "its_own.tsv"
rule after:
    input: rules.distributions.output
    output: "after"
    run: shutil.copy(input[0], output[0])  # in a process that reads the outer Snakefile again
onsuccess:
    shell("touch succeeded")
"""
"""Rules and handlers of the outer Snakefile, before and after the module's."""


def test_a_job_of_the_module_runs_from_the_frozen_copy_and_its_handlers_beside_those_of_the_outer_snakefile(tmp_path):
    write_outer(tmp_path, of_checkout(), AROUND.format(module=OUTER))
    result = called(tmp_path, "snakemake", "--", "after")
    assert result.returncode == 0, result.stderr
    layout = Layout("smoke", tmp_path / "results")
    assert (tmp_path / "after").read_bytes() == layout.distributions.with_name("laws.json").read_bytes()
    assert all((tmp_path / name).exists() for name in ("before", "succeeded", "its_own.tsv"))
    (copy,) = layout.code.iterdir()
    assert (copy / "workflows/rules/common.smk").exists()
    (line,) = layout.calls.read_text().splitlines()
    call = json.loads(line)
    assert (call["jobs"]["distributions"], call["finished"]) == (1, True)
    assert "Nothing to be done" in called(tmp_path, "snakemake", "--", "after").stderr


def test_snakemake_runs_the_same_workflow_by_both_of_its_names(tmp_path):
    shown = [snakemake(ROOT, "-n", "-d", str(tmp_path), "-s", name) for name in ("Snakefile", "workflow/Snakefile")]
    first, second = (re.findall(r"^(\w+) +(\d+)$", each.stdout + each.stderr, flags=re.M) for each in shown)
    assert first == second
    assert dict(first)["train"] == "4"
