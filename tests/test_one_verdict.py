"""A number has one verdict in a report: one family of comparisons, one interval, one rule about seconds, and a name."""

import math
import re
import shutil
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib import pyplot as plt

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.power import detectable
from redraft.analysis.data.reported_tables import no_reported, read_reported
from redraft.analysis.data.statistics import Families, Family, corrected, estimate
from redraft.analysis.figures.figure_drawing import draw, plot
from redraft.analysis.measuring import families_of
from redraft.analysis.pages.claims_page import counts
from redraft.analysis.tables import render
from redraft.analysis.tables.cell_verdicts import INCONCLUSIVE, MISSING, UNEVEN
from redraft.analysis.tables.comparison import (
    TableLine,
    _without_first_epoch,
    cells_of,
    comparisons,
    make_table,
)
from redraft.analysis.tables.files import _sheet, read_table
from redraft.analysis.tables.table_columns import expand
from redraft.config import CellTable, Experiments, Figure, Row
from redraft.config.claims import ClaimFile
from redraft.config.tables import TableFile, TargetTable
from redraft.files import write_atomically
from redraft.layout import Layout
from redraft.result_files import record_derived
from tests import uneven
from tests.measured import judge, table_source
from tests.uneven import PLAIN, REUSE

ROOT = Path(__file__).parents[1]
COLUMNS = [
    {
        "name": "tokens",
        "title": "Tokens / baseline",
        "quantity": "tokens_decoded",
        "relative": "ratio",
        "reported": ["tokens_m"],
        "judged_by": "later",
        "judged_because": "it begins there",
    },
    {
        "name": "later",
        "title": "after epoch 1",
        "quantity": "reuse_epochs:tokens_decoded",
        "relative": "ratio",
        "reported": ["tokens_m"],
        "without_first_epoch": True,
    },
    {
        "name": "speedup",
        "title": "Speedup",
        "quantity": "rollout_seconds",
        "relative": "speedup",
        "reported": ["speedup"],
        "printed_relative": True,
    },
    {"name": "points", "title": "Δ", "quantity": "accuracy:many", "relative": "difference"},
]
ROWS = [{"label": "plain", "cell": PLAIN}, {"label": "reuse", "cell": REUSE}]
TABLES = {
    "tables": [
        {"number": 3, "kind": "cells", "title": "t", "baseline": PLAIN, "columns": COLUMNS, "rows": ROWS},
        {"number": 101, "kind": "cells", "title": "again", "baseline": PLAIN, "columns": COLUMNS[3:], "rows": ROWS},
    ]
}
CLAIMS = {
    "margin": "A made-up one.",
    "claims": [
        {
            "id": "points",
            "quotation": "q",
            "section": "1",
            "test": {
                "kind": "compare",
                "quantity": "accuracy:many",
                "cell": REUSE,
                "baseline": PLAIN,
                "expected": "below",
                "threshold": 0.0,
            },
        },
        {
            "id": "elsewhere",
            "quotation": "q",
            "section": "1",
            "test": {
                "kind": "compare",
                "quantity": "accuracy:many",
                "cell": REUSE,
                "baseline": PLAIN,
                "expected": "below",
                "threshold": 5.0,
            },
        },
    ],
}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    """The experiments, in which SPEC-RL has these two tables and two claims."""
    folder = tmp_path_factory.mktemp("one") / "experiments"
    shutil.copytree(ROOT / "experiments", folder)
    for name, content in (("tables", TABLES), ("claims", CLAIMS)):
        (folder / "spec_rl" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    benchmarks = yaml.safe_load((folder / "benchmarks.yaml").read_text())
    benchmarks["sets"]["many"] = benchmarks["sets"]["gsm8k"]
    (folder / "benchmarks.yaml").write_text(yaml.safe_dump(benchmarks))
    return Experiments(folder.parent)


def source(experiments, runs=None, reported=None):
    return table_source(runs or uneven.runs(), reported or no_reported(), experiments)


def table(number=3):
    return TableFile.model_validate(TABLES).tables[0 if number == 3 else 1]


def cell(frame, column, row="reuse"):
    return frame.set_index(["row", "column"]).loc[(row, column)]


def test_tables_and_claims_are_corrected_together_each_comparison_once(experiments):
    families = families_of(source(experiments), experiments)
    tested = {
        "tokens": ({0: 2600 / 4000, 2: (2 * 1200 + 2 * 320) / 4800}, 1.0),
        "later": ({0: 0.3, 2: 320 / 1200}, 1.0),
        "speedup": ({0: 46 / 34, 2: 54 / 42}, 1.0),
        "points": ({0: -3000 / 3018, 2: -3200 / 3018}, 0.0),
        "elsewhere": ({0: -3000 / 3018, 2: -3200 / 3018}, 5.0),
    }
    assert len(families) == len(tested), "the difference in points is in two tables and a claim, and counts once"
    p_values = [estimate(values, log=neutral == 1.0).p_value(neutral) for values, neutral in tested.values()]
    expected = dict(zip(tested, corrected(p_values), strict=True))
    frames = [make_table(table(number), source(experiments), families) for number in (3, 101)]
    for column in ("tokens", "later", "speedup", "points"):
        values, neutral = tested[column]
        assert cell(frames[0], column)["p_corrected"] == pytest.approx(expected[column])
        smallest = detectable(
            estimate(values, log=neutral == 1.0), families.other.level(values, neutral, neutral == 1.0)
        )
        assert cell(frames[0], column)["detectable"] == pytest.approx(smallest.effect)
    claims = judge(ClaimFile.model_validate(CLAIMS).claims, uneven.runs(), False, families=families)
    assert cell(frames[0], "points")["p_corrected"] == cell(frames[1], "points")["p_corrected"]
    assert claims[0]["p_corrected"] == cell(frames[0], "points")["p_corrected"] == pytest.approx(expected["points"])
    assert claims[1]["p_corrected"] == pytest.approx(expected["elsewhere"])


def with_headline(experiments, folder, tables, claims):
    """The experiments in another folder, with these tables and claims of SPEC-RL, and a headline of Table 3."""
    shutil.copytree(experiments.root / "experiments", folder / "experiments")
    number = {"table": 3, "cell": REUSE, "column": "tokens"}
    headline = number | {"form": "percent fewer", "words": "It is {}.", "short": "it is"}
    for name, content in (("tables", {"tables": tables, "headlines": [headline]}), ("claims", claims)):
        (folder / f"experiments/spec_rl/{name}.yaml").write_text(yaml.safe_dump(content))
    return Experiments(folder)


def test_headlines_and_primary_claims_are_a_family_that_nothing_else_changes(experiments, tmp_path):
    claims = {"margin": "A made-up one.", "claims": [CLAIMS["claims"][0], CLAIMS["claims"][1] | {"primary": True}]}
    changed = with_headline(experiments, tmp_path, TABLES["tables"], claims)
    found = families_of(source(changed), changed)
    tokens = ({0: 2600 / 4000, 2: (2 * 1200 + 2 * 320) / 4800}, 1.0, True)
    elsewhere = ({0: -3000 / 3018, 2: -3200 / 3018}, 5.0, False)
    assert (len(found.primary), len(found.other)) == (2, 3)
    assert all(found.of(*each) is found.primary for each in (tokens, elsewhere))
    expected = corrected([estimate(v, log=log).p_value(against) for v, against, log in (tokens, elsewhere)])
    assert [found.of(*each).corrected(*each) for each in (tokens, elsewhere)] == pytest.approx(expected)


def test_of_a_table_along_training_the_headline_is_the_last_policy_s(experiments, tmp_path):
    table = TABLES["tables"][0] | {"kind": "steps", "columns": COLUMNS[:2]}
    changed = with_headline(experiments, tmp_path, [table], {"claims": []})
    keys = [(name, seed) for name, seeds in uneven.SEEDS.items() for seed in seeds]
    steps = [uneven.step(*key, number) for key in keys for number in range(30)]
    scores = [line for key in keys for done in (0, 10, 20, 30) for line in uneven.scores_of(*key, done)]
    runs = Runs(uneven.runs().runs, pd.DataFrame(steps), pd.DataFrame(scores))
    made = source(changed, runs)
    found = families_of(made, changed)
    (spec,) = made.resolved.tables
    tokens = [c for c in cells_of(spec, made) if c.line.row.cell == REUSE and c.column.name == "tokens"]
    assert [cell.line.at for cell in tokens] == [10, 20, 30], "a line for each policy"
    first, _, last = ((cell.values, cell.neutral, cell.is_ratio) for cell in tokens)
    assert found.of(*last) is found.primary
    assert len(found.primary) == 1
    assert found.of(*first) is found.other


def test_more_null_comparisons_change_no_primary_verdict():
    primary = [({0: 1.0 + i, 1: 1.1 + i, 2: 1.2 + i}, 0.0, False) for i in range(3)]
    nulls = [({0: -1.0 - i, 1: 0.1, 2: 1.0 + i / 2}, 0.0, False) for i in range(40)]
    alone, among = Families(primary), Families(primary, [*nulls, *primary])
    assert len(among.other) == 40, "what is primary is not in the other family too"
    assert [among.of(*each).corrected(*each) for each in primary] == [
        alone.of(*each).corrected(*each) for each in primary
    ]
    assert among.primary.level(*primary[0]) == alone.primary.level(*primary[0]) > among.other.level(*nulls[0])


def test_a_comparison_is_known_by_its_values_and_its_threshold():
    values = {0: 1.0, 1: 2.0, 2: 4.0}
    family = Family(
        [(v, 0.0, False) for v in (values, dict(values), {2: 4.0 + 1e-14, 1: 2.0, 0: 1.0}, values | {3: math.nan})]
        + [(values, 1.0, False)]
    )
    assert len(family) == 2
    smallest = min(estimate(values).p_value(threshold) for threshold in (0.0, 1.0))
    assert family.corrected(values, 0.0) == pytest.approx(2 * smallest)
    assert math.isnan(family.corrected({0: 1.0, 1: 2.0}, 0.0)), "not in the family"
    assert len(Family([({0: 1.0}, 0.0, False)])) == 0, "one seed allows no test"


def test_what_is_shown_is_the_interval_that_decides(experiments):
    found = cell(make_table(table(), source(experiments)), "later")
    ratio, reach = math.sqrt(0.3 * 320 / 1200), math.exp(12.7062 * math.log(0.3 * 1200 / 320) / 2)
    assert (found["low"], found["high"]) == pytest.approx((ratio / reach, ratio * reach), rel=1e-4)
    assert (found["bootstrap_low"], found["bootstrap_high"]) == pytest.approx((320 / 1200, 0.3))


def uneven_time(factor=1.5):
    runs = uneven.runs()
    steps = runs.steps.copy()
    steps.loc[(steps["cell"] == REUSE) & (steps["epoch"] == 0), "seconds.rollout"] *= factor
    return Runs(runs.runs, steps, runs.scores)


def test_no_cell_about_seconds_has_a_verdict_where_equal_work_took_unequal_time(experiments):
    reported = read_reported(ROOT / "experiments/spec_rl", 3, experiments.reported("spec_rl"))
    even, uneven_ones = (
        make_table(table(), source(experiments, runs, reported)) for runs in (uneven.runs(), uneven_time())
    )
    assert cell(even, "speedup")["verdict"] != UNEVEN
    assert cell(uneven_ones, "speedup")["verdict"] == UNEVEN
    assert cell(uneven_ones, "speedup", "plain")["verdict"] == "baseline"
    assert math.isnan(cell(uneven_ones, "speedup")["p_corrected"]), "it is not in the family either"
    for column in ("tokens", "later"):
        assert cell(uneven_ones, column)["verdict"] == cell(even, column)["verdict"] != UNEVEN


@pytest.mark.parametrize(("clock", "decided"), [("hours", False), ("steps", True)])
def test_a_mean_of_speedups_is_made_of_seconds_if_its_targets_are(experiments, clock, decided):
    targets = [{"name": "few", "title": "few", "quantity": "accuracy:few", "at_least": 42, "reported": []}]
    declared = {"number": 101, "kind": "targets", "title": "t", "baseline": PLAIN, "targets": targets, "rows": ROWS}
    spec = TargetTable.model_validate({**declared, "clock": clock, "mean_row": True})
    tested = source(experiments, uneven_time())
    cells = [each for each in cells_of(expand(spec, {}), tested) if each.column.name == "average_speedup"]
    assert [each.timed for each in cells] == [not decided] * 3, "of a row, and of their mean"
    assert cells[-1].pairs == ((REUSE, PLAIN),), "a mean compares the cells of each of its rows"
    assert bool(list(comparisons(cells, tested))) == decided


def test_before_the_second_epoch_tokens_are_shown_and_not_compared(experiments):
    runs = uneven.runs()
    first = Runs(runs.runs, runs.steps[runs.steps["epoch"] == 0], runs.scores)
    reported = read_reported(ROOT / "experiments/spec_rl", 3, experiments.reported("spec_rl"))
    frame = make_table(table(), source(experiments, first, reported))
    assert cell(frame, "later")["verdict"] == "not applicable"
    assert (cell(frame, "tokens")["verdict"], cell(frame, "tokens")["reproduced"]) == ("not comparable", 1.0)
    assert cell(frame, "tokens", "plain")["verdict"] == "baseline"


def test_tokens_are_judged_without_the_first_epoch_as_the_paper_s_are(experiments):
    """The paper's ratio of all tokens is 182.7 / 554.8; without 1/15 of the baseline's it is about 0.281."""
    reported = read_reported(ROOT / "experiments/spec_rl", 3, experiments.reported("spec_rl"))
    frame = make_table(table(), source(experiments, reported=reported))
    whole = 182.7 / 554.8
    assert cell(frame, "tokens")["reported"] == pytest.approx(whole, abs=1e-3)
    assert cell(frame, "later")["reported"] == pytest.approx((whole - 1 / 15) / (1 - 1 / 15), abs=1e-3)
    assert cell(frame, "later")["reported"] == pytest.approx(0.281, abs=1e-3)
    assert cell(frame, "tokens")["verdict"] == cell(frame, "later")["verdict"]


@pytest.mark.parametrize(("share", "expected"), [(None, 4 / 14), (Fraction(1, 3), 0.0), (Fraction(1, 15), math.nan)])
def test_the_first_epoch_is_a_fifteenth_of_the_paper_s_run_and_more_of_what_is_done_of_it(share, expected):
    """At a third of the run the first epoch is a fifth of what is done: a ratio of 1/5 is all of it."""
    line = TableLine(Row(label="reuse", cell=REUSE), "", "reuse", PLAIN, share=share)
    ratio = 1 / 3 if share is None else 1 / 5
    real = Experiments(ROOT)
    reported = read_reported(ROOT / "experiments/spec_rl", 8, real.reported("spec_rl"))
    found = _without_first_epoch(ratio, line, {}, source(real, reported=reported))
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("number", "cell", "generated"), [(24, "dapo", 30), (26, "llama-dapo", 38)])
def test_the_first_epoch_of_dapo_is_a_share_of_its_generation_steps(number, cell, generated):
    """A row after 15 training steps has generated in more steps, 6 of which are the first epoch."""
    real = Experiments(ROOT)
    reported = read_reported(ROOT / "experiments/spec_rl", number, real.reported("spec_rl"))
    row = Row(label="reuse", cell=f"{cell}-spec-l0.15")
    line = TableLine(row, "", "reuse", f"{cell}-vanilla", share=Fraction(1, 6), clock="training_steps")
    first = 6 / generated
    tested = source(real, reported=reported)
    assert _without_first_epoch(0.5, line, {}, tested) == pytest.approx((0.5 - first) / (1 - first))
    assert math.isnan(_without_first_epoch(first - 0.01, line, {}, tested)), "less than the first epoch alone"


