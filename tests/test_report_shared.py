"""A report that is handed on: one zip, and its first lines on a terminal."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from pydantic import TypeAdapter
from rocrate.rocrate import ROCrate

from redraft.analysis.data.collect import Runs
from redraft.analysis.pages.finished_report import headline_summary, pack_report, record_report, summary_text
from redraft.analysis.pages.fragments import checked_fragment
from redraft.analysis.pages.report_pages import training_time
from redraft.analysis.pages.run_pages import views
from redraft.config import Engine, Experiments, run_fingerprint
from redraft.errors import UserError
from redraft.layout import CODE, Layout
from redraft.ops.workflow import freeze
from redraft.result_files import write_with_hash

ROOT = Path(__file__).parents[1]


@pytest.fixture
def layout(tmp_path):
    """A report of two pages, one of which links to data and to a place on the web."""
    layout = Layout("tiny", tmp_path / "results")
    files = {
        "report.html": '<a href="report/index.html">report</a>',
        "report/index.html": '<a href="../data/a.csv">a</a> <a href="https://example.org/b">b</a> <a href="#c">c</a>',
        "report/runs/one.html": '<a href="../../data/d.json#place">d</a>',
        "data/a.csv": "1",
        "data/d.json": "{}",
        "data/secret.txt": "not linked",
    }
    for place, content in files.items():
        file = layout.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    record_report(layout)
    return layout


def test_the_zip_holds_all_pages_what_they_link_to_and_the_recorded_precision(layout, tmp_path):
    layout.precision.write_text("{}")
    assert pack_report(layout, tmp_path / "shared.zip") == 11
    with zipfile.ZipFile(tmp_path / "shared.zip") as archive:
        names = archive.namelist()
    places = ["report.html", "report/index.html", "report/runs/one.html", "data/a.csv", "data/d.json", "precision.json"]
    own = ["README.md", "columns.json", "ro-crate-metadata.json", "LICENSE", "CITATION.cff"]
    assert sorted(names) == sorted([*own, *(f"results/tiny/{place}" for place in places)])


def test_files_with_times_before_those_of_zip_are_packed(layout, tmp_path):
    os.utime(layout.folder / "data/a.csv", (0, 0))
    assert pack_report(layout, tmp_path / "shared.zip") == 10


@pytest.mark.parametrize("name", ["report.html", "report/runs/one.html", "data/a.csv", "data/d.json"])
def test_a_page_or_file_that_was_edited_since_is_an_error_and_nothing_is_packed(name, layout, tmp_path):
    (layout.folder / name).write_text((layout.folder / name).read_text() + " ")
    with pytest.raises(UserError, match=r"differs from the hash in sha256\.json(.|\n)*write the report again") as error:
        pack_report(layout, tmp_path / "shared.zip")
    assert error.value.file == layout.folder / name
    assert not list(tmp_path.glob("*.zip*"))


def test_a_link_that_leads_nowhere_is_refused_and_nothing_is_written(layout, tmp_path):
    (layout.folder / "data/a.csv").unlink()
    with pytest.raises(UserError, match=r"(?s)not there.*\.\./data/a\.csv"):
        pack_report(layout, tmp_path / "shared.zip")
    assert not list(tmp_path.glob("*.zip*"))


@pytest.mark.parametrize(
    "link", ["../../secret.txt", "../../../secret.txt", "/etc/hostname", "../data/linked.txt", "../linked/secret.txt"]
)
def test_a_link_out_of_the_results_is_an_error_and_nothing_is_packed(link, layout, tmp_path):
    """Also one through a symbolic link to a file or to a folder."""
    for folder in (tmp_path, layout.root):
        (folder / "secret.txt").write_text("secret")
    (layout.folder / "data/linked.txt").symlink_to(tmp_path / "secret.txt")
    (layout.folder / "linked").symlink_to(tmp_path)
    (layout.pages / "more.html").write_text(f'<a href="{link}">x</a>')
    with pytest.raises(UserError, match=r"(?s)leads out of the results.*href"):
        pack_report(layout, tmp_path / "shared.zip")
    assert not list(tmp_path.glob("*.zip*"))


def test_a_page_that_is_a_link_out_of_the_results_is_an_error(layout, tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    (layout.pages / "more.html").symlink_to(tmp_path / "secret.html")
    with pytest.raises(UserError, match="leads out of the results"):
        pack_report(layout, tmp_path / "shared.zip")


def test_results_behind_a_symbolic_link_of_the_whole_folder_are_packed(layout, tmp_path):
    layout.root.rename(tmp_path / "elsewhere")
    layout.root.symlink_to(tmp_path / "elsewhere")
    assert pack_report(layout, tmp_path / "shared.zip") == 10


def check_crate(folder, code):
    """Test that a folder is described as an RO-Crate: its workflow, the runs that it made, licence and papers."""
    crate = ROCrate(folder)
    root = "results/tiny"
    assert crate.mainEntity.id == f"{root}/code/{code}/Snakefile"
    assert crate.mainEntity.lang["name"] == "Snakemake"
    assert crate.license.id == "https://spdx.org/licenses/Apache-2.0"
    assert sum(paper["@type"] == "ScholarlyArticle" for paper in crate.root_dataset["citation"]) >= 4
    action = crate.root_dataset["mentions"]
    assert (action["instrument"], action["endTime"]) == (crate.mainEntity, "2026-01-02T03:04:05+00:00")
    assert action["object"].id == f"{root}/code/{code}/experiments/presets/tiny.yaml"
    made = {entity.id for entity in action["result"]}
    assert made == {
        f"{root}/{n}" for n in ("runs/spec_rl/a/seed0/manifest.json", "report.html", "report/", "data/", "runs/")
    }
    parts = [entity.id for entity in crate.data_entities]
    assert {"README.md", "columns.json", "LICENSE", "CITATION.cff"} <= {*parts}
    assert [part for part in parts if not (folder / part).exists()] == []


def test_results_without_their_code_are_a_plain_crate(layout, tmp_path):
    pack_report(layout, tmp_path / "shared.zip")
    crate = ROCrate(tmp_path / "shared.zip")
    assert crate.mainEntity is None
    assert not crate.root_dataset.get("conformsTo")
    assert {"results/tiny/report.html", "results/tiny/data/"} <= {entity.id for entity in crate.data_entities}


def test_a_project_without_licence_and_citation_has_none_in_its_crate(layout, folder, monkeypatch):
    monkeypatch.chdir(folder)
    pack_report(layout, folder / "shared.zip")
    crate = ROCrate(folder / "shared.zip")
    assert crate.license is None
    assert {entity.id for entity in crate.data_entities if "/" not in entity.id} == {"README.md", "columns.json"}
    assert [paper.get("author") for paper in crate.root_dataset["citation"]] == [None] * 4


def test_the_code_in_the_zip_installs_and_runs(layout, tmp_path):
    """Without the checkout; what it needs is in the environment."""
    code = freeze.freeze(ROOT, "tiny", layout.root)
    run = layout.folder / "runs/spec_rl/a/seed0"
    run.mkdir(parents=True)
    about = {"run": "spec_rl/a/seed0", "finished": "2026-01-02T03:04:05+00:00", "packages": {"snakemake": "9.1"}}
    write_with_hash(run / "manifest.json", about | {"git": {"code": code.name}})
    (layout.pages / "index.html").write_text('<a href="../runs/spec_rl/a/seed0/manifest.json">m</a>')
    record_report(layout)
    pack_report(layout, tmp_path / "shared.zip")
    with zipfile.ZipFile(tmp_path / "shared.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    check_crate(tmp_path / "unpacked", code.name)
    unpacked, installed = tmp_path / "unpacked" / code.relative_to(tmp_path), tmp_path / "installed"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(installed)]
    variables = {name: value for name, value in os.environ.items() if name != CODE} | {"PYTHONPATH": str(installed)}

    def called(*command):
        command = [sys.executable, "-m", *command]
        done = subprocess.run(command, cwd=unpacked, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    called("pip", "install", ".", *options)
    shutil.rmtree(unpacked / "src")
    names = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    shipped = {path.removeprefix("src/") for path in freeze.sources(ROOT) if path.startswith("src/")}
    assert {name for name in names if name.startswith(("redraft/", "snake")) and "__pycache__" not in name} == shipped
    cell = "spec_rl/grpo-spec-l0.5"
    shown = json.loads(called("redraft", "show", cell, "--json"))["rows"]
    fingerprint = run_fingerprint(Experiments(ROOT).run(cell, 0, "tiny"))
    assert shown[0] | {"field": "fingerprint", "value": fingerprint} == shown[0]


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '<td onclick="alert(1)">1</td>',
    '<p style="position: fixed">1</p>',
    '<a href="javascript:alert(1)">1</a>',
    '<a href="JaVaScRiPt:alert(1)">1</a>',
    '<a href="//example.org/a">1</a>',
    '<a href="../../../secret.txt">1</a>',
    "<svg><script>alert(1)</script></svg>",
    "<!-- <script>alert(1)</script> -->",
    "<iframe></iframe>",
    "<style>*{display:none}</style>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "</section><form>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_of_a_results_file_is_only_that_of_tables_and_case_studies(text, tmp_path):
    file = tmp_path / "table01.html"
    file.write_text(f"<table><tr><td>1</td></tr></table>{text}")
    with pytest.raises(UserError, match=r"table01\.html"):
        checked_fragment(file, "../tables/a")


def test_an_accepted_fragment_keeps_its_text_and_its_links_are_moved(tmp_path):
    file = tmp_path / "table01.html"
    file.write_text(
        '<td class="a">1 &lt; 2 &amp; <b>x</b></td><a href="table01.csv">d</a><a href="#r" title="&quot;">e</a>'
    )
    moved = '<a href="../tables/a/table01.csv">d</a><a href="#r" title="&quot;">e</a>'
    assert checked_fragment(file, "../tables/a") == f'<td class="a">1 &lt; 2 &amp; <b>x</b></td>{moved}'
    file.write_text('<textarea>&lt;/textarea&gt;&lt;script&gt;</textarea><svg viewBox="0 0 1 1"></svg><input checked>')
    assert checked_fragment(file, "") == file.read_text()


SCORE = {"benchmark": ["b"], "correct": [1], "total": [2]}


@pytest.mark.parametrize("cell", ["../../x", "a/../../x", "/tmp/x", "a/b/c", "<b>", "a..b", "{x}", "", "a\n", None])
def test_a_cell_of_collected_runs_is_a_plain_name(cell, tmp_path):
    """A run's page is named after it."""
    frame = pd.DataFrame({"cell": [cell], "seed": [0], "manifest": ["m"], "step": [0], **SCORE})
    Runs(*[frame.assign(cell="grpo-spec-l0.5")] * 3).save(tmp_path)
    assert list(Runs.load(tmp_path).runs["cell"]) == ["grpo-spec-l0.5"]
    Runs(*[frame] * 3).save(tmp_path)
    with pytest.raises(UserError, match="no name of a cell"):
        Runs.load(tmp_path)


