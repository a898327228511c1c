"""Figures over hours, bins of prompts and two axes, from runs and rollouts made up here."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from pydantic import ValidationError

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.prompt_frames import PROMPT_QUANTITIES, of_prompts
from redraft.analysis.data.quantities import by_seed
from redraft.analysis.figures.figure_drawing import plot
from redraft.analysis.figures.figure_parts import absent
from redraft.config import Cell, Figure
from redraft.config.cell import coordinate
from redraft.errors import UserError
from redraft.layout import PUBLISHED
from tests.measured import figure_data

A, B = "a", "b"
LINE = {"quantity": "reward", "title": "t", "cells": [A]}
SWEEP = {"file": "authors/sweep.csv", "rows": 9, "table": 3, "model": "m", "flops": 1e14}


def write_rollouts(folder):
    """Two steps of one epoch each: prompt 0 gets nothing, then one of two right; prompt 1 four of four."""
    rewards = {0: {0: [0, 0], 1: [1, 1, 1, 1]}, 1: {0: [0, 1], 1: [1, 1, 1, 1]}}
    for step, by_prompt in rewards.items():
        lines = [
            {
                "epoch": step,
                "prompt": prompt,
                "visit": step,
                "sample": i,
                "tokens": np.arange(3 + prompt + step),
                "prefix_length": step,
                "draft_length": 2 * step,
                "reward": float(reward),
            }
            for prompt, values in by_prompt.items()
            for i, reward in enumerate(values)
        ]
        file = folder / f"rollouts/step-{step:04d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(lines).to_parquet(file)


@pytest.fixture
def runs(tmp_path):
    """One seed of two cells, of which B's steps take twice as long."""
    for cell in (A, B):
        write_rollouts(tmp_path / cell)
    steps = [
        {"cell": cell, "seed": 0, "step": i, "epoch": i, "reward": 0.1 * i, "seconds.total": hours * 3600.0}
        for cell, hours in ((A, 1.0), (B, 2.0))
        for i in range(2)
    ]
    lines = [{"cell": cell, "seed": 0, "manifest": str(tmp_path / cell / "manifest.json")} for cell in (A, B)]
    scores = [
        {"cell": A, "seed": 0, "step": i, "benchmark": "x", "role": "r", "correct": i, "total": 2} for i in (0, 2)
    ]
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


def figure(x, *panels, **fields):
    return Figure(number=1, title="t", x=x, panels=list(panels), **fields)


def test_quantities_of_prompts_by_hand(tmp_path):
    write_rollouts(tmp_path)
    found = of_prompts(tmp_path, list(PROMPT_QUANTITIES)).set_index(["step", "prompt"])
    assert found["pass_rate"].to_dict() == {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 0.5, (1, 1): 1.0}
    assert found["pass_rate_so_far"].to_dict() == {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 0.25, (1, 1): 1.0}
    assert found["pass_rate_before"].dropna().to_dict() == {(1, 0): 0.0, (1, 1): 1.0}, "of earlier visits alone"
    assert found.loc[(1, 1)].drop(
        ["epoch", "visit", "pass_rate", "pass_rate_so_far", "pass_rate_before"]
    ).to_dict() == {
        "responses": 4.0,
        "response_length": 5.0,
        "prefix_length": 1.0,
        "draft_length": 2.0,
    }
    with pytest.raises(UserError, match="no such quantity of a prompt(.|\n)*pass_rate"):
        of_prompts(tmp_path, ["luck"])
    with pytest.raises(UserError, match="no saved rollouts"):
        of_prompts(tmp_path / "none", ["pass_rate"])