def test_cells_with_epochs_of_their_own_have_no_first_epoch_to_be_taken_off():
    """The sets of 2,000 problems pass 45 epochs in as many steps."""
    line = TableLine(Row(label="2K", cell="2k-grpo-spec-l0.5"), "", "2K", PLAIN)
    real = Experiments(ROOT)
    reported = read_reported(ROOT / "experiments/spec_rl", 3, real.reported("spec_rl"))
    assert math.isnan(_without_first_epoch(0.5, line, {}, source(real, reported=reported)))
    own = TableLine(Row(label="reuse", cell=REUSE), "", "reuse", PLAIN)
    assert math.isfinite(_without_first_epoch(0.5, own, {}, source(real, reported=reported)))


def test_every_sentence_counts_also_one_with_another_s_test():
    claims = [{"verdict": "reproduced", "same_as": name} for name in ("", "first", "")]
    assert counts([*claims, {"verdict": "not run", "same_as": ""}], "verdict") == {"reproduced": 3, "not run": 1}


def test_the_verdict_of_a_column_is_the_other_s_even_where_its_own_would_differ(experiments):
    runs = uneven.runs()
    steps = runs.steps.copy()
    later = (steps["cell"] == REUSE) & (steps["epoch"] > 0)
    steps.loc[later, "tokens_decoded"] = [300, 300, 320, 320]
    spread = later & (steps["seed"] == 0)
    steps.loc[spread, "tokens_decoded"] = 900
    reported = read_reported(ROOT / "experiments/spec_rl", 3, experiments.reported("spec_rl"))
    frame = make_table(table(), source(experiments, Runs(runs.runs, steps, runs.scores), reported))
    assert cell(frame, "later")["verdict"] == cell(frame, "tokens")["verdict"] == INCONCLUSIVE
    plain = Runs(*(part[part["cell"] == PLAIN] for part in (runs.runs, steps, runs.scores)))
    absent = make_table(table(), source(experiments, plain))
    assert cell(absent, "tokens")["verdict"] == MISSING


