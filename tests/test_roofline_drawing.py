"""The drawing of a roofline beside its sweep: what each panel shows, and where."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_rgba

from redraft.analysis.figures.calibration_drawing import draw_roofline, plot_roofline
from redraft.analysis.figures.roofline_panel import SWITCH
from redraft.analysis.figures.roofline_points import BORDER
from redraft.lab.selfspec.sweep import read_sweep, write_sweep
from redraft.selfspec.roofline import block_seconds, boundary, speedup, target_seconds
from tests.selfspec import BATCHES, LENGTHS, QWEN, measurements

SLOWER = replace(QWEN, verify_overhead=3 * QWEN.verify_overhead)
"""What was measured: blocks take longer than the roofline that is drawn says."""


@pytest.fixture
def sweep(tmp_path):
    """A function that gives the sweep of a device, of these lengths of drafts."""

    def of(gammas=(3, 7, 11), device=SLOWER):
        write_sweep(tmp_path / "sweep.csv", measurements(device, gammas=gammas))
        return read_sweep(tmp_path / "sweep.csv")

    return of


@pytest.fixture
def panels(sweep):
    """A function that draws a sweep and gives the panels by their length of drafts."""
    drawings = []

    def of(**options):
        drawing = plot_roofline(QWEN, sweep(**options))
        drawings.append(drawing)
        shown = [axis for axis in drawing.axes if axis.get_title()]
        return {int(axis.get_title().partition(":")[0].removeprefix("γ = ")): axis for axis in shown}

    yield of
    for drawing in drawings:
        plt.close(drawing)


def part(axis, kind):
    (found,) = (one for one in axis.collections if type(one) is kind)
    return found


def measured(batches, lengths, gamma):
    """Speedup by the device that was measured, every draft accepted whole."""
    return (gamma + 1) * target_seconds(SLOWER, batches, lengths) / block_seconds(SLOWER, batches, lengths, gamma)


@pytest.mark.parametrize("gammas", [(3,), (3, 7), (3, 7, 11), (1, 3, 7, 11, 15)], ids=len)
def test_each_length_of_drafts_has_its_panel(panels, gammas):
    found = panels(gammas=gammas)
    assert tuple(found) == gammas
    for gamma, axis in found.items():
        np.testing.assert_allclose(part(axis, PathCollection).get_array(), measured(*places(axis), gamma), rtol=1e-6)


def places(axis):
    """Batches and lengths of the circles."""
    return part(axis, PathCollection).get_offsets().T


def test_colours_are_predicted_and_circles_measured(panels):
    for gamma, axis in panels().items():
        surface = part(axis, QuadMesh)
        batches, lengths = surface.get_coordinates()[..., 0], surface.get_coordinates()[..., 1]
        expected = speedup(QWEN, batches, lengths, gamma, gamma + 1)
        np.testing.assert_allclose(surface.get_array().reshape(batches.shape), expected)
        circles = part(axis, PathCollection)
        np.testing.assert_allclose(circles.get_array(), measured(*places(axis), gamma), rtol=1e-6)
        of_roofline = speedup(QWEN, *places(axis), gamma, gamma + 1)
        assert np.all(circles.get_array() < 0.999 * of_roofline), "or exchanging them changes nothing"


def test_every_point_of_the_sweep_is_shown_and_none_is_cut(panels):
    for axis in panels().values():
        shown = {(round(batch), round(length)) for batch, length in part(axis, PathCollection).get_offsets()}
        assert shown == {(batch, length) for batch in BATCHES for length in LENGTHS}
        for limits, values in ((axis.get_xlim(), BATCHES), (axis.get_ylim(), LENGTHS)):
            assert limits == pytest.approx((min(values) / BORDER, max(values) * BORDER), rel=0.02)
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64"]
        assert [tick.get_text() for tick in axis.get_yticklabels()] == ["256", "512", "1024", "2048", "4096"]


def test_points_on_the_other_side_of_1_are_marked_and_counted(panels):
    some = 0
    for gamma, axis in panels().items():
        circles = part(axis, PathCollection)
        wrong = (circles.get_array() >= 1) != (speedup(QWEN, *places(axis), gamma, gamma + 1) >= 1)
        marked = (circles.get_edgecolors() == to_rgba("#c1121f")).all(1)
        assert list(marked) == list(wrong)
        assert f": {len(wrong) - wrong.sum()} of {len(wrong)} on" in axis.get_title()
        some += wrong.sum()
    assert some > 0


def test_all_panels_have_one_scale_even_around_no_gain(panels):
    found = panels()
    coloured = [part(axis, kind) for axis in found.values() for kind in (QuadMesh, PathCollection)]
    scales = {(one.norm.vmin, one.norm.vmax) for one in coloured}
    assert len(scales) == 1
    low, high = scales.pop()
    assert low * high == pytest.approx(1)
    values = np.concatenate([one.get_array().ravel() for one in coloured])
    assert low <= values.min() * (1 + 1e-9)
    assert values.max() <= high * (1 + 1e-9)
    drawing = next(iter(found.values())).figure
    (legend,) = drawing.legends
    named = {text.get_text(): handle for text, handle in zip(legend.texts, legend.legend_handles, strict=True)}
    assert list(named) == [
        "predicted: no gain",
        "toggle boundary: 1.05 predicted",
        "measured",
        "measured, other side of 1",
    ]
    assert {axis.lines[0].get_color() for axis in found.values()} == {SWITCH}
    assert named["toggle boundary: 1.05 predicted"].get_color() == SWITCH
    (bar,) = (axis for axis in drawing.axes if axis.get_ylabel() == "speedup")
    labels = [tick.get_text() for tick in bar.get_yticklabels()]
    assert "1" in labels
    np.testing.assert_allclose(bar.get_yticks(), [float(label) for label in labels])


def test_the_blue_line_is_the_largest_batch_at_which_the_toggle_switches_on(panels):
    for gamma, axis in panels().items():
        batches, lengths = axis.lines[0].get_data()
        assert len(lengths) == part(axis, QuadMesh).get_coordinates().shape[0], "at every length"
        assert list(batches) == list(boundary(QWEN, lengths, gamma, gamma + 1))
        assert 32 < min(batches) <= max(batches) < 64


def test_a_device_on_which_it_never_pays_is_drawn_too(sweep):
    never = replace(QWEN, verify_overhead=1e6)
    drawing = plot_roofline(never, sweep(device=never))
    assert all(len(axis.collections) == 2 for axis in drawing.axes if axis.get_title()), "no line of no gain"
    assert all(len(axis.lines[0].get_xdata()) == 0 for axis in drawing.axes if axis.get_title()), "and no boundary"
    plt.close(drawing)


def test_the_file_is_the_same_each_time(sweep, tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_roofline(QWEN, sweep(gammas=(7,)), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.svg").read_text().count("<image") >= 1
