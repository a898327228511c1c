"""The bias laboratory's page: its numbers are those of its files, and what is missing is rule_label."""

import html
import json
import math
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft.analysis.data.collect import Runs
from redraft.analysis.figures.view import ticks
from redraft.analysis.pages import laboratory_page, multiples
from redraft.analysis.pages.laboratory_parts import listed, marked, rule_of
from redraft.analysis.pages.multiples import Diagram, palette
from redraft.analysis.pages.report_pages import write_report
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import write_json
from redraft.lab.audit import bias_laboratory as distributions
from redraft.lab.audit.enumeration import Space
from redraft.layout import Layout
from redraft.methods.block import BlockReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.release import ReleaseVariant
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.result_files import write_with_hash
from tests.browser import dom
from tests.checkout import copy_to, snakemake
from tests.columns import same

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)
CELLS = {"vanilla": (math.nan, 0.0), "spec-l0": (0.8, 0.03), "residual": (0.7, 0.02), "one-hot": (0.2, 0.0)}
"""Cell to the share of a draft that it keeps, and how much the reward is above that of fresh samples."""
RULES = {
    "published, l = 1": (False, 0.9),
    "residual": (True, 0.75),
    "residual, top 2": (True, 0.5),
    "one-hot": (True, 0.1),
}
"""Rule to whether it is exact, and the share that it keeps of held-out drafts; of own ones it is 0.05 more."""


def observation(seed):
    """Two pairs of policies, of which the later one keeps 0.1 less of drafts; seeds are 0.01 apart."""

    def rows(more, pair):
        return [
            {
                "rule": rule,
                "exact": exact,
                "drafts": 64,
                "draft_tokens": 20.0,
                "kept_tokens": 15.0,
                "kept_low": 14.0,
                "kept_high": 16.0,
                "share": share + more - 0.1 * pair + 0.01 * seed,
                "share_low": 0.0,
                "share_high": 1.0,
                "whole": share / 2,
            }
            for rule, (exact, share) in RULES.items()
        ]

    return {
        "pairs": [
            {
                "from": 6 * i,
                "to": 6 * i + 6,
                "epochs_between": 1.0,
                "prompts": 16,
                "beta_mean": 0.9,
                "tv": {"mean": 0.1 + 0.02 * i, "quantiles": {"0.1": 0.0, "0.5": 0.05, "0.9": 0.3}},
                "own": rows(0.05 + 0.001 * seed, i),
                "held_out": rows(0.0, i),
            }
            for i in range(2)
        ]
    }


