"""The first screen: numbers of tables as sentences and points of a plot."""

import math
import re
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.analysis.data.collect import Runs
from redraft.analysis.figures.view import Axis
from redraft.analysis.pages.forest import claim_plot, headline_plot
from redraft.analysis.pages.headline import HeadlineNumber, _compared, _is_timed, in_form, interval, number, points
from redraft.analysis.reference.page import _summary_row
from redraft.config import BudgetTable, Experiments, Headline
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import record_derived

SPACE = "\N{NARROW NO-BREAK SPACE}"
RATIO = {
    "reproduced": 0.31,
    "low": 0.28,
    "high": 0.35,
    "reported": 0.33,
    "verdict": "agrees",
    "p": 1e-4,
    "p_corrected": 1e-3,
    "n_seeds": 3,
}


def timed(factor):
    """Two runs with equal work, the other of which took so many times as long."""
    steps = pd.DataFrame({"cell": ["c", "d"], "seed": 0, "step": 0, "epoch": 0, "tokens_decoded": 9})
    return Runs(pd.DataFrame(), steps.assign(**{"seconds.rollout": [1.0, factor]}), pd.DataFrame())


def made(folder, form="percent fewer", column="tokens", uneven=1.0, **changed):
    """The point of one headline on a made-up table, which has the baseline's row and that of the cell."""
    layout = Layout("tiny", folder)
    cell = (
        {
            "group": "",
            "row": "R",
            "column": column,
            "cell": "p/c",
            "seeds": "0 1 2",
            "missing_seeds": "",
            "manifests": "",
        }
        | RATIO
        | changed
    )
    file = layout.table("p", 1).with_suffix(".csv")
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([cell | {"verdict": "baseline", "reproduced": 1.0}, cell]).to_csv(file, index=False)
    record_derived(file.parent, [file])
    declared = Experiments().tables("spec_rl").tables[0]
    headline = Headline(table=1, cell="c", column=column, form=form, words="It decodes {} fewer", short="tokens")
    return points(layout, "p", [headline], [declared.model_copy(update={"columns": []})], timed(uneven))[0]


@pytest.mark.parametrize(
    ("paper", "kind", "column", "expected"),
    [
        ("spec_rl", "stages", "speedup_honest", True),
        ("spec_rl", "stages", "rollout_s", True),
        ("equal_budget", "budgets", "seconds_difference", True),
        ("equal_budget", "budgets", "tokens_difference", False),
        ("speed_rl", "targets", "average_speedup", True),
        ("spec_rl", "cells", "tokens", False),
    ],
)
def test_a_headline_is_one_of_times_also_in_a_column_that_its_table_adds(paper, kind, column, expected):
    table = next(table for table in Experiments().tables(paper).tables if table.kind == kind)
    headline = Headline(table=table.number, cell="c", column=column, form="times", words="{} as fast", short="speed")
    assert _is_timed(headline, table, "tiny") == expected


def test_a_headline_compares_its_row_with_the_row_s_baseline():
    """At an equal budget all cells of the table set the budget; other columns of that table compare two cells."""
    table = next(t for t in Experiments().tables("spec_rl").tables if t.number == 1)
    words = {"form": "times", "words": "{} as fast", "short": "speed"}
    headline = Headline(table=1, cell="grpo-spec-l0.5", column="speedup", **words)
    assert _compared(headline, table) == [("grpo-spec-l0.5", "grpo-vanilla")]
    budgets = next(t for t in Experiments().tables("equal_budget").tables if isinstance(t, BudgetTable))
    of_budget = headline.model_copy(update={"cell": "spec", "column": f"{budgets.budgets[0].name}_difference"})
    pairs = _compared(of_budget, budgets)
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == math.comb(len({*budgets.cells}), 2)
    own = budgets.model_copy(update={"columns": table.columns})
    assert _compared(headline.model_copy(update={"cell": "spec", "column": table.columns[0].name}), own) == [
        ("spec", budgets.baseline)
    ]