def test_a_visit_that_a_later_step_continues_is_one(tmp_path):
    """Two responses to screen a prompt in step 0 and three more in step 1, which is of the next epoch."""
    for step, rewards in enumerate(([0.0, 1.0], [1.0, 1.0, 0.0])):
        file = tmp_path / f"rollouts/step-{step:04d}.parquet"
        file.parent.mkdir(exist_ok=True)
        pd.DataFrame({"epoch": step, "prompt": 3, "visit": 0, "reward": rewards}).to_parquet(file)
    found = of_prompts(tmp_path, ["responses", "pass_rate", "pass_rate_before"])
    assert found.fillna(-1).to_dict("records") == [
        {
            "step": 0,
            "epoch": 0,
            "prompt": 3,
            "visit": 0,
            "responses": 5.0,
            "pass_rate": pytest.approx(0.6),
            "pass_rate_before": -1.0,
        }
    ]


def test_bins_of_training_steps_hold_the_visits_of_their_generation_steps(runs):
    """One training step of both generation steps."""
    steps = runs.steps.assign(training_step=runs.steps["step"], updated=runs.steps["step"] == 1)
    by_training_steps = Runs(runs.runs, steps, runs.scores).by("training_steps")
    assert by_seed(by_training_steps, "bin@0.5-1:pass_rate:share", A, at=1) == {0: 0.75}


def test_a_histogram_counts_prompts_and_the_last_edge_belongs_to_the_last_bin(runs):
    panel = {"quantity": "share", "by": "pass_rate", "bins": [0, 0.5, 1], "title": "p", "cells": [A, "absent"]}
    data = figure_data(figure("bins", panel), runs, paper_scale=False)
    assert list(data["x"]) == [0, 0.5]
    assert list(data["upper"]) == [0.5, 1]
    assert list(data["reproduced"]) == [0.25, 0.75], "one of four visits has nothing right"
    assert set(data["cell"]) == {A}
    last = figure_data(figure("bins", panel | {"epochs": "last"}), runs, paper_scale=False)
    assert list(last["reproduced"]) == [0.0, 1.0]
    first = figure_data(figure("bins", panel | {"epochs": "first"}), runs, paper_scale=False)
    assert list(first["reproduced"]) == [0.5, 0.5]


def test_a_quantity_of_a_bin_is_one_of_the_run(runs):
    assert by_seed(runs, "bin@0-0.5:pass_rate_so_far:responses", A) == {0: 2.0}
    assert by_seed(runs, "bin@0.5-1:pass_rate_so_far:responses", A) == {0: 4.0}, "an edge of 1 belongs to the bin"
    assert by_seed(runs, "bin@0.5-1:pass_rate:share", A) == {0: 0.75}
    assert by_seed(runs, "bin@0.5-1:pass_rate:share", A, at=1) == {0: 0.5}, "of the first step alone"
    assert by_seed(runs, "bin@0.5-1:pass_rate_before:share", A) == {0: 0.5}, "first visits have no rate before"
    assert math.isnan(by_seed(runs, "bin@0.5-0.9:pass_rate_so_far:responses", A)[0])
    assert by_seed(runs, "bin@0-1:pass_rate:share", "absent") == {}
    with pytest.raises(UserError, match="no such quantity of a prompt(.|\n)*luck"):
        by_seed(runs, "bin@0-1:luck:responses", A)
    with pytest.raises(UserError, match="no such quantity of a run(.|\n)*bin@<low>-<high>"):
        by_seed(runs, "bin@0:pass_rate:responses", A)


BINS = {"quantity": "responses", "by": "pass_rate", "bins": [0, 0.5, 0.9, 1], "title": "b", "cells": [A]}


def test_the_first_and_last_bin_may_have_the_paper_s_value(runs):
    whole = figure("bins", BINS | {"reported": {"first": 6.95, "last": 4}})
    data = figure_data(whole, runs, paper_scale=True)
    assert data["reported"].tolist()[::2] == [6.95, 4.0]
    assert math.isnan(data["reported"].iloc[1])
    diamonds = next(line for line in plot(whole, data).axes[0].lines if line.get_marker() == "D")
    assert list(diamonds.get_xdata()) == pytest.approx([0.25, 0.7, 0.95]), "in the middle of the bars"
    assert figure_data(whole, runs, paper_scale=False)["reported"].isna().all()
    plt.close("all")


