"""Published results: packing, reports of them, and comparison of other results with them."""

import csv
import io
import json
import lzma
import math
import re
import shutil
import tarfile
import zipfile
from contextlib import chdir
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import FAMILY, MEASURED, RECORD, Measured, Measuring, of_rollouts
from redraft.analysis.pages.finished_report import record_report
from redraft.analysis.pages.run_pages import views
from redraft.analysis.reference import packing, packs, page, published, reopening, site
from redraft.analysis.reference.checking import _changed_records, compare
from redraft.analysis.reference.numbers import (
    AGREES,
    DIFFERS,
    LEAST,
    NOT_COMPARABLE,
    USUAL,
    ComparedNumber,
    judged,
    least_deviation,
    of_times,
    predicted,
)
from redraft.analysis.reference.packs import read_pack
from redraft.analysis.reference.page import END, START
from redraft.analysis.reference.prediction import corrected, p_values, share_of_divisions
from redraft.analysis.reference.published import Published, record_file, runs_file
from redraft.cli.app import main
from redraft.config import Experiments
from redraft.config.tables import AVERAGE, Column
from redraft.errors import UserError
from redraft.files import sha256, write_json
from redraft.layout import Layout
from redraft.result_files import record_derived, write_own_hash

ROOT = Path(__file__).parents[1]
REFERENCE = Path("results/reference")