def test_of_several_rows_of_a_cell_the_last_one_is_shown(tmp_path):
    """As along steps, where it is that of the last policy."""
    made(tmp_path)
    file = Layout("tiny", tmp_path).table("p", 1).with_suffix(".csv")
    rows = pd.read_csv(file)
    pd.concat([rows, rows.iloc[1:].assign(reproduced=0.25)]).to_csv(file, index=False)
    record_derived(file.parent, [file])
    headline = Headline(table=1, cell="c", column="tokens", form="percent fewer", words="It decodes {}", short="tokens")
    declared = Experiments().tables("spec_rl").tables[0].model_copy(update={"columns": []})
    assert points(Layout("tiny", tmp_path), "p", [headline], [declared], timed(1.0))[0].mean == 75


def test_only_a_finding_against_the_paper_names_what_explains_it(tmp_path, monkeypatch):
    see = {"paper": "other", "words": "How this changes"}
    monkeypatch.setitem(globals(), "Headline", partial(Headline, see=see))
    assert made(tmp_path, verdict="opposite direction").see == see
    assert made(tmp_path, verdict="agrees").see == {}
    assert made(tmp_path, verdict="inconclusive").see == {}


def test_a_ratio_is_said_as_percent_fewer_with_its_interval_turned_round(tmp_path):
    point = made(tmp_path)
    assert (
        point.sentence
        == f"It decodes 69.0{SPACE}% [65.0, 72.0] fewer (paper: 67.0{SPACE}% fewer): agrees with the paper."
    )
    assert (point.low, point.high) == (pytest.approx(65), pytest.approx(72))
    assert point.finding == "yes"


def test_what_is_less_than_nothing_fewer_is_more(tmp_path):
    point = made(tmp_path, reproduced=1.32, low=1.07, high=1.56, reported=0.92, verdict="opposite direction")
    words = f"It decodes 32.0{SPACE}% [7.0, 56.0] more (paper: 8.0{SPACE}% fewer): "
    assert point.sentence.startswith(words)
    assert (point.mean, point.low, point.high) == (pytest.approx(-32), pytest.approx(-56), pytest.approx(-7))


@pytest.mark.parametrize(
    ("form", "reproduced", "reported", "words"),
    [
        ("percent fewer", (0.7, 0.6, 0.8), 0.9, "30.0 % [20.0, 40.0] fewer (paper: 10.0 % fewer)"),
        ("percent fewer", (0.7, 0.6, 0.8), 1.1, "30.0 % [20.0, 40.0] fewer (paper: 10.0 % more)"),
        ("percent fewer", (1.3, 0.9, 1.7), 0.9, "30.0 % [−10.0, 70.0] more (paper: 10.0 % fewer)"),
        ("percent fewer", (1.3, 0.9, 1.7), 1.1, "30.0 % [−10.0, 70.0] more (paper: 10.0 % more)"),
        ("times", (2.0, 1.6, 2.5), 4.0, "2.00 × [1.60, 2.50] fewer (paper: 4.00 × fewer)"),
        ("times", (0.5, 0.4, 0.625), 4.0, "2.00 × [1.60, 2.50] more (paper: 4.00 × fewer)"),
        ("times", (2.0, 1.6, 2.5), 0.25, "2.00 × [1.60, 2.50] fewer (paper: 4.00 × more)"),
    ],
)
def test_each_number_has_the_word_for_its_direction(tmp_path, form, reproduced, reported, words):
    ends = dict(zip(("reproduced", "low", "high"), reproduced, strict=True))
    sentence = made(tmp_path, form, reported=reported, **ends).sentence
    assert sentence.replace(SPACE, " ").partition(": agrees")[0] == f"It decodes {words}"


@pytest.mark.parametrize(
    ("value", "timed", "expected"),
    [
        ((-30.6, -41.5, -20.5), False, ["30.6 % [20.5, 41.5] more", "8.3 % fewer"]),
        ((7.9, -2.0, 18.8), False, ["7.9 % [−2.0, 18.8] fewer", "8.3 % fewer"]),
        ((7.9, -2.0, 18.8), True, ["7.9 % [−2.0, 18.8] less", "8.3 % less"]),
    ],
)
def test_a_number_of_a_summary_has_the_word_for_its_direction(value, timed, expected):
    found = HeadlineNumber("s", "percent fewer", *value, 8.3, "agrees", 3, "", timed, "yes")
    row = _summary_row("here", found)
    assert [row[name].replace(SPACE, " ") for name in ("here", "paper")] == expected


