"""Figures of a roofline that is fitted to a published sweep: points, drawing, page, and what is said without it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib import pyplot as plt

import redraft.published
from benchmarks.self_speculation import FOLDER, SOURCE, SWEEP
from redraft.analysis.data.collect import Runs
from redraft.analysis.figures import roofline_points
from redraft.analysis.figures.figure_drawing import plot
from redraft.analysis.figures.figure_files import write_figures
from redraft.analysis.figures.figure_parts import absent
from redraft.analysis.figures.points import AUTHORS_SWEEP, published_rooflines
from redraft.analysis.figures.roofline_points import BOUNDARY, MEASURED, PREDICTED, agreement_note
from redraft.analysis.pages.figure_page import figure_fragment
from redraft.config import Experiments, Figure
from redraft.errors import UserError
from redraft.lab.selfspec.sweep import read_sweep, write_sweep
from redraft.layout import PUBLISHED, Layout
from redraft.published import check_published
from redraft.selfspec.roofline import block_seconds, boundary, speedup, target_seconds
from tests.measured import figure_data, save_measured
from tests.selfspec import BATCHES, DATA, LENGTHS, QWEN, measurements, needs_data

ROOT = Path(__file__).parents[1]
PAPER = "efficient_rollout"
EXPERIMENTS = Experiments(ROOT)
NO_RUNS = Runs(pd.DataFrame(), pd.DataFrame(), pd.DataFrame())


def figure(*gammas):
    panels = [{"quantity": "speedup", "title": f"γ = {g}", "roofline": SOURCE, "gamma": g} for g in gammas]
    return Figure(number=12, title="t", x="roofline", panels=panels, columns=2)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A function that makes these measurements the published sweep."""
    (tmp_path / "published").mkdir()
    monkeypatch.setenv(PUBLISHED, str(tmp_path / "published"))
    monkeypatch.chdir(tmp_path)
    for module in (roofline_points, redraft.published):  # the declared number of rows is the authors'
        monkeypatch.setattr(module, "read_sweep", lambda file, rows: read_sweep(file))

    def publish(lines):
        file = tmp_path / "published" / FOLDER / SWEEP
        file.parent.mkdir(parents=True, exist_ok=True)
        write_sweep(file, lines)
        return file

    return publish


def data_of(shown):
    return figure_data(shown, NO_RUNS, True, rooflines=published_rooflines(shown, EXPERIMENTS, PAPER))


def kind(data, quantity, title="γ = 7"):
    return data[(data["panel"] == title) & (data["quantity"] == quantity)]


def test_points_are_what_was_measured_what_the_fit_predicts_and_where_its_toggle_switches(published):
    """Without noise the fit finds the device again, so that its own times say what the points must be."""
    published(measurements(QWEN))
    data = data_of(figure(3, 7))
    assert set(data["label"]) == {AUTHORS_SWEEP}
    assert (set(data["cell"]), set(data["n_seeds"]), set(data["manifests"])) == ({""}, {0}, {""}), "no run of ours"
    assert data["reported"].isna().all(), "and not what the paper prints"
    for gamma in (3, 7):
        found = kind(data, MEASURED, f"γ = {gamma}")
        x, y = found["x"].to_numpy(), found["y"].to_numpy()
        assert set(zip(x, y, strict=True)) == {(batch, length) for batch in BATCHES for length in LENGTHS}
        measured = (gamma + 1) * target_seconds(QWEN, x, y) / block_seconds(QWEN, x, y, gamma)
        np.testing.assert_allclose(found["reproduced"], measured, rtol=1e-9)
        found = kind(data, PREDICTED, f"γ = {gamma}")
        assert found["x"].min() < min(BATCHES) < max(BATCHES) < found["x"].max()
        assert found["y"].min() < min(LENGTHS) < max(LENGTHS) < found["y"].max()
        np.testing.assert_allclose(found["reproduced"], speedup(QWEN, found["x"], found["y"], gamma, gamma + 1), 1e-3)
        found = kind(data, BOUNDARY, f"γ = {gamma}")
        expected = boundary(QWEN, found["y"].to_numpy(), gamma, gamma + 1)
        assert np.abs(found["x"] - expected).max() <= 1
        assert found["reproduced"].min() >= 1.05


def test_a_report_fits_a_sweep_once_and_another_sweep_anew(published, monkeypatch):
    fits = []
    monkeypatch.setattr(roofline_points, "fit", lambda *given: fits.append(given) or replace_fit(*given))
    published(measurements(QWEN, noise=0.01, seed=7))
    data_of(figure(3, 7, 11))
    data_of(figure(7))
    assert len(fits) == 1
    assert fits[0][2:] == (SOURCE.flops, roofline_points.ranges_of_device(2.039e12))
    published(measurements(QWEN, noise=0.01, seed=8))
    data_of(figure(7))
    assert len(fits) == 2


def replace_fit(*_):
    return roofline_points.Fit(QWEN, (0.0, 0.0), 0, 0)


def test_without_the_published_sweep_the_panel_says_so(published):
    nothing = data_of(figure(3, 7))
    assert nothing.empty
    assert absent(figure(3, 7), nothing) == "Not run: published sweep not here."
    check_published(EXPERIMENTS, PAPER)