@pytest.mark.parametrize("seed", ["0/../x", -1, 0.5])
def test_a_seed_of_collected_runs_is_a_whole_number(seed, tmp_path):
    frame = pd.DataFrame({"cell": ["a"], "seed": [seed], "manifest": ["m"], "step": [0], **SCORE})
    Runs(*[frame] * 3).save(tmp_path)
    with pytest.raises(UserError, match="seeds are whole numbers"):
        Runs.load(tmp_path)


def test_a_manifest_of_collected_runs_is_a_file_of_the_results(layout, tmp_path):
    frame = pd.DataFrame({"cell": ["a"], "seed": [0], "manifest": [str(tmp_path / "manifest.json")]})
    with pytest.raises(UserError, match=r"(?s)leads out of the results.*manifest"):
        views(layout, "spec_rl", Runs(frame, frame, frame))


def test_without_a_report_there_is_nothing_to_share_or_to_say(tmp_path):
    layout = Layout("tiny", tmp_path)
    with pytest.raises(UserError, match="no report yet"):
        pack_report(layout, tmp_path / "shared.zip")
    with pytest.raises(UserError, match="no report yet"):
        headline_summary(layout)


def test_the_terminal_says_what_the_first_screen_says(layout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    sentence = "SPEC-RL decodes 69 % (paper 67 %) fewer tokens: agrees with the paper."
    papers = {
        "spec": {
            "method": "SPEC-RL",
            "title": "t",
            "headlines": [{"sentence": sentence}],
            "claims": {"reproduced": 3, "not run": 2},
        },
        "bare": {"method": "bare", "title": "t", "headlines": [], "claims": {}},
    }
    missing = {"runs": 4, "time": "about 6 minutes of training on two cores", "command": "snakemake reproduction"}
    write_with_hash(layout.pages / "summary.json", {"papers": papers, "missing": missing})
    text = summary_text(headline_summary(layout), layout)
    assert text.startswith(f"SPEC-RL\n  {sentence}\n  5 claims: 3 reproduced, 2 not run\n")
    assert "\n4 runs of the papers are missing, about 6 minutes of training on two cores:\n  snakemake rep" in text
    assert text.endswith(f"open {layout.report}")
    write_with_hash(layout.pages / "summary.json", {"papers": papers, "missing": missing | {"runs": 0}})
    assert "missing" not in summary_text(headline_summary(layout), layout)


@pytest.mark.parametrize(
    ("engine", "minutes", "text"),
    [
        ({"kind": "torch", "threads": 1}, 12, "about 6 minutes of training on two cores"),
        ({"kind": "torch", "threads": 2}, 12, "about 12 minutes of training on two cores"),
        ({"kind": "verl", "device": "cuda", "gpus": 8}, 12, "about 12 minutes of training, one run after another"),
        ({"kind": "torch", "threads": 1}, float("nan"), ""),
    ],
)
def test_missing_runs_are_timed_on_the_readme_s_two_cores(engine, minutes, text):
    assert training_time(minutes, TypeAdapter(Engine).validate_python(engine)) == text
    assert re.search(r"make reproduce .* minutes on two cores", (ROOT / "README.md").read_text())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"papers": {}, "missing": {"runs": 9, "time": "", "command": "x"}}', r"differs from the hash in summary"),
        ("null", "wrong type"),
        ("[]", "wrong type"),
        ('{"papers": 3}', "wrong type"),
        ("{", "damaged"),
    ],
)
def test_a_summary_that_the_report_did_not_write_is_one_error(content, message, layout):
    file = layout.pages / "summary.json"
    write_with_hash(file, {"papers": {}, "missing": {"runs": 0, "time": "", "command": "x"}})
    file.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        headline_summary(layout)
    assert error.value.file == file


def test_claims_against_the_papers_own_tables_need_no_run(capsys, tmp_path, monkeypatch):
    from redraft.cli.app import main

    monkeypatch.setenv("REDRAFT_CODE", str(ROOT))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["claims", "ar3po", "spec_rl", "--reported", "--json"])
    assert end.value.code in (0, None)
    rows = json.loads(capsys.readouterr().out)["rows"]
    counted = Counter(row["verdict"] for row in rows if row["paper"] == "spec_rl")
    assert counted == {"supported": 65, "not in the tables": 42, "not supported": 10}
    with pytest.raises(SystemExit):
        main(["claims", "spec_rl", "--reported"])
    text = capsys.readouterr().out
    assert text.startswith("spec_rl: 65 supported, 42 not in the tables, 10 not supported\n")
    assert text.count("  not supported: ") == 10
    assert "  supported: " not in text
    (tmp_path / "results").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["claims", "spec_rl"])
    assert end.value.code in (0, None)
    assert "no verdicts yet at the preset tiny: spec_rl" in capsys.readouterr().out