@pytest.mark.parametrize(
    ("timed", "finding", "verdict"),
    [
        (False, "yes", "an effect"),
        (True, "yes", "an effect"),
        (True, "open", "not decided"),
        (False, "open", "inconclusive"),
    ],
)
def test_a_number_without_the_paper_s_is_an_effect_or_not_decided(timed, finding, verdict):
    found = HeadlineNumber("s", "times", 2.0, 1.5, 2.5, math.nan, "not comparable", 3, "", timed, finding, uneven=timed)
    assert _summary_row("here", found)["verdict"] == f"{verdict}; no comparable number"


@pytest.mark.parametrize(
    ("changed", "end", "finding"),
    [
        ({"verdict": "inconclusive", "p": 0.2, "p_corrected": 0.4}, "inconclusive with 3 seeds.", "open"),
        (
            {"verdict": "inconclusive", "p": 0.02, "p_corrected": 0.08},
            "inconclusive with 3 seeds, not significant after correction.",
            "open",
        ),
        ({"verdict": "opposite direction"}, "the opposite of the paper's direction.", "no"),
        ({"verdict": "differs"}, "differs from the paper.", "no"),
        ({"verdict": "same direction"}, "same direction as in the paper, different size.", "yes"),
        (
            {"verdict": "not comparable", "reported": math.nan},
            "an effect with 3 seeds; no paper has a comparable number.",
            "yes",
        ),
        (
            {"verdict": "not comparable", "reported": math.nan, "p": 0.5, "p_corrected": 0.5, "n_seeds": 1},
            "inconclusive with 1 seed.",
            "open",
        ),
        (
            {"verdict": "not decided", "column": "rollout_seconds", "uneven": 1.64},
            "not decided, since equal work differed in time by a factor of up to 1.64.",
            "open",
        ),
        (
            {
                "verdict": "not comparable",
                "column": "rollout_seconds",
                "uneven": 1.64,
                "p_corrected": math.nan,
            },
            "not decided, since equal work differed in time by a factor of up to 1.64.",
            "open",
        ),
        ({"verdict": "agrees", "uneven": 1.64}, "agrees with the paper.", "yes"),
        (
            {
                "verdict": "not comparable",
                "column": "tokens_decoded",
                "reported": math.nan,
                "uneven": 1.64,
            },
            "an effect with 3 seeds; no paper has a comparable number.",
            "yes",
        ),
    ],
)
def test_the_verdict_ends_the_sentence(tmp_path, changed, end, finding):
    point = made(tmp_path, **changed)
    paper = "" if math.isnan(changed.get("reported", 0)) else f" (paper: 67.0{SPACE}% fewer)"
    assert point.sentence.endswith(f" fewer{paper}: {end}")
    assert point.finding == finding


@pytest.mark.parametrize("changed", [{"verdict": "missing", "reproduced": math.nan}, {"cell": "p/other"}])
def test_what_was_not_run_says_so(tmp_path, changed):
    point = made(tmp_path, **changed)
    assert point.sentence == "Not run: tokens."
    assert (point.finding, math.isnan(point.mean)) == ("not run", True)


def test_numbers_have_a_true_minus_and_their_unit():
    assert number(-4.84, "points") == "−4.8 points"
    assert number(2.4, "points") == "+2.4 points"
    assert number(1.8, "times") == f"1.80{SPACE}×"
    assert number(math.inf, "times") == "†"
    assert interval(-6.5, -3.1, "points") == " [−6.5, −3.1]"
    assert interval(math.nan, 1.0, "points") == ""
    assert in_form(1.32, "percent fewer") == pytest.approx(-32)


def headline_point(form, mean, low, high, reported=math.nan, timed=False):
    return HeadlineNumber("short", form, mean, low, high, reported, "agrees", 3, f"sentence {mean}", timed, "yes")


def test_the_plot_of_factors_puts_percent_and_times_on_one_axis():
    """50 % fewer is twice less."""
    plot = headline_plot([headline_point("percent fewer", 50, 40, 60), headline_point("times", 2, 1.5, 3)], log=True)
    places = re.findall(r'<circle cx="([\d.]+)"', plot)
    assert len(places) == 2
    assert len(set(places)) == 1
    assert "noise" not in plot