def test_a_panel_may_have_another_axis_than_its_figure(runs):
    whole = figure("step", LINE | {"title": "over steps"}, BINS | {"x": "bins"}, columns=2)
    data = figure_data(whole, runs, paper_scale=False)
    over_steps, over_bins = (data[data["panel"] == title] for title in ("over steps", "b"))
    assert (list(over_steps["x"]), over_steps["upper"].isna().all()) == ([1, 2], True)
    assert list(over_bins["upper"]) == [0.5, 0.9, 1.0]
    lines, bars = plot(whole, data).axes
    assert (lines.get_xlabel(), bars.get_xlabel()) == ("step (from 1)", "pass rate")
    assert (len(lines.patches), len(bars.patches)) == (0, 3)
    plt.close("all")
    with pytest.raises(ValidationError, match="by is for bins, not for x: step"):
        figure("bins", BINS | {"x": "step"})


def test_a_quantity_over_bins_is_the_mean_of_their_prompts_and_an_empty_bin_has_none(runs):
    panel = {
        "quantity": "responses",
        "by": "pass_rate_so_far",
        "bins": [0, 0.1, 0.5, 0.9, 1],
        "title": "p",
        "cells": [A],
    }
    data = figure_data(figure("bins", panel), runs, paper_scale=False)
    assert list(data["reproduced"])[:2] == [2.0, 2.0]
    assert math.isnan(data["reproduced"].iloc[2])
    assert data["reproduced"].iloc[3] == 4.0
    axis = plot(figure("bins", panel), data).axes[0]
    assert len(axis.patches) == 4
    assert axis.get_xlabel() == "pass rate so far"
    plt.close("all")


def test_pass_rates_of_an_initial_policy_are_those_of_its_probe(runs, tmp_path):
    panel = {
        "quantity": "share",
        "by": "pass_rate",
        "bins": [0, 0.2, 0.98, 1],
        "epochs": "initial",
        "title": "p",
        "cells": [A],
    }
    whole = figure("bins", panel)
    evaluated = tmp_path / "initial/tiny/model@1/seed1/generations.json"
    runs.runs["initial"] = str(evaluated)
    assert figure_data(whole, runs, paper_scale=False, probe="prompts").empty, "it was not probed"
    right = ["correct", "correct"]
    outcomes = {0: ["incorrect", "no answer"], 1: ["correct", "incorrect"], 2: right, 3: right}
    lines = [{"benchmark": "b", "problem": p, "outcome": o} for p, of_prompt in outcomes.items() for o in of_prompt]
    probed = tmp_path / "initial/prompts/model@1/seed1/grades.parquet"
    probed.parent.mkdir(parents=True)
    pd.DataFrame(lines).to_parquet(probed)
    assert figure_data(whole, runs, paper_scale=False).empty, "the preset has no probe"
    data = figure_data(whole, runs, paper_scale=False, probe="prompts")
    assert list(data["reproduced"]) == [0.25, 0.25, 0.5]
    with pytest.raises(ValidationError, match="needs quantity: share and by: pass_rate"):
        figure("bins", panel | {"quantity": "responses"})


def test_over_hours_lines_stand_at_their_own_hours_and_a_smoothed_one_lies_over_them(runs):
    panel = {"quantity": "reward", "title": "r", "cells": [A, B], "smoothing": 0.5}
    data = figure_data(figure("hours", panel), runs, paper_scale=False)
    assert list(data["x"]) == [1.0, 2.0, 2.0, 4.0]
    lines = plot(figure("hours", panel), data).axes[0].lines
    raw, smooth = lines[0], lines[1]
    assert list(raw.get_xdata()) == [1.0, 2.0]
    assert list(smooth.get_ydata()) == pytest.approx([0.0, 0.05])
    plt.close("all")


