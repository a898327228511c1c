"""Where the artists of a diagram stand: points, bands, bars and their intervals, at the coordinates of the data."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.container import BarContainer

from redraft.analysis.figures.figure_drawing import plot
from redraft.config import Figure

A, B = "a", "b"
PANEL = {"quantity": "reward", "title": "p", "cells": [A, B], "labels": ["A", "B"]}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def drawn(x, points, **fields):
    """The axis of one panel. A point is (cell, x, mean, low, high), and more by name."""
    figure = Figure(number=1, title="t", x=x, panels=[PANEL | fields])
    names = ("cell", "x", "reproduced", "low", "high")
    lines = [dict(zip(names, point[:5], strict=True)) | dict(point[5:]) for point in points]
    data = pd.DataFrame(lines).assign(panel="p")
    data["label"] = data["cell"].map({A: "A", B: "B"})
    for name, missing in (("reported", math.nan), ("first_reuse", False)):
        data[name] = data[name].fillna(missing) if name in data else missing
    return plot(figure, data.astype({"first_reuse": bool})).axes[0]


LINE = [
    (A, 2, 0.5, 0.2, 0.6, ("reported", 0.9)),
    (A, 3, 0.7, 0.6, 1.0, ("first_reuse", True)),
    (A, 5, 0.4, 0.1, 0.5),
]
"""Intervals that are longer below in some points and above in another; step 4 has none."""


def coordinates(line):
    return list(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True))


def with_marker(axis, marker):
    """Coordinates of points drawn so, without those that are not there."""
    found = [point for line in axis.lines if line.get_marker() == marker for point in coordinates(line)]
    return [point for point in found if not math.isnan(point[1])]


@pytest.mark.parametrize("x", ["step", "epoch"])
def test_steps_and_epochs_are_drawn_where_they_are_with_their_gaps_marks_and_reported_values(x):
    axis = drawn(x, LINE)
    (at, mean) = zip(*coordinates(axis.lines[0]), strict=True)
    assert at == (2, 3, 4, 5)
    np.testing.assert_array_equal(mean, [0.5, 0.7, math.nan, 0.4])
    assert with_marker(axis, "^") == [(3, 0.7)]
    assert with_marker(axis, "D") == [(2, 0.9)]
    (paper,) = (line for line in axis.lines if line.get_marker() == "D")
    assert (paper.get_markerfacecolor(), paper.get_markeredgecolor()) == ("white", axis.lines[0].get_color())


def test_hours_are_drawn_as_they_are():
    axis = drawn("hours", [(A, 0.25, 0.5, 0.2, 0.6), (A, 1.5, 0.7, 0.6, 1.0)])
    assert coordinates(axis.lines[0]) == [(0.25, 0.5), (1.5, 0.7)]


def test_a_band_lies_between_the_ends_of_the_intervals():
    axis = drawn("step", LINE)
    corners = {tuple(corner) for path in axis.collections[0].get_paths() for corner in path.vertices.round(6).tolist()}
    assert {(2, 0.2), (2, 0.6), (3, 0.6), (3, 1.0), (5, 0.1), (5, 0.5)} <= corners
    assert {at for at, _ in corners} == {2, 3, 5}
    assert min(value for _, value in corners) == 0.1


def test_a_smoothed_line_keeps_the_given_share_of_what_it_was():
    axis = drawn("step", [(A, i, value, 0, 1) for i, value in enumerate((1.0, 0.0, 0.0))], smoothing=0.9)
    assert coordinates(axis.lines[1]) == [(0, 1.0), (1, pytest.approx(0.9)), (2, pytest.approx(0.81))]


def intervals(axis):
    """Lowest and highest point of each error bar, from left to right."""
    bars = [container for container in axis.containers if isinstance(container, BarContainer)]
    segments = [segment for bar in bars for segment in bar.errorbar.lines[2][0].get_segments()]
    return [(round(float(x), 6), round(float(low), 6), round(float(high), 6)) for (x, low), (_, high) in segments]


def test_bars_stand_at_their_place_with_their_interval_and_the_paper_s_value_beside():
    axis = drawn("cell", [(A, 0, 10.0, 9.0, 14.0), (B, 1, 20.0, 13.0, 21.0, ("reported", 17.0))])
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axis.patches] == [
        (pytest.approx(0), 10.0),
        (pytest.approx(1), 20.0),
    ]
    assert intervals(axis) == [(0, 9, 14), (1, 13, 21)]
    ((at, value),) = with_marker(axis, "D")
    assert (1 < at < 1.325, value) == (True, 17.0)
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["A", "B"]


def test_a_bar_of_one_seed_has_no_interval():
    axis = drawn("cell", [(A, 0, 10.0, math.nan, math.nan)])
    assert [bar.get_height() for bar in axis.patches] == [10.0]
    assert axis.containers[0].errorbar is None


def test_a_bin_of_one_seed_has_no_interval():
    axis = drawn(
        "bins", [(A, 0, 5.0, math.nan, math.nan, ("upper", 0.2))], quantity="responses", by="pass_rate", bins=[0, 0.2]
    )
    assert [bar.get_height() for bar in axis.patches] == [5.0]
    ((segment,),) = [bar.errorbar.lines[2][0].get_segments() for bar in axis.containers[1:]]
    assert len(segment) == 0


def test_bars_over_bins_stand_side_by_side_within_their_bins_with_their_intervals():
    points = [
        (cell, low, mean, mean - 1, mean + 3, ("upper", high))
        for cell, mean in ((A, 5.0), (B, 7.0))
        for low, high in ((0, 0.2), (0.2, 0.8))
    ]
    axis = drawn("bins", points, quantity="responses", by="pass_rate", bins=[0, 0.2, 0.8])
    spans = sorted(
        (round(bar.get_x(), 6), round(bar.get_x() + bar.get_width(), 6), bar.get_height()) for bar in axis.patches
    )
    assert spans == [(0.01, 0.1, 5.0), (0.1, 0.19, 7.0), (0.23, 0.5, 5.0), (0.5, 0.77, 7.0)]
    assert sorted((low, high) for _, low, high in intervals(axis)) == [(4, 8), (4, 8), (6, 10), (6, 10)]


def test_a_surface_has_its_smallest_values_at_the_lower_left_and_each_number_at_its_place():
    axes = ["reuse.lenience", "trainer_factors.learning_rate"]
    points = [(A, 1.0, 0.25, 0, 1, ("y", 10.0)), (B, 3.0, 0.75, 0, 1, ("y", 20.0))]
    axis = drawn("surface", points, axes=axes)
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "3"]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["10", "20"]
    assert {text.get_text(): text.get_position() for text in axis.texts} == {"0.25": (0, 0), "0.75": (1, 1)}
    assert axis.get_ylim()[0] < axis.get_ylim()[1], "larger values stand higher"
    assert axis.images[0].get_array().tolist() == [[0.25, None], [None, 0.75]]