def made_up(layout, cells):
    """Three epochs of two steps of each seed."""
    runs, steps = [], []
    for cell in cells:
        kept, above = CELLS[cell]
        for seed in SEEDS:
            manifest = layout.run(f"exact_reuse/{cell}", seed) / "manifest.json"
            write_json(
                manifest,
                {
                    "git": {"commit": "c0ffee" * 7, "modified": False},
                    "finished": "today",
                    "machine": {"processor": "abacus", "cores": 2},
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
            for step in range(6):
                epoch = step // 2
                steps.append(
                    {
                        "cell": cell,
                        "seed": seed,
                        "step": step,
                        "epoch": epoch,
                        "tokens_decoded": 100,
                        "seconds.rollout": 1.0,
                        "reward": 0.5 + above,
                        "fresh_reward": 0.5,
                        "token_age_epochs": float(epoch),
                        "prefix_share": kept + 0.02 * seed if epoch else math.nan,
                    }
                )
    scores = pd.DataFrame(columns=["cell", "seed", "step", "benchmark", "role", "correct", "total"])
    return Runs(pd.DataFrame(runs), pd.DataFrame(steps), scores)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Experiments in which the comparison has no tables, figures or claims, so that its report needs only runs."""
    folder = tmp_path_factory.mktemp("laboratory")
    shutil.copytree(ROOT / "experiments", folder / "experiments", ignore=shutil.ignore_patterns("own"))
    for part in ("tables", "figures", "claims"):
        (folder / "experiments/exact_reuse" / f"{part}.yaml").unlink()
    return folder


@pytest.fixture(scope="module")
def enumerated():
    """Distributions of few settings."""
    few = {
        "SPACE": Space(4, 2),
        "DRIFTS": (0.1, 0.3),
        "EPOCH_PASSES": 2,
        "DIRECTIONS": 1,
        "RATES": (0.0, 1.0),
        "GROUP": 2,
        "GROUPS": (2, 3),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few.items():
            patch.setattr(distributions, name, value)
        return distributions.distributions()


def reported(folder, name, enumerated=None, seeds=(), cells=("vanilla",)):
    """A report with these parts; its layout."""
    layout = Layout("tiny", folder / name)
    made_up(layout, cells).save(layout.collected("exact_reuse"))
    if enumerated:
        write_with_hash(layout.distributions, enumerated)
    for seed in seeds:
        write_with_hash(layout.observed("exact_reuse", seed), observation(seed))
    write_report(layout, ["exact_reuse"], Experiments(folder))
    return layout


@pytest.fixture(scope="module")
def whole(folder, enumerated):
    return reported(folder, "whole", enumerated, SEEDS, CELLS)


def sections(layout):
    """Text of each part of the page, by its name."""
    text = (layout.pages / laboratory_page.PAGE).read_text(encoding="utf-8")
    found = re.findall(r'<section id="([\w-]+)".*?</section>', text, flags=re.DOTALL)
    parts = re.findall(r"<section id=.*?</section>", text, flags=re.DOTALL)
    plain = [html.unescape(re.sub(r"(<[^>]*>|[ \n])+", " ", part)) for part in parts]
    return dict(zip(found, plain, strict=True))


def table(layout, name):
    """Rows of a part's table, by their first cell."""
    text = (layout.pages / laboratory_page.PAGE).read_text(encoding="utf-8")
    part = re.search(rf'<section id="{name}".*?</section>', text, flags=re.DOTALL)[0]
    head = re.findall(r'<th scope="col">(.*?)</th>', part)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", part, flags=re.DOTALL)]
    return {row[0]: dict(zip(head, map(html.unescape, row), strict=True)) for row in rows if row}


def test_enumerated_numbers_are_in_sentences_tables_and_files(whole, enumerated):
    found, drift = sections(whole), table(whole, "drift")
    of = {(row["rule"], row["drift"]): row for row in enumerated["drifts"]}
    published, residual = of["published, l = 1", 0.3], of["residual", 0.3]
    assert f"distance to the current policy is {published['first']:.2g} after one epoch pass at ℓ = 1" in found["drift"]
    assert (
        "At every drift residual, residual top 2, block and one-hot have the current policy's distribution"
        in found["drift"]
    )
    assert "the largest distance is 0 up to rounding" in found["drift"]
    assert "should be exact" not in found["drift"]
    assert drift["published, ℓ = 1"][f"TV at {published['policies']:.2g}"] == f"{published['last']:.2g}"
    assert drift["residual"]["kept"].split("\N{NARROW NO-BREAK SPACE}")[0] == f"{100 * residual['kept']:.0f}"
    for part, key in (("drift", "drifts"), ("numbers", "numbers"), ("bandit", "bandit")):
        file = pd.read_csv(whole.pages / "laboratory" / f"{part}.csv")
        expected = pd.DataFrame(enumerated[key])
        pd.testing.assert_frame_equal(file[list(expected)], expected)


def test_each_column_of_the_files_is_defined(whole):
    columns = {file.stem: pd.read_csv(file) for file in (whole.pages / "laboratory").glob("*.csv")}
    assert len(columns) == 5
    assert same("laboratory_drift", columns["drift"])
    assert same("laboratory_numbers", columns["numbers"])
    assert same("laboratory_bandit", columns["bandit"])
    assert same("laboratory_drafts", columns["exact_reuse-drafts"])
    assert same("laboratory_trained", columns["exact_reuse-trained"])


def test_shared_numbers_and_the_bandit_are_reported_by_rule(whole, enumerated):
    found, numbers, bandit = sections(whole), table(whole, "numbers"), table(whole, "bandit")
    by = {(row["numbers"], row["rule"], row["visit"]): row["distance"] for row in enumerated["numbers"]}
    shared = by["accepts in all visits", "residual", 2]
    assert f"residual {shared:.2g}" in found["numbers"]
    assert numbers["residual"] == {
        "rule": "residual",
        "new numbers in each epoch pass": "0",
        "one acceptance number for all passes": f"{shared:.2g}",
        "one number accepts and samples": f"{by['accepts and draws', 'residual', 2]:.2g}",
        "one number accepts and samples in all passes": f"{by['accepts and draws in all visits', 'residual', 2]:.2g}",
    }
    (row,) = [
        row
        for row in enumerated["bandit"]
        if (row["rule"], row["rate"], row["group"], row["visit"]) == ("residual", 1.0, 2, 2)
    ]
    assert bandit["residual"]["TV given the policy"] == f"{row['given']:.2g}"
    assert bandit["residual"]["gradient / fresh"] == f"{row['gradient'] / row['fresh_gradient']:.2g}"
    assert bandit["residual"]["reward − fresh"] == f"{row['reward'] - row['fresh_reward']:.2g}".replace("-", "−")
    assert bandit["one-hot"]["gradient / fresh"] == "1"
    assert "At every rate and in every pass no reuse and one-hot have the policy's distribution." in found["bandit"]


def test_a_rule_that_should_be_exact_and_is_not_is_named(folder, enumerated):
    changed = json.loads(json.dumps(enumerated))
    for row in changed["drifts"]:
        row["last"] += 0.25 * (row["rule"] == "block")
    found = sections(reported(folder, "wrong", changed))["drift"]
    assert "block should be exact, but is up to 0.25 away." in found
    assert "At every drift residual, residual top 2 and one-hot have" in found


def test_drafts_that_were_observed_are_means_over_pairs_and_seeds(whole):
    """Own drafts of the residual rule: 0.75 + 0.05 + 0.011 seed, less 0.05 for the mean of two pairs."""
    found, rows = sections(whole)["exact_reuse-drafts"], table(whole, "exact_reuse-drafts")
    assert "Policies that are an epoch apart have a TV of 0.11 " in found
    assert "over the vocabulary, is 0.89." in found
    own = rows["residual"]
    assert own["own drafts"].startswith("76\N{NARROW NO-BREAK SPACE}% [73, 79")
    assert own["held-out drafts"].startswith("71\N{NARROW NO-BREAK SPACE}% [69, 73")
    assert own["own − held-out (points)"] == "5.1 [4.9, 5.3]"
    assert rows["published, ℓ = 1"]["distribution"] == "not exact"
    assert "The rule residual would keep 5.1 points more of own drafts than of held-out drafts." in found
    assert "undecided" not in found


def test_results_of_rules_are_next_to_expected_results(whole):
    found, rows = sections(whole)["exact_reuse-trained"], table(whole, "exact_reuse-trained")
    kept = rows["residual"]
    assert kept["rule"] == "residual"
    assert kept["kept share"].startswith("72\N{NARROW NO-BREAK SPACE}% [")
    assert kept["expected, own drafts"].startswith("76\N{NARROW NO-BREAK SPACE}% [")
    assert kept["reward − fresh reward"] == "0.02 [0.02, 0.02]"
    assert kept["age of tokens (epochs)"] == "1.5 [1.5, 1.5]"
    assert rows["vanilla"]["kept share"] == rows["vanilla"]["expected, own drafts"] == "–"
    assert "72\N{NARROW NO-BREAK SPACE}%, expected 76\N{NARROW NO-BREAK SPACE}% (residual)" in found
    assert "not run spec-l0.5, block, gumbel, weighted, adaptive, refreshed." in found
    data = pd.read_csv(whole.pages / "laboratory/exact_reuse-trained.csv")
    assert list(data["epoch"].unique()) == [1, 2, 3]


def test_missing_data_are_named(folder, enumerated):
    found = sections(reported(folder, "nothing"))
    for part in ("drift", "numbers", "bandit"):
        assert "not run snakemake laboratory enumerates it" in found[part]
    assert "not run exact_reuse/vanilla was not observed. snakemake laboratory does so." in found["exact_reuse-drafts"]
    assert "one-hot" in found["exact_reuse-trained"].partition("not run")[2]
    some = sections(reported(folder, "some", enumerated, seeds=[1]))
    assert "not run Seed 0, 2 of exact_reuse/vanilla." in some["exact_reuse-drafts"]
    assert "undecided" in some["exact_reuse-drafts"], "one seed has no interval"


def test_the_page_is_linked_from_all_others_and_links_lead_somewhere(whole, folder):
    for name in ("index", "exact_reuse", "runs"):
        assert 'href="laboratory.html"' in (whole.pages / f"{name}.html").read_text()
    first = (whole.pages / "index.html").read_text()
    assert re.search(r'<h2><a href="laboratory.html">Bias laboratory</a></h2>\s*<ul><li>If two policies are', first)
    text = (whole.pages / laboratory_page.PAGE).read_text()
    links = {link for link in re.findall(r'href="([^"#:]+)"', text) if "/" in link}
    assert links >= {"laboratory/drift.csv", "../laboratory/laws.json", "../laboratory/exact_reuse/seed2.json"}
    assert all((whole.pages / link).exists() for link in links)


def test_a_report_without_a_laboratory_has_no_link_to_one(folder, tmp_path):
    shutil.copytree(folder / "experiments", tmp_path / "experiments")
    file = tmp_path / "experiments/exact_reuse/cells.yaml"
    file.write_text(file.read_text().replace("laboratory: vanilla\n", ""))
    layout = reported(tmp_path, "results")
    assert not (layout.pages / laboratory_page.PAGE).exists()
    assert "laboratory.html" not in (layout.pages / "index.html").read_text()


@pytest.mark.parametrize(("named", "told"), [("nothing", "no such cell"), ("block", "this cell reuses rollouts")])
def test_a_laboratory_observes_a_cell_of_its_paper_without_reuse(folder, tmp_path, named, told):
    shutil.copytree(folder / "experiments", tmp_path / "experiments")
    file = tmp_path / "experiments/exact_reuse/cells.yaml"
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(content | {"laboratory": named}, sort_keys=False))
    with pytest.raises(UserError, match=told) as error:
        Experiments(tmp_path).observed_cell("exact_reuse")
    assert (error.value.key, error.value.value, error.value.file) == ("laboratory", named, file)
    assert error.value.allowed == "vanilla"
    assert Experiments(folder).observed_cell("spec_rl") is None


def test_no_page_is_wider_than_a_narrow_window_and_tables_say_that_they_scroll(whole):
    script = """setTimeout(() => { document.title = JSON.stringify([document.documentElement.scrollWidth,
      ...[...document.querySelectorAll(".scroll")].map(box => [box.scrollWidth > box.clientWidth + 1,
      !box.previousElementSibling.hidden])]); }, 500);"""
    found = dom(whole.pages / laboratory_page.PAGE, script, width=500)
    width, *boxes = json.loads(html.unescape(re.search("<title>(.*?)</title>", found)[1]))
    assert width <= 500
    assert [True, True] in boxes
    assert all(wider == rule_label for wider, rule_label in boxes)


def test_a_line_s_points_are_where_their_numbers_are():
    drawn = multiples.multiples(
        [
            Diagram("up", "visit", {"residual": [(0, 0.0), (2, 1.0)], "block": [(1, 0.5), (2, math.nan)]}),
            Diagram("nothing", "visit", {"residual": [(0, math.nan)]}),
        ]
    )
    (line,) = re.findall(r'<polyline class="line" points="([^"]*)"', drawn)
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in line.split())
    room = multiples.MARGIN_SHARE / (1 + 2 * multiples.MARGIN_SHARE)
    assert (x0, x1) == pytest.approx((room * multiples.WIDTH, (1 - room) * multiples.WIDTH), abs=0.1)
    assert (y0, y1) == pytest.approx(((1 - room) * multiples.HEIGHT, room * multiples.HEIGHT), abs=0.1)
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="5"', drawn) == [("125.0", "75.0")]
    assert "nothing" not in drawn
    assert "up over visit, at the end: residual 1; block 0.5;" in drawn


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 1, False, [0, 0.5, 1]),
        (-0.04, 3.1, True, [0, 1, 2, 3]),
        (0.96, 2.04, True, [1, 2]),
        (0, 0.004, False, [0, 0.001, 0.002, 0.003, 0.004]),
    ],
)
def test_ticks_are_round(low, high, whole, expected):
    assert ticks(low, high, whole) == pytest.approx(expected)


