"""A campaign runs from a frozen copy: edits during its jobs count for the next call."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redraft.config import site
from redraft.errors import UserError
from redraft.files import read_json, unfinished
from redraft.layout import CODE, FROZEN
from redraft.ops.workflow import freeze

ROOT = Path(__file__).parents[1]
# As the repository's Snakefile does it. `gate` holds the campaign where the test edits what the other two rules use:
# a package, an experiment file, and this file itself, which the process of a `run` rule reads again.
SNAKEFILE = """
import os, sys
from pathlib import Path
ROOT = Path(workflow.basedir)
sys.path.insert(0, f"{ROOT}/src")
from redraft.ops.workflow import freeze
if freeze.frozen(ROOT):
    os.environ.update(freeze.environment(ROOT))
if workflow.is_main_process:
    READ = freeze.checkout_hash(ROOT)
onstart:
    freeze.start(workflow, ROOT, "smoke", READ)
rule all:
    input: "shell.json", "run.txt"
rule gate:
    output: "gate.txt"
    shell: "touch started; cat pipe > {output:q}"
rule by_shell:
    input: gate=ancient("gate.txt"), mark="experiments/mark"
    output: "shell.json"
    params: content=lambda wildcards: freeze.content_of("experiments/mark")
    shell: "python jobs/job.py > {output:q}"
rule by_run:
    input: ancient("gate.txt")
    output: "run.txt"
    run: Path(output[0]).write_text("before")
"""
JOB = """
import json
from redraft.analysis import MARK as analysis
from redraft.errors import MARK as package
from redraft.ops.workflow.freeze import frozen
from redraft.layout import code_root
mark = (code_root() / "experiments/mark").read_text()
print(json.dumps({"package": package, "analysis": analysis, "mark": mark, "code": frozen()["code"]}))
"""
MARKED = ("src/redraft/errors.py", "analysis/__init__.py", "experiments/mark")


@pytest.fixture
def checkout(tmp_path):
    """A small repository with this one's packages."""
    for name in ("src", "analysis"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "experiments/presets").mkdir(parents=True)
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.py").write_text(JOB)
    for file in MARKED[:2]:
        with (tmp_path / file).open("a") as handle:
            handle.write('\nMARK = "before"\n')
    (tmp_path / "experiments/mark").write_text("before")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def edit(checkout, *files):
    for file in files:
        path = checkout / file
        path.write_text(path.read_text().replace("before", "after"))


def snakemake(checkout, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != CODE}
    environment["PYTHONPATH"] = f"{checkout / 'src'}:{checkout}"
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--rerun-triggers", "mtime", "params", "input"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_started(checkout, process):
    deadline = time.monotonic() + 120
    while not (checkout / "started").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def finish(process):
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    return text


@pytest.mark.servers
def test_what_is_edited_while_a_campaign_runs_counts_for_the_next_one(checkout):
    campaign = snakemake(checkout)
    until_started(checkout, campaign)
    edit(checkout, *MARKED, "Snakefile")
    (checkout / "pipe").open("w").close()
    finish(campaign)
    first = json.loads((checkout / "shell.json").read_text())
    assert {name: first[name] for name in ("package", "analysis", "mark")} == dict.fromkeys(
        ("package", "analysis", "mark"), "before"
    )
    assert (checkout / "run.txt").read_text() == "before"
    finish(snakemake(checkout))
    second = json.loads((checkout / "shell.json").read_text())
    assert second["package"] == second["analysis"] == second["mark"] == "after"
    copies = {path.name for path in (checkout / "results/smoke/code").iterdir()}
    assert copies == {first["code"], second["code"]}
    assert len(copies) == 2
    assert "Nothing to be done" in finish(snakemake(checkout))


def test_a_dry_run_copies_nothing(checkout):
    finish(snakemake(checkout, "-n"))
    assert not (checkout / "results").exists()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository's root without packages of its own; the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments/presets").mkdir(parents=True)
    (tmp_path / "experiments/presets/smoke.yaml").write_text("name: smoke\n")
    (tmp_path / "Snakefile").write_text("rule all:\n")
    return tmp_path


@pytest.fixture
def elsewhere(root, monkeypatch):
    """Another working directory."""
    folder = root / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def frozen(root):
    return freeze.freeze(root, "smoke", root / "results")


def test_a_copy_is_named_by_what_is_in_it(root):
    copy = frozen(root)
    assert copy.name == freeze.checkout_hash(root) == freeze.content_hash(copy) == freeze.frozen(copy)["code"]
    assert (copy / "src/redraft/ops/workflow/freeze.py").read_bytes() == Path(freeze.__file__).read_bytes()
    assert (copy / "experiments/presets/smoke.yaml").read_text() == "name: smoke\n"
    assert not list(copy.rglob("__pycache__"))
    assert not (copy / "src/redraft/project").exists(), "the parts are there already"
    assert frozen(root) == copy
    (root / "experiments/presets/smoke.yaml").rename(root / "experiments/presets/other.yaml")
    assert frozen(root) != copy
    assert len(list(copy.parent.iterdir())) == 2