def test_a_value_of_fewer_seeds_than_the_preset_has_says_so_in_every_form(experiments):
    spec = table()
    sheet = render.Sheet(spec, spec.columns, make_table(spec, source(experiments)), "Stand-in")
    page = re.sub("<textarea.*?</textarea>", "", render.html(sheet, Path("results/tiny")), flags=re.DOTALL)
    for text in (render.markdown(sheet), render.latex(sheet), page):
        assert text.count("n = 2, without seed 1") == len(COLUMNS)
        assert text.count("Stand-in. t") == 1, "and that it is a stand-in"
    assert "The verdict at “Tokens / baseline” is that of “after epoch 1”, since it begins there." in page


def test_a_row_misses_the_further_seeds_of_its_cell_alone(experiments, monkeypatch):
    row, grids = experiments.cell(f"spec_rl/{REUSE}"), experiments.grids("spec_rl", beyond_paper=False)
    its = {name: [7] for name in grids if row in experiments.cells("spec_rl", [name])}
    others = {name: [7] for name in grids if name not in its}
    assert its
    assert others
    before, missing = experiments.preset("tiny"), {}
    for name, more in (("none", {}), ("its own", its), ("others'", others)):
        preset = before.model_copy(update={"more_seeds": {"spec_rl": more}})
        monkeypatch.setattr(Experiments, "preset", lambda self, *_, preset=preset: preset)
        missing[name] = cell(make_table(table(), source(experiments)), "tokens")["missing_seeds"]
    assert missing == {"none": "1", "its own": "1 7", "others'": "1"}


