"""Figures of trends: coordinates of cells, lines fitted in each block, what they are extended to, and their drawing."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from pydantic import ValidationError
from scipy import stats

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.words import with_minus
from redraft.analysis.figures.figure_drawing import plot
from redraft.analysis.figures.figure_files import write_figures
from redraft.analysis.figures.trend_points import EXTENDED, FITTED, SLOPE, TOGETHER, _lines, trend_note
from redraft.config import Experiments, Figure
from redraft.config.trends import coordinates
from redraft.errors import UserError
from redraft.layout import Layout
from tests.checkout import ROOT
from tests.measured import figure_data, save_measured

CELLS, OTHERS = ["c1", "c2", "c4"], ["v1", "v2", "v4"]
AT = {"c1": 10.0, "c2": 20.0, "c4": 40.0}
TREND = {"title": "prompts", "keys": ["data.size"], "at": 160, "at_label": "the paper's 160"}
PANEL = {"quantity": "accuracy:x", "title": "p", "cells": CELLS, "compared_with": OTHERS, "trend": TREND}
LINES = {0: (-6.0, 1.0), 1: (-8.0, 3.0), 2: (-1.0, 2.0)}
"""Difference of the first cell and change per doubling, by block."""


def runs(differences, blocks=None, lengths=None):
    """Runs whose accuracies differ by `differences` (cell, seed: points) from those without reuse.

    `lengths` has each cell's decoded tokens in its second step; those of the others are 100.
    """
    keys = [(cell, seed) for pair in differences for cell, seed in (pair, ("v" + pair[0][1:], pair[1]))]
    keys = list(dict.fromkeys(keys))
    scores = [
        {"cell": c, "seed": s, "step": 2, "benchmark": "x", "role": "r", "total": 1000}
        | {"correct": 500 + round(10 * differences.get((c, s), 0))}
        for c, s in keys
    ]
    steps = [
        {"cell": c, "seed": s, "step": i, "epoch": i, "tokens_decoded": (lengths or {}).get(c, 100) if i else 100}
        for c, s in keys
        for i in range(2)
    ]
    lines = [
        {"cell": c, "seed": s, "block": (blocks or {}).get(s, s), "manifest": f"{c}/{s}", "initial": "", "probe": ""}
        for c, s in keys
    ]
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


def on_lines(seeds=(0, 1, 2), cells=CELLS):
    return {
        (cell, seed): LINES[seed][0] + LINES[seed][1] * math.log2(AT[cell] / AT["c1"])
        for cell in cells
        for seed in seeds
    }


def figure(*panels):
    return Figure(number=1, title="t", x="trend", panels=list(panels))


def points(runs, *panels, at=None):
    panels = panels or (PANEL,)
    given = {panel["title"]: AT if at is None else at for panel in panels}
    return figure_data(figure(*panels), runs, paper_scale=False, coordinates=given)


def row(data, quantity):
    (found,) = data[data["quantity"] == quantity].to_dict("records")
    return found


def student(values):
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return [np.mean(values), np.mean(values) - half, np.mean(values) + half]


def test_a_line_is_fitted_in_each_block_and_estimated_over_blocks():
    data = points(runs(on_lines()))
    cells = data[data["cell"] != ""]
    assert list(zip(cells["cell"], cells["x"], cells["n_seeds"], strict=True)) == [
        ("c1", 10, 3),
        ("c2", 20, 3),
        ("c4", 40, 3),
    ]
    assert list(cells["reproduced"]) == pytest.approx([-5, -3, -1])
    names = ["reproduced", "low", "high"]
    assert [row(data, SLOPE)[name] for name in names] == pytest.approx(student([1, 3, 2]))
    extended = row(data, EXTENDED)
    assert extended["x"] == 160
    assert [extended[name] for name in names] == pytest.approx(student([-6 + 4, -8 + 12, -1 + 8]))
    assert extended["n_seeds"] == 3
    line = data[data["quantity"] == FITTED].sort_values("x")
    assert (line["x"].iloc[0], line["x"].iloc[-1]) == pytest.approx((10, 160))
    assert list(line["reproduced"].iloc[[0, -1]]) == pytest.approx([-5, 3])
    halfway = line.iloc[(line["x"] - 40).abs().argmin()]
    assert halfway["reproduced"] == pytest.approx(-1), "on the line, since the means are"


def test_the_fit_is_one_of_least_squares():
    differences = on_lines() | {("c2", 0): -3.0, ("c2", 1): -7.0, ("c2", 2): 4.0}
    data = points(runs(differences))
    by_hand = [np.polyfit([0, 1, 2], [differences[cell, seed] for cell in CELLS], 1) for seed in range(3)]
    assert row(data, SLOPE)["reproduced"] == pytest.approx(np.mean([slope for slope, _ in by_hand]))
    assert row(data, EXTENDED)["reproduced"] == pytest.approx(np.mean([4 * slope + first for slope, first in by_hand]))


def test_seeds_of_a_block_are_averaged_before_the_fit():
    differences = {(cell, seed): value for (cell, seed), value in on_lines().items()}
    # Seed 3 is in the block of seed 0 and 4 points worse throughout, so that block's line is 2 points lower.
    differences |= {(cell, 3): on_lines()[cell, 0] - 4 for cell in CELLS}
    data = points(runs(differences, blocks={0: 0, 1: 1, 2: 2, 3: 0}))
    assert row(data, SLOPE)["n_seeds"] == 3
    assert row(data, EXTENDED)["reproduced"] == pytest.approx(np.mean([-2 - 2, 4, 7]))


def test_a_block_with_fewer_than_three_coordinates_has_no_line():
    some = on_lines((0, 1)) | on_lines((2,), ["c1", "c2"])
    data = points(runs(some))
    assert row(data, SLOPE)["n_seeds"] == 2
    assert list(data[data["cell"] != ""]["n_seeds"]) == [3, 3, 2], "its points are shown"
    none = points(runs(on_lines(cells=["c1", "c2"])))
    assert list(none["quantity"]) == ["accuracy:x"] * 2
    assert trend_note(figure(PANEL).panels[0], none) == ""
    same = points(runs(on_lines()), at=dict.fromkeys(AT, 10.0))
    assert set(same["quantity"]) == {"accuracy:x"}, "one coordinate has no slope"


def test_a_cell_without_runs_or_coordinate_has_no_point():
    data = points(runs(on_lines()), at={"c1": 10.0, "c2": 20.0})
    assert set(data["cell"]) == {"c1", "c2"}
    whole = runs(on_lines())
    assert points(Runs(whole.runs.iloc[:0], whole.steps.iloc[:0], whole.scores.iloc[:0])).empty


def test_without_a_value_a_run_is_left_out_and_not_its_whole_block():
    values = [
        (10.0, {0: 1.0, 3: 3.0, 1: 0.0}),
        (20.0, {0: 2.0, 3: math.nan, 1: 1.0}),
        (40.0, {0: 3.0, 3: 5.0, 1: math.nan}),
    ]
    found = _lines(values, {0: 0, 1: 1, 3: 0}).by_block
    assert set(found) == {0}, "two coordinates are no line"
    assert found[0] == pytest.approx(np.polyfit([0, 1, 2], [2, 2, 4], 1)[::-1])


def test_an_infinite_difference_leaves_no_line_and_an_infinite_coordinate_no_point():
    values = [(10.0, {0: 1.0, 1: 1.0}), (20.0, {0: 2.0, 1: 2.0}), (40.0, {0: 3.0, 1: math.inf})]
    assert _lines(values, {}).by_block == {}, "the others would hide what was never reached"
    trend = {"title": "steps", "quantity": "steps_to:49.5:accuracy:x"}
    reached = {(cell, seed): -5.0 if cell == "c4" else 1.0 for cell in CELLS for seed in range(3)}
    data = points(runs(reached), PANEL | {"trend": trend}, at={})
    assert set(data["cell"]) == {"c1", "c2"}


def test_the_coordinate_may_be_a_measured_ratio():
    trend = {"title": "tokens", "quantity": "reuse_epochs:tokens_decoded", "at": 0.125, "at_label": "the paper's"}
    data = points(runs(on_lines(), lengths={"c1": 100, "c2": 50, "c4": 25}), PANEL | {"trend": trend}, at={})
    assert list(data[data["cell"] != ""]["x"]) == pytest.approx([1, 0.5, 0.25])
    assert row(data, SLOPE)["reproduced"] == pytest.approx(-2), "a doubling of tokens undoes what halving them did"
    assert row(data, EXTENDED)["reproduced"] == pytest.approx(np.mean([-6 + 3, -8 + 9, -1 + 6]))


def test_extended_together_means_that_changes_add_up():
    other = PANEL | {"title": "q", "trend": TREND | {"keys": ["trainer.epochs"], "at": 20, "at_label": "20"}}
    data = points(runs(on_lines()), PANEL, other)
    found = row(data, TOGETHER)
    assert found["reproduced"] == pytest.approx(np.mean([a + 4 * b + 1 * b for a, b in LINES.values()]))
    assert found["panel"] == "q"
    last = PANEL | {"title": "z", "trend": {"title": "width", "keys": ["model.hidden_size"]}}
    found = row(points(runs(on_lines()), PANEL, other, last), TOGETHER)
    assert found["panel"] == "q", "the last one that is extended"
    for changes in ({"quantity": "accuracy:r"}, {"trend": TREND | {"at": 20}}, {"compared_with": ["v2", "v2", "v4"]}):
        apart = points(runs(on_lines()), PANEL, other | changes)
        assert TOGETHER not in set(apart["quantity"]), "another quantity, the same axis, or another baseline"
    assert TOGETHER not in set(points(runs(on_lines(cells=CELLS[1:])), PANEL, other)["quantity"])
    elsewhere = other | {"cells": CELLS[::-1], "compared_with": OTHERS[::-1]}
    assert TOGETHER not in set(points(runs(on_lines()), PANEL, elsewhere)["quantity"]), "they start from other cells"
    without = PANEL | {"title": "q", "trend": {"title": "prompts", "keys": ["data.size"]}}
    assert TOGETHER not in set(points(runs(on_lines()), PANEL, without)["quantity"])


def test_the_note_has_slope_and_extension_with_their_intervals():
    data = points(runs(on_lines()))
    slope, extended = (student(values) for values in ([1, 3, 2], [-2, 4, 7]))
    assert trend_note(figure(PANEL).panels[0], data) == with_minus(
        f"{slope[0]:.3g} [{slope[1]:.3g}, {slope[2]:.3g}] per doubling; "
        f"extended to the paper's 160: {extended[0]:.3g} [{extended[1]:.3g}, {extended[2]:.3g}]"
    )
    one = trend_note(figure(PANEL).panels[0], points(runs(on_lines((1,)))))
    assert one == "3 per doubling; extended to the paper's 160: 4", "one block has no interval"
    small = [{"quantity": SLOPE, "reproduced": 0.00123, "low": -1e-4, "high": -0.0}]
    assert trend_note(figure(PANEL).panels[0], pd.DataFrame(small)) == "0.00123 [−0.0001, 0] per doubling"
    falling = pd.DataFrame([small[0] | {"reproduced": -2.5, "low": -3.0, "high": -2.0}])
    assert trend_note(figure(PANEL).panels[0], falling) == "−2.5 [−3, −2] per doubling"


def test_the_drawing_has_points_a_line_and_a_diamond_where_it_is_extended():
    whole = figure(PANEL)
    data = points(runs(on_lines()))
    axis = plot(whole, data).axes[0]
    drawn = {line.get_marker(): line for line in axis.lines if len(line.get_xdata())}
    assert list(drawn["o"].get_xdata()) == [10, 20, 40]
    assert list(drawn["o"].get_ydata()) == pytest.approx([-5, -3, -1])
    assert (list(drawn["D"].get_xdata()), list(drawn["D"].get_ydata())) == ([160], pytest.approx([3]))
    solid = next(line for line in axis.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 2)
    assert max(solid.get_xdata()) <= 40 + 1e-9 < max(axis.lines[1].get_xdata()), "dashed beyond the cells"
    assert (axis.get_xscale(), axis.get_xlabel()) == ("log", "prompts")
    assert axis.get_xlim() == pytest.approx((10 / 1.15, 160 * 1.15))
    near = points(runs(on_lines()), at=AT | {"c4": 155.0})
    labels = [tick.get_text() for tick in plot(whole, near).axes[0].get_xticklabels()]
    assert labels == ["160", "10", "20"], "155 would lie over the extension's number"
    alone = plot(whole, points(runs(on_lines(cells=["c2"])))).axes[0]
    assert alone.get_xlim() == pytest.approx((20 / 1.15, 20 * 1.15)), "one coordinate is in the middle of its axis"
    assert "per doubling" in " ".join(text.get_text() for text in axis.texts).replace("\n", " ")
    plt.close("all")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trend": None}, "needs `trend`"),
        ({"cells": CELLS[:2], "compared_with": OTHERS[:2]}, "at least three cells"),
        ({"compared_with": OTHERS[:2]}, "`compared_with` has 2 cells, but `cells` has 3"),
        ({"trend": TREND | {"quantity": "tokens_decoded"}}, "either keys or quantity"),
        ({"trend": {"title": "x"}}, "either keys or quantity"),
        ({"trend": {"title": "x", "keys": ["data.size"], "at": 5}}, "must be given together"),
        ({"trend": TREND | {"at": 0}}, "greater than or equal"),
        ({"trend": TREND | {"keys": [], "quantity": "tokens"}}, "no such quantity of a run"),
        ({"quantity": "rewrd"}, "no such quantity of a run"),
        ({"compared_with": ["c1", "v2", "v4"]}, "c1 is compared with itself"),
        ({"trend": TREND | {"keys": ["data.size", "data.size"]}}, "occurs twice"),
        ({"trend": TREND | {"at": 5e-324}}, "greater than or equal"),
        ({"log": True}, "log is for lines and bins, not for x: trend"),
    ],
)
def test_an_invalid_trend_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        figure(PANEL | changes)
    with pytest.raises(ValidationError, match="trend is for trend, not for x: cell"):
        Figure(number=1, title="t", x="cell", panels=[PANEL | {"compared_with": []}])


def test_coordinates_are_those_of_the_preset_and_a_wrong_key_is_named(tmp_path):
    experiments = Experiments(ROOT)
    found = coordinates(experiments, experiments.preset("tiny"), "loss_by_scale")[101]
    assert found["by number of prompts (percentage points)"] == {
        "x1-spec-l0.5": 192 * 4,
        "x4-spec-l0.5": 768 * 4,
        "x16-spec-l0.5": 3072 * 4,
        "x32-spec-l0.5": 6144 * 4,
    }
    assert found["by width of the model (percentage points)"]["h192-spec-l0.5"] == 192
    smoke = coordinates(experiments, experiments.preset("smoke"), "loss_by_scale")[101]
    assert set(smoke["by number of prompts (percentage points)"]) == {"x1-spec-l0.5"}, (
        "the others' data are not in this preset"
    )
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for wrong in ("data.kind", "data.sizes", "trainer.warmup_steps", "trainer.learning_rate"):
        broken = Experiments(ROOT)
        panels = broken.figures("loss_by_scale")
        panels.figures[0].panels[0].trend.keys[0] = wrong
        broken.figures = lambda _, panels=panels: panels
        constant = wrong == "trainer.learning_rate"
        words = "these cells have 1" if constant else "no finite number above 0 in a run"
        if constant:
            panels.figures[0].panels[0].trend.keys[:] = [wrong]
        with pytest.raises(UserError, match=words) as raised:
            coordinates(broken, broken.preset("tiny"), "loss_by_scale")
        key = "figures.0.panels.0.trend.keys" + ".0" * (not constant)
        assert (raised.value.key, raised.value.value) == (key, wrong)


def test_files_of_the_declared_figure_are_written_from_measured_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    layout = Layout("tiny")
    rates = ["x1", "x4", "x16", "x32", "lr0.25", "lr0.5", "lr2", "h64", "h128", "h192"]
    names = [f"{rate}-{reuse}" for rate in rates for reuse in ("vanilla", "spec-l0.5")]
    lines = [
        {"cell": name, "seed": seed, "block": seed, "manifest": f"{name}/{seed}", "initial": "", "probe": ""}
        for name in names
        for seed in range(3)
    ]
    scores = [
        {"cell": name, "seed": seed, "step": 30, "benchmark": "sums", "role": "in-distribution", "total": 100}
        | {"correct": 50 + 3 * seed * ("spec" in name) + len(name)}
        for name in names
        for seed in range(3)
    ]
    steps = [
        {
            "cell": name,
            "seed": seed,
            "step": i,
            "epoch": i,
            "tokens_decoded": 100 - 5 * len(name) * i * ("spec" in name),
        }
        for name in names
        for seed in range(3)
        for i in range(2)
    ]
    made_up = Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))
    save_measured(made_up, layout.collected("loss_by_scale"), "loss_by_scale")
    write_figures("tiny", "loss_by_scale")
    data = pd.read_csv(layout.figure("loss_by_scale", 101).with_suffix(".csv"))
    assert set(data["panel"]) == {panel.title for panel in Experiments().figures("loss_by_scale").figures[0].panels}
    assert {SLOPE, FITTED, EXTENDED, TOGETHER} <= set(data["quantity"])
    assert layout.figure("loss_by_scale", 101).with_suffix(".svg").exists()