def test_a_rule_has_one_style_and_one_name_everywhere(whole):
    rules = list(dict.fromkeys((*distributions.RULES, *distributions.arm_samplers(), "a rule that nobody listed")))
    assert len(set(palette(rules).values())) == len(rules)
    line = r'<g style="([^"]*)"><title>(.*?), at the end [^\n]*\n<polyline[^>]*?( stroke-dasharray="[^"]*")?/>'
    drawn = re.findall(line, (whole.pages / laboratory_page.PAGE).read_text())
    styles = {name: {(ink, dashes) for ink, other, dashes in drawn if other == name} for _, name, _ in drawn}
    assert len(styles) > 10
    assert all(len(found) == 1 for found in styles.values()), "the same in all diagrams"
    assert len(set().union(*styles.values())) == len(styles)
    observed = {"residual", "residual, top 32", "block", "one-hot"}
    names = {
        rule_of(reuse, observed) for reuse in (ResidualReuse(top=32), BlockReuse(top=44), OneHotReuse(), Vanilla())
    }
    assert names == {"residual, top 32", "block", "one-hot", "no reuse"}
    assert rule_of(Speculative(lenience="e^0.5"), observed) == "published, l = e^0.5"
    assert rule_of(ReleaseVariant(lenience=1), observed) == "published, l = 1, released"
    cells = {cell.name: rule_of(cell.reuse, observed) for cell in Experiments(ROOT).cells("exact_reuse")}
    assert cells["refreshed"] == "published, l = e^0.5, every 4 visits fresh", "its numbers are its own"
    assert len(set(cells.values())) == len(set(palette(cells.values()).values())) == len(cells)
    assert listed([]) == "no rule"
    assert marked("`a` < b") == "<code>a</code> &lt; b"


def test_the_target_enumerates_observes_and_makes_the_report_of_all_that(tmp_path):
    folder = copy_to(tmp_path)
    result = snakemake(folder, "-n", "--", "laboratory")
    text = result.stdout + result.stderr
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", text, flags=re.M)}
    assert (counts["distributions"], counts["observe"]) == (1, 2)
    assert set(re.findall(r"collected/(\w+)/runs", text)) == {"spec_rl", "exact_reuse"}
    report = text.partition("rule report:")[2].partition("output:")[0]
    assert "laboratory/laws.json" in report
    assert report.count("laboratory/exact_reuse/seed") == 2
    observe = text.partition("rule observe:")[2].partition("output:")[0]
    assert "runs/exact_reuse/vanilla/seed" in observe
