"""The page a person opens, made by the workflow's stages from runs made up here."""

import html
import importlib.resources
import json
import math
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft import provenance
from redraft.analysis.claims.files import write_claims
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.words import with_minus
from redraft.analysis.figures.figure_files import write_figures
from redraft.analysis.measuring import measure
from redraft.analysis.pages import case_studies, report_pages
from redraft.analysis.pages.cell_labels import cell_labels, with_labels
from redraft.analysis.pages.paper import Paper
from redraft.analysis.tables.files import write_tables
from redraft.config import Experiments
from redraft.files import read_json, write_json
from redraft.layout import Layout
from redraft.ops.workflow.fit import record_left_out
from redraft.result_files import write_with_hash
from tests.browser import dom
from tests.step_records import made_up_scores, made_up_step

ROOT = Path(__file__).parents[1]
BENCHMARKS = {name: benchmark.role for name, benchmark in Experiments(ROOT).preset("tiny").benchmarks.items()}
CELLS = {"grpo-vanilla": 1.0, "grpo-spec-l0.5": 0.4, "grpo-spec-l0": 0.6}
"""Cell to the share of tokens that it decodes."""
LEFT_OUT = "spec_rl/14b-grpo-vanilla"
KEPT = {"tables": (1, 3, 4, 10, 101), "figures": (1, 4, 7, 101)}
CASE = {
    "kind": "corrected",
    "title": "cut and put right",
    "step": 7,
    "old_step": 1,
    "visit": 1,
    "prompt": 3,
    "sample": 0,
    "draft_length": 5,
    "prefix_length": 3,
    "length": 6,
    "reward": {"old": 0.0, "new": 1.0},
    "oldest_token_step": 1,
    "rejected": {"index": 3, "token": "<4"},
    "verified_prefix": "1&23",
    "rejected_tail": "<45",
    "continuation": "678",
    "problem": "1a+1=",
    "answer": "2",
}
WHOLE = {"kind": "reused", "title": "whole", "rejected": None, "rejected_tail": "", "continuation": ""}
CASES = {
    "run": "spec_rl/grpo-spec-l0.5/seed0",
    "cases": [
        CASE,
        CASE | WHOLE,
        CASE | {"kind": "continued"},
        {"kind": "rejected", "title": "rejected early", "absent": "none of the 9 rollouts"},
    ],
}


