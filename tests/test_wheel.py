"""The package as others install it: what is in the wheel, what it needs, and what runs without extras and checkouts."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import redraft
from redraft import layout, provenance
from redraft.cli import app, extras
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import sha256, write_json
from redraft.ops.workflow import freeze
from redraft.result_files import write_with_hash
from tests.finished import CELLS, finish
from tests.test_environments import ROOT, UNREACHABLE, pins

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHAIN = ("report", "evaluate", "train", "verl")
NAMES = {"hydra": "hydra-core", "markdown_it": "markdown-it-py", "transfer_queue": "transferqueue"}
"""Distributions that are named otherwise than their module, but for `_` and `-`."""
LIMITS = {"": 80, "[report]": 640}
"""Megabytes of an environment, without pip and setuptools."""
STAGES = {
    "redraft.analysis.data.collect:collect_runs": "collected/{}",
    "redraft.analysis.measuring:measure": "collected/{}",
    "redraft.analysis.tables.files:write_tables": "tables/{}",
    "redraft.analysis.figures.figure_files:write_figures": "figures/{}",
    "redraft.analysis.claims.files:write_claims": "claims/{}.json",
}
"""Stages of the report's extra, and what each makes of a paper."""


def tracked():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in names.split("\0") if name and os.path.lexists(ROOT / name)]