def test_a_table_that_was_written_is_read_as_it_was(experiments, tmp_path):
    """Empty texts stay empty, and a single seed stays a text."""
    runs = uneven.runs()
    whole = make_table(
        table(), source(experiments, Runs(*(part[part["seed"] == 2] for part in (runs.runs, runs.steps, runs.scores))))
    )
    for frame in (whole, whole.assign(missing_seeds="")):
        frame.to_csv(tmp_path / "table03.csv", index=False)
        record_derived(tmp_path, [tmp_path / "table03.csv"])
        read = read_table(tmp_path / "table03")
        for column in ("group", "seeds", "missing_seeds", "manifests"):
            assert list(read[column]) == list(frame[column])
        assert set(read["seeds"]) == {"2"}


def test_a_judging_column_must_exist_and_a_first_epoch_is_left_out_of_ratios_only():
    content = TABLES["tables"][0]
    for column, words in (({"judged_by": "nothing"}, "judged_by"), ({"relative": "difference"}, "without_first_epoch")):
        changed = (
            [COLUMNS[0] | column, *COLUMNS[1:]]
            if "judged_by" in column
            else [COLUMNS[0], COLUMNS[1] | column, *COLUMNS[2:]]
        )
        with pytest.raises(ValueError, match=words):
            CellTable.model_validate(content | {"columns": changed})
    with pytest.raises(ValueError, match="judged_because"):
        CellTable.model_validate(content | {"columns": [COLUMNS[0] | {"judged_because": ""}, *COLUMNS[1:]]})


