"""Cells of tables of uneven runs, worked out by hand: noise, mean rows, reported values beside them."""

import math
from dataclasses import replace

import pytest

from redraft.analysis.data.reported_tables import ReportedTable, mean_of, no_reported
from redraft.analysis.tables.comparison import TableCell, TableLine, _mean_of, average_cell, make_table
from redraft.analysis.tables.table_columns import AVERAGE
from redraft.analysis.tables.table_columns import average as average_column
from redraft.config import CellTable, Column, Experiments, Reported, Row
from tests import uneven
from tests.measured import table_source
from tests.uneven import PLAIN, REUSE

EXPERIMENTS = Experiments()
ACCURACY = {"name": "accuracy", "title": "accuracy", "quantity": "accuracy:all"}
SPEC = Reported.model_validate({"key": {"data": {"of": "data"}, "method": {"of": "reuse.kind"}}})


@pytest.fixture(scope="module")
def runs():
    return uneven.runs()


def transcription(*lines):
    """A reported table with lines of data, method, column and value."""
    return ReportedTable([dict(zip(SPEC.header, line, strict=True)) for line in lines], SPEC)


def made(runs, columns, rows, reported=None, paper_scale=True, **fields):
    """Cells by row and column."""
    table = CellTable(number=1, title="t", baseline=PLAIN, columns=columns, rows=rows, **fields)
    source = table_source(runs, reported or no_reported(), EXPERIMENTS, paper_scale=paper_scale)
    return make_table(table, source).set_index(["row", "column"])


ROWS = [Row(label="plain", cell=PLAIN), Row(label="reuse", cell=REUSE)]
EACH_OTHERS = [Row(label="plain", cell=PLAIN, baseline=REUSE), Row(label="reuse", cell=REUSE, baseline=PLAIN)]
"""Neither is compared with itself."""


def accuracy(cell, seed):
    """Percent, the mean over the two benchmarks of the last policy."""
    many = 1509 + 3 * seed - (30 + seed if cell == REUSE else 0)
    return 50 * ((14 + seed) / 30 + many / 3018)


def squared_noise(cell, seed):
    """Of that accuracy, by the binomial variances of both benchmarks."""
    many = (1509 + 3 * seed - (30 + seed if cell == REUSE else 0)) / 3018
    few = (14 + seed) / 30
    return 50**2 * (few * (1 - few) / 30 + many * (1 - many) / 3018)


NOISE = {
    PLAIN: math.sqrt(sum(squared_noise(PLAIN, seed) for seed in (0, 1, 2))) / 3,
    REUSE: math.sqrt(sum(squared_noise(REUSE, seed) for seed in (0, 2))) / 2,
}
"""Standard errors of the means over the seeds that each has."""


def test_the_noise_of_a_cell_is_that_of_a_mean_over_its_seeds_in_the_column_s_unit(runs):
    cells = made(runs, [Column(**ACCURACY), Column(**ACCURACY | {"name": "share"}, scale=0.01)], ROWS)
    for row, cell in (("plain", PLAIN), ("reuse", REUSE)):
        assert cells.loc[(row, "accuracy"), "noise"] == pytest.approx(NOISE[cell])
        assert cells.loc[(row, "share"), "noise"] == pytest.approx(NOISE[cell] / 100)
        assert cells.loc[(row, "share"), "reproduced"] == pytest.approx(
            cells.loc[(row, "accuracy"), "reproduced"] / 100
        )


def test_a_mean_row_is_over_seeds_that_all_rows_have_and_less_noisy_than_they(runs):
    cells = made(runs, [Column(**ACCURACY)], EACH_OTHERS, mean_row=True)
    mean = cells.loc[("Mean", "accuracy")]
    assert mean["seeds"] == "0 2"
    assert mean["reproduced"] == pytest.approx(sum(accuracy(c, s) for c in (PLAIN, REUSE) for s in (0, 2)) / 4)
    # Only of the seeds of the mean, although the first row has one more.
    assert mean["noise"] == pytest.approx(
        math.sqrt(sum(squared_noise(c, s) for c in (PLAIN, REUSE) for s in (0, 2))) / 4
    )
    assert mean["noise"] < max(NOISE.values())


def test_a_mean_row_s_noise_has_a_shared_baseline_once_per_row_and_blocks_count_alike(runs):
    """Four rows less one baseline, each with a noise of 1: the baseline's does not become less by the mean."""
    points = Column(**ACCURACY, relative="difference")
    cells = made(runs, [points], [*ROWS, Row(label="again", cell="grpo-spec-l0")], mean_row=True)
    assert math.isnan(cells.loc[("Mean", "accuracy"), "noise"]), "one was not run"
    line, key = TableLine(Row(label="r", cell=REUSE), "", "r", PLAIN), (PLAIN, None)
    parts = [
        TableCell(line, points, {0: 1.0}, math.nan, (name,), {(name, None): {0: 1.0}, key: {0: -1.0}})
        for name in "abcd"
    ]
    assert _mean_of(parts, table_source(runs, no_reported(), EXPERIMENTS)).noise == pytest.approx(math.sqrt(4 / 16 + 1))
    lines = runs.runs.assign(block=[0, 0, 1, 0, 1])
    own = made(replace(runs, runs=lines), [Column(**ACCURACY)], ROWS).loc[("plain", "accuracy")]
    squares = {seed: squared_noise(PLAIN, seed) for seed in (0, 1, 2)}
    assert own["noise"] == pytest.approx(math.sqrt((squares[0] + squares[1]) / 16 + squares[2] / 4))