@pytest.mark.parametrize("left", ["experiments/__pycache__/x.pyc", "experiments/.x.yaml.swp", "results/x", "notes.txt"])
def test_what_is_no_code_changes_nothing(root, left):
    before = freeze.checkout_hash(root)
    (root / left).parent.mkdir(exist_ok=True)
    (root / left).write_text("x")
    assert freeze.checkout_hash(root) == before


def test_python_s_leftovers_in_a_copy_do_no_harm_but_an_edit_is_refused(root):
    copy = frozen(root)
    (copy / "src/redraft/__pycache__").mkdir()
    (copy / "src/redraft/__pycache__/x.pyc").write_text("x")
    assert frozen(root) == copy
    file = copy / "experiments/presets/smoke.yaml"
    assert file.stat().st_mode & 0o222 == 0
    file.chmod(0o644)
    file.write_text("name: other\n")
    with pytest.raises(UserError, match="was changed"):
        frozen(root)


def test_a_copy_that_a_killed_process_left_half_done_is_never_used(root, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(freeze, "content_hash", killed)
        with pytest.raises(KeyboardInterrupt):
            frozen(root)
        assert list((root / "results/smoke/code").iterdir()) == []
        patch.setattr(freeze.shutil, "rmtree", lambda *_, **__: None)  # after SIGKILL nothing cleans up
        with pytest.raises(KeyboardInterrupt):
            frozen(root)
    assert len(unfinished(root / "results/smoke/code")) == 1, "`redraft recover` finds it"
    assert (frozen(root) / FROZEN).exists()


def test_a_commit_made_after_the_copy_is_recorded(root, monkeypatch):
    monkeypatch.setattr(freeze, "git_state", lambda: {"commit": "1", "modified": True})
    copy = frozen(root)
    monkeypatch.setattr(freeze, "git_state", lambda: {"commit": "2", "modified": False})
    assert frozen(root) == copy
    assert read_json(copy / FROZEN)["git"]["commit"] == "2"
    monkeypatch.setattr(freeze, "git_state", lambda: {"commit": "2", "modified": True})
    frozen(root)
    assert read_json(copy / FROZEN)["git"] == {"commit": "2", "modified": False}


def test_packages_come_from_the_copy_and_not_from_the_installed_checkout(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    copy = frozen(root)
    variables = freeze.environment(copy)
    code = "import redraft.cli.app as app, redraft.analysis.cost as cost; print(app.__file__, cost.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, cwd="/", capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [
        str(copy / "src/redraft/cli/app.py"),
        str(copy / "src/redraft/analysis/cost/__init__.py"),
    ]
    monkeypatch.setenv("PYTHONPATH", variables["PYTHONPATH"])
    assert freeze.environment(copy) == variables


def test_a_site_file_that_lies_elsewhere_is_frozen_too(root, monkeypatch, tmp_path_factory):
    file = tmp_path_factory.mktemp("home") / "my-site.yaml"
    file.write_text("partition: before")
    monkeypatch.setenv(site.VARIABLE, str(file))
    copy = frozen(root)
    file.write_text("half an ed")
    assert Path(freeze.environment(copy)[site.VARIABLE]).read_text() == "partition: before"
    assert freeze.checkout_hash(root) != copy.name
    monkeypatch.delenv(site.VARIABLE)
    assert site.VARIABLE not in freeze.environment(frozen(root)), "without any there is none"


def test_the_site_file_of_the_working_directory_is_frozen_and_not_the_one_next_to_the_code(elsewhere, root):
    for folder, text in ((root, "partition: code"), (elsewhere, "partition: here")):
        assert not (frozen(root) / site.FILE).exists()
        (folder / site.FILE).parent.mkdir(parents=True)
        (folder / site.FILE).write_text(text)
    assert (frozen(root) / site.FILE).read_text() == "partition: here"


def test_experiments_of_the_working_directory_are_frozen_instead_of_those_next_to_the_code(elsewhere, root):
    (elsewhere / "experiments").mkdir()
    (elsewhere / "experiments/notes.txt").touch()  # of something else
    assert (frozen(root) / "experiments/presets/smoke.yaml").exists()
    (elsewhere / "experiments/presets").mkdir()
    (elsewhere / "experiments/presets/mine.yaml").write_text("name: mine\n")
    copy = frozen(root)
    assert [file.name for file in (copy / "experiments").rglob("*.yaml")] == ["mine.yaml"]
    assert copy.name == freeze.checkout_hash(root)


def test_linked_experiments_are_frozen_too(elsewhere, root):
    (elsewhere / "experiments/presets").mkdir(parents=True)
    (elsewhere / "experiments/spec_rl").symlink_to(ROOT / "experiments/spec_rl")
    assert (frozen(root) / "experiments/spec_rl/cells.yaml").exists()


def test_a_folder_without_a_snakefile_is_refused(tmp_path):
    with pytest.raises(UserError, match="not the repository's root"):
        freeze.freeze(tmp_path, "smoke", tmp_path / "results")