@pytest.fixture(scope="module")
def packed(campaign, tmp_path_factory):
    """Folder of a copied campaign with its results published; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("packed")
    for name in ("results", "experiments"):
        shutil.copytree(campaign / name, folder / name)
    (folder / "results/README.md").write_text(f"# results\n\n{START}\nold\n{END}\n\nthe rest\n")
    (folder / "README.md").write_text(f"first\n\n{START}{END}\n")
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        # The checkout of a developer has changes.
        patch.setattr(packing, "check_code", lambda run: None)
        patch.setattr(page, "NOT_SHOWN", "")
        main_ended(["publish", "spec_rl", "--preset", "smoke"])
    return folder


def main_ended(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code


@pytest.fixture
def place(packed, tmp_path, monkeypatch):
    shutil.copytree(packed, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def compared():
    with_reference = Published.read(REFERENCE.absolute() / "smoke")
    return compare(Layout("smoke"), with_reference, "spec_rl")


def outcomes(items):
    return {item.outcome for item in items}


def remeasured(collected):
    """Make the record of measured values agree with other published runs."""
    record = collected / RECORD
    content = json.loads(record.read_text())
    made_from = {name: sha256(collected / name) for name in content["made_from"]}
    write_json(record, content | {"made_from": made_from})
    for file in collected.glob("*"):
        rehash(file)


def rehash(file):
    """Make the record of published results agree with a changed file."""
    record = record_file(Layout("smoke", REFERENCE), "spec_rl")
    content = json.loads(record.read_text())
    content["sha256"][file.relative_to(REFERENCE / "smoke").as_posix()] = sha256(file)
    write_json(record, content)


def test_a_campaign_is_published_whole_and_small(packed):
    layout = Layout("smoke", packed / REFERENCE)
    record = Published.read(layout.folder).records["spec_rl"]
    with chdir(packed):
        manifests = Layout("smoke").manifests("spec_rl")
    assert sum(map(len, record["cells"].values())) == len(manifests)
    assert record["blocks"] == 2
    assert record["hours"] == pytest.approx(
        sum(json.loads((packed / file).read_text())["seconds"] for file in manifests) / 3600
    )
    runs = read_pack(runs_file(layout, "spec_rl"))
    assert all(runs[file.as_posix()] == (packed / file).read_bytes() for file in manifests)
    kinds = {Path(name).suffix for name in record["sha256"]}
    assert kinds == {".csv", ".md", ".svg", ".json", ".sha256", ".parquet", ".xz"}
    own = packed / "results/smoke/tables/spec_rl/table01.csv"
    header, *rows = csv.reader(own.open())
    shown_header, *shown = csv.reader((layout.tables("spec_rl") / "table01.csv").open())
    kept = [i for i, name in enumerate(header) if name not in ("manifests", "stand_in")]
    assert len(header) - len(kept) == 2
    assert shown_header == [header[i] for i in kept]
    assert shown == [[row[i] for i in kept] for row in rows]
    figure, data = "figures/spec_rl/figure02.csv", packed / "results/smoke/figures/spec_rl/figure02.csv"
    header, *rows = csv.reader(data.open())
    kept = [i for i, name in enumerate(header) if name not in ("manifests", "stand_in")]
    points = [*csv.reader(lzma.decompress((layout.folder / f"{figure}.xz").read_bytes()).decode().splitlines())]
    assert points == [[row[i] for i in kept] for row in (header, *rows)]
    assert not list(layout.folder.rglob("figure*.csv"))
    columns = {each["name"]: each for each in json.loads((layout.root / "columns.json").read_text())["tables"]}
    assert f"smoke/{figure}.xz" in columns["figures"]["files"]
    assert set(points[0]) <= {column["name"] for column in columns["figures"]["columns"]}


def test_the_archive_has_what_regrading_needs_and_no_policy(packed):
    record = json.loads(record_file(Layout("smoke", packed / REFERENCE), "spec_rl").read_text())["archive"]
    file = packed / "build/reference" / record["file"]
    assert (record["sha256"], record["bytes"], record["doi"]) == (sha256(file), file.stat().st_size, None)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        run = "results/smoke/runs/spec_rl/grpo-spec-linf/seed0/"
        own = {name.removeprefix(run) for name in names if name.startswith(run)}
        assert {"generations.parquet", "grades.parquet", "rollouts/step-0000.parquet", "steps.jsonl"} <= own
        assert archive.read(run + "grades.parquet") == (packed / run / "grades.parquet").read_bytes()
    assert len(names) == record["files"]
    assert any(name.startswith("results/smoke/initial/") for name in names)
    assert not [name for name in names if "policies/" in name or "checkpoints/" in name]


def test_a_campaign_published_again_is_the_same_to_the_byte_and_keeps_the_identifier(place, monkeypatch):
    monkeypatch.setattr(packing, "check_code", lambda run: None)
    target, archives = Layout("smoke", REFERENCE), Path("build/reference")
    file = record_file(target, "spec_rl")
    content = json.loads(file.read_text())
    write_json(file, content | {"archive": content["archive"] | {"doi": "10.5281/zenodo.1"}})
    before = {path: path.read_bytes() for path in target.folder.rglob("*") if path.is_file()}
    stale = target.tables("spec_rl") / "table99.csv"
    stale.write_text("a\n")
    packing.publish(Layout("smoke"), "spec_rl", target, archives)
    assert {path: path.read_bytes() for path in target.folder.rglob("*") if path.is_file()} == before
    Layout("smoke").precision.write_text("{}")
    packing.publish(Layout("smoke"), "spec_rl", target, archives)
    with zipfile.ZipFile(archives / content["archive"]["file"]) as archive:
        assert archive.read("results/smoke/precision.json") == b"{}", "of engine.dtype: fastest"
    assert read_pack(runs_file(target, "spec_rl"))["results/smoke/precision.json"] == b"{}"
    write_json(file, content | {"archive": content["archive"] | {"doi": "10.5281/zenodo.1", "sha256": "0"}})
    packing.publish(Layout("smoke"), "spec_rl", target, archives)
    assert json.loads(file.read_text())["archive"]["doi"] is None, "another archive has another identifier"


def _changed_claims():
    file = Layout("smoke").claims("spec_rl")
    claims = json.loads(file.read_text())
    claims[0]["verdict"] = "reproduced" if claims[0]["verdict"] != "reproduced" else "contradicted"
    write_json(file, claims)
    write_own_hash(file)


def _changed_table():
    file = Layout("smoke").table("spec_rl", 1).with_suffix(".csv")
    file.write_text(file.read_text().replace("grpo", "ppo"))


def _changed_rollouts():
    file = Layout("smoke").run("spec_rl/grpo-vanilla", 0) / "rollouts/step-0000.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def _other_collected():
    file = Layout("smoke").collected("spec_rl") / "scores.parquet"
    pd.read_parquet(file).assign(correct=1).to_parquet(file)


@pytest.mark.parametrize("change", [_changed_claims, _changed_table, _changed_rollouts, _other_collected])
def test_what_does_not_belong_together_is_not_published(place, monkeypatch, change):
    monkeypatch.setattr(packing, "check_code", lambda run: None)
    change()
    target = Layout("smoke", Path("elsewhere"))
    with pytest.raises(UserError):
        packing.publish(Layout("smoke"), "spec_rl", target, Path("archives"))
    assert not target.root.exists()


def test_repeated_timings_are_archived_if_a_commit_names_their_code(place, monkeypatch):
    monkeypatch.setattr(packing, "check_code", lambda run: None)
    target, file = Layout("smoke", Path("elsewhere")), Layout("smoke").timing("spec_rl", 0)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"seconds")
    record = file.with_suffix(".json")
    write_json(record, {"sha256": {}, "made_from": {}, "git": {"commit": "a" * 40, "modified": True}})
    with pytest.raises(UserError, match="no commit names"):
        packing.publish(Layout("smoke"), "spec_rl", target, Path("archives"))
    write_json(record, {"sha256": {}, "made_from": {}, "git": {"commit": "a" * 40, "modified": False}})
    found = packing.publish(Layout("smoke"), "spec_rl", target, Path("archives"))
    with zipfile.ZipFile(Path("archives") / found["archive"]["file"]) as archive:
        assert {file.as_posix(), record.as_posix()} <= set(archive.namelist())


@pytest.mark.parametrize("git", [{"commit": None, "modified": None}, {"commit": "a" * 40, "modified": True}])
def test_runs_of_code_without_a_commit_are_not_published(place, git):
    run = views(Layout("smoke"), "spec_rl", Runs.load(Layout("smoke").collected("spec_rl")))[0]
    with pytest.raises(UserError, match="no commit names the code"):
        packing.check_code(replace(run, manifest=run.manifest | {"git": git}))
    packing.check_code(replace(run, manifest=run.manifest | {"git": {"commit": "a" * 40, "modified": False}}))


def test_the_report_of_published_results_needs_no_run(packed, tmp_path, monkeypatch, capsys):
    for name in (REFERENCE, "experiments"):
        shutil.copytree(packed / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    main_ended(["report", "results/reference/smoke"])
    printed = capsys.readouterr()
    assert "equal to the published ones" in printed.out
    assert not printed.err
    made = tmp_path / "build/report/smoke/results/smoke"
    own = packed / "results/smoke"
    for name in ("tables/spec_rl/table01.csv", "tables/spec_rl/table01.html", "claims/spec_rl.json"):
        assert (made / name).read_bytes() == (own / name).read_bytes()
    pages = {file.relative_to(own) for file in (own / "report").rglob("*.html")}
    assert {file.relative_to(made) for file in (made / "report").rglob("*.html")} == {
        page for page in pages if page.parts[:2] != ("report", "runs") or page.parts[2] == "spec_rl"
    }
    # `share` fails if a link leads to no file.
    shutil.copytree("experiments", made.parents[1] / "experiments")
    monkeypatch.chdir(made.parents[1])
    main_ended(["share", "--preset", "smoke"])
    monkeypatch.chdir(tmp_path)
    main_ended(["report", "results/reference/smoke"])


def test_a_report_replaces_no_campaign(place, mistake):
    text = mistake(place, "report", "results/reference/smoke", "--output", ".")
    assert "not from an earlier call" in text
    assert Layout("smoke").manifests("spec_rl")


def test_a_published_table_that_this_version_makes_otherwise_is_named(place, capsys):
    file = Layout("smoke", REFERENCE).table("spec_rl", 1).with_suffix(".csv")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    rehash(file)
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    printed = capsys.readouterr()
    assert "tables/spec_rl/table01.csv" in " ".join(printed.err.split())
    assert "equal to the published" not in printed.out


def declared_later(place):
    """Declare a further table, figure and headline."""
    for name in ("tables", "figures"):
        file = place / "experiments/spec_rl" / f"{name}.yaml"
        content = yaml.safe_load(file.read_text())
        content[name].append(content[name][-1] | {"number": 199, "title": "declared later"})
        if name == "tables":
            later = content["headlines"][0] | {"table": 199, "words": "Later, by {}"}
            content["headlines"].append(
                later
                | {"cell": "rloo-spec-l0.5", "column": "average_difference", "form": "points"}
                | dict.fromkeys(("short", "measure"), "declared later")  # of a number that there is not
            )
        file.write_text(yaml.safe_dump(content, allow_unicode=True))


def test_published_results_lack_what_was_declared_later(place, capsys):
    """The report leaves a later table, figure and headline out; the pages leave out the headline."""
    declared_later(place)
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    assert "equal to the published ones" in capsys.readouterr().out
    pages = [file.read_text() for file in Path("out/results/smoke/report").rglob("*.html")]
    assert not any("declared later" in page or "Later, by" in page for page in pages)
    page.write_page(REFERENCE, Path("results/README.md"))
    text = Path("results/README.md").read_text()
    assert "Later, by" not in text
    assert "declared later" not in text


def test_published_results_are_checked_when_they_are_read(place, mistake):
    folder, layout = REFERENCE / "smoke", Layout("smoke", REFERENCE)
    record = record_file(layout, "spec_rl")
    kept = record.read_text()
    record.write_text(kept.replace('"spec_rl"', '"ar3po"', 1))
    assert "the record of another paper" in mistake(place, "check", "results/smoke")
    content = json.loads(kept)
    record.write_text(json.dumps(content | {"sha256": content["sha256"] | {"../../README.md": "0"}}))
    assert "leads out of the results" in mistake(place, "check", "results/smoke")
    record.write_text(json.dumps({key: content[key] for key in content if key != "cells"}))
    assert "wrong type" in mistake(place, "check", "results/smoke")
    record.write_text(kept)
    table = layout.table("spec_rl", 1).with_suffix(".csv")
    table.write_text(table.read_text() + "\n")
    assert "differs from the hash" in mistake(place, "report", "results/reference/smoke")
    shutil.rmtree(folder)
    assert "no results of this preset are published here" in mistake(place, "check", "results/smoke")
    assert "no published results" in mistake(place, "report", "results/reference/smoke")


def kept(key):
    return bool(of_rollouts({key: []}))


def test_what_follows_from_published_runs_is_made_again(place, mistake, capsys, monkeypatch):
    """Also what was not tested before. The result is that of the campaign, and what was declared later."""
    monkeypatch.setattr(page, "NOT_SHOWN", "")
    folder, layout = REFERENCE / "smoke", Layout("smoke", REFERENCE)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    pages = [Path("results/README.md"), Path("README.md")]
    shown = [file.read_text() for file in pages]
    record, table = record_file(layout, "spec_rl"), layout.table("spec_rl", 1).with_suffix(".csv")
    table.write_text(table.read_text() + table.read_text().splitlines()[-1] + "\n")
    family = layout.collected("spec_rl") / FAMILY
    pd.read_parquet(family).iloc[:1].to_parquet(family)
    measured = layout.collected("spec_rl") / RECORD
    values = layout.collected("spec_rl") / MEASURED
    pd.read_parquet(values).assign(value=lambda frame: frame["value"].where(frame.index > 0, -1)).to_parquet(values)
    hashes = json.loads(measured.read_text())
    changed = {FAMILY: sha256(family), MEASURED: sha256(values)}
    write_json(measured, hashes | {"sha256": hashes["sha256"] | changed})
    stale = layout.tables("spec_rl") / "table98.csv"
    shutil.copy(table, stale)
    for file in (table, family, values, measured, stale):
        rehash(file)
    write_json(record, json.loads(record.read_text()) | {"headlines": [], "claims": {}})
    for file, text in zip(pages, shown, strict=True):
        file.write_text(f"{text.split(START)[0]}{START}\nold\n{END}{text.split(END)[1]}")
    old = record.read_bytes()
    main_ended(["report", str(folder), "--output", "out"])
    assert "another tables/spec_rl/table01.csv" in " ".join(capsys.readouterr().err.split())
    assert record.read_bytes() == old
    with monkeypatch.context() as patch:
        # What needs rollouts is kept, since published results lack them; all else is measured again.
        measure = Measuring._points
        patch.setattr(Measuring, "_points", lambda own, key, make: measure(own, key, None if kept(key) else make))
        main_ended(["report", str(folder), "--output", "out", "--update"])
    assert "replaced the tables and claims" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert pages[1].read_text() == shown[1]
    assert "old" not in pages[0].read_text()
    assert "# Preset `smoke`" in pages[0].read_text()
    declared_later(place)
    main_ended(["report", str(folder), "--output", "out", "--update"])
    assert "tables/spec_rl/table199.csv" in Published.read(folder).records["spec_rl"]["sha256"]
    shutil.copytree(folder, "copy/smoke")
    assert "for results published here" in mistake(place, "report", "copy/smoke", "--update")


def test_results_unpacked_for_a_report_are_not_damaged_checked_or_packed_with_responses(
    place, mistake, monkeypatch, capsys
):
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    found = mistake(place, "check", "out/results/smoke", "--reference", "results/reference/smoke")
    assert "unpacked for a report" in found
    monkeypatch.chdir("out")
    main_ended(["list", "spec_rl", "--preset", "smoke"])
    states = {line.split()[0]: line.split(maxsplit=3)[3:] for line in capsys.readouterr().out.splitlines() if line}
    assert re.fullmatch(r"\d unpacked", states["grpo-vanilla"][0].strip())
    assert not any("damaged" in " ".join(state) for state in states.values())
    main_ended(["status", "spec_rl", "--preset", "smoke"])
    assert "damaged" not in capsys.readouterr().out
    shutil.copytree(place / "experiments", "experiments")
    assert "in their archive" in mistake(place / "out", "share", "--preset", "smoke", "--full")


def test_a_wrong_folder_of_published_results_is_named_with_the_presets_that_there_are(place, mistake):
    for folder in ("results/reference", "results/reference/smkoe"):  # above it, and beside it
        text = mistake(place, "report", folder)
        assert "there are no published results here" in text
        assert f"allowed: {place / 'results/reference/smoke'}" in text
    # Without the name, `results/tiny/collected` would be the missing file.
    assert "no such paper" in mistake(place, "publish", "spec_lr", "--preset", "smoke")
    shutil.copytree("results/reference/smoke", "copy/other")
    assert "with the name of their preset" in mistake(place, "report", "copy/other")
    assert "no such folder" in mistake(place, "check", "results/smoke", "--reference", "nowhere/smoke")


def packed_again(file, content):
    """Replace the files of a published pack."""
    with tarfile.open(file, "w:xz") as pack:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            pack.addfile(entry, io.BytesIO(data))
    rehash(file)


def test_a_pack_that_leads_elsewhere_is_refused(place, mistake):
    file = runs_file(Layout("smoke", REFERENCE), "spec_rl")
    packed_again(file, read_pack(file) | {"results/smoke/../../../evil": b"x"})
    assert "leads out" in mistake(place, "report", "results/reference/smoke", "--output", "out")
    assert not (place.parent / "evil").exists()


def test_the_page_has_tables_figures_verdicts_and_cost(packed):
    text = (packed / "results/README.md").read_text()
    assert text.startswith("# results\n")
    assert text.endswith("the rest\n")
    assert "old" not in text
    record = json.loads(record_file(Layout("smoke", packed / REFERENCE), "spec_rl").read_text())
    assert len(record["headlines"]) == 3
    for headline in record["headlines"]:
        assert headline["sentence"] in text
    assert (packed / REFERENCE / "smoke/tables/spec_rl/main_result.md").read_text().strip() in text
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    for link in links:
        assert link.startswith("https://") or (packed / "results" / link).exists(), link
    assert sum(link.endswith(".svg") for link in links) == 2
    assert record["commits"][0][:12] in text
    assert "in 2 blocks; " in text
    assert "all of one initial policy" in page._campaign(record, Experiments().preset("smol")), "without blocks"
    cells = Experiments().cells("spec_rl", Experiments().grids("spec_rl", beyond_paper=False))
    missing = {cell.id for cell in cells} - record["cells"].keys()
    assert f"{len(cells)} of the paper's {len(cells)} cells; {len(missing)} of these were not trained" in text
    assert "`snakemake reproduction --config preset=smoke papers=spec_rl` trains them" in text


def test_the_page_has_the_primary_claims_with_what_they_could_show(place, monkeypatch):
    monkeypatch.setattr(page, "NOT_SHOWN", "")
    file = Layout("smoke", REFERENCE).claims("spec_rl")
    claims = json.loads(file.read_text())
    power = {"effect": 1.592, "low": 1.2, "high": 18.0, "is_ratio": True, "units": 3, "needed": 4, "next_look": None}
    part = {
        "label": "ratio",
        "expected": "below",
        "threshold": 0.5,
        "mean": 0.3,
        "low": 0.2,
        "high": 0.4,
        "power": power,
    }
    assert claims[0]["primary"]
    claims[0] |= {"verdict": "reproduced", "evidence": "ratio | 0.3", "parts": [part], "deciding": 0}
    claims[0] |= {"about": "By tokens", "weak": "by construction"}
    other = next(claim for claim in claims if not claim["primary"])
    other["verdict"] = "contradicted"
    write_json(file, claims)
    write_own_hash(file)
    for each in (file, file.with_name(f"{file.name}.sha256")):
        rehash(each)
    page.write_page(REFERENCE, Path("results/README.md"))
    lines = Path("results/README.md").read_text().splitlines()
    (line,) = [line for line in lines if claims[0]["quotation"] in line]
    assert line.startswith(f"| By tokens: “{claims[0]['quotation']}”")
    cells = [cell.strip() for cell in line.split(" | ")][1:]
    assert cells == ["reproduced (weak test)", "ratio \\| 0.3", "a factor of 1.592 |"]
    assert any(f"“{other['quotation']}”" in line and "contradicted" in line for line in lines)


def test_the_first_page_has_one_figure(packed):
    text = (packed / "README.md").read_text()
    assert text.startswith("first\n")
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) == 1
    assert (packed / links[0]).exists()


@pytest.mark.parametrize("presets", [("tiny",), ("smol", "tiny")], ids=["one", "two"])
def test_the_first_page_has_each_headline_number_beside_the_paper_s_with_its_preset(presets, tmp_path):
    """Of SPEC-RL as it is published; the campaign of these tests has no run that a headline is about."""
    headlines = {}
    for preset in presets:
        record = record_file(Layout(preset, ROOT / REFERENCE), "spec_rl")
        content = json.loads(record.read_text())
        for name in (record.name, *content["sha256"]):
            (tmp_path / preset / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(record.parent / name, tmp_path / preset / name)
        headlines[preset] = [each for each in content["headlines"] if each["mean"] is not None]
        assert len(headlines[preset]) == 3
    (tmp_path / "README.md").write_text(f"first\n\n{START}{END}\n")
    page.write_summary(tmp_path, tmp_path / "README.md")
    lines = [line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("| ")]
    header, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    several = len(presets) > 1
    assert header == (["preset", "", "here"] if several else ["", "here (preset `tiny`)"]) + ["paper", "verdict"]
    words = [each.short for each in Experiments(ROOT).tables("spec_rl").headlines]  # today's
    expected = [[f"`{preset}`"] * several + [short] for preset in presets for short in words]
    assert [row[: 1 + several] for row in rows] == expected
    published = [each for preset in presets for each in headlines[preset]]
    found = [[" ".join(cell.split()) for cell in row[1 + several :]] for row in rows]
    assert found == [[*in_words(each), each["verdict"]] for each in published]
    (tmp_path / "results.md").write_text(f"{START}{END}\n")
    page.write_page(tmp_path, tmp_path / "results.md")
    text = " ".join((tmp_path / "results.md").read_text().split())
    for each in published:
        assert in_words(each)[0].removesuffix(" fewer") in text


def in_words(headline):
    """A headline number with its interval, and the paper's number, as a page should have them."""
    mean, low, high, paper = (headline[name] for name in ("mean", "low", "high", "reported"))
    here, reported = {
        "percent fewer": (f"{mean:.1f} % [{low:.1f}, {high:.1f}] fewer", f"{paper:.1f} % fewer"),
        "times": (f"{mean:.2f} × [{low:.2f}, {high:.2f}]", f"{paper:.2f} ×"),
        "points": (f"{mean:+.1f} points [{low:.1f}, {high:.1f}]", f"{paper:+.1f} points"),
    }[headline["form"]]
    return here.replace("-", "−"), reported.replace("-", "−")