def commit(folder):
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the tracked files, with files beside them that git ignores."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "copy" / name, follow_symlinks=False)
    commit(folder / "copy")
    ignored = (
        "experiments/own/cells.yaml",
        "experiments/own/reported/table01.csv",
        "results/tiny/x.json",
        "src/redraft/__pycache__/x.pyc",
        "analysis/tables/__pycache__/x.pyc",
        "workflows/__pycache__/x.pyc",
        "src/redraft.egg-info/SOURCES.txt",
    )
    for name in ignored:
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "copy" / name).write_text("src/redraft/project/experiments/own/cells.yaml\n")
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-w", ".."]
    result = subprocess.run(build, cwd=folder / "copy", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return next(folder.glob("*.whl"))


def installed_name(name):
    """Name in the wheel of a file of the repository; None for one that does not ship."""
    if name.startswith("src/"):
        return None if (ROOT / name).is_symlink() else name.removeprefix("src/")
    if name.startswith("analysis/"):
        return f"redraft/{name}"
    return f"redraft/project/{name}" if any(Path(name).is_relative_to(part) for part in freeze.PARTS) else None


def test_the_wheel_has_every_tracked_file_that_ships_and_no_other(wheel):
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == {name for each in tracked() if (name := installed_name(each))}
    assert {"redraft/py.typed", "redraft/analysis/templates/index.html.j2", "redraft/project/Snakefile"} <= found


def test_the_wheel_knows_the_commit_of_the_checkout_that_it_was_built_in(wheel, monkeypatch, tmp_path):
    """Also whether the checkout was changed; a download that is inside of another repository has no commit of it."""
    checkout = wheel.parent / "copy"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    name = "redraft/archive_commit.txt"
    built = zipfile.ZipFile(wheel).read(name).decode()
    assert built == head.stdout
    found = runpy.run_path(str(checkout / "setup.py"))["commit"]
    (checkout / "README.md").write_text("no code")
    assert f"{found()}\n" == built
    (checkout / "experiments/new.yaml").touch()
    assert f"{found()}\n" == built.replace("\n", " modified\n")
    shutil.copy(checkout / "setup.py", checkout / "docs")
    assert runpy.run_path(str(checkout / "docs/setup.py"))["commit"]() == ""
    (tmp_path / name).parent.mkdir()
    monkeypatch.setattr(provenance, "__file__", str((tmp_path / name).with_name("provenance.py")))
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    for text, modified in ((built, None), (f"{found()}\n", True)):
        (tmp_path / name).write_text(text)
        assert provenance.git_state() == {"commit": head.stdout.strip(), "modified": modified}


def test_the_wheel_declares_what_the_project_does(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    about = Parser().parsestr(archive.read(name).decode())
    required = [Requirement(text) for text in about.get_all("Requires-Dist")]
    light = {each.name for each in required if each.marker is None}
    assert light == {Requirement(text).name for text in PROJECT["dependencies"]}
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert about["Version"] == redraft.__version__
    (entries,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "[pytest11]\nredraft = redraft.pytest_plugin" in archive.read(entries).decode()


def requirements(extra):
    """Requirements that an extra itself names, and the extras of this project that it includes."""
    found = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    included = {name for each in found if each.name == "redraft" for name in each.extras}
    return [each for each in found if each.name != "redraft"], included


def test_each_lock_has_versions_that_the_requirements_allow():
    everything = [each for extra in PROJECT["optional-dependencies"] for each in requirements(extra)[0]]
    everything += map(Requirement, PROJECT["dependencies"])
    optional = dict(re.findall(r"^([a-z-]+)==(\S+) --hash", (ROOT / "envs/gym.txt").read_text(), flags=re.M))
    locks = [*(pins(name) for name in ("cpu", "gpu", "trl")), optional]
    for each in everything:
        found = [lock[each.name] for lock in locks if each.name in lock]
        assert found, f"{each} is in no lock"
        assert all(each.specifier.contains(version) for version in found), each


def test_the_table_of_extras_is_the_project_s():
    before = set()
    for extra, modules in extras.EXTRAS.items():
        listed, _ = requirements(extra)
        distributions = {NAMES.get(module, module.replace("_", "-")) for module in modules}
        assert distributions == {each.name for each in listed} - before, extra
        before |= distributions
    assert [requirements(extra)[1] for extra in CHAIN] == [set(), {"report"}, {"evaluate"}, {"train"}]
    assert set(extras.EXTRAS) | {"dev"} == set(PROJECT["optional-dependencies"])
    assert set(extras.NEEDS) <= set(app.COMMANDS)
    assert set(extras.NEEDS.values()) <= set(CHAIN)


def test_every_module_of_others_that_is_imported_is_declared():
    light = {"pydantic", "pydantic_core", "rich", "typer", "yaml"}
    known = {*light, *sys.stdlib_module_names, *(module for modules in extras.EXTRAS.values() for module in modules)}
    known |= {"redraft", "pytest"}  # which loads the plugin
    known |= {"gguf"}  # the conversion installs gguf itself (envs/gguf.txt)
    for file in [*ROOT.glob("src/**/*.py"), *ROOT.glob("analysis/**/*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.partition(".")[0] for name in names} <= known, file


def test_only_a_module_of_an_extra_is_the_user_s_to_install():
    def text(name, *arguments):
        found = extras.missing(ModuleNotFoundError(name=name), arguments)
        return found and str(found)

    assert text("scipy.stats", "compare", "a", "b") == "`redraft compare` needs scipy: pip install 'redraft[report]'"
    assert text("numpy", "predict", "x").endswith("'redraft[evaluate]'"), "all that it needs at once"
    assert text("numpy", "certify", "x").endswith("'redraft[certify]'"), "none of the larger ones"
    assert text("torch", "certify", "x").endswith("'redraft[evaluate]'")
    assert text("vllm", "evaluate", "x").endswith("'redraft[verl]'")
    assert text("mlflow", "stage", "track").endswith("'redraft[mlflow]'")
    assert text("redraft.nothing", "list") is None
    assert text(None) is None


# Without extras


WITHOUT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from redraft.cli.extras import EXTRAS
class Absent:
    def find_spec(self, name, *_):
        top = name.partition(".")[0]
        if top != "markdown_it" and any(top in modules for modules in EXTRAS.values()):  # rich needs that one too
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import redraft
from redraft.cli.app import main
ends = [redraft.__file__]
for arguments in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main(arguments)
        except SystemExit as end:
            ends.append((end.code or 0, out.getvalue(), err.getvalue()))
print(json.dumps(ends))
"""
"""Commands in a process in which no module of an extra can be imported."""


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """Folder with the wheel's packages, inside of another repository, as an environment may be."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "file").touch()
    commit(folder)
    zipfile.ZipFile(wheel).extractall(folder / "packages")
    return folder / "packages"


@pytest.fixture
def without_extras(unpacked):
    """Ends of commands in a folder: exit code, output, errors."""

    def call(folder, *commands):
        environment = {name: value for name, value in os.environ.items() if name != layout.CODE}
        environment |= {"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", WITHOUT, json.dumps([each.split() for each in commands])]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        file, *ends = json.loads(result.stdout)
        assert Path(file).is_relative_to(unpacked)
        return ends

    return call


def test_without_extras_and_outside_a_checkout_the_light_commands_run(wheel, without_extras, tmp_path):
    light = ("list", "show spec_rl/grpo-spec-l0.5", "cost --csv cost.csv", "--help")
    version, *ends = without_extras(tmp_path, "--version", *light)
    built = zipfile.ZipFile(wheel).read("redraft/archive_commit.txt").decode().strip()
    assert version == [0, f"redraft {redraft.__version__} (commit {built})\n", ""], (
        "not that of the repository around it"
    )
    assert [(code, err) for code, _, err in ends] == [(0, "")] * len(light)
    for cell in Experiments(ROOT).cells("spec_rl"):
        assert cell.name in ends[0][1]
    assert "not scaled without numpy" in " ".join(ends[2][1].split())
    assert (tmp_path / "cost.csv").read_text().count("cell,grpo-vanilla,") == 1


def test_what_works_on_results_or_the_workflow_says_where_to_call_it(without_extras, tmp_path):
    (tmp_path / "experiments").mkdir()  # of something else
    (tmp_path / "experiments/notes.txt").touch()
    results, workflow = (f"error: {tmp_path}: {layout.MISSING[name]}\n" for name in ("results", "Snakefile"))
    ends = without_extras(tmp_path, "results", "share", "status", f"run {CELLS[0]}")
    assert ends == [[2, "", results], [2, "", results], [2, "", results], [2, "", workflow]]
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["results"],
        ["share"],
        ["claims"],
        ["recover"],
        ["compare", *CELLS],
        ["prompts", CELLS[0]],
        ["schema"],
        ["run", CELLS[0]],
    ],
    ids=lambda arguments: arguments[0],
)
def test_outside_a_checkout_no_command_prints_nothing(arguments, tmp_path, mistake):
    assert re.search(r"no (results|workflow) here: call this in", mistake(tmp_path, *arguments))
    assert list(tmp_path.iterdir()) == []


def test_claims_against_the_papers_tables_need_no_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        app.main(["claims", "--reported", "spec_rl"])
    assert not end.value.code
    assert "not supported: “" in capsys.readouterr().out


def test_without_extras_a_project_has_its_own_experiments_and_results(without_extras, folder):
    finish(folder, CELLS[0], seed=1)
    pages = layout.Layout("tiny", folder / "results")
    write_with_hash(
        pages.pages / "summary.json", {"papers": {}, "missing": {"runs": 2, "time": "", "command": "snakemake"}}
    )
    pages.report.write_text("<a href='report/summary.json'>")
    files = (pages.report, *pages.pages.iterdir())
    digests = {str(file.relative_to(pages.folder)): sha256(file) for file in files}
    write_json(pages.pages / "sha256.json", {"sha256": digests})
    preset = (folder / "experiments/presets/tiny.yaml").read_text()
    (folder / "experiments/presets/mine.yaml").write_text(preset.replace("name: tiny", "name: mine", 1))
    ends = without_extras(
        folder, f"list {CELLS[0].split('/')[0]}", "status", "results", "share", "list --preset mine", f"cost {CELLS[0]}"
    )
    shared = ends.pop(3)
    assert shared == [2, "", "error: `redraft share` needs rocrate: pip install 'redraft[report]'\n"]
    assert not list(pages.folder.glob("*.zip*"))
    assert [(code, err) for code, _, err in ends] == [(0, "")] * len(ends)
    assert "1/3 done" in ends[0][1]
    assert "12 runs: 1 done, 11 waiting" in ends[1][1]
    assert "2 runs of the papers are missing" in ends[2][1]
    assert "measured (1 of 3 runs)" in ends[4][1]


def test_a_missing_extra_is_one_line_with_what_to_type(without_extras, folder):
    finish(folder, CELLS[0])
    (folder / "Snakefile").touch()
    needed = {
        "stage redraft.analysis.tables.files:write_tables tiny spec_rl": "report",
        "claims --reported": "report",
        f"compare {CELLS[0]} {CELLS[1]}": "report",
        "audit rules": "report",
        "simulate x.json --lengths 0:1,100:2": "report",
        "replay steps.jsonl": "report",
        "agreement a b": "report",
        f"prompts {CELLS[0]}": "report",
        "predict x": "evaluate",
        "advise x": "evaluate",
        "certify mine:sampler --policy mine:policy --prompts x": "certify",
        "calibrate x.csv --model x --out y": "report",
        f"run {CELLS[0]}": "train",
        "recover": "train",
    }
    for (command, extra), (code, out, err) in zip(needed.items(), without_extras(folder, *needed), strict=True):
        assert (code, out) == (2, ""), command
        assert re.fullmatch(
            rf"error: `redraft {command.split()[0]}` needs \w+: pip install 'redraft\[{extra}\]'\n", err
        )


def test_the_packaged_project_is_the_parts_that_a_campaign_freezes():
    links = {path for path in layout.PACKAGED.rglob("*") if path.is_symlink()}
    assert {str(link.relative_to(layout.PACKAGED)) for link in links} == set(freeze.PARTS)
    assert all(link.resolve() == ROOT / link.relative_to(layout.PACKAGED) for link in links)


def test_a_frozen_copy_goes_before_the_folder_and_the_folder_before_the_package(folder, tmp_path_factory, monkeypatch):
    monkeypatch.delenv(layout.CODE, raising=False)
    monkeypatch.chdir(folder)
    assert layout.code_root() == Path()
    monkeypatch.setenv(layout.CODE, "/frozen")
    assert layout.code_root() == Path("/frozen")
    monkeypatch.delenv(layout.CODE)
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    assert layout.code_root() == layout.PACKAGED
    monkeypatch.setattr(layout, "PACKAGED", Path("nowhere"))
    with pytest.raises(UserError, match="call this in a checkout of redraft"):
        Experiments()


# As a library


def test_the_package_is_light_until_a_public_name_is_used():
    code = "import sys, redraft; redraft.__all__; print({'numpy', 'torch', 'pydantic', 'typer'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        redraft.nothing  # noqa: B018


def test_the_examples_of_the_documentation_print_what_they_say_and_all_names_are_there():
    text = (ROOT / "docs/api.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", text, flags=re.S)
    assert len(examples) == text.count("```python") == 2
    for example, printed in examples:
        result = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
        assert result.stdout == printed
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `")))
    assert named == redraft.__all__
    for name in redraft.__all__:
        assert getattr(redraft, name)


# From an index


@pytest.mark.servers
@pytest.mark.parametrize("extra", LIMITS)
def test_an_environment_from_an_index_is_small_and_does_what_it_says(extra, wheel, campaign, tmp_path):
    """The light one prints; the one with `report` makes a whole report of finished results."""
    subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=tmp_path, check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", layout.CODE)}

    def called(*command, folder=tmp_path):
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    installed = called("venv/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}{extra}")
    if installed.returncode and re.search(UNREACHABLE, installed.stderr, flags=re.I):
        pytest.skip(f"no package index can be reached: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    packages = next(tmp_path.glob("venv/lib/python*/site-packages"))
    own = re.compile(r"(pip|setuptools|pkg_resources|_distutils_hack)\b")
    counted = [part for part in packages.iterdir() if not own.match(part.name)]
    used = subprocess.run(["du", "-cm", *counted], capture_output=True, text=True, check=True).stdout
    assert int(used.splitlines()[-1].split()[0]) <= LIMITS[extra]
    copy = tmp_path / "copy"
    shutil.copytree(campaign, copy, ignore=shutil.ignore_patterns(".snakemake"))
    command = tmp_path / "venv/bin/redraft"
    light = [["--version"], ["list"], ["show", CELLS[0]], ["cost"]]
    finished = [[*arguments, "--preset", "smoke"] for arguments in (["status"], ["results"])]
    finished += [["share", "--preset", "smoke"]] if extra else []
    for folder, calls in ((tmp_path, light), (copy, finished)):
        for arguments in calls:
            result = called(command, *arguments, folder=folder)
            assert result.returncode == 0, (arguments, result.stderr)
    if not extra:
        return
    for arguments in (["claims", "--reported"], ["audit", "rules"]):
        assert called(command, *arguments).returncode == 0, arguments
    results = copy / "results/smoke"
    papers = list(json.loads((results / "report/summary.json").read_text())["papers"])
    claims = [f"claims/{file.name}" for file in (results / "claims").iterdir()]
    before = {name: (results / name).read_bytes() for name in (*claims, "report/summary.json")}
    assert claims
    stages = [
        (function, paper)
        for paper in papers
        for function, made in STAGES.items()
        if any(results.glob(made.format(paper)))
    ]
    for made in ("collected", "tables", "figures", "claims", "report"):
        shutil.rmtree(results / made)
    for function, *chosen in (*stages, ("redraft.analysis.pages.report_pages:report", *papers)):
        result = called(command, "stage", function, "smoke", *chosen, folder=copy)
        assert result.returncode == 0, (function, chosen, result.stderr)
    assert {name: (results / name).read_bytes() for name in before} == before