def step_of(cell, seed, number, per_epoch, share):
    """One step's record; drafts save `1 - share` of the tokens from epoch 2 on."""
    drafts = number >= per_epoch and share < 1
    decoded = 100.0 * (share if drafts else 1)
    tokens = {"decoded": decoded + seed, "reused": 100 - decoded, "verified": 50.0 if drafts else 0.0}
    columns = {f"tokens_{name}": count for name, count in tokens.items()}
    return made_up_step(cell, seed, number, number // per_epoch, decoded / 100, drafts, **columns)


def made_up(layout):
    """Two epochs of two seeds, and a manifest each."""
    runs, steps, scores = [], [], []
    for cell, share in CELLS.items():
        run = Experiments().run(f"spec_rl/{cell}", 0, "tiny")
        per_epoch = run.data.size // run.trainer.prompts_per_step
        for seed in (0, 1):
            manifest = layout.run(f"spec_rl/{cell}", seed) / "manifest.json"
            machine = {"processor": "abacus", "cores": 2}
            write_json(
                manifest,
                {
                    "git": {"commit": "c0ffee" * 7, "modified": True},
                    "machine": machine,
                    "finished": "today",
                    "configuration": {"cell": cell, "seed": seed},
                    "sha256": {"steps.jsonl": "f"},
                },
            )
            runs.append(
                {
                    "cell": cell,
                    "seed": seed,
                    "fingerprint": "f",
                    "seconds": 1.0,
                    "manifest": str(manifest),
                    "initial": str(manifest),
                }
            )
            steps.extend(step_of(cell, seed, number, per_epoch, share) for number in range(2 * per_epoch))
            for at in (0, *range(10, run.steps, 10), run.steps):
                scores += made_up_scores(cell, seed, at, 100 + at, BENCHMARKS, 800)
    return Runs(pd.DataFrame(runs), pd.DataFrame(steps), pd.DataFrame(scores))


def keep(folder, kind, chosen):
    """Leave only some entries of an experiment file."""
    file = folder / f"{kind}.yaml"
    content = yaml.safe_load(file.read_text())
    content[kind] = [entry for i, entry in enumerate(content[kind]) if chosen(i, entry)]
    file.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A folder with some of the paper's tables, figures and claims, all made, and the report of them."""
    folder = tmp_path_factory.mktemp("campaign")
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    for kind, numbers in KEPT.items():
        keep(folder / "experiments/spec_rl", kind, lambda _, entry, numbers=numbers: entry["number"] in numbers)
    keep(folder / "experiments/spec_rl", "claims", lambda i, _: i % 10 == 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        layout = Layout("tiny")
        made_up(layout).save(layout.collected("spec_rl"))
        measure("tiny", "spec_rl")
        write_tables("tiny", "spec_rl")
        write_figures("tiny", "spec_rl")
        write_claims("tiny", "spec_rl")
        extras = [*layout.tables("spec_rl").glob("*_reported.*"), *layout.tables("spec_rl").glob("without_*")]
        assert len(extras) == 5
        for file in extras:
            file.rename(folder / file.name)
        report_pages.report("tiny", ["spec_rl"])
        layout.pages.rename(folder / "without_extras")
        for file in extras:
            (folder / file.name).rename(file)
        write_with_hash(layout.cases("spec_rl").with_suffix(".json"), CASES)
        case_studies.write_cases("tiny", "spec_rl")
        record_left_out(layout, {LEFT_OUT: "too large"})
        report_pages.report("tiny", ["spec_rl"])
    return folder


class Page(HTMLParser):
    """Identifiers, links and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.sources, self.parts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        for key, found in (("id", self.ids), ("href", self.links), ("src", self.sources)):
            if key in values:
                found.append(values[key])

    def handle_data(self, data):
        self.parts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.parts))


@pytest.fixture(scope="module")
def pages(campaign):
    """All pages by their place in the folder of the preset."""
    folder = campaign / "results/tiny"
    files = [folder / "report.html", *(folder / "report").rglob("*.html")]
    return {file.relative_to(folder).as_posix(): Page(file.read_text()) for file in files}


def text_of(campaign, page):
    return (campaign / "results/tiny/report" / page).read_text()


def plain(text):
    return re.sub(r"\s+", " ", text)


def test_every_table_figure_case_and_claim_has_a_place(campaign, pages):
    tables, figures, index = (pages[f"report/{name}.html"] for name in ("tables", "figures", "index"))
    assert {f"spec_rl-table{n}" for n in KEPT["tables"]} <= set(tables.ids)
    assert {f"spec_rl-figure{n}" for n in (*KEPT["figures"], 12, 13, 14, 15)} <= set(figures.ids)
    claims = read_json(campaign / "results/tiny/claims/spec_rl.json")
    assert {f"spec_rl-claim-{claim['id']}" for claim in claims} <= set(index.ids)
    assert all(plain(claim["quotation"]) in index.text for claim in claims)
    reported = [claim["reported_verdict"] for claim in claims]
    assert all(index.text.lower().count(verdict) >= reported.count(verdict) for verdict in reported)


def test_a_claim_has_its_evidence_in_words(campaign, pages):
    text = pages["report/index.html"].text
    claims = {claim["id"]: claim for claim in read_json(campaign / "results/tiny/claims/spec_rl.json")}
    labels = cell_labels(Experiments(ROOT).cells("spec_rl"))
    for name, claim in claims.items():
        evidence = with_labels(with_minus(claim["evidence"]), labels)
        assert plain(html.unescape(re.sub("<[^>]*>", "", evidence))) in text, name
    evidence = claims["reuse-saves-tokens"]["evidence"]
    assert evidence.startswith("ratio of decoded tokens, grpo-spec-l0.5 / grpo-vanilla: ")
    sentence = "ratio of decoded tokens, GRPO + SPEC-RL (ℓ = e^0.5) / GRPO: "
    assert plain(sentence + evidence.partition(": ")[2]) in text
    assert "tokens_decoded" not in text


def test_every_link_of_every_page_leads_somewhere(campaign, pages):
    assert {"report/index.html", "report/audit.html", "report/runs/spec_rl/grpo-vanilla-seed0.html"} <= set(pages)
    for place, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), f"{place}: an identifier stands twice"
        assert all(source.startswith("data:") for source in page.sources), place
        for link in page.links:
            file, _, anchor = link.partition("#")
            if file.startswith("https://"):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(place), file)) if file else place
            assert (campaign / "results/tiny" / target).exists(), f"{place}: {link}"
            assert not anchor or anchor in pages[target].ids, f"{place}: {link}"


def test_the_first_page_is_small_and_says_what_was_found(campaign, pages):
    assert (campaign / "results/tiny/report/index.html").stat().st_size < 400_000
    first = pages["report/index.html"].text
    # Of 12 steps of 100 tokens, 6 decode 40 in the first seed; the second seed decodes one more in each.
    assert "GRPO + SPEC-RL (ℓ = e^0.5) decodes 59.7 % [" in first
    assert (
        "With stand-ins, tables compare only ratios (of any quantity) and differences of accuracies with the " in first
    )
    assert "of which 2 have finished runs." in first, "the two seeds that were run, of five blocks"
    summary = read_json(campaign / "results/tiny/report/summary.json")
    headline = summary["papers"]["spec_rl"]["headlines"][0]
    assert headline["mean"] == pytest.approx(59.7, abs=0.2)
    assert plain(headline["sentence"]) in first
    assert summary["missing"]["command"] == "snakemake reproduction --config preset=tiny papers=spec_rl"
    experiments = Experiments(ROOT)
    cells = experiments.cells("spec_rl", experiments.grids("spec_rl", beyond_paper=False))
    wanted = [cell for cell in cells if cell.id != LEFT_OUT]
    assert len(wanted) == len(cells) - 1
    assert summary["missing"]["runs"] == 3 * len(wanted) - 2 * len(CELLS), "three seeds, of which two were run"
    assert summary["left_out"] == {LEFT_OUT: "too large"}
    assert f"Left out: {LEFT_OUT}: does not fit: too large." in first
    runs, untrained = summary["missing"]["runs"], len(wanted) - len(CELLS)
    assert f"Of the {len(wanted)} cells of this paper, 3 lack some seeds, {untrained} are not trained." in first
    assert f"At this preset's 3 seeds a cell, {runs} runs are missing" in first


def test_cells_with_more_seeds_than_the_preset_are_counted_with_these(campaign, tmp_path, monkeypatch):
    """Published results have ten seeds of some cells, where the preset has three."""
    shutil.copytree(campaign, folder := tmp_path / "copy")
    monkeypatch.chdir(folder)
    paper = Paper(Layout("tiny"), "spec_rl", Experiments())
    seeds = {"grpo-vanilla": range(10), "grpo-spec-l0.5": range(1, 6), "grpo-spec-l0": range(4)}
    frame = pd.DataFrame([{"cell": c, "seed": s, "seconds": 60.0} for c, own in seeds.items() for s in own])
    paper.__dict__["runs"] = Runs(frame, pd.DataFrame(), pd.DataFrame())
    missing = paper.missing
    assert (missing.seeds, missing.incomplete) == ({4, 10}, 1), "seed 0 of the second cell is missing"
    assert missing.untrained == missing.cells - 3
    assert missing.runs == missing.minutes == 3 * missing.untrained + 1
    monkeypatch.setattr(Paper, "missing", missing)
    report_pages.report("tiny", ["spec_rl"])
    text = (folder / "results/tiny/report/index.html").read_text()
    assert f"2 are trained with 4 to 10 seeds each, 1 lacks some seeds, {missing.untrained} are not trained." in text


def test_what_a_preset_cannot_run_is_not_missing(tmp_path):
    """The engine of verl-tiny has no self-speculation."""
    paper = Paper(Layout("verl-tiny", tmp_path), "efficient_rollout", Experiments(ROOT))
    paper.__dict__["runs"] = Runs(pd.DataFrame(columns=["cell", "seed", "seconds"]), pd.DataFrame(), pd.DataFrame())
    missing = paper.missing
    grids = paper.experiments.grids(paper.name, beyond_paper=False)
    cells = [c for c in paper.experiments.cells(paper.name, grids) if c.model in paper.preset.models]
    plain_ones = [cell for cell in cells if cell.decoding.kind == "plain"]
    assert missing.cells == missing.untrained == len(plain_ones)
    assert missing.runs == len(plain_ones) * len(paper.preset.seeds)
    assert 0 < len(plain_ones) < len(cells)
    assert math.isnan(missing.minutes)


def test_a_contradicted_headline_leads_to_the_experiments_that_explain_it(campaign, tmp_path, monkeypatch):
    shutil.copytree(campaign, folder := tmp_path / "copy")
    monkeypatch.chdir(folder)
    page, words = (
        folder / "results/tiny/report/index.html",
        "Further experiments show how this difference depends on the number of prompts",
    )
    found = next(each for each in Paper(Layout("tiny"), "spec_rl", Experiments()).points if each.form == "points")
    see = Experiments().tables("spec_rl").headlines[-1].see.model_dump()
    against = replace(found, finding="no", see=see)
    command = "<code>snakemake extras --config preset=tiny papers=loss_by_scale seeds=5</code>"
    for point, text in ((replace(found, finding="open", see={}), None), (against, f"{words}[^:]*: {command}\\.")):
        monkeypatch.setattr(Paper, "points", [point])
        report_pages.report("tiny", ["spec_rl"])
        shown = page.read_text()
        assert re.search(text, shown) if text else words not in shown
    # Once its own page is there, the link replaces the command.
    monkeypatch.setattr(Paper, "points", [replace(found, finding="no", see=see | {"paper": "spec_rl"})])
    monkeypatch.setattr(Paper, "own_page", True)
    report_pages.report("tiny", ["spec_rl"])
    assert re.search(f'{words}[^:]*: <a href="spec_rl.html">SPEC-RL</a>\\.', page.read_text())
    assert "snakemake extras" not in page.read_text()
    monkeypatch.setattr(Paper, "points", [replace(found, finding="no", see=see | {"paper": "elsewhere"})])
    report_pages.report("tiny", ["spec_rl"])
    assert words not in page.read_text(), "this preset has no such experiments"


def test_the_entry_leads_to_the_first_page(campaign):
    assert 'content="0; url=report/index.html"' in (campaign / "results/tiny/report.html").read_text()


def test_claims_that_were_not_run_are_folded(campaign):
    text = text_of(campaign, "index.html")
    claims = read_json(campaign / "results/tiny/claims/spec_rl.json")
    not_run = [claim["id"] for claim in claims if claim["verdict"] == "not run"]
    folded = "".join(re.findall(r'<details class="part unrun">.*?(?=<h3>|</section>)', text, flags=re.DOTALL))
    assert not_run
    assert all(f'id="spec_rl-claim-{name}"' in folded for name in not_run)
    unknown = [claim for claim in claims if claim["verdict"] == "not run" and not claim["reported_evidence"]]
    measured = [claim for claim in unknown if claim["test"]["kind"] != "unmeasured"]
    assert len(re.findall(r"<p><b>Not run</b>.* Required: ", text)) == len(measured) > 0
    assert sum(map(int, re.findall(r"<summary>(\d+) statements? not run</summary>", text))) == len(not_run)


def test_the_audit_lists_what_the_papers_own_tables_do_not_support(campaign, pages):
    claims = read_json(campaign / "results/tiny/claims/spec_rl.json")
    wanted = {f"spec_rl-audit-{c['id']}" for c in claims if c["reported_verdict"] == "not supported"}
    assert {name for name in pages["report/audit.html"].ids if "-audit-" in name} == wanted != set()


def test_a_figure_without_data_is_a_line(pages):
    assert len(pages["report/figures.html"].sources) == len(KEPT["figures"]) - 1
    text = pages["report/figures.html"].text
    assert "the largest model of the main text, without and with reuse. Not run." in text, "Figure 1 is a line"


def test_the_main_result_holds_what_compares_and_counts_what_was_not_run(campaign):
    text = text_of(campaign, "tables.html")
    main = text[text.index('id="spec_rl-main-result"') : text.index('class="index"')]
    assert re.findall(r'<tr><th scope="row">([^<]*)', main) == ["GRPO + SPEC-RL"]
    assert len(re.findall(r'<tr class="not-run"><th scope="row">', main)) == 8
    # Of 12 steps of 100 tokens, 6 decode 40 in the first seed; the second seed decodes one more in each.
    assert '>0.70 <span class="spread">' in main
    assert "Tokens (M)" not in main
    assert "8 of the 9 comparisons in Table 1 were not run" in text


def test_trajectories_are_folded_and_what_was_not_run_is_said(campaign):
    text = text_of(campaign, "tables.html")
    tables = re.findall(r'<details class="part"( open)?><summary><b>((?:Table|Extra) \d+)', text)
    assert [name for opened, name in tables if opened] == ["Table 1", "Table 3", "Table 4"]
    assert [name for opened, name in tables if not opened] == ["Table 10", "Extra 1"]
    summary = re.search(r"<summary><b>Extra 1\.</b>.*?</summary>", text)[0]
    assert "not run</span>" in summary


def test_rows_without_counterpart_are_counted_by_reason(campaign, pages):
    listed = pd.read_csv(campaign / "results/tiny/tables/spec_rl/without_counterpart.csv")
    assert f"{len(listed)} rows of the paper's tables" in pages["report/tables.html"].text
    text = text_of(campaign, "tables.html")
    counts = [int(count) for count in re.findall(r"<tr><td>(\d+)</td>", text[text.index('id="spec_rl-without"') :])]
    assert sum(counts) == len(listed)
    assert len(counts) < len(listed)


def test_the_honest_speedups_of_the_reported_times_stand_below_their_table(pages):
    ids = pages["report/tables.html"].ids
    order = [ids.index(f"spec_rl-{name}") for name in ("table4", "table4-reported", "table10")]
    assert order == sorted(order)
    assert "Table 4's reported numbers, verification counted" in pages["report/tables.html"].text


def test_what_was_not_made_is_said_or_left_out(campaign):
    tables, figures = (
        Page((campaign / "without_extras" / f"{name}.html").read_text()) for name in ("tables", "figures")
    )
    assert "Not available: the case studies come from grpo-spec-l0.5 seed 0, which was not run." in figures.text
    assert not {"spec_rl-without", "spec_rl-table4-reported", "spec_rl-figure12"} & {*tables.ids, *figures.ids}
    assert {f"spec_rl-table{n}" for n in KEPT["tables"]} <= set(tables.ids)


def test_runs_are_listed_with_the_scores_of_their_last_policy(pages):
    last = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "tiny").steps
    text = pages["report/runs.html"].text
    assert text.count(f"{100 + last} of 800") == 2 * len(BENCHMARKS) * len(CELLS)
    assert "100 of 800" not in text
    assert "c0ffeec0ffee with changes" in pages["report/index.html"].text


def test_a_run_has_a_page_from_its_manifest(pages):
    runs = {place: page for place, page in pages.items() if place.startswith("report/runs/")}
    assert len(runs) == 2 * len(CELLS)
    assert all(any(link.endswith("manifest.json") for link in page.links) for page in runs.values())
    text = pages["report/runs/spec_rl/grpo-spec-l0.5-seed1.html"].text
    assert "spec_rl/grpo-spec-l0.5 seed 1" in text
    assert "processor: abacus" in text
    assert "decoded tokens tokens_decoded 41 to 101, last 41" in text, "in words, and as the files have it"
    assert "step time (s) seconds.total" in text
    assert "Commit of the code" in text


def test_a_case_is_shown_with_its_cut_and_nothing_in_it_is_markup(campaign):
    text = (campaign / "results/tiny/cases/spec_rl.html").read_text()
    first = text[text.index('id="spec_rl-figure12"') : text.index('id="spec_rl-figure13"')]
    prefix = '<span class="prefix">1&amp;23</span>'
    assert first.count(prefix) == 2, "in the old rollout and in the new one"
    assert f'{prefix}<s class="rejected"><mark>&lt;4</mark>5</s>' in first
    assert f'{prefix}<span class="continuation">678</span>' in first
    assert "Kept: 3 of 5 tokens, cut before token 4" in first
    assert "the whole draft" in text[text.index('id="spec_rl-figure13"') : text.index('id="spec_rl-figure14"')]
    assert "Absent: none of the 9 rollouts." in text[text.index('id="spec_rl-figure15"') :]


def test_cases_in_markdown_hold_the_same():
    text = case_studies.markdown(json.loads(json.dumps(CASES)), [12, 13, 14, 15])
    first, second = text.split("**Figure 12.**")[1].split("**Figure 13.**")
    assert "verified prefix:\n\n    1&23\n" in first
    assert "rejected:\n\n    <45\n" in first
    assert "continuation:\n\n    678\n" in first
    assert "cut before token 4: 3 of 5 tokens. The new rollout has 6 tokens" in first
    whole, absent = second.split("**Figure 14.**")[0], second.split("**Figure 15.**")[1]
    assert "kept whole" in whole
    assert "rejected" not in whole
    assert "Absent: none of the 9 rollouts." in absent


PAGES = ("index", "tables", "figures", "audit", "runs", "runs/spec_rl/grpo-vanilla-seed0")
AXE = """
axe.run(document, {resultTypes: ["violations"]}).then(found => {
  const text = document.createElement("pre");
  text.id = "axe-found";
  text.textContent = JSON.stringify(found.violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html + n.failureSummary)]));
  document.body.append(text);
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious_hinders_those_who_do_not_see_or_use_a_keyboard(campaign, name, scheme):
    library = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    dark = f'document.documentElement.dataset.theme = "{scheme}";'
    found = dom(campaign / f"results/tiny/report/{name}.html", library + dark + AXE)
    text = re.search(r'<pre id="axe-found">(.*?)</pre>', found, flags=re.DOTALL)
    assert text, "the check did not end"
    assert json.loads(html.unescape(text[1])) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_a_small_screen(campaign, name):
    """Wide tables scroll in boxes of their own."""
    script = 'document.title = "width " + document.documentElement.scrollWidth;'
    found = dom(campaign / f"results/tiny/report/{name}.html", script, width=500)
    assert int(re.search(r"<title>width (\d+)", found)[1]) <= 500


FIRST_PAINT = """new PerformanceObserver(found => {
  for (const entry of found.getEntriesByName("first-contentful-paint"))
    document.documentElement.dataset.painted = entry.startTime;
}).observe({ type: "paint", buffered: true });"""
SOON = 2000
"""Milliseconds within which a reader sees something; it takes a fifth of that, and more on a loaded machine."""


def test_a_stand_in_is_named_once_a_page_and_not_at_every_figure(campaign):
    stand_in = Experiments(ROOT).preset("tiny").stand_in
    for name, notice in (("figures", stand_in), ("tables", stand_in), ("index", "<dfn>stand-ins</dfn>")):
        page = html.unescape((campaign / f"results/tiny/report/{name}.html").read_text(encoding="utf-8"))
        shown = re.sub(r"<textarea.*?</textarea>|<span class=\"title\">.*?</span>", "", page, flags=re.DOTALL)
        assert shown.count(notice) == 1, name
        assert '<p class="banner">' in shown
    assert stand_in in (campaign / "results/tiny/figures/spec_rl/figure04.svg").read_text(encoding="utf-8"), "a file"


HINTS = """const look = (times) => {
  const boxes = [...document.querySelectorAll(".scroll")].filter(box => box.checkVisibility())
    .map(box => [box.scrollWidth > box.clientWidth + 1, !box.previousElementSibling.hidden]);
  document.title = JSON.stringify(boxes);
  if (times && boxes.some(([wider, said]) => wider !== said)) setTimeout(() => look(times - 1), 500);
};
setTimeout(() => look(20), 500);"""
"""A page hears of its boxes' sizes with its first frame, which comes late on a loaded machine."""


@pytest.mark.parametrize("width", [500, 1400])
def test_a_table_that_is_wider_than_the_window_says_that_it_can_be_scrolled(campaign, width):
    page, boxes = campaign / "results/tiny/report/tables.html", []
    for attempt in range(1, 6):  # on a loaded machine a browser without a window may end before its first frame
        found = dom(page, HINTS, width=width, seconds=20 * attempt)
        boxes = json.loads(html.unescape(re.search("<title>(.*?)</title>", found)[1]))
        if all(wider == said for wider, said in boxes):
            break
    assert [wider for wider, _ in boxes] == [said for _, said in boxes]
    assert {wider for wider, _ in boxes} >= ({True} if width == 500 else {False})


def test_the_first_page_shows_something_soon(campaign):
    """Also where it is as heavy as it may be: the claims of all papers stand behind the first screen."""
    page = campaign / "results/tiny/report/index.html"
    text = page.read_text(encoding="utf-8")
    claims = re.search(r'<details class="claim .*?</details>', text, re.DOTALL)[0]
    heavy = page.with_name(".heavy.html")
    heavy.write_text(
        text.replace("</main>", claims * ((400_000 - len(text.encode())) // len(claims.encode())) + "</main>")
    )
    try:  # on a loaded machine a browser without a window may end before its first frame
        documents = (dom(heavy, FIRST_PAINT, seconds=20 * attempt) for attempt in range(1, 6))
        painted = next(filter(None, (re.search(r'data-painted="([\d.]+)"', found) for found in documents)), None)
    finally:
        heavy.unlink()
    assert painted, "nothing was painted"
    assert float(painted[1]) < SOON


def test_filters_hide_claims_and_stand_in_the_address(campaign):
    click = "document.querySelector(\"[value='not run']\").click(); document.title = location.search;"
    found = dom(campaign / "results/tiny/report/index.html", click)
    assert "<title>?hide=not+run</title>" in found
    shown = re.findall(r'<details class="claim ([^"]*)"', found)
    assert shown
    assert all(("not-run" in names) == ("hidden" in names) for names in shown)


def test_a_search_shows_the_claims_that_hold_its_words(campaign):
    script = """
        const search = document.querySelector("[type=search]");
        search.value = "without compromising"; search.dispatchEvent(new Event("input", {bubbles: true}));
    """
    found = dom(campaign / "results/tiny/report/index.html", script)
    claims = re.findall(r'<details class="(claim [^"]*)"[^>]*>.*?<q>(.*?)</q>', found, flags=re.DOTALL)
    assert {"hidden" not in names for names, _ in claims} == {True, False}
    assert all("without compromising" in text for names, text in claims if "hidden" not in names)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"kind": "verl", "device": "cuda", "eager": False}, ", vLLM with CUDA graphs"),
        ({"kind": "verl", "device": "cuda", "eager": True}, ", vLLM without CUDA graphs"),
        ({"kind": "verl", "device": "cpu", "eager": True}, ""),
        ({"kind": "torch"}, ""),
    ],
)
def test_the_report_says_which_decoding_a_speedup_holds_for(engine, words):
    manifest = {"machine": {"processor": "P", "cores": 8}, "configuration": {"engine": engine}}
    assert report_pages._machine(manifest) == f"P, 8 cores{words}"


def test_the_report_names_the_gpus_of_runs(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H200\\nNVIDIA A100\\nNVIDIA H200\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    provenance.gpu_names.cache_clear()
    try:
        recorded = provenance.machine() | {"processor": "P", "cores": 8}
    finally:
        provenance.gpu_names.cache_clear()
    text = report_pages._machine({"machine": recorded})
    assert text == "P, 8 cores, 2 × NVIDIA H200, 1 × NVIDIA A100"
