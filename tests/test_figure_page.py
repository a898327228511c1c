"""Figures of a page: the points that it holds, what stands without JavaScript, and what Chromium makes of it."""

import hashlib
import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from redraft.analysis.data.collect import Runs
from redraft.analysis.figures.figure_drawing import draw
from redraft.analysis.figures.figure_files import write_figures
from redraft.analysis.figures.figure_parts import still_drawing
from redraft.analysis.figures.points import COLUMNS
from redraft.analysis.pages.figure_page import LIBRARY, figure_assets, figure_fragment, read_points
from redraft.config import Figure
from redraft.data_dictionary import definitions
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import record_derived
from tests.measured import save_measured

ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LINES = {"quantity": "reward", "title": "reward </script>", "cells": ["a", "b", "c"], "labels": ["A & <b>", "1e3", "C"]}
SPENT = LINES | {"title": "spent", "x": "tokens", "smoothing": 0.5}
LOG = LINES | {"title": "log", "log": True, "cells": ["a"], "labels": ["A & <b>"]}
EMPTY = {"quantity": "reward", "title": "empty", "cells": ["c"], "labels": ["C"]}
BARS = {"quantity": "sum:reward", "title": "bars", "x": "cell", "cells": ["a"], "labels": ["A & <b>"]}
NAMES = {"a": "A & <b>", "b": "1e3", "c": "C"}


def point(panel, cell, x, mean, **fields):
    empty = {
        "quantity": "reward",
        "low": math.nan,
        "high": math.nan,
        "n_seeds": 2,
        "reported": math.nan,
        "deviation": math.nan,
        "first_reuse": False,
        "seeds": "0 1",
        "manifests": "m/0 m/1",
    }
    return {"panel": panel, "cell": cell, "label": NAMES[cell], "x": x, "reproduced": mean} | empty | fields


POINTS = [
    point("reward </script>", "a", 3, 0.123456789, low=-0.5, high=0.75),
    point("reward </script>", "a", 1, 2 / 3, low=0.25, high=1.0, reported=0.9),
    point("reward </script>", "a", 5, 1234567.0, seeds="1", n_seeds=1, first_reuse=True),
    point("reward </script>", "b", 1, 0.5),
    point("reward </script>", "b", 2, math.nan),
    point("spent", "a", 0.0123456, 1.0),
    point("spent", "a", 0.5, 2.0),
    point("spent", "b", 0.1, 3.0),
    point("log", "a", 1, 0.02, low=-0.01, high=0.05),
    point("log", "a", 2, 0.3, low=0.1, high=0.5),
    point("bars", "a", 0, 4.0, low=3.0, high=5.0),
]


STAND_IN = "stand-in <x>"


def figure(*panels, **fields):
    return Figure(number=2, title="t & u", x="step", panels=list(panels), note="n", **fields)


def fragment(folder, whole, points=POINTS, **options):
    """The fragment of a figure with these points, whose files lie in a folder beside the page's."""
    stem = folder / "figures/p/figure02"
    stem.parent.mkdir(parents=True, exist_ok=True)
    titles = [panel.title for panel in whole.panels]
    data = pd.DataFrame([p for p in points if p["panel"] in titles], columns=COLUMNS)
    data.to_csv(stem.with_suffix(".csv"), index=False)
    record_derived(stem.parent, stem.parent.iterdir())
    if len(data):
        draw(whole, read_points(stem.with_suffix(".csv")), stem, STAND_IN)
        draw(whole, read_points(stem.with_suffix(".csv")), still_drawing(stem), STAND_IN)
    record_derived(stem.parent, stem.parent.iterdir())
    return figure_fragment(whole, stem, "p", folder / "report", STAND_IN, **options)


def panels_of(text):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', text, re.S)[1])