def test_an_accuracy_over_steps_is_a_whole_line_from_the_initial_policy_on(runs):
    panel = {"quantity": "accuracy:all", "title": "r", "cells": [A]}
    data = figure_data(figure("step", panel), runs, paper_scale=False)
    assert list(data["x"]) == [0, 2], "steps done by the policy"
    line = plot(figure("step", panel), data).axes[0].lines[0]
    assert list(line.get_xdata()) == [0, 2]
    assert list(line.get_ydata()) == [0.0, 100.0]
    plt.close("all")


def cell(name, lenience, factor):
    return Cell.model_validate(
        {
            "paper": "p",
            "name": name,
            "model": "m",
            "data": "d",
            "algorithm": {"kind": "grpo"},
            "reuse": {"kind": "speculative", "lenience": lenience},
            "trainer_factors": {"learning_rate": factor},
        }
    )


def test_a_surface_has_a_point_a_cell_at_its_values_of_both_axes(runs):
    cells = {A: cell(A, 1, 2), B: cell(B, 3, "1/2")}
    panel = {
        "quantity": "max:reward",
        "title": "r",
        "cells": [A, B],
        "axes": ["reuse.lenience", "trainer_factors.learning_rate"],
    }
    whole = figure("surface", panel)
    data = figure_data(whole, runs, paper_scale=False, cells=cells)
    assert list(zip(data["x"], data["y"], data["reproduced"], strict=True)) == [(1.0, 2.0, 0.1), (3.0, 0.5, 0.1)]
    axis = plot(whole, data).axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "3"]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["0.5", "2"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("reuse.lenience", "trainer_factors.learning_rate")
    plt.close("all")
    with pytest.raises(ValueError, match=r"no number at reuse\.kind"):
        coordinate(cells[A], "reuse.kind")


def test_a_surface_of_published_points_selects_lines_and_says_when_there_is_no_file(runs, tmp_path, monkeypatch):
    panel = {
        "quantity": "ms",
        "title": "r",
        "published": {"file": "sweep.csv", "x": "batch", "y": "seq", "where": {"mode": "on"}, "rows": 3},
    }
    whole = figure("surface", panel)
    monkeypatch.setenv(PUBLISHED, str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="there is no such folder"):
        figure_data(whole, runs, paper_scale=False)
    monkeypatch.delenv(PUBLISHED)
    monkeypatch.chdir(tmp_path)
    nothing = figure_data(whole, runs, paper_scale=False)
    assert nothing.empty
    assert absent(whole, nothing) == "No data."
    monkeypatch.setenv(PUBLISHED, str(tmp_path))
    with pytest.raises(UserError, match=r"missing(.|\n)*sweep\.csv"):
        figure_data(whole, runs, paper_scale=False)
    (tmp_path / "sweep.csv").write_text("batch,seq,mode,ms\n1,256,on,9.5\n1,512,on,9.6\n1,256,off,99\n")
    data = figure_data(whole, runs, paper_scale=False)
    assert list(zip(data["x"], data["y"], data["reproduced"], strict=True)) == [(1, 256, 9.5), (1, 512, 9.6)]
    plt.close("all")
    (tmp_path / "sweep.csv").write_text("batch,seq,mode,ms\n1,256,None,9.5\n1,512,None,9.6\n1,256,NA,99\n")
    none = panel | {"published": panel["published"] | {"where": {"mode": "None"}}}
    assert list(figure_data(figure("surface", none), runs, paper_scale=False)["reproduced"]) == [9.5, 9.6], "a text"
    with pytest.raises(UserError, match="no such column(.|\n)*speed"):
        figure_data(figure("surface", panel | {"quantity": "speed"}), runs, paper_scale=False)
    for content, words in (
        (b"batch,seq,mode,ms\n1,256,on,9.5\n1,512,on,fast\n", r"line 3, ms(.|\n)*'fast'"),
        (b"batch,seq,mode,ms\n1,256,on,1e400\n", "line 2, ms"),
        (b"batch,seq,mode,ms\n1,256,on,9.5\n1,512,on,9.6\n1,256,off,9", r"damaged \(its last line has no end\)"),
        (b"batch,seq,mode,ms\n1,256,on,9.5\n1,512,on,9.6\n", r"cut off(.|\n)*value:   2(.|\n)*allowed: 3"),
        (b"batch,seq,mode,ms\n1,256,on,9.5\n1,512,on,9.6\n1,256,on,9.5\n", r"occurs twice(.|\n)*value:   4"),
        (b"batch,seq,mode,ms\n1,256,on,9.5\n1,512,,9.6\n1,256,off,9\n", "line 3, mode"),
        (b"batch,seq,mode,ms\n1,256,on,nan\n1,512,on,9.6\n1,256,off,9\n", "line 2, ms"),
        ("batch,seq,mode,ms\n1,256,on,9.5\n".encode("utf-16"), "damaged"),
        (b"batch,seq,mode,ms\n1,256,on,9.5,7\n1,512,on,9.6,7\n1,256,off,99,7\n", r"line 2(.|\n)*value:   5(.|\n)*4"),
        (b"batch,seq,mode,ms\n1,256,on\n1,512,on,9.6\n1,256,off,99\n", r"line 2(.|\n)*value:   3"),
        (b"batch,seq,mode,ms\n1,256,off,9.5\n1,512,off,9.6\n1,256,none,99\n", r"no line has these(.|\n)*'on'"),
        (b"batch,seq,mode,mode\n1,256,on,on\n", "damaged"),
        (b"", "damaged"),
    ):
        (tmp_path / "sweep.csv").write_bytes(content)
        with pytest.raises(UserError, match=words):
            figure_data(whole, runs, paper_scale=False)


def test_published_curves_are_lines_and_missing_ones_say_so(runs, tmp_path, monkeypatch):
    curves = {
        "folder": "authors",
        "files": {"theirs": "a.json", "other": "b.json"},
        "validations": {"theirs": 3, "other": 3},
        "time": "seconds",
        "scale": 0.5,
        "fields": ["x/mean@*", "y/mean@*"],
    }
    whole = figure("hours", {"quantity": "accuracy", "title": "r", "curves": curves, "smoothing": 0.5})
    monkeypatch.setenv(PUBLISHED, str(tmp_path))
    nothing = figure_data(whole, runs, paper_scale=False)
    assert nothing.empty
    assert absent(whole, nothing) == "No data."
    (tmp_path / "authors").mkdir()
    for name, shift in (("a", 0.0), ("b", 0.5)):
        lines = [json.dumps({"seconds": 4 * i, "x/mean@4": i / 4 + shift, "y/mean@1": 0.0}) + "\n" for i in range(3)]
        (tmp_path / f"authors/{name}.json").write_text("".join(lines))
    data = figure_data(whole, runs, paper_scale=False)
    assert list(data["label"]) == ["theirs"] * 3 + ["other"] * 3
    assert list(data["x"]) == [0.0, 2.0, 4.0] * 2
    assert list(data["reproduced"]) == [0.0, 0.125, 0.25, 0.25, 0.375, 0.5], "means of two fields"
    lines = plot(whole, data).axes[0].lines
    assert list(lines[0].get_ydata()) == [0.0, 0.125, 0.25]
    assert list(lines[1].get_ydata()) == pytest.approx([0.0, 0.0625, 0.15625]), "smoothed"
    plt.close("all")
    (tmp_path / "authors/b.json").unlink()
    with pytest.raises(UserError, match=r"missing(.|\n)*b\.json"):
        figure_data(whole, runs, paper_scale=False)


def test_a_performance_profile_is_the_share_of_benchmarks_above_a_score():
    """Two seeds: 10, 50 and 100 % on three benchmarks, and 50, 50 and 0 %; of the last policy."""
    correct = {0: (1, 5, 10), 1: (5, 5, 0)}
    scores = [
        {"cell": A, "seed": seed, "step": step, "benchmark": name, "role": "r" if name != "z" else "other"}
        | {"correct": k if step else 0, "total": 10}
        for seed, values in correct.items()
        for step in (0, 4)
        for name, k in zip("xyz", values, strict=True)
    ]
    lines = [{"cell": A, "seed": seed, "manifest": f"{seed}"} for seed in correct]
    made_up = Runs(pd.DataFrame(lines), pd.DataFrame(columns=["cell", "seed", "step", "epoch"]), pd.DataFrame(scores))
    panel = {"quantity": "accuracy:all", "title": "p", "cells": [A, B]}
    whole = figure("score", panel)
    data = figure_data(whole, made_up, paper_scale=False).set_index("x")
    assert list(data.index) == list(range(0, 101, 2))
    shares = {x: data["reproduced"][x] for x in (0, 8, 10, 48, 50, 98, 100)}
    by_hand = {0: (3 + 2) / 6, 8: 5 / 6, 10: 4 / 6, 48: 4 / 6, 50: 1 / 6, 98: 1 / 6, 100: 0}
    assert shares == pytest.approx(by_hand)
    assert set(data["n_seeds"]) == {2}
    role = figure_data(figure("score", panel | {"quantity": "accuracy:r"}), made_up, False).set_index("x")
    assert role["reproduced"][48] == pytest.approx((1 + 2) / 4)
    axis = plot(whole, data.reset_index()).axes[0]
    assert axis.get_xlabel() == "accuracy (%)"
    plt.close("all")


def test_a_benchmark_that_the_preset_leaves_out_has_no_points(runs):
    whole = figure("hours", {"quantity": "accuracy:math500", "title": "r", "cells": [A]})
    assert figure_data(whole, runs, paper_scale=False, unsampled={"math500"}).empty


def test_bars_and_sweeps_draw_declared_baselines_in_grey(runs):
    panel = {"quantity": "max:reward", "title": "r", "cells": [A, B]}
    bars = figure("cell", panel, baselines=[B])
    colours = [patch.get_facecolor() for patch in plot(bars, figure_data(bars, runs, False)).axes[0].patches]
    assert colours[0] != colours[1]
    plt.close("all")


@pytest.mark.parametrize(
    ("x", "panel", "words"),
    [
        ("bins", LINE, "needs `by`"),
        ("score", LINE, "x: score needs an accuracy"),
        ("bins", LINE | {"by": "pass_rate", "bins": [0, 1, 1]}, "must rise"),
        ("surface", LINE | {"axes": ["reuse.lenience"]}, "two axes"),
        ("surface", {"quantity": "q", "title": "t"}, "exactly one of cells, published"),
        (
            "bins",
            {
                "quantity": "q",
                "title": "t",
                "curves": {"folder": "f", "files": {"a": "a"}, "validations": {"a": 1}, "time": "t", "fields": ["x"]},
            },
            "curves is for lines over steps or hours",
        ),
        ("hours", LINE | {"by": "pass_rate"}, "by is for bins, not for x: hours"),
        ("hours", LINE | {"mark_first_reuse": True}, "over steps or epochs"),
        ("cell", LINE | {"smoothing": 0.5}, "smoothing is for lines, not for x: cell"),
        ("step", LINE | {"axes": ["a", "b"]}, "axes is for surface"),
        ("roofline", {"quantity": "q", "title": "t", "roofline": SWEEP}, "needs `roofline` and `gamma`"),
        ("roofline", LINE, "needs `roofline` and `gamma`"),
        ("roofline", LINE | {"roofline": SWEEP, "gamma": 7}, "exactly one of cells, published"),
        ("surface", {"quantity": "q", "title": "t", "roofline": SWEEP}, "roofline is for roofline, not for x: surface"),
        ("cell", LINE | {"gamma": 7}, "gamma is for roofline, not for x: cell"),
    ],
)
def test_a_panel_that_its_axis_cannot_show_is_refused(x, panel, words):
    with pytest.raises(ValidationError, match=words):
        figure(x, panel)
