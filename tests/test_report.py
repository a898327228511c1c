"""The page a person opens, made by the workflow's stages from runs made up here."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis import case_studies, stages
from analysis.collect import Runs
from analysis.figure_files import write_figures
from analysis.table_files import write_tables
from redraft.config import Experiments
from redraft.files import read_json, write_json
from redraft.layout import Layout

ROOT = Path(__file__).parents[1]
BENCHMARKS = {name: benchmark.role for name, benchmark in Experiments(ROOT).preset("tiny").benchmarks.items()}
CELLS = {"grpo-vanilla": 1.0, "grpo-spec-l0.5": 0.4, "grpo-spec-l0": 0.6}
"""Cell to the share of tokens that it decodes."""
KEPT = {"tables": (1, 3, 4, 10, 101), "figures": (1, 4, 7, 101)}
STAGES = (
    *("verification", "rollout", "assembly", "reward", "old_log_probs", "ref", "values", "adv", "update_critic"),
    *("update_actor", "others", "total"),
)
CASE = {
    "kind": "corrected", "title": "cut and put right", "step": 7, "old_step": 1, "visit": 1, "prompt": 3, "sample": 0,
    "draft_length": 5, "prefix_length": 3, "length": 6, "reward": {"old": 0.0, "new": 1.0}, "oldest_token_step": 1,
    "rejected": {"index": 3, "token": "<4"}, "verified_prefix": "1&23", "rejected_tail": "<45", "continuation": "678",
    "problem": "1a+1=", "answer": "2",
}  # fmt: skip
WHOLE = {"kind": "reused", "title": "whole", "rejected": None, "rejected_tail": "", "continuation": ""}
CASES = {
    "run": "spec_rl/grpo-spec-l0.5/seed0",
    "cases": [CASE, CASE | WHOLE, CASE | {"kind": "continued"},
              {"kind": "rejected", "title": "rejected early", "absent": "none of the 9 rollouts"}],
}  # fmt: skip


def made_up(layout):
    """Two epochs of two seeds, and a manifest each."""
    runs, steps, scores = [], [], []
    for cell, share in CELLS.items():
        run = Experiments().run(f"spec_rl/{cell}", 0, "tiny")
        per_epoch = run.data.size // run.trainer.prompts_per_step
        for seed in (0, 1):
            manifest = layout.run(f"spec_rl/{cell}", seed) / "manifest.json"
            machine = {"processor": "abacus", "cores": 2}
            write_json(manifest, {"git": {"commit": "c0ffee" * 7, "modified": True}, "machine": machine})
            runs.append({"cell": cell, "seed": seed, "fingerprint": "f", "seconds": 1.0, "manifest": str(manifest),
                         "initial": str(manifest)})  # fmt: skip
            for number in range(2 * per_epoch):
                drafts = number >= per_epoch and share < 1
                decoded = 100.0 * (share if drafts else 1)
                steps.append({
                    "cell": cell, "seed": seed, "step": number, "epoch": number // per_epoch,
                    "training_step": number + 1, "updated": True, "informative": 0.5, "tokens_decoded": decoded + seed,
                    "tokens_reused": 100 - decoded, "tokens_verified": 50.0 if drafts else 0.0,
                    "prefix_length": 10.0 if drafts else math.nan, "full_reuse_ratio": 0.5 if drafts else math.nan,
                    "response_length": 20.0, "token_age_epochs": 0.5, "reward": 0.5, "fresh_reward": 0.4,
                    "entropy": 0.3, "kl": 0.01, "clip_fraction": 0.001, "gradient_norm": 1.0, "distinct_1": 0.1,
                    "self_bleu": 0.5,
                    "self_bleu_within": 0.4, "distinct_within": 0.9, "fresh_kl": 0.02, "prefix_share": 0.5,
                    "rouge_1": 0.6 if number >= per_epoch else math.nan,
                    **{f"seconds.{stage}": decoded / 100 for stage in STAGES},
                })  # fmt: skip
            for at in (0, *range(10, run.steps, 10), run.steps):
                for benchmark, role in BENCHMARKS.items():
                    scores.append({"cell": cell, "seed": seed, "step": at, "benchmark": benchmark, "role": role,
                                   "correct": 100 + at, "total": 800})  # fmt: skip
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
        write_tables("tiny", "spec_rl")
        write_figures("tiny", "spec_rl")
        stages.judge_claims("tiny", "spec_rl")
        extras = [*layout.tables("spec_rl").glob("*_reported.*"), *layout.tables("spec_rl").glob("without_*")]
        assert len(extras) == 5
        for file in extras:
            file.rename(folder / file.name)
        stages.report("tiny", ["spec_rl"])
        shutil.copy(layout.report, folder / "without_extras.html")
        for file in extras:
            (folder / file.name).rename(file)
        write_json(layout.cases("spec_rl").with_suffix(".json"), CASES)
        stages.cases("tiny", "spec_rl")
        stages.report("tiny", ["spec_rl"])
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
def page(campaign):
    return Page((campaign / "results/tiny/report.html").read_text())


def test_every_table_figure_case_and_claim_is_in_the_report(campaign, page):
    parts = [f"spec_rl-table{n}" for n in KEPT["tables"]]
    parts += [f"spec_rl-figure{n}" for n in (*KEPT["figures"], 12, 13, 14, 15)]
    claims = read_json(campaign / "results/tiny/claims/spec_rl.json")
    assert set(parts + [f"spec_rl-claim-{claim['id']}" for claim in claims]) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)), "an identifier stands twice"
    assert all(re.sub(r"\s+", " ", claim["quotation"]) in page.text for claim in claims)
    assert all(re.sub(r"\s+", " ", claim["evidence"]) in page.text for claim in claims)
    reported = [claim["reported_verdict"] for claim in claims]
    assert all(page.text.count(verdict) >= reported.count(verdict) for verdict in reported)


def test_the_report_stands_by_itself_and_every_link_leads_somewhere(campaign, page):
    assert all(source.startswith("data:") for source in page.sources)
    assert len(page.sources) == len(KEPT["figures"]) - 1
    assert "the largest model of the main text, without and with reuse. Not run." in page.text, "Figure 1 is a line"
    inside = [link.removeprefix("#") for link in page.links if link.startswith("#")]
    assert set(inside) <= set(page.ids)
    outside = {link for link in page.links if not link.startswith("#")}
    assert len([link for link in outside if link.endswith("manifest.json")]) == 2 * len(CELLS)
    assert all((campaign / "results/tiny" / link).exists() for link in outside)


def test_the_main_result_holds_what_compares_and_counts_what_was_not_run(campaign):
    text = (campaign / "results/tiny/report.html").read_text()
    main = text[text.index('id="spec_rl-main-result"') : text.index('id="spec_rl-claims"')]
    assert re.findall(r'<th scope="row">([^<]*)', main) == ["GRPO + SPEC-RL"]
    # Of 12 steps of 100 tokens, 6 decode 40 in the first seed; the second seed decodes one more in each.
    assert '<span class="value">0.70</span>' in main
    assert "Tokens (M)" not in main
    assert "8 of 9 comparisons of Table 1 were not run" in text


def test_trajectories_are_folded_and_what_was_not_run_is_said(campaign):
    text = (campaign / "results/tiny/report.html").read_text()
    tables = re.findall(r"<details( open)?><summary><b>((?:Table|Extra) \d+)", text)
    assert [name for opened, name in tables if opened] == ["Table 1", "Table 3", "Table 4"]
    assert [name for opened, name in tables if not opened] == ["Table 10", "Extra 1"]
    summary = re.search(r"<summary><b>Extra 1\.</b>.*?</summary>", text)[0]
    assert '<span class="badge missing">not run</span>' in summary


def test_rows_without_counterpart_are_counted_by_reason(campaign, page):
    listed = pd.read_csv(campaign / "results/tiny/tables/spec_rl/without_counterpart.csv")
    assert f"{len(listed)} rows of the paper's tables" in page.text
    text = (campaign / "results/tiny/report.html").read_text()
    section = text[text.index('id="spec_rl-without"') : text.index('id="runs"')]
    counts = [int(count) for count in re.findall(r"<tr><td>(\d+)</td>", section)]
    assert sum(counts) == len(listed)
    assert len(counts) < len(listed)


def test_the_honest_speedups_of_the_reported_times_stand_below_their_table(campaign, page):
    order = [page.ids.index(f"spec_rl-{name}") for name in ("table4", "table4-reported", "table10")]
    assert order == sorted(order)


def test_what_was_not_made_is_said_or_left_out(campaign):
    page = Page((campaign / "without_extras.html").read_text())
    assert "Not made: they are taken from grpo-spec-l0.5 seed 0, which was not run." in page.text
    assert not {"spec_rl-without", "spec_rl-table4-reported", "spec_rl-figure12"} & set(page.ids)
    assert {f"spec_rl-table{n}" for n in KEPT["tables"]} <= set(page.ids)


def test_runs_are_listed_with_the_scores_of_their_last_policy(page):
    last = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "tiny").steps
    assert page.text.count(f"{100 + last} of 800") == 2 * len(BENCHMARKS) * len(CELLS)
    assert "100 of 800" not in page.text
    assert "c0ffeec0ffee with changes" in page.text


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
    assert "cut before token 4: 3 of 5 tokens; the new rollout has 6" in first
    whole, absent = second.split("**Figure 14.**")[0], second.split("**Figure 15.**")[1]
    assert "kept whole" in whole
    assert "rejected" not in whole
    assert "Absent: none of the 9 rollouts." in absent