def test_a_mean_row_is_compared_with_the_paper_s_only_if_it_has_all_rows(runs):
    few = Column(**ACCURACY, reported=["few"])
    mean = made(runs, [few], EACH_OTHERS, REPORTED, mean_row=True).loc[("Mean", "accuracy")]
    assert (mean["reported"], mean["verdict"]) == (45, "agrees")
    one = ReportedTable([line for line in REPORTED.lines if line["method"] == "vanilla"], SPEC)
    mean = made(runs, [few], EACH_OTHERS, one, mean_row=True).loc[("Mean", "accuracy")]
    assert mean["reproduced"] == pytest.approx(sum(accuracy(c, s) for c in (PLAIN, REUSE) for s in (0, 2)) / 4)
    assert (mean["verdict"], math.isnan(mean["reported"])) == ("not comparable", True), "44 is of the plain row alone"


def test_a_mean_row_leaves_rows_that_are_compared_with_themselves_and_initial_policies_out(runs):
    rows = [Row(label="initial", cell=PLAIN, at="start"), *ROWS]
    cells = made(runs, [Column(**ACCURACY)], rows, mean_row=True)
    assert cells.loc[("Mean", "accuracy"), "reproduced"] == cells.loc[("reuse", "accuracy"), "reproduced"]
    assert cells.loc[("initial", "accuracy"), "reproduced"] == pytest.approx(
        sum(50 * ((10 + s) / 30 + (1509 + 3 * s) / 3018) for s in (0, 1, 2)) / 3
    )


@pytest.mark.parametrize(
    ("correct", "of_baseline", "more", "tested"),
    [(0, 0, 0, False), (30, 30, 0, False), (0, 1, 0, False), (0, 1, 1, True)],
)
def test_an_accuracy_at_the_floor_or_ceiling_next_to_such_a_one_is_not_tested(runs, correct, of_baseline, more, tested):
    """Nor are two seeds that differ by the same; `more` is what each further seed of the baseline has."""
    scores = runs.scores[runs.scores["benchmark"] == "few"]
    own = zip(scores["cell"], scores["seed"], strict=True)
    scores = scores.assign(correct=[of_baseline + more * seed if cell == PLAIN else correct for cell, seed in own])
    points = Column(**ACCURACY, relative="difference", reported=["few"])
    cell = made(replace(runs, scores=scores), [points], ROWS, REPORTED).loc[("reuse", "accuracy")]
    assert cell["n_seeds"] == 2
    assert (not math.isnan(cell["p"]), not math.isnan(cell["p_corrected"])) == (tested, tested)
    assert not math.isnan(cell["reported"])
    assert tested or cell["verdict"] == "inconclusive"


@pytest.mark.parametrize(("looks", "tested"), [((3, 5), False), ((4, 5), True)])
def test_a_block_after_the_latest_look_does_not_lift_a_cell_from_the_floor(monkeypatch, looks, tested):
    monkeypatch.setattr(uneven, "SEEDS", {PLAIN: (0, 1, 2, 3), REUSE: (0, 1, 2, 3)})
    runs = uneven.runs()
    scores = runs.scores[runs.scores["benchmark"] == "few"]
    own = zip(scores["cell"], scores["seed"], strict=True)
    scores = scores.assign(correct=[int(cell == PLAIN and seed == 3) for cell, seed in own])
    points = Column(**ACCURACY, relative="difference", reported=["few"])
    cell = made(replace(runs, scores=scores, looks=looks), [points], ROWS, REPORTED).loc[("reuse", "accuracy")]
    assert (not math.isnan(cell["p"]), cell["verdict"]) == (tested, "inconclusive")


@pytest.mark.parametrize(("looks", "verdict"), [((), "agrees"), ((4, 5), "agrees"), ((5, 6), "inconclusive")])
def test_a_cell_is_not_decided_before_the_first_look(monkeypatch, looks, verdict):
    """Nor without a corrected p-value, as after a later declaration."""
    monkeypatch.setattr(uneven, "SEEDS", {PLAIN: (0, 1, 2, 3), REUSE: (0, 1, 2, 3)})
    runs = replace(uneven.runs(), looks=looks)
    # The reported ratio is that of the runs.
    value = made(runs, [TOKENS], ROWS).loc[("reuse", "tokens"), "reproduced"]
    reported = transcription(
        ("deepmath-6k", "vanilla", "tokens", 100), ("deepmath-6k", "speculative", "tokens", 100 * value)
    )
    assert made(runs, [TOKENS], ROWS, reported).loc[("reuse", "tokens"), "verdict"] == verdict