def test_published_hours_leave_out_runs_that_another_paper_has_trained(place):
    layout, experiments = Layout("smoke"), Experiments()
    measured = Measured.load(layout.collected("spec_rl"))
    runs = views(layout, "spec_rl", measured.runs)
    taken = replace(runs[0], manifest=runs[0].manifest | {"taken_from": "other/cell/seed0"})
    every, others = (
        packing._record(layout, "spec_rl", experiments, measured, found)["hours"]
        for found in (runs, [taken, *runs[1:]])
    )
    assert every - others == pytest.approx(runs[0].seconds / 3600)
    assert runs[0].seconds > 0


def test_a_page_without_marks_is_left_alone(place):
    file = place / "results/README.md"
    file.write_text(f"{START}\nno end\n")
    with pytest.raises(UserError, match="lacks a mark"):
        page.write_page(REFERENCE, file)
    assert file.read_text() == f"{START}\nno end\n"


def test_equal_results_agree_bit_by_bit(place, capsys):
    main_ended(["check", "results/smoke"])
    assert "nothing differs" in capsys.readouterr().out
    found = compared()
    assert outcomes(found.runs) == {AGREES}
    assert len(found.runs) == len(Layout("smoke").manifests("spec_rl"))
    assert outcomes(found.numbers) == {AGREES, NOT_COMPARABLE}
    timed = [number for number in found.numbers if number.reason == "times depend on the machine"]
    assert {number.column for number in timed} >= {"speedup"}