def test_noise_is_drawn_behind_seconds_alone():
    timed = headline_point("times", 2, 1.5, 3, timed=True)
    assert 'class="noise"' in headline_plot([timed], log=True, noise=1.3)
    assert 'class="noise"' not in headline_plot([headline_point("times", 2, 1.5, 3)], log=True, noise=1.3)
    assert 'class="noise"' not in headline_plot([timed], log=True)


def test_an_interval_that_hides_all_points_is_cut_with_an_arrow():
    usual = [headline_point("points", mean, mean - 1, mean + 1) for mean in (1, 2, 3)]
    huge = headline_point("points", 4, -500, 500)
    whole, cut = headline_plot(usual, log=False), headline_plot([*usual, huge], log=False)
    assert (whole.count('class="cut"'), cut.count('class="cut"')) == (0, 2)
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', cut)]
    assert places[-1] - places[0] > 100, "of 300 pixels"
    part = {"mean": 0.5, "low": 0.4, "high": 0.6, "threshold": 0.0, "expected": "above"}
    assert 'class="cut"' not in claim_plot([part])
    assert claim_plot([part, part, part | {"low": -90.0}]).count('class="cut"') == 1


def test_a_plot_without_a_finished_run_is_empty():
    assert headline_plot([headline_point("times", math.nan, math.nan, math.nan)], log=True) == ""


def test_a_long_label_has_its_place():
    """The longest declared one was cut at its beginning; labels end 8 pixels before the plot."""
    point = headline_point("times", 2, 1.5, 3)
    longest = max((h.short for paper in Experiments().papers for h in Experiments().tables(paper).headlines), key=len)
    for short in ("short", longest):
        plot = headline_plot([replace(point, short=short)], log=True)
        assert float(re.search(rf'<text x="([\d.]+)"[^>]*>{re.escape(short)}<', plot)[1]) >= 6.4 * len(short)
    assert claim_plot([{"mean": None, "low": None, "high": None, "threshold": 1.0, "expected": "above"}]) == ""


def test_the_asserted_side_of_a_claim_is_shaded():
    part = {"mean": 0.5, "low": 0.4, "high": 0.6, "threshold": 1.0, "expected": "below"}
    below, above = claim_plot([part]), claim_plot([part | {"expected": "above"}])
    edge = float(re.search(r'class="bound" x1="([\d.]+)"', below)[1])
    assert f'class="asserted" x="0" y="0.0" width="{edge}"' in below
    assert f'class="asserted" x="{edge}" y="0.0" width="{round(150 - edge, 1)}"' in above


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.booleans())
def test_an_axis_keeps_order_and_stays_inside(values, log):
    values = [abs(value) + 0.01 for value in values] if log else values
    axis = Axis.around(values, 0.08, 0, 300, log)
    places = [axis(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 300 for place in places)


def test_a_headline_of_a_table_that_is_not_there_is_refused():
    from redraft.config.read import parse
    from redraft.config.tables import TableFile

    headline = {"table": 7, "cell": "c", "column": "x", "form": "times", "words": "it is {}", "short": "name"}
    with pytest.raises(UserError, match="there is no table 7"):
        parse(TableFile, {"headlines": [headline]}, "tables.yaml")
    with pytest.raises(UserError, match="exactly one {}"):
        parse(TableFile, {"headlines": [headline | {"words": "nothing"}]}, "tables.yaml")


def test_every_paper_has_headlines_that_its_tables_can_show():
    """Cell and column are those of the named table at the tiny scale, so that a typo does not read as not run."""
    from redraft.analysis.tables.table_columns import expand

    experiments = Experiments()
    for paper in experiments.papers:
        content = experiments.tables(paper)
        assert content.headlines, paper
        benchmarks = experiments.preset_of("tiny", paper).benchmarks
        for headline in content.headlines:
            table = next(t for t in content.tables if t.number == headline.table)
            whole = expand(table, benchmarks, experiments.reported(paper), "tiny")
            assert headline.cell in [row.cell for row in whole.rows], headline
            column = next(c for c in whole.columns if c.name == headline.column)
            wanted = {"points": ("difference",), "times": ("speedup", "ratio"), "percent fewer": ("ratio",)}
            is_speedup = headline.form == "times" and column.quantity.startswith("speedup")
            assert column.relative in wanted[headline.form] or is_speedup, headline
