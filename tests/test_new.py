"""`redraft new`: the documented paper and method under another name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.cli.app import main
from tests.made_up_papers import FILES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/redraft"


@pytest.fixture
def checkout(folder):
    """A folder with experiments, the pages and a package whose files are links, except in the folder of methods."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("schemas", "decisions"))
    (folder / "src/redraft").mkdir(parents=True)
    for entry in SOURCE.iterdir():
        if entry.name != "methods":
            (folder / "src/redraft" / entry.name).symlink_to(entry.resolve())
    shutil.copytree(SOURCE / "methods", folder / "src/redraft/methods")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    return folder


def new(folder, monkeypatch, *arguments):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["new", *arguments])
    assert not end.value.code


def test_a_new_paper_is_seven_files_without_a_mistake(checkout, monkeypatch, capsys):
    new(checkout, monkeypatch, "paper", "mine_2")
    made = {file.relative_to(checkout / "experiments/mine_2").as_posix() for file in _files(checkout, "mine_2")}
    assert made == {name.removeprefix("second/") for name in FILES}
    assert len(made) == 7
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("add `")]
    preset = checkout / "experiments/presets/smoke.yaml"
    preset.write_text(preset.read_text() + f"  {line.split('`')[1]}\n")
    with pytest.raises(SystemExit) as end:
        main(["validate", "mine_2", "--preset", "smoke"])
    assert not end.value.code
    assert "no mistake in 2 cells" in capsys.readouterr().out


def _files(checkout, paper):
    return [file for file in (checkout / "experiments" / paper).rglob("*") if file.is_file()]


def test_a_new_method_passes_its_test(checkout, monkeypatch):
    new(checkout, monkeypatch, "method", "half_kept")
    code = (checkout / "src/redraft/methods/half_kept.py").read_text()
    assert "threshold" not in code.lower().replace("half_kept", "")
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    options = ["--noconftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/test_half_kept.py"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", ["Mine", "2nd", "a-b", "../a", "class", "none", ""])
@pytest.mark.parametrize("kind", ["paper", "method"])
def test_a_name_that_python_or_paths_do_not_allow_is_an_error(checkout, mistake, kind, name):
    assert "cannot be a name" in mistake(checkout, "new", kind, name)


@pytest.mark.parametrize("name", ["self", "math", "drafts", "acceptance"])
def test_a_method_is_not_named_as_a_word_of_the_example_or_a_folder(checkout, mistake, name):
    assert "cannot be a name" in mistake(checkout, "new", "method", name)


def test_nothing_that_exists_is_replaced(checkout, mistake):
    before = (checkout / "experiments/spec_rl/cells.yaml").read_text()
    assert "exists already" in mistake(checkout, "new", "paper", "spec_rl")
    assert "exists already" in mistake(checkout, "new", "method", "speculative")
    assert (checkout / "experiments/spec_rl/cells.yaml").read_text() == before
    shutil.rmtree(checkout / "docs")
    assert "checkout" in mistake(checkout, "new", "paper", "mine")