def test_this_code_gives_the_published_results_of_the_smoke_preset(campaign, capsys):
    """After a change that gives other numbers, publish that preset again, and write into CHANGELOG.md what changed."""
    with chdir(campaign):
        main_ended(["check", "results/smoke", "--reference", str(ROOT / REFERENCE / "smoke")])
    printed = capsys.readouterr().out
    agreeing = {
        name: int(count) for name, count in re.findall(r"(runs|numbers) of [a-z ]+: (\d+) (?:agree|not)", printed)
    }
    assert agreeing["runs"] == 4
    assert agreeing["numbers"] > 40, "most numbers of the tables that the test's campaign has"


def _published_manifest(change):
    """Change the published manifest of one run."""
    file = runs_file(Layout("smoke", REFERENCE), "spec_rl")
    name = "results/smoke/runs/spec_rl/grpo-vanilla/seed0/manifest.json"
    content = read_pack(file)
    manifest = json.loads(content[name])
    change(manifest)
    packed_again(file, content | {name: json.dumps(manifest).encode()})


def _set(part, key, value):
    return lambda manifest: manifest[part].__setitem__(key, value)


DIFFERENCES = {
    "configuration": (lambda m: m.__setitem__("fingerprint", "0"), NOT_COMPARABLE, "another configuration"),
    "precision": (
        lambda m: m.update(fingerprint="0", identity=m["identity"] | {"dtype": "bfloat16"}),
        NOT_COMPARABLE,
        "another precision: auto, published bfloat16",
    ),
    "processor": (_set("machine", "processor", "another"), NOT_COMPARABLE, "another processor: "),
    "instructions": (_set("machine", "instructions", "avx"), NOT_COMPARABLE, "another set of instructions: "),
    "torch": (_set("packages", "torch", "1.0"), NOT_COMPARABLE, "another version of torch: "),
    "model": (_set("inputs", "initial_policy", "0"), DIFFERS, "another input: initial_policy"),
    "rollouts": (_set("sha256", "rollouts/step-0001.parquet", "0"), DIFFERS, "rollouts/step-0001.parquet is the first"),
    "policy": (_set("sha256", "policies/step-0003/model.safetensors", "0"), DIFFERS, "policies/step-0003"),
}


