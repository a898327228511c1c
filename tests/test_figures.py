"""Data and drawings of figures, from runs made up here."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.path import Path as Outline
from pydantic import ValidationError

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import by_seed, of_steps
from redraft.analysis.figures.figure_drawing import draw, plot
from redraft.analysis.figures.figure_parts import absent, whole_ticks, with_data
from redraft.analysis.figures.points import reported_bars
from redraft.config import Experiments, Figure
from redraft.config.figures import FigureFile
from tests.measured import figure_data
from tests.step_records import made_up_scores, made_up_step

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
FIGURES = {figure.number: figure for figure in EXPERIMENTS.figures("spec_rl").figures}


def made_up(cells, steps=6, change=lambda **_: {}):
    """Runs of cells (name to steps an epoch), two seeds each; 60 of 100 right, and one more a seed.

    Rollout time is the step's number from 1, and a tenth of the seed more.
    """
    keys = [(cell, seed) for cell in cells for seed in (0, 1)]
    records = []
    for cell, seed in keys:
        for i in range(steps):
            drafts = i >= cells[cell]
            tokens = {"tokens_verified": 50.0, "tokens_reused": 20.0 if drafts else 0.0}
            values = tokens | change(cell=cell, seed=seed, number=i)
            records.append(made_up_step(cell, seed, i, i // cells[cell], i + 1 + seed / 10, drafts, **values))
    runs = [{"cell": c, "seed": s, "fingerprint": "f", "seconds": 1.0, "manifest": f"{c}/{s}"} for c, s in keys]
    benchmarks = {"arithmetic": "in-distribution", "arithmetic-minus": "out-of-distribution"}
    results = [
        line
        for c, s in keys
        for at in (0, steps)
        for line in made_up_scores(c, s, at, 60 + s if at else 10, benchmarks)
    ]
    return Runs(pd.DataFrame(runs), pd.DataFrame(records), pd.DataFrame(results))


def line_of(data, panel, cell):
    return data[(data["panel"] == panel) & (data["cell"] == cell)].set_index("x")


def test_a_line_has_a_point_for_every_step_that_was_run():
    data = figure_data(FIGURES[4], made_up({"grpo-vanilla": 2, "grpo-spec-l0": 2}), paper_scale=False)
    line = line_of(data, "rollout time (s)", "grpo-spec-l0")
    assert list(line.index) == [1, 2, 3, 4, 5, 6], "steps count from 1, as people count"
    assert list(line["reproduced"]) == pytest.approx([1.05, 2.05, 3.05, 4.05, 5.05, 6.05])
    assert (line.loc[3, "low"], line.loc[3, "high"]) == pytest.approx(
        (3.05 - 12.7062 * 0.05, 3.05 + 12.7062 * 0.05), rel=1e-5
    ), "Student's interval of 3.0 and 3.1"
    assert (line.loc[3, "label"], line.loc[3, "seeds"]) == ("ℓ = 1", "0 1")
    assert line.loc[3, "manifests"] == "grpo-spec-l0/0 grpo-spec-l0/1"
    assert set(data["cell"]) == {"grpo-vanilla", "grpo-spec-l0"}, "nothing for what was not run"
    prefix = line_of(data, "verified prefix length (tokens)", "grpo-spec-l0")
    assert list(prefix.index) == [3, 4, 5, 6], "there is no prefix without drafts"
    assert data["reported"].isna().all()


def test_panels_of_one_quantity_are_kept_apart():
    cells = {"grpo-spec-l0.5": 2, "8b-ppo-spec-l0.3": 2}
    data = figure_data(FIGURES[8], made_up(cells), paper_scale=False)
    assert {(p, c) for p, c in zip(data["panel"], data["cell"], strict=True)} == {
        ("Qwen3-1.7B", "grpo-spec-l0.5"),
        ("Qwen3-8B", "8b-ppo-spec-l0.3"),
    }
    assert set(data["label"]) == {"GRPO", "PPO"}


def test_by_epoch_a_point_is_the_mean_of_the_epoch_s_steps():
    def overlap(number, **_):
        return {"rouge_1": math.nan if number < 2 else number / 10}

    runs = made_up({"grpo-vanilla": 2, "dapo-vanilla": 3}, change=overlap)
    data = figure_data(FIGURES[2], runs, paper_scale=True)
    grpo = line_of(data, "ROUGE-1 (F)", "grpo-vanilla")
    assert list(grpo.index) == [2, 3], "there is no earlier epoch to compare the first with"
    assert list(grpo["reproduced"]) == pytest.approx([0.25, 0.45])
    assert list(grpo["reported"]) == [0.5, 0.7]
    assert list(grpo["deviation"]) == pytest.approx([-0.25, -0.25])
    dapo = line_of(data, "ROUGE-1 (F)", "dapo-vanilla")
    # Step 2 is in the first epoch of three steps.
    assert list(dapo["reproduced"]) == pytest.approx([0.2, 0.4])
    assert figure_data(FIGURES[2], runs, paper_scale=False)["reported"].isna().all()


def test_the_first_reuse_is_the_first_step_of_a_line_s_second_epoch():
    data = figure_data(FIGURES[7], made_up({"2k-grpo-spec-l0.5": 2, "4k-grpo-spec-l0.5": 4}), paper_scale=False)
    marked = data[data["first_reuse"]]
    assert dict(zip(marked["cell"], marked["x"], strict=True)) == {"2k-grpo-spec-l0.5": 3, "4k-grpo-spec-l0.5": 5}
    one_epoch = figure_data(FIGURES[7], made_up({"5k-grpo-spec-l0.5": 9}), paper_scale=False)
    assert len(one_epoch) == 6
    assert not one_epoch["first_reuse"].any()
    assert not figure_data(FIGURES[4], made_up({"grpo-vanilla": 2}), paper_scale=False)["first_reuse"].any()


ENTROPY = {"quantity": "entropy", "title": "H", "cells": ["c"]}


def test_a_quantity_that_an_algorithm_lacks_has_no_points_and_one_of_some_steps_has_gaps():
    kl = {"quantity": "kl", "title": "KL", "cells": ["a", "b", "c"], "log": True}
    figure = Figure(number=5, title="t", x="step", panels=[kl, ENTROPY])

    def null(cell, number, **_):
        return {"kl": math.nan} if cell == "b" else {"entropy": math.nan} if cell == "c" and number in (1, 3) else {}

    data = figure_data(figure, made_up({"a": 2, "b": 2, "c": 2}, change=null), paper_scale=False)
    without = line_of(data, "KL", "b")
    assert (list(without.index), set(without["n_seeds"])) == ([*range(1, 7)], {0})
    assert without["reproduced"].isna().all()
    assert list(line_of(data, "H", "c").index) == [1, 3, 5, 6]
    axes = plot(figure, data).axes
    assert axes[0].get_yscale() == "log"
    assert texts(axes[0]) == [], "b was run, and measures no KL"
    assert list(axes[1].lines[0].get_xdata()) == [*range(1, 7)], "the axis shows the data as they are"
    assert np.isnan(axes[1].lines[0].get_ydata()).tolist() == [False, True, False, True, False, False]
    plt.close("all")


def test_a_smoothed_line_is_over_the_steps_that_have_a_value():
    """Steps 2 and 4 have none: the moving average of 1, 3, 5 and 6 at a weight of one half."""
    figure = Figure(number=5, title="t", x="step", panels=[{**ENTROPY, "smoothing": 0.5}])

    def rising(cell, number, **_):
        return {"entropy": math.nan if number in (1, 3) else number + 1.0}

    data = figure_data(figure, made_up({"c": 2}, change=rising), paper_scale=False)
    smooth = plot(figure, data).axes[0].lines[1].get_ydata()
    assert smooth == pytest.approx([1.0, math.nan, 2.0, math.nan, 3.5, 4.75], nan_ok=True)
    plt.close("all")


BARS = Figure(
    number=1,
    title="t",
    x="cell",
    panels=[
        {
            "quantity": "accuracy:all",
            "title": "accuracy",
            "cells": ["8b-grpo-vanilla", "8b-grpo-spec-l0.5"],
            "labels": ["GRPO", "GRPO + SPEC-RL"],
            "reported_in": {"table": 1, "column": "avg"},
        },
        {"quantity": "rollout_seconds", "title": "time", "cells": ["8b-grpo-spec-l0.5"]},
    ],
)


def test_bars_show_the_last_policy_beside_the_paper_s_value_at_its_scale_only():
    reported = reported_bars(BARS, EXPERIMENTS, "spec_rl")
    assert reported == {"accuracy": {"8b-grpo-vanilla": 57.5, "8b-grpo-spec-l0.5": 59.3}}
    runs = made_up({"8b-grpo-spec-l0.5": 2})
    data = figure_data(BARS, runs, paper_scale=True, reported=reported)
    assert list(data["cell"]) == ["8b-grpo-spec-l0.5"] * 2, "no bar for what was not run"
    bar = line_of(data, "accuracy", "8b-grpo-spec-l0.5").loc[1]
    assert (bar["reproduced"], bar["low"], bar["high"]) == pytest.approx(
        (60.5, 60.5 - 12.7062 * 0.5, 60.5 + 12.7062 * 0.5), rel=1e-5
    )
    assert (bar["reported"], bar["deviation"], bar["n_seeds"]) == pytest.approx((59.3, 1.2, 2))
    time = line_of(data, "time", "8b-grpo-spec-l0.5").loc[0]
    assert (time["reproduced"], math.isnan(time["reported"])) == (pytest.approx(21.3), True)
    assert figure_data(BARS, runs, paper_scale=False, reported=reported)["reported"].isna().all()


def test_no_reported_value_can_become_a_reproduced_one():
    runs = made_up({"8b-grpo-vanilla": 2, "8b-grpo-spec-l0.5": 2})
    reported = reported_bars(BARS, EXPERIMENTS, "spec_rl")
    nonsense = {panel: {cell: 7 * value + 1 for cell, value in bars.items()} for panel, bars in reported.items()}
    first, second = (figure_data(BARS, runs, paper_scale=True, reported=values) for values in (reported, nonsense))
    columns = ["reproduced", "low", "high"]
    pd.testing.assert_frame_equal(first[columns], second[columns])
    assert not first["reported"].equals(second["reported"])


def shipped_runs():
    cells = {cell for figure in FIGURES.values() for panel in figure.panels for cell in panel.cells}
    return made_up(dict.fromkeys(sorted(cells), 2), steps=4)


def texts(axis):
    return [text.get_text() for text in axis.texts]


def flat(text):
    return text.replace("\n", " ")


@pytest.mark.parametrize("number", FIGURES)
def test_a_shipped_figure_has_all_its_points_in_their_panels(number):
    figure, runs = FIGURES[number], shipped_runs()
    data = figure_data(figure, runs, paper_scale=False)
    points = set(zip(data["panel"], data["cell"], strict=True))
    assert points == {(panel.title, cell) for panel in figure.panels for cell in panel.cells}
    axes = plot(figure, data).axes
    assert [flat(axis.get_title()) for axis in axes if axis.get_visible()] == [panel.title for panel in figure.panels]
    for axis, panel in zip(axes, figure.panels, strict=False):
        drawn = axis.patches if figure.x == "cell" else axis.collections
        assert (len(drawn), texts(axis)) == (len(panel.cells), [])
    plt.close("all")


def halves(figure):
    """The first cell of each panel, and all others."""
    first = {panel.cells[0] for panel in figure.panels}
    return first, {cell for panel in figure.panels for cell in panel.cells} - first


HALVES = [(number, part) for number in FIGURES for part in (0, 1) if halves(FIGURES[number])[part]]


@cache
def half_run(number, part):
    """A figure, the cells that were run, and its data."""
    figure, run = FIGURES[number], halves(FIGURES[number])[part]
    return figure, run, figure_data(figure, made_up(dict.fromkeys(sorted(run), 2)), paper_scale=False)


@pytest.mark.parametrize(("number", "part"), HALVES)
def test_what_was_not_run_is_named_in_the_drawing_and_a_panel_without_any_run_is_left_out(number, part):
    figure, run, data = half_run(number, part)
    drawn = [panel for panel in figure.panels if run & set(panel.cells)]
    axes = [axis for axis in plot(figure, data).axes if axis.get_visible()]
    assert [flat(axis.get_title()) for axis in axes] == [panel.title for panel in drawn]
    for axis, panel in zip(axes, drawn, strict=True):
        missing = [panel.label(cell) for cell in panel.cells if cell not in run]
        if figure.x == "cell":
            assert texts(axis) == ["not run"] * len(missing)
        else:
            assert [flat(text) for text in texts(axis)] == [f"not run: {', '.join(missing)}"] * bool(missing)
    plt.close("all")


def test_reasons_why_panels_are_not_shown():
    panels = [
        {"quantity": "reward", "title": "p", "cells": ["a"]},
        {"quantity": "reward", "title": "q", "cells": ["b"]},
        {"quantity": "kl", "title": "null", "cells": ["a"]},
        {"quantity": "reward", "title": "r; s", "cells": ["c"]},
        {"quantity": "accuracy:math500", "title": "m", "cells": ["a"]},
    ]
    figure = Figure(number=1, title="t", x="step", panels=panels)
    runs = made_up({"a": 2}, change=lambda **_: {"kl": math.nan})
    data = figure_data(figure, runs, paper_scale=False, unsampled={"math500"})
    assert [panel.title for panel in with_data(figure, data)] == ["p"]
    assert absent(figure, data, {"math500"}) == (
        "Not run: q; r; s. Run, and nothing to measure: null. Not sampled at this scale: m."
    )
    nothing = figure_data(figure, made_up({"d": 2}), paper_scale=False, unsampled={"math500"})
    assert absent(figure, nothing, {"math500"}) == "Not run: p; q; null; r; s. Not sampled at this scale: m."
    alone = figure.model_copy(update={"panels": figure.panels[:2]})
    assert absent(alone, nothing) == "Not run."
    assert absent(alone.model_copy(update={"panels": figure.panels[:1]}), data) == ""


def test_axes_begin_at_the_first_step_and_say_what_they_count():
    panels = [
        {"quantity": "reward", "title": "steps", "cells": ["a"]},
        {"quantity": "reward", "title": "epochs", "cells": ["a"], "x": "epoch"},
        {"quantity": "accuracy:all", "title": "policies", "cells": ["a"]},
        {"quantity": "reward", "title": "tokens", "cells": ["a"], "x": "tokens"},
    ]
    figure = Figure(number=1, title="t", x="step", panels=panels)
    axes = plot(figure, figure_data(figure, made_up({"a": 6}, steps=24), paper_scale=False)).axes
    assert [axis.get_xlabel() for axis in axes if axis.get_visible()] == [
        "step (from 1)",
        "epoch (from 1)",
        "steps done (0: initial policy)",
        "decoded tokens (M)",
    ]
    assert [list(axis.get_xticks()) for axis in axes[:3]] == [[1, 5, 10, 15, 20], [1, 2, 3, 4], [0, 5, 10, 15, 20]]
    plt.close("all")


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (1, 1, [1]),
        (1, 2, [1, 2]),
        (0, 6, [*range(7)]),
        (1, 42, [1, 10, 20, 30, 40]),
        (3, 8, [3, 4, 5, 6, 7, 8]),
        (13, 42, [13, 20, 25, 30, 35, 40]),
        (1, 1000, [1, 200, 400, 600, 800, 1000]),
    ],
)
def test_ticks_of_whole_numbers_begin_with_the_first(first, last, ticks):
    assert whole_ticks(first, last) == ticks


def test_marks_are_named_in_the_legend_and_nothing_that_is_not_drawn():
    figure = FIGURES[7]
    whole = figure_data(figure, made_up({"2k-grpo-spec-l0.5": 2, "4k-grpo-spec-l0.5": 4}), paper_scale=False)
    assert legend(plot(figure, whole)) == ["2K", "4K", "95 % interval", "first reuse"]
    plain = whole.assign(low=math.nan, high=math.nan, first_reuse=False, reported=1.0)
    assert legend(plot(figure, plain)) == ["2K", "4K", "paper"]
    plt.close("all")


def legend(drawing):
    return [text.get_text() for text in drawing.legends[0].texts]


@pytest.mark.parametrize(("number", "part"), HALVES)
def test_no_text_of_a_drawing_lies_over_a_line_a_bar_or_another_text(number, part):
    figure, _, data = half_run(number, part)
    drawing = plot(figure, data)
    drawing.draw_without_rendering()
    written = [
        (text, axis)
        for axis in drawing.axes
        if axis.get_visible()
        for text in [*axis.texts, axis.title, axis.xaxis.label, *axis.get_xticklabels(), *axis.get_yticklabels()]
        if text.get_text() and text.get_visible()
    ]
    written += [(text, None) for legend in drawing.legends for text in legend.get_texts()]
    boxes = [(text.get_text(), text.get_window_extent()) for text, _ in written]
    for name, box in boxes:
        for axis in drawing.axes:
            assert not any(hides(box, drawn) for drawn in shapes(axis)), name
    # A box around a name that stands aslant is no outline of it.
    level = [box for box, (text, _) in zip(boxes, written, strict=True) if text.get_rotation() % 90 == 0]
    overlapping = {
        (a, b)
        for i, (a, first) in enumerate(level)
        for b, second in level[i + 1 :]
        if first.padded(-0.5).overlaps(second)
    }
    assert not overlapping
    assert all(text.get_fontsize() >= 9 for text, _ in written), "12 pixels of a page"
    assert all(text.get_bbox_patch() is None for text, _ in written), "nothing opaque behind a text"
    plt.close("all")


def shapes(axis):
    """Outlines of an axis's lines and bars, in pixels."""
    lines = [line.get_path().transformed(line.get_transform()) for line in axis.lines]
    return [*lines, *(bar.get_path().transformed(bar.get_transform()) for bar in axis.patches)]