def test_the_page_holds_the_points_of_the_csv_file_in_order_and_rounded(tmp_path):
    (panel,) = panels_of(fragment(tmp_path, figure(LINES)))
    assert panel == {
        "title": "reward </script>",
        "x": "step (from 1)",
        "log": False,
        "gaps": True,
        "ticks": [1, 2, 3, 4, 5],
        "series": [
            {
                "key": 0,
                "label": "A & <b>",
                "x": [1, 3, 5],
                "mean": [0.66667, 0.12346, 1234600],
                "low": [0.25, -0.5, None],
                "high": [1, 0.75, None],
                "paper": [0.9, None, None],
                "first": [2],
                "seeds": ["0 1", "0 1", "1"],
            },
            {"key": 1, "label": "1e3", "x": [1, 2], "mean": [0.5, None], "seeds": "0 1"},
        ],
    }
    (spent,) = panels_of(fragment(tmp_path, figure(SPENT)))
    assert (spent["x"], spent["gaps"], spent["ticks"]) == ("decoded tokens (M)", False, None)
    assert spent["series"][0] == {
        "key": 0,
        "label": "A & <b>",
        "x": [0.012346, 0.5],
        "mean": [1, 2],
        "smooth": [1, 1.5],
        "seeds": "0 1",
    }


def test_every_point_of_the_csv_file_is_in_the_page(tmp_path):
    text = fragment(tmp_path, figure(LINES, SPENT, LOG, BARS))
    found = {
        (panel["title"], series["label"], x, mean)
        for panel in panels_of(text)
        for series in panel["series"]
        for x, mean in zip(series["x"], series["mean"], strict=True)
    }
    data = read_points(tmp_path / "figures/p/figure02.csv").query("panel != 'bars'")
    assert found == {
        (p.panel, p.label, float(f"{p.x:.5g}"), None if math.isnan(p.reproduced) else float(f"{p.reproduced:.5g}"))
        for p in data.itertuples()
    }


HUGE = [
    point("reward </script>", "a", step, 0.1 * step, low=0.1 * step - width, high=0.1 * step + width)
    for step, width in ((1, 0.1), (2, 0.2), (3, 50.0), (4, 70.0), (5, 0.1))
]


def test_a_huge_interval_is_cut_and_an_arrow_and_the_note_say_so(tmp_path):
    text = fragment(tmp_path, figure(LINES), HUGE)
    (panel,) = panels_of(text)
    assert panel["view"] == [0, 0.6], "the ends of the moderate intervals"
    (series,) = panel["series"]
    assert series["cut"] == {"low": [3], "high": [3]}, "of two neighbours the one that goes on furthest"
    assert series["high"][2:4] == [50.3, 70.4], "as read at the cursor"
    assert "An arrow marks an interval that continues beyond the axis" in text
    drawing = (tmp_path / "figures/p/figure02.svg").read_text()
    assert "interval continues" in drawing
    usual = fragment(tmp_path, figure(LINES), [each | {"low": 0.0, "high": 1.0} for each in HUGE])
    assert "An arrow marks" not in usual
    assert "interval continues" not in (tmp_path / "figures/p/figure02.svg").read_text()


def test_a_page_of_many_points_stays_light(tmp_path):
    """A figure of three panels with three lines of sixty steps: 540 points, twice."""
    panels = [LINES | {"title": title, "cells": ["a", "b", "c"]} for title in ("one", "two", "three")]
    points = [
        point(panel["title"], cell, step, value := 0.123456 * step + i, low=value - 0.2345678, high=value + 0.3456789)
        for panel in panels
        for i, cell in enumerate("abc")
        for step in range(1, 61)
    ]
    assert len(fragment(tmp_path, figure(*panels), points)) < 70_000


def test_text_of_a_csv_file_stays_text(tmp_path):
    fragment(tmp_path, figure(LINES))
    data = read_points(tmp_path / "figures/p/figure02.csv")
    assert list(data["label"].unique()) == ["A & <b>", "1e3"]
    assert (list(data["seeds"][:3]), list(data["first_reuse"][:3])) == (["0 1", "0 1", "1"], [False, False, True])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "it has no column panel"),
        ("", "No columns to parse"),
        ("panel,label,x,reproduced,low,high,reported,first_reuse,seeds\np,l,one,1,1,1,1,True,0\n", "one"),
    ],
)
def test_a_csv_file_with_a_right_hash_and_other_content_is_refused(tmp_path, content, says):
    file = tmp_path / "figure02.csv"
    file.write_text(content)
    record_derived(tmp_path, [file])
    with pytest.raises(UserError, match=f"damaged .*{says}"):
        read_points(file)