REPORTED = transcription(
    ("deepmath-6k", "vanilla", "tokens", 100),
    ("deepmath-6k", "speculative", "tokens", 30),
    ("simplerl-8k", "vanilla", "tokens", 120),
    ("simplerl-8k", "vanilla", "few", 40),
    ("deepmath-6k", "vanilla", "few", 44),
    ("deepmath-6k", "vanilla", "many", 51),
    ("deepmath-6k", "speculative", "few", 46),
)
TOKENS = Column(name="tokens", title="t", quantity="tokens_decoded", relative="ratio", reported=["tokens"])


def test_a_reported_value_is_relative_to_the_row_that_the_baseline_s_own_row_names(runs):
    own = made(runs, [TOKENS], ROWS, REPORTED)
    assert own.loc[("reuse", "tokens"), "reported"] == pytest.approx(30 / 100)
    named = [ROWS[0].model_copy(update={"reported": {"data": "simplerl-8k"}}), ROWS[1]]
    other = made(runs, [TOKENS], named, REPORTED)
    assert other.loc[("reuse", "tokens"), "reported"] == pytest.approx(30 / 120)
    mean = math.sqrt(2600 / 4000 * 3040 / 4800)
    assert other.loc[("reuse", "tokens"), "reproduced"] == pytest.approx(mean)
    assert other.loc[("reuse", "tokens"), "deviation"] == pytest.approx(mean - 30 / 120)


def test_a_reported_average_needs_every_column(runs):
    assert mean_of({"few": 44.0, "many": 51.0}, ["few", "many"]) == 47.5
    assert math.isnan(mean_of({"few": 46.0}, ["few", "many"]))
    assert math.isnan(mean_of({}, []))
    cells = made(runs, [Column(**ACCURACY, reported=["few", "many"])], ROWS, REPORTED)
    assert cells.loc[("plain", "accuracy"), "reported"] == 47.5
    assert math.isnan(cells.loc[("reuse", "accuracy"), "reported"])


def test_absolute_values_are_compared_at_the_paper_s_scale_only(runs):
    cells = made(runs, [Column(**ACCURACY, reported=["few"]), TOKENS], ROWS, REPORTED, paper_scale=False)
    assert math.isnan(cells.loc[("plain", "accuracy"), "reported"])
    assert cells.loc[("reuse", "tokens"), "reported"] == pytest.approx(0.3)


PRINTED = 3.6
"""The paper's mean of a row's speedups, which need not be that of its rounded ones."""
AVERAGES = transcription(("deepmath-6k", "speculative", AVERAGE, PRINTED))


@pytest.mark.parametrize(
    ("third", "values", "reported", "average"),
    [
        ("reached", {0: 3.0, 2: 6.0}, (3.0, 4.0, 8.0), PRINTED),
        ("never", {0: 2.5, 2: 6.0}, (3.0, 4.0, 8.0), 3.5),
        ("never", {0: 2.5, 2: 6.0}, (3.0, 4.0, math.nan), PRINTED),
        ("reached", {0: 3.0, 2: 6.0}, (3.0, 4.0, math.nan), math.nan),
        ("missing", {}, (3.0, 4.0, math.nan), PRINTED),
    ],
)
def test_a_row_s_average_and_the_paper_s_are_over_the_same_targets(third, values, reported, average):
    """Without the third target the paper's is the mean of 3 and 4, which it prints if it lacks the third too."""
    line = TableLine(Row(label="r", cell=REUSE), "", "r", PLAIN)
    bracket = Column(name="s", title="s", quantity="hours_to:1:reward", relative="speedup", in_brackets=True)
    bracket = bracket.model_copy(update={"reported": ["few"]})
    of_third = {0: 4.0, 2: 6.0} if third == "reached" else {}
    cells = [
        TableCell(line, bracket, {0: 2.0, 2: 4.0}, reported[0], (REUSE,)),
        TableCell(line, bracket, {0: 3.0, 1: 9.0, 2: 8.0}, reported[1], (REUSE,)),
        TableCell(line, bracket, of_third, reported[2], (REUSE,), applicable=third != "never"),
        TableCell(line, Column(name="t", title="t", quantity="hours"), {0: 1.0}, 99.0, (REUSE,)),
    ]
    source = table_source(uneven.runs(), AVERAGES, EXPERIMENTS, paper_scale=True)
    found = average_cell(line, average_column(1), cells, source)
    assert found.column.quantity == AVERAGE
    assert found.values == values
    assert found.reported == pytest.approx(average, nan_ok=True)
    assert found.applicable
    never = [replace(cell, applicable=False) for cell in cells]
    assert not average_cell(line, average_column(1), never, source).applicable


def test_the_interval_is_student_s_and_the_bootstrap_s_stands_beside(runs):
    cell = made(runs, [Column(**ACCURACY)], ROWS).loc[("plain", "accuracy")]
    values = [accuracy(PLAIN, seed) for seed in (0, 1, 2)]
    assert min(values) - 1e-9 <= cell["bootstrap_low"] < cell["bootstrap_high"] <= max(values) + 1e-9
    assert cell["low"] < min(values)
    assert cell["high"] > max(values)