def test_a_drawing_of_a_stand_in_says_so(tmp_path):
    figure = Figure.model_validate(
        {
            "number": 1,
            "title": "t",
            "x": "step",
            "panels": [{"quantity": "reward", "title": "reward", "cells": [PLAIN]}],
        }
    )
    point = {
        "panel": "reward",
        "cell": PLAIN,
        "label": PLAIN,
        "x": 1,
        "reproduced": 0.5,
        "low": math.nan,
        "high": math.nan,
        "reported": math.nan,
        "first_reuse": False,
    }
    data = pd.DataFrame([point])
    for text in ("", "Stand-in for the paper's models and data (preset tiny)"):
        draw(figure, data, tmp_path / "figure", text)
        drawn = (tmp_path / "figure.svg").read_text()
        assert (">Stand-in for the paper's models and data (preset tiny)</text>" in drawn) == bool(text)


def test_a_band_on_a_logarithmic_axis_goes_below_all_means_where_its_end_is_negative():
    panel = {"quantity": "kl", "title": "kl", "cells": [PLAIN], "log": True}
    figure = Figure.model_validate({"number": 1, "title": "t", "x": "step", "panels": [panel]})
    lines = [(1, 0.02, -0.01, 0.05), (2, 0.3, 0.1, 0.5), (3, 0.06, -0.2, 0.32)]
    data = pd.DataFrame(
        [
            {
                "panel": "kl",
                "cell": PLAIN,
                "label": PLAIN,
                "x": x,
                "reproduced": mean,
                "low": low,
                "high": high,
                "reported": math.nan,
                "first_reuse": False,
            }
            for x, mean, low, high in lines
        ]
    )
    (axis, *_), (band,) = (drawing := plot(figure, data)).axes, drawing.axes[0].collections
    ends = {(round(x), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    assert axis.get_yscale() == "log"
    assert ends == {(1, round(0.02 / 3, 6)), (2, 0.1), (3, round(0.02 / 3, 6)), (1, 0.05), (2, 0.5), (3, 0.32)}
    plt.close(drawing)


def test_no_entry_of_a_legend_is_cut_off():
    """Seven long labels under two diagrams, as in the sweep of leniences."""
    figure = {figure.number: figure for figure in Experiments(ROOT).figures("spec_rl").figures}[104]
    data = pd.DataFrame(
        [
            {
                "panel": panel.title,
                "cell": cell,
                "label": panel.label(cell),
                "x": 1,
                "reproduced": 0.5,
                "low": 0.4,
                "high": 0.6,
                "reported": 0.5,
                "first_reuse": False,
            }
            for panel in figure.panels
            for cell in panel.cells
        ]
    )
    drawing = plot(figure, data)
    assert len(drawing.legends[0].texts) == 7 + 2, "the interval and the paper have entries too"
    drawing.draw_without_rendering()
    box, page = drawing.legends[0].get_window_extent(), drawing.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    plt.close(drawing)


def test_files_of_numbers_say_that_they_are_a_stand_in_s(experiments, tmp_path, campaign):
    layout = Layout("tiny", tmp_path)
    made = source(experiments)
    sheet = _sheet(table(), made, families_of(made, experiments))
    content = sheet.cells.assign(stand_in=sheet.stand_in).to_csv(index=False)
    write_atomically(layout.table("spec_rl", table().number).with_suffix(".csv"), content)
    written = pd.read_csv(layout.table("spec_rl", 3).with_suffix(".csv"))
    assert set(written["stand_in"]) == {experiments.preset("tiny").stand_in} != {""}
    for name in ("tables/spec_rl/table04", "figures/spec_rl/figure04"):
        file = campaign / f"results/smoke/{name}.csv"
        assert set(pd.read_csv(file)["stand_in"]) == {experiments.preset("smoke").stand_in}, file


def test_only_the_papers_own_scale_is_no_stand_in():
    presets = {name: Experiments(ROOT).preset(name) for name in ("tiny", "smoke", "paper")}
    assert presets["paper"].stand_in == ""
    assert "Stand-in" in presets["tiny"].stand_in
    assert "tiny" in presets["tiny"].stand_in
    assert "smoke" in presets["smoke"].stand_in