def test_a_panel_without_data_is_a_line_and_so_is_a_figure_without_any(tmp_path):
    text = fragment(tmp_path, figure(LINES, EMPTY))
    assert [panel["title"] for panel in panels_of(text)] == ["reward </script>"]
    assert '<p class="absent">Not run: empty.</p>' in text
    assert '<p class="panel-note">not run: C</p>' in text
    nothing = fragment(tmp_path / "other", figure(EMPTY))
    assert re.fullmatch(r'<p class="figure-absent" id="p-figure2">.*Not run\..*</p>', nothing.strip())
    assert "<img" not in nothing
    sampled = figure(EMPTY | {"quantity": "accuracy:math500"})
    assert "Not sampled at this scale." in fragment(tmp_path / "other", sampled, unsampled={"math500"})


def test_a_drawing_stands_without_javascript_and_bars_have_one_of_their_own(tmp_path):
    lines, mixed = fragment(tmp_path, figure(LINES)), fragment(tmp_path, figure(LINES, BARS))
    bars = fragment(tmp_path, figure(BARS))
    assert [text.count('src="data:image/svg+xml,') for text in (lines, mixed, bars)] == [1, 2, 1]
    assert '<div class="drawing all">' in lines
    assert ('<div class="drawing rest">' in mixed, '<div class="drawing rest">' in lines) == (True, False)
    assert '<div class="drawing">' in bars, "which no script hides"
    assert "<script" not in bars


def test_a_fragment_has_its_caption_its_keys_and_links_from_the_page_to_its_files(tmp_path):
    text = fragment(tmp_path, figure(LINES))
    assert '<figure id="p-figure2" class="figure">' in text
    assert "<b>Figure 2.</b> t &amp; u." in text
    assert "stand-in" not in text, "the page says so once"
    links = re.findall(r'href="([^"]*)"', text)
    assert links == [f"../figures/p/figure02.{suffix}" for suffix in ("csv", "svg", "png")]
    assert all((tmp_path / "report" / link).resolve().exists() for link in links)
    keys = re.findall(r'<button type="button" aria-pressed="true" data-(\w+)="(\w+)".*?</span>(.*?)</button>', text)
    assert [(kind, value, html.unescape(name).strip()) for kind, value, name in keys] == [
        ("key", "0", "A & <b>"),
        ("key", "1", "1e3"),
        ("part", "band", "95 % interval"),
        ("part", "paper", "paper"),
        ("part", "first", "first reuse"),
    ]


def test_the_library_is_what_its_notice_says_and_a_page_holds_its_licence():
    notice = (LIBRARY / "README.md").read_text()
    hashes = dict(re.findall(r"\| (\S+) \| ([0-9a-f]{64}) \|", notice))
    assert set(hashes) == {"uPlot.iife.min.js", "uPlot.min.css", "LICENSE"}
    assert {name: hashlib.sha256((LIBRARY / name).read_bytes()).hexdigest() for name in hashes} == hashes
    css, js = figure_assets()
    assert "Permission is hereby granted, free of charge" in js
    assert "</script" not in js.lower()
    assert not re.search(r"https?://(?!github\.com/leeoniya)|@import|url\(", css + js), "nothing from a network"


PROBE = """
const result = {};
const figure = document.querySelector("figure"), [plot, tip] = [".plot", ".tip"].map(c => figure.querySelector(c));
const press = key => plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const settle = () => new Promise(done => setTimeout(done, 50));
(async () => {
  press("Home"); await settle(); result.first = tip.innerText;
  press("ArrowRight"); await settle(); result.second = tip.innerText;
  figure.querySelector("[data-key='1']").click(); press("Home"); await settle(); result.without = tip.innerText;
  press("Escape"); await settle(); result.hidden = tip.hidden;
  const ink = () => figure.querySelector("canvas").toDataURL();
  const before = ink(); figure.querySelector("[data-part=band]").click(); await settle();
  const light = ink(); result.bands = light !== before;
  document.documentElement.dataset.theme = "dark"; await settle(); result.theme = ink() !== light;
  result.drawing = getComputedStyle(figure.querySelector(".drawing")).display;
  document.title = JSON.stringify(result);
})();
"""