def hides(box, path):
    """Whether a text's box meets an outline; NaN are gaps."""
    points = path.vertices[~np.isnan(path.vertices).any(axis=1)]
    return len(points) > 0 and Outline(points).intersects_bbox(box, filled=False)


def test_what_was_not_run_stands_between_the_title_and_the_diagram():
    drawing = plot(FIGURES[4], figure_data(FIGURES[4], made_up({"grpo-spec-l0.5": 2}), paper_scale=False))
    drawing.draw_without_rendering()
    for axis in drawing.axes:
        note, title = (text.get_window_extent() for text in (axis.texts[0], axis.title))
        assert axis.bbox.y1 <= note.y0 < note.y1 <= title.y0 + 0.5
        assert 0 <= note.x0 < note.x1 <= drawing.bbox.x1
    plt.close("all")


def test_a_long_note_is_broken_so_that_it_stays_above_its_own_diagram():
    cells = ["a", *(f"a-cell-with-a-long-name-{i}" for i in range(9))]
    panels = [{"quantity": "reward", "title": title, "cells": cells} for title in "pqr"]
    figure = Figure(number=5, title="t", x="step", columns=3, panels=panels)
    drawing = plot(figure, figure_data(figure, made_up({"a": 2}), paper_scale=False))
    drawing.draw_without_rendering()
    assert len(drawing.axes) == 3
    for axis in drawing.axes:
        note, title = (text.get_window_extent() for text in (axis.texts[0], axis.title))
        around = axis.get_tightbbox()
        assert around.x0 - 12 <= note.x0 < note.x1 <= around.x1 + 12
        assert note.x1 - note.x0 < axis.bbox.width + 12, "not wider than the diagram"
        assert axis.bbox.y1 <= note.y0 < note.y1 <= title.y0 + 0.5
    plt.close("all")