def test_a_sweep_that_is_missing_from_its_folder_damaged_or_of_another_model_is_an_error(published, monkeypatch):
    file = published([replace(line, model="other") for line in measurements(QWEN)])
    with pytest.raises(UserError, match=r"of another model(.|\n)*'other'\n  allowed: Qwen2.5-7B"):
        data_of(figure(7))
    whole = file.read_text()
    file.write_text(whole[:-40])
    with pytest.raises(UserError, match="its last line has no end"):
        check_published(EXPERIMENTS, PAPER)
    file.write_text(whole.rsplit("\n", 2)[0] + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(redraft.published, "read_sweep", read_sweep)
        with pytest.raises(UserError, match=rf"cut off(.|\n)*value:   {whole.count(chr(10)) - 2}(.|\n)*allowed: 596"):
            check_published(EXPERIMENTS, PAPER)
    file.rename(file.with_name("other.csv"))
    with pytest.raises(UserError, match=rf"missing(.|\n)*{re.escape(SWEEP)}(.|\n)*other\.csv"):
        check_published(EXPERIMENTS, PAPER)


@pytest.mark.parametrize("change", [("table: 3", "table: 2"), ("model: Qwen2.5-7B", "model: Qwen")])
def test_a_sweep_of_a_model_that_no_table_has_is_refused(folder, change):
    file = folder / f"experiments/{PAPER}/figures.yaml"
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(UserError, match=r"no decomposition has this model(.|\n)*Qwen2.5-14B in table 3"):
        Experiments(folder).figures(PAPER)


def test_panels_share_a_scale_and_say_whose_sweep_it_is(published):
    slower = replace(QWEN, verify_overhead=1.2 * QWEN.verify_overhead)
    lines = [line for line in measurements(slower) if line.mode == "target_verify"]
    published([*(line for line in measurements(QWEN) if line.mode != "target_verify"), *lines])
    shown = figure(3, 7, 15)
    data = data_of(shown)
    drawing = plot(shown, data)
    axes = [axis for axis in drawing.axes if axis.get_title()]
    for axis, gamma in zip(axes, (3, 7, 15), strict=True):
        (note,) = (text.get_text().replace("\n", " ") for text in axis.texts)
        assert note == f"{AUTHORS_SWEEP}, no run of ours: {agreement_note(data[data['panel'] == f'γ = {gamma}'])}"
        assert not any(line.get_visible() for line in axis.get_xgridlines())
    assert (
        len(
            {
                (each.norm.vmin, each.norm.vmax)
                for axis in axes
                for each in axis.collections
                if each.get_array() is not None and len(each.get_array()) > 5
            }
        )
        == 1
    )
    assert [axis.get_ylabel() for axis in drawing.axes].count("speedup") == 1
    assert "toggle boundary: 1.05 predicted" in [text.get_text() for text in drawing.legends[0].texts]
    plt.close(drawing)


def test_beside_runs_of_a_stand_in_the_authors_sweep_is_none(folder, published):
    published(measurements(QWEN, gammas=(3, 7, 11, 15)))
    file = folder / f"experiments/{PAPER}/figures.yaml"
    content = yaml.safe_load(file.read_text())
    content["figures"] = [each for each in content["figures"] if each["number"] in (4, 12)]
    file.write_text(yaml.safe_dump(content))
    layout, cell = Layout("tiny"), {"cell": "ar", "seed": 0}
    seconds = {"seconds.rollout": 1.0, "seconds.verification": 0.0, "seconds.assembly": 0.0}
    steps = [cell | {"step": i, "epoch": 0} | seconds for i in range(3)]
    scores = [cell | {"step": 3, "benchmark": "x", "role": "r", "correct": 1, "total": 2}]
    save_measured(Runs(*map(pd.DataFrame, ([cell | {"manifest": "m"}], steps, scores))), layout.collected(PAPER), PAPER)
    write_figures("tiny", PAPER)
    stand_in = EXPERIMENTS.preset("tiny").stand_in
    written = pd.read_csv(layout.figure(PAPER, 4).with_suffix(".csv"), keep_default_na=False)
    assert set(written.loc[written["label"] == AUTHORS_SWEEP, "stand_in"]) == {""}
    assert set(written.loc[written["label"] != AUTHORS_SWEEP, "stand_in"]) == {stand_in}
    for number in (4, 12):
        shown = next(each for each in EXPERIMENTS.figures(PAPER).figures if each.number == number)
        html = figure_fragment(shown, layout.figure(PAPER, number), PAPER, layout.pages, stand_in)
        assert stand_in not in html.replace("&#39;", "'"), "the page's banner has it"
        assert "Neither measured here nor printed in the paper" in html or number == 4
        assert "data:image/svg+xml" in html


@needs_data
def test_the_authors_own_sweep_lies_on_the_predicted_side_at_173_of_178_points(monkeypatch):
    """The boundary at the shortest and the longest sequences that were measured."""
    monkeypatch.setenv(PUBLISHED, str(DATA.parent))
    check_published(EXPERIMENTS, PAPER)
    twelve = next(each for each in EXPERIMENTS.figures(PAPER).figures if each.number == 12)
    data = data_of(twelve)
    found = {panel.gamma: data[data["panel"] == panel.title] for panel in twelve.panels}
    assert {gamma: agreement_note(points).partition(" on")[0] for gamma, points in found.items()} == {
        3: "44 of 45",
        7: "44 of 45",
        11: "42 of 44",
        15: "43 of 44",
    }
    ends = {gamma: points[points["quantity"] == BOUNDARY].set_index("y")["x"] for gamma, points in found.items()}
    assert {gamma: (at[256], at[4096]) for gamma, at in ends.items()} == {
        3: (49, 52),
        7: (48, 48),
        11: (48, 46),
        15: (48, 45),
    }