@pytest.mark.parametrize(("change", "outcome", "words"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_run_that_differs_or_cannot_be_compared_is_named_with_the_reason(place, change, outcome, words):
    _published_manifest(change)
    runs = {run.run: run for run in compared().runs}
    changed = runs.pop("spec_rl/grpo-vanilla/seed0")
    assert changed.outcome == outcome
    assert words in changed.reason
    assert outcomes(runs.values()) == {AGREES}


def _published_frame(name, change):
    layout = Layout("smoke", REFERENCE)
    file = layout.collected("spec_rl") / f"{name}.parquet"
    frame = pd.read_parquet(file)
    change(frame)
    frame.to_parquet(file, index=False)
    record = file.with_name("collected.json")
    content = json.loads(record.read_text())
    write_json(record, content | {"sha256": content["sha256"] | {file.name: sha256(file)}})
    remeasured(file.parent)


@pytest.mark.parametrize(
    ("name", "column", "differs"),
    [
        ("steps", "reward", True),
        ("steps", "seconds.rollout", False),
        ("scores", "correct", True),
        ("scores", "seconds", False),
    ],
)
def test_an_edited_record_of_an_equal_run_differs(place, name, column, differs):
    _published_frame(name, lambda frame: frame.__setitem__(column, frame[column] + 1))
    found = compared()
    assert outcomes(found.runs) == {DIFFERS if differs else AGREES}
    assert not differs or all(column in run.reason for run in found.runs)


def test_an_edited_number_of_a_table_differs_and_ends_with_code_1(place, capsys):
    layout = Layout("smoke")
    file = layout.table("spec_rl", 1).with_suffix(".csv")
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    chosen = (frame["cell"] == "spec_rl/grpo-vanilla") & (frame["step"] == "") & (frame["column"] == "tokens_m")
    assert chosen.sum() == 1
    frame.loc[chosen, "reproduced"] = "1000.0"
    frame.to_csv(file, index=False)
    tables = layout.tables("spec_rl")
    record_derived(tables, tables.glob("*"), layout.collected("spec_rl") / "measured.json")
    with pytest.raises(SystemExit) as end:
        main(["check", "results/smoke"])
    printed = capsys.readouterr().out
    assert end.value.code == 1
    assert "something differs" in printed
    assert "tokens_m" in printed
    found = [number for number in compared().numbers if number.outcome == DIFFERS]
    assert [(number.table, number.column, number.value) for number in found] == [(1, "tokens_m", 1000.0)]
    assert found[0].reason.startswith("the collected runs give ")
    with pytest.raises(SystemExit) as end:
        main(["check", "results/smoke", "--json"])
    assert end.value.code == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert [n["column"] for n in row["numbers"] if n["outcome"] == DIFFERS] == ["tokens_m"]


def test_swapped_rows_of_a_table_are_found_by_their_hash(place, mistake):
    file = Layout("smoke").table("spec_rl", 1).with_suffix(".csv")
    header, first, second, *rest = file.read_text().splitlines()
    file.write_text("\n".join([header, second, first, *rest]) + "\n")
    assert "differs from the hash" in mistake(place, "check", "results/smoke")


def test_results_elsewhere_are_compared_too(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    reference = str(place / REFERENCE / "smoke")
    main_ended(["check", str(place / "results/smoke"), "--reference", reference])
    assert "nothing differs" in capsys.readouterr().out


def test_results_of_other_papers_or_presets_are_not_compared(place, mistake):
    assert "no results of ar3po" in mistake(place, "check", "results/smoke", "--paper", "ar3po")
    shutil.move("results/smoke", "results/tiny")
    text = mistake(place, "check", "results/tiny", "--reference", "results/reference/smoke")
    assert "no results of this preset are published here" in text


@pytest.mark.parametrize("folder", ["backup/smoke", "nothing/smoke", "results/nothing", "/no/such/smoke"])
def test_no_other_folder_than_the_named_one_is_compared(place, mistake, folder):
    shutil.copytree("results/smoke", "backup/smoke")
    reference = str(place / REFERENCE / "smoke")
    assert "results/PRESET" in mistake(place, "check", folder, "--reference", reference)


def test_a_run_that_is_not_collected_yet_is_compared_by_its_files(place):
    collected = Layout("smoke").collected("spec_rl")
    runs = Runs.load(collected)
    chosen = runs.runs["manifest"].str.contains("grpo-vanilla/seed0")
    assert chosen.sum() == 1
    others = [frame[~((frame["cell"] == "grpo-vanilla") & (frame["seed"] == 0))] for frame in (runs.steps, runs.scores)]
    shutil.rmtree(Layout("smoke").tables("spec_rl"))
    Runs(runs.runs[~chosen], *others).save(collected)
    assert outcomes(compared().runs) == {AGREES}


@pytest.mark.parametrize("change", ["removed", "other"])
def test_tables_of_runs_that_are_not_there_any_more_are_an_error(place, mistake, change):
    folder = Layout("smoke").run("spec_rl/grpo-vanilla", 0)
    if change == "removed":
        shutil.rmtree(folder)
    else:
        (folder / "manifest.json").write_text("{}")
    assert "collected.json" in mistake(place, "check", "results/smoke")


def test_numbers_that_are_not_there_are_counted(place, capsys):
    layout = Layout("smoke")
    tables = layout.tables("spec_rl")
    file = layout.table("spec_rl", 3).with_suffix(".csv")
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    frame.assign(cell="spec_rl/other").to_csv(file, index=False)
    record_derived(tables, tables.glob("*"), layout.collected("spec_rl") / "measured.json")
    found = compared()
    assert found.absent == (frame["seeds"] != "").sum() > 0
    assert 3 not in {number.table for number in found.numbers}
    main_ended(["check", "results/smoke"])
    assert f"{found.absent} published numbers are not among these" in capsys.readouterr().out


def test_damaged_published_files_are_errors(place, mistake):
    layout = Layout("smoke", REFERENCE)
    file, kept = runs_file(layout, "spec_rl"), runs_file(layout, "spec_rl").read_bytes()
    whole = read_pack(file)
    with tarfile.open(place / "link.tar.xz", "w:xz") as pack:
        link = tarfile.TarInfo("results/smoke/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        pack.addfile(link)
    # No pack, the half of one, and one with a link in it.
    for damage in (b"no pack", kept[: len(kept) // 2], (place / "link.tar.xz").read_bytes()):
        file.write_bytes(damage)
        rehash(file)
        for command in (("check", "results/smoke"), ("report", "results/reference/smoke", "--output", "out")):
            assert "damaged" in mistake(place, *command)
    packed_again(file, whole)
    figure = layout.figures("spec_rl") / "figure02.csv.xz"
    whole_figure = figure.read_bytes()
    for damage in (b"no data", whole_figure[:-9], whole_figure + b"x", lzma.compress(bytes(published.LARGEST + 1))):
        figure.write_bytes(damage)
        rehash(figure)
        found = mistake(place, "report", "results/reference/smoke", "--output", "out")
        assert "damaged" in found
        assert figure.name in found
    figure.write_bytes(whole_figure)
    rehash(figure)
    twice = figure.with_suffix("")
    twice.write_text("a\n")
    rehash(twice)
    assert "twice" in mistake(place, "report", "results/reference/smoke", "--output", "out")
    twice.unlink()
    record = json.loads(record_file(layout, "spec_rl").read_text())
    del record["sha256"]["figures/spec_rl/figure02.csv"]
    write_json(record_file(layout, "spec_rl"), record)
    for content in (b"[1]", b"{}", b"no json"):
        names = ("manifest.json", "scores.json")
        packed_again(file, whole | {f"results/smoke/runs/spec_rl/grpo-vanilla/seed0/{name}": content for name in names})
        assert "damaged" in mistake(place, "check", "results/smoke")
    packed_again(file, {name: content for name, content in whole.items() if "grpo-spec-linf/seed1/" not in name})
    for command in (("check", "results/smoke"), ("report", "results/reference/smoke", "--output", "out")):
        assert "spec_rl/grpo-spec-linf/seed1/manifest.json" in mistake(place, *command)
    file.write_bytes(kept)
    rehash(file)
    table = layout.table("spec_rl", 3).with_suffix(".csv")
    frame = pd.read_csv(table, dtype=str, keep_default_na=False)
    frame.loc[frame["seeds"] != "", "reproduced"] = "abc"
    for damage in (b"\xff\xfe\x00", frame.to_csv(index=False).encode()):
        table.write_bytes(damage)
        rehash(table)
        assert "damaged" in mistake(place, "check", "results/smoke")


def test_a_file_that_the_record_does_not_list_is_an_error(place, mistake):
    layout = Layout("smoke", REFERENCE)
    (layout.tables("spec_rl") / "table99.csv").write_text("a\n")
    assert "no hash of this file" in mistake(place, "check", "results/smoke")
    rehash(layout.tables("spec_rl") / "table99.csv")
    record = record_file(layout, "spec_rl")
    content = json.loads(record.read_text())
    del content["sha256"]["runs/spec_rl.tar.xz"]
    write_json(record, content)
    runs_file(layout, "spec_rl").unlink()
    assert "lacks the hash of runs/spec_rl.tar.xz" in mistake(place, "check", "results/smoke")


def test_a_published_table_that_is_not_made_is_named(place, capsys):
    layout = Layout("smoke", REFERENCE)
    file = layout.tables("spec_rl") / "table99.csv"
    file.write_text("group,row\nfake,1\n")
    rehash(file)
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    assert "table99.csv" in capsys.readouterr().err


def test_a_report_removes_nothing_that_it_has_not_written(place, mistake):
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    later = place / "out/results/smoke/runs/spec_rl/mine/seed0/precious"
    later.parent.mkdir(parents=True)
    later.write_text("trained later")
    assert "not from an earlier call" in mistake(place, "report", "results/reference/smoke", "--output", "out")
    assert later.exists()


def test_nothing_is_published_onto_a_page_without_marks(place, mistake, monkeypatch):
    monkeypatch.setattr(packing, "check_code", lambda run: None)
    before = record_file(Layout("smoke", REFERENCE), "spec_rl").stat().st_mtime_ns
    (place / "README.md").write_text("no marks")
    assert "lacks a mark" in mistake(place, "publish", "spec_rl", "--preset", "smoke")
    assert record_file(Layout("smoke", REFERENCE), "spec_rl").stat().st_mtime_ns == before


@pytest.mark.parametrize("code", ["../../../../secret", "/etc", 5, ["a"]])
def test_a_zip_has_no_file_that_a_manifest_leads_to_outside_the_code(place, mistake, code):
    main_ended(["report", "results/reference/smoke", "--output", "out"])
    file = next((place / "out/results/smoke/runs").rglob("manifest.json"))
    manifest = json.loads(file.read_text())
    manifest["git"]["code"] = code
    write_json(file, manifest)
    write_own_hash(file)
    layout = Layout("smoke", place / "out/results")
    record_report(layout)
    shutil.copytree("experiments", place / "out/experiments")
    assert "no hash of code" in mistake(place / "out", "share", "--preset", "smoke")


def test_the_site_has_documentation_and_reports_and_no_broken_link(place, monkeypatch):
    monkeypatch.setattr(site, "NOT_SHOWN", "")
    docs = place / "build/docs"
    (docs / ".doctrees").mkdir(parents=True)
    (docs / "index.html").write_text('<a href="a%20b.html?v=1#c">b</a> <a href="https://example.org/x">x</a>')
    (docs / "a b.html").write_text("b")
    site.write_site("build/docs", "build/site")
    made = place / "build/site"
    assert {"docs/index.html", "index.html", "results/smoke/report/index.html"} <= {
        file.relative_to(made).as_posix() for file in made.rglob("*.html")
    }
    assert not (made / "docs/.doctrees").exists()
    assert "results/smoke/report.html" in (made / "index.html").read_text()
    (docs / "a b.html").write_text('<a href="../../../README.md">out</a>')
    with pytest.raises(UserError, match="not there"):
        site.write_site("build/docs", "build/site")


# Prediction intervals


def compared_number(own, published, is_ratio=False, least=0.0):
    """A number from the value of each block."""

    def mean(values):
        return float(np.exp(np.mean(np.log(values)))) if is_ratio and min(values) > 0 else float(np.mean(values))

    number = ComparedNumber(1, "row", "column", "paper/cell", mean(own), 0, mean(published), 0, least=least)
    own, published = ({block: [value] for block, value in enumerate(side)} for side in (own, published))
    return predicted(number, own, published, is_ratio)


@pytest.mark.parametrize(("units", "reference_units"), [(1, 3), (1, 10), (3, 10), (10, 5)])
@pytest.mark.parametrize("ratio", [False, True])
def test_an_honest_number_is_within_its_prediction_interval_in_95_percent(units, reference_units, ratio):
    rng, inside, below = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        own, published = (rng.normal(2, 0.7, n) for n in (units, reference_units))
        found = compared_number(*((np.exp(own), np.exp(published)) if ratio else (own, published)), ratio)
        inside += found.low <= found.value <= found.high
        below += found.p <= 0.05
    assert inside == 2000 - below
    # A binomial count with 95 % lies here with a probability of 99.9 %.
    assert 1867 <= inside <= 1932


def test_a_prediction_interval_by_hand():
    """Mean 2, deviation 1, N = 3, n = 1: 2 ± 4.302653 · √(4/3)."""
    found = compared_number([4.0], [1.0, 2.0, 3.0])
    assert (found.low, found.high) == pytest.approx((2 - 4.968276, 2 + 4.968276))
    # t = 2 / √(4/3) with two degrees of freedom: p = 1 - t / √(2 + t²)
    assert found.p == pytest.approx(1 - math.sqrt(3) / math.sqrt(5))
    assert (found.units, found.reference_units) == (1, 3)


def test_a_block_of_several_seeds_weighs_as_much_as_one_of_one_seed():
    number = ComparedNumber(1, "row", "column", "paper/cell", 2.0, 0, 2.0, 0)
    found = predicted(number, {0: [1.0, 3.0]}, {0: [1.0, 1.0, 1.0], 1: [3.0]}, False)
    assert (found.own, found.published) == ({0: 2.0}, {0: 1.0, 1: 3.0})


def test_numbers_that_cannot_be_compared_say_why():
    def reason(own, published, is_ratio=False):
        return compared_number(own, published, is_ratio).reason

    assert "not finite" in reason([math.inf], [0.5, 1.5])
    assert "not finite" in reason([math.nan], [0.5, 1.5])
    assert "no logarithm" in reason([0.0], [1.0, 4.0], is_ratio=True)
    assert "single published block" in reason([1.0], [2.0])
    found, _ = judged([compared_number([math.nan], [math.nan]), compared_number([1.0], [2.0])])
    assert outcomes(found) == {NOT_COMPARABLE}


@pytest.mark.parametrize(
    ("own", "published"),
    [
        ([2.0], [1.0] * 3),
        ([2.0] * 3, [1.0] * 3),
        ([2.0] * 10, [1.0] * 3),
        ([2.0, 3.0, 4.0], [1.0] * 10),
        ([2.0, 1.0, 1.0], [1.0] * 4),
        ([2.0, 1.0 + 1e-14], [1.0] * 4),
        ([2.0, 2.0, 2.0, 1.0], [1.0] * 2),
        ([0.0, 0.0, 5.0], [1.0] * 2),
        ([0.1 + 0.2, 0.3], [0.3] * 3),
        ([0.31], [0.3] * 9 + [0.1 + 0.2]),
        ([1e10, 4.0], [1.0] * 4),
    ],
)
def test_a_number_without_spread_differs_by_the_chance_of_equal_blocks(own, published):
    """If blocks are exchangeable, each choice of the published ones is equally likely; all choices are counted."""
    values = [*own, *published]

    def difference(chosen):
        """How far the others' mean is from the chosen blocks; NaN if these are not equal."""
        first, *_ = equal = [values[i] for i in chosen]
        others = [value for i, value in enumerate(values) if i not in chosen]
        return abs(np.mean(others) - first) if max(equal) - min(equal) < 1e-12 else math.nan

    true = difference(range(len(own), len(values)))
    choices = [*combinations(range(len(values)), len(published))]
    chance = sum(difference(chosen) >= true * (1 - 1e-9) - 1e-15 for chosen in choices) / len(choices)
    found = compared_number(own, published)
    assert found.p == pytest.approx(chance, rel=1e-12)
    assert math.isnan(found.low + found.high)


@given(st.data())
def test_the_chance_of_equal_blocks_is_never_below_that_of_one_choice(data):
    """Also for blocks that differ in the last bits, whose sums are rounded."""
    value = data.draw(st.sampled_from([0.0, 0.1, 0.3, 1 / 3, 12.3, -0.7, 1e6]))

    def nearly(value):
        return data.draw(st.sampled_from([value, np.nextafter(value, 1e9), np.nextafter(value, -1e9)]))

    published = [nearly(value) for _ in range(data.draw(st.integers(2, 6)))]
    own = [nearly(data.draw(st.sampled_from([value, value + 0.1]))) for _ in range(data.draw(st.integers(1, 6)))]
    (p,) = p_values(np.array([own]), np.array([published]))
    assert 1 / math.comb(len(own) + len(published), len(own)) <= p * (1 + 1e-12)
    assert p <= 1
    if all(abs(each - value) < 1e-9 for each in own):
        assert p == 1, "all blocks are equal"


def test_more_blocks_of_another_value_are_no_weaker_evidence():
    p = [compared_number([2.0] * n, [1.0] * 3).p for n in (1, 2, 3, 4, 10, 30)]
    assert p[-1] < 0.001
    assert p[3:] == sorted(p[3:], reverse=True)
    ratio = compared_number([0.0] * 5, [1.0] * 10, is_ratio=True)
    assert ratio.p == pytest.approx(1 / math.comb(15, 5)), "equal ratios need no logarithm"


def test_a_drift_that_is_more_than_rounding_differs():
    """As that of stale weights, of which the published runs have none; a campaign in bfloat16 has 6e-6."""
    published = [1.1e-14, 0.9e-14, 3e-14]
    numbers = [compared_number([value], published, least=LEAST["drift"]) for value in (0.005, 6e-6)]
    assert numbers[0].p < 0.001
    assert numbers[1].p > 0.9
    found, share = judged(numbers)
    assert [each.outcome for each in found] == [DIFFERS, AGREES]
    assert share == 1 / 4


def test_a_drift_differs_although_another_number_has_a_rare_block():
    """The division with that block alone has a number outside too; the drift is the stronger evidence."""
    rng = np.random.default_rng(0)
    rare = rng.normal(0, 1, 10)
    rare[3] = 20
    drift = compared_number([0.005], list(rng.normal(0, 1e-14, 10)), least=LEAST["drift"])
    found, share = judged([drift, compared_number([0.1], list(rare))])
    assert [each.outcome for each in found] == [DIFFERS, AGREES]
    assert share == 1 / 11


def test_the_least_deviation_is_that_of_a_column_s_quantity_and_not_of_its_ratio(place, monkeypatch):
    monkeypatch.setitem(LEAST, "tokens_decoded", 7.0)
    least = {}
    for number in compared().numbers:
        least.setdefault(number.column, set()).add(number.least)
    assert least["tokens_m"] == {7.0}
    assert least["tokens_relative"] == {0.0}


def test_equal_published_blocks_differ_from_other_equal_ones():
    (found,), share = judged([compared_number([5.0, 5.0], [0.0] * 10)])
    assert found.outcome == DIFFERS
    assert share == 1 / math.comb(12, 2)


def test_a_ratio_whose_values_have_no_logarithm_is_compared_as_it_is():
    plain = compared_number([1.4], [0.0, 1.0, 2.0])
    ratio = compared_number([1.4], [0.0, 1.0, 2.0], is_ratio=True)
    assert (ratio.low, ratio.high, ratio.p) == (plain.low, plain.high, plain.p)
    assert compared_number([1.4], [0.5, 1.0, 2.0], is_ratio=True).p != compared_number([1.4], [0.5, 1.0, 2.0]).p


def test_a_mean_of_speedups_depends_on_times_where_one_of_them_does():
    def column(name, quantity):
        # Not validated, since only an expanded table has the mean.
        return Column.model_construct(name=name, title=name, quantity=quantity)

    timed, steps, mean = column("a", "hours_to:1:reward"), column("b", "steps_to:1:reward"), column("m", AVERAGE)
    assert of_times([timed, steps, mean]) == {"a", "m"}
    assert of_times([steps, mean]) == set()
    assert of_times([column("c", "mean:tail_share"), column("d", "mean:seconds.rollout")]) == {"c", "d"}
    assert of_times([column("e", "sum:predicted_seconds.h100"), column("f", "reuse_epochs:drift")]) == set()


@pytest.mark.parametrize("quantity", ["reuse_epochs:drift", "last_epoch:drift"])
def test_a_drift_is_compared_with_what_rounding_makes_of_it_however_a_table_reduces_it(quantity):
    """A table names the quantity of a run, and the least deviation is one of a step."""
    column = Column(name="a", title="a", quantity=quantity)
    assert least_deviation(column) == LEAST["drift"] > 0
    assert least_deviation(column.model_copy(update={"quantity": "reuse_epochs:kl"})) == 0


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        ("tokens_decoded", "tokens_decoded"),
        ("predicted_seconds.h100", "predicted_seconds.h100"),
        *((name, "") for name in ("seconds.total", "grading_seconds", "tail_share", "repeats_spread")),
    ],
)
def test_records_of_equal_policies_are_equal_but_for_measured_times(column, changed):
    """Predicted seconds follow from the passes, so a fault in the roofline or in the passes shows in them."""
    steps = pd.DataFrame({"cell": "a", "seed": 0, "step": [0, 1], column: [1.0, 2.0]})
    scores = pd.DataFrame({"cell": [], "seed": [], "step": [], "benchmark": []})
    own, other = (Runs(steps, each, scores) for each in (steps, steps.assign(**{column: [1.0, 2.5]})))
    assert _changed_records(own, other, "a", 0) == changed
    assert _changed_records(own, own, "a", 0) == ""


def test_published_blocks_are_those_of_the_time_of_the_runs(place):
    """A preset may get more blocks later."""
    collected = Layout("smoke", REFERENCE).collected("spec_rl")
    runs = Runs.load(collected)
    Runs(runs.runs.assign(block=0), runs.steps, runs.scores, runs.looks).save(collected)
    remeasured(collected)
    assert {number.reference_units for number in compared().numbers} == {1}
    assert {number.units for number in compared().numbers} == {2}


def test_a_published_sequential_campaign_has_no_prediction_intervals(place):
    collected = Layout("smoke", REFERENCE).collected("spec_rl")
    runs = Runs.load(collected)
    Runs(runs.runs, runs.steps, runs.scores, (2, 3)).save(collected)
    remeasured(collected)
    found = compared()
    assert outcomes(found.numbers) == {NOT_COMPARABLE}
    assert all("sequential" in number.reason for number in found.numbers)
    assert outcomes(found.runs) == {AGREES}


def test_a_gross_difference_of_a_narrow_interval_is_found():
    for value in (0.0, -5.0):
        (found,), share = judged([compared_number([value] * 3, [99.95, 100.0, 100.05])])
        assert found.outcome == DIFFERS
        assert share == 1 / 20


def test_p_values_are_corrected_over_distinct_numbers_that_are_tests():
    p = np.array([0.01, math.nan, 0.04, 1.0, 0.9])
    np.testing.assert_allclose(corrected(p), [0.03, math.nan, 0.06, 1.0, 0.9])
    rng = np.random.default_rng(1)
    published = rng.normal(0, 1, (50, 10))
    far = compared_number([2.5] * 2, published[0])
    assert 0.001 < far.p < 0.05
    (alone, *_), _ = judged([far, compared_number([1.0] * 2, [1.0] * 10)])
    assert (alone.p_corrected, alone.outcome) == (pytest.approx(far.p), DIFFERS)
    found, _ = judged([far] * 50)
    assert outcomes(found) == {DIFFERS}, "a number that several tables have counts once"
    others = [compared_number([row.mean() + 0.1] * 2, row) for row in published[1:]]
    found, _ = judged([far, *others])
    assert found[0].p_corrected == pytest.approx(far.p * 50)
    assert outcomes(found) == {AGREES}


def heavy_tailed(rng, blocks):
    """60 numbers of blocks, of which one in five is far from the others in one to ten numbers."""
    values = rng.normal(0, 1, (60, blocks))
    for block in np.flatnonzero(rng.random(blocks) < 0.2):
        values[rng.permutation(60)[: rng.integers(1, 10)], block] += 15
    return values


@pytest.mark.parametrize(("own", "limit"), [(1, 1 / 11), (3, 0.05)])
def test_honest_results_with_rare_blocks_differ_as_often_as_stated(own, limit):
    rng, alone, together = np.random.default_rng(0), 0, 0
    for _ in range(200):
        values = heavy_tailed(rng, 10 + own)
        parts = values[:, :own], values[:, own:]
        if (corrected(p_values(*parts)) <= 0.05).any():
            alone += 1
            share, divisions = share_of_divisions(*parts)
            together += share <= max(0.05, 1 / divisions)
    assert alone > 30, "intervals of a normal distribution are wrong too often"
    # Above the limit by 3 standard errors at most.
    assert together <= 200 * limit + 3 * math.sqrt(200 * limit * (1 - limit))


def test_a_fault_in_many_numbers_is_found_beside_rare_blocks():
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = heavy_tailed(rng, 11)
        values[20:50, 0] += 8
        share, divisions = share_of_divisions(values[:, :1], values[:, 1:])
        assert (share, divisions) == (1 / 11, 11)


def test_one_great_difference_counts_among_many_honest_numbers():
    """Divisions are compared by corrected p-values: of 200 honest numbers some ten are below 0.05 in each."""
    values = np.random.default_rng(3).normal(0, 1, (200, 11))
    values[0, 0] += 100
    assert share_of_divisions(values[:, :1], values[:, 1:]) == (1 / 11, 11)


def test_a_number_outside_its_interval_agrees_where_as_many_are_between_the_published_blocks():
    published = [0.0, 0.1, -0.1, 0.05, -0.05, 0.02, -0.02, 0.0, 0.03, -0.03]
    far, other = compared_number([5.0], published), compared_number([0.0], [*published[:-1], -5.0])
    third = compared_number([0.01], [*published[:-2], 4.0, 0.0])
    (found,), share = judged([far])
    assert (found.outcome, share) == (DIFFERS, 1 / 11)
    found, share = judged([far, other, third])
    assert share == 2 / 11
    assert [(n.outcome, n.reason) for n in found] == [(AGREES, USUAL), (AGREES, ""), (AGREES, "")]


def test_divisions_of_many_blocks_are_sampled_and_repeat():
    values = np.random.default_rng(0).normal(size=(4, 20))
    values[:, :6] += 9
    first = share_of_divisions(values[:, :6], values[:, 6:])
    assert first == share_of_divisions(values[:, :6], values[:, 6:]) == (1 / 999, 999)
    share, divisions = share_of_divisions(values[:, 8:], values[:, :8])
    assert divisions == 999
    assert share > 1 / 999


def test_papers_are_shown_in_the_order_of_the_preset_and_then_of_their_names():
    records = dict.fromkeys(("ar3po", "exact_reuse", "spec_rl", "speed_rl"))
    found = page._papers(Published(Layout("tiny"), records), Experiments(ROOT))
    assert found == ["spec_rl", "speed_rl", "ar3po", "exact_reuse"]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([{"p": 0.10000000000000002, "low": None, "label": "a"}], True),
        ([{"p": 0.100001, "low": None, "label": "a"}], False),
        ([{"p": 0.1, "low": 0.0, "label": "a"}], False),
        ([{"p": 0.1, "low": None, "label": "b"}], False),
        ([{"p": 0.1, "label": "a"}], False),
        ([{"p": 0.1, "low": None, "label": "a", "n": True}], False),
        ([], False),
    ],
)
def test_numbers_that_another_processor_rounds_differently_are_equal(other, same):
    assert reopening._same(other, [{"p": 0.1, "low": None, "label": "a"}]) == same


def test_rows_are_compared_number_by_number():
    rows = reopening._content("tables/table01.csv", b"row,low\nGRPO,0.9969205076595693\n")
    assert reopening._same(rows, reopening._content("table01.csv", b"row,low\nGRPO,0.9969205076595692\n"))
    assert not reopening._same(rows, reopening._content("table01.csv", b"row,low\nGRPO,0.9969305076595692\n"))
    assert not reopening._same(rows, reopening._content("table01.csv", b"row,low\nGRPO,\n"))
    assert not reopening._same(rows, reopening._content("table01.csv", b"row,low\n"))
    assert not reopening._same(*(reopening._content("a.csv", text) for text in (b"row\n01\n", b"row\n1\n")))
    assert reopening._same([0.0], [5.5e-17])
    assert not reopening._same([True], [1])


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", b"{"), ("a.json", b"\xff"), ("a.csv", b"\xff"), ("a.md", b"\xff")]
)
def test_a_file_that_cannot_be_read_is_another_one(name, text):
    assert reopening._content(name, text) == text
    assert not reopening._same(reopening._content(name, text), reopening._content(name, b"{}"))


def test_verdicts_of_weak_tests_say_so_where_they_are_printed(place, capsys):
    main_ended(["claims", "spec_rl", "--preset", "smoke"])
    printed = " ".join(capsys.readouterr().out.split())
    weak = [claim.weak for claim in Experiments().claims("spec_rl").claims if claim.weak]
    assert len(weak) >= 3
    assert all(f"Weak test: {reason}" in printed for reason in weak)
    assert printed.count("Weak test: ") == len(weak)


def test_papers_published_in_different_precisions_have_no_common_report(place, mistake):
    published = Published.read(REFERENCE / "smoke")
    layout = Layout("smoke", place / "out/results")
    reopening._unpack(published, "spec_rl", layout)
    layout.precision.write_text("float32")
    reopening._unpack(published, "spec_rl", layout)
    file = runs_file(Layout("smoke", REFERENCE), "spec_rl")
    packed_again(file, read_pack(file) | {"results/smoke/precision.json": b"bfloat16"})
    with pytest.raises(UserError, match="different precisions"):
        reopening._unpack(Published.read(REFERENCE / "smoke"), "spec_rl", layout)
    assert layout.precision.read_text() == "float32"


def test_a_pack_that_would_fill_the_memory_is_an_error(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(600))
    packs.write_pack(tmp_path / "pack.tar.xz", [tmp_path / "a", tmp_path / "b"], tmp_path)
    monkeypatch.setattr(packs, "LARGEST", 1200)
    assert len(read_pack(tmp_path / "pack.tar.xz")) == 2
    monkeypatch.setattr(packs, "LARGEST", 1199)
    with pytest.raises(UserError, match="more than"):
        read_pack(tmp_path / "pack.tar.xz")