def test_a_drawing_of_the_same_data_is_the_same_file(tmp_path):
    data = figure_data(FIGURES[6], made_up({"grpo-vanilla": 2}), paper_scale=False)
    draw(FIGURES[6], data, tmp_path / "one")
    draw(FIGURES[6], data, tmp_path / "two")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_every_figure_of_the_paper_that_holds_data_is_declared():
    assert [n for n in FIGURES if n < 100] == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert EXPERIMENTS.figures("spec_rl").cases.numbers == [12, 13, 14, 15]
    assert [FIGURES[101].heading, FIGURES[4].heading] == ["Extra 1", "Figure 4"]
    runs = shipped_runs()
    for figure in FIGURES.values():
        for panel in figure.panels:
            if figure.x in ("cell", "score"):
                assert by_seed(runs, panel.quantity, panel.cells[0])
            else:
                assert len(of_steps(runs, panel.quantity, panel.cells[0]))


LINE = {"quantity": "reward", "title": "t", "cells": ["a", "b"]}


@pytest.mark.parametrize(
    ("x", "panel", "words"),
    [
        ("step", {"labels": ["A"]}, "1 labels for 2 cells"),
        ("step", {"labels": ["A", "A"]}, "label 'A' occurs twice"),
        ("step", {"cells": ["a", "a"]}, "cell 'a' occurs twice"),
        ("step", {"reported_in": {"table": 1, "column": "avg"}}, "reported_in is for bars"),
        ("cell", {"mark_first_reuse": True}, "for lines(.*), not for x: cell"),
        ("cell", {"reported": {"first": 1.0}}, "for lines(.*), not for x: cell"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused(x, panel, words):
    with pytest.raises(ValidationError, match=words):
        Figure(number=1, title="t", x=x, panels=[LINE | panel])


def test_case_studies_have_numbers_of_their_own():
    figures = [{"number": 12, "title": "t", "x": "step", "panels": [LINE]}]
    cases = {"cell": "a", "numbers": [12, 13, 14, 15]}
    with pytest.raises(ValidationError, match="figure 12 occurs twice"):
        FigureFile(figures=figures, cases=cases)
    with pytest.raises(ValidationError, match="at least 4"):
        FigureFile(figures=figures, cases=cases | {"numbers": [13]})