def opened(page, text, probe=""):
    """The page as Chromium holds it after its scripts, and what it wrote on its console."""
    css, js = figure_assets()
    colours = ":root { --page: #fff; --ink: #111; --muted: #555; --line: #ddd; --link: #00f; }"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>t</title><style>{colours}{css}</style>{text}"
        f"<script>{js}</script><script>{probe}</script>",
        encoding="utf-8",
    )
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        f"--user-data-dir={page.parent / 'profile'}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there, which makes the figures of a page")


@needs_chromium
def test_chromium_makes_every_interactive_figure_without_an_error(tmp_path):
    text = fragment(tmp_path, figure(LINES, SPENT, LOG, BARS)) + fragment(tmp_path, figure(LINES)).replace(
        "p-figure2", "q-figure2"
    )
    dom, console = opened(tmp_path / "page.html", text)
    assert console == []
    assert re.findall(r'<figure id="(\S+)" class="figure(?: wide)? made">', dom) == ["p-figure2", "q-figure2"]
    assert dom.count("<canvas") == 4
    dom, console = opened(tmp_path / "page.html", text.replace('"series":', '"lines":'))
    assert len(console) == 2, "a figure that cannot be drawn says so"
    assert ' made">' not in dom, "and keeps its drawing"


@needs_chromium
def test_keys_read_points_the_legend_hides_lines_and_bands_and_the_theme_changes_colours(tmp_path):
    dom, console = opened(tmp_path / "page.html", fragment(tmp_path, figure(LINES)), PROBE)
    assert console == []
    found = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom)[1]))
    assert re.split(r"\s*[\n\t]\s*", found["first"]) == [
        "step (from 1): 1",
        "A & <b>",
        "0.6667",
        "[0.25, 1]",
        "paper 0.9",
        "1e3",
        "0.5",
        "seeds 0 1",
    ]
    assert re.split(r"\s*[\n\t]\s*", found["second"])[:2] == ["step (from 1): 2", "1e3"], (
        "the first line has a gap there"
    )
    assert "1e3" not in found["without"]
    assert (found["hidden"], found["bands"], found["theme"], found["drawing"]) == (True, True, True, "none")


def test_written_files_have_the_defined_columns_and_drawings_only_with_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "experiments", "experiments")
    layout, grpo = Layout("tiny"), {"cell": "grpo", "seed": 0}
    steps = [
        grpo
        | {
            "step": i,
            "epoch": 0,
            "reward": 0.5,
            "seconds.total": 1.0,
            "rollouts_per_prompt": 8.0,
            "rollouts": 64.0,
            "response_length": 9.0,
            "without_correct": 0.5,
            "replayed": 0.0,
            "informative": 0.5,
            "clip_fraction": 0.0,
            "gradient_norm": 1.0,
            "fresh_reward": 0.5,
        }
        for i in range(3)
    ]
    scores = [grpo | {"step": 3, "benchmark": "x", "role": "r", "correct": 1, "total": 2}]
    runs = Runs(*(pd.DataFrame(part) for part in ([grpo | {"manifest": "m"}], steps, scores)))
    save_measured(runs, layout.collected("ar3po"), "ar3po")
    stale = layout.figure("ar3po", 3).with_suffix(".svg")
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier run")
    write_figures("tiny", "ar3po")
    files = {file.name for file in layout.figures("ar3po").iterdir()}
    drawn = ("figure01", "figure02", "figure101")
    assert files == {f"figure{n}.csv" for n in ("01", "02", "03", "101", "102", "103")} | {
        f"{name}.{suffix}" for name in drawn for suffix in ("png", "svg")
    } | {"sha256.json"}
    for file in layout.figures("ar3po").glob("*.csv"):
        assert set(pd.read_csv(file).columns) <= set(definitions("figures"))
