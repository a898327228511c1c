"""From runs to verdicts, on runs made up here: what is reported never turns into what is reproduced."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import by_seed
from redraft.analysis.data.reported_tables import read_reported as read
from redraft.analysis.data.statistics import NONE, Estimate, Interval, estimate, paired
from redraft.analysis.tables import render
from redraft.analysis.tables.cell_verdicts import verdict
from redraft.analysis.tables.comparison import COLUMNS, make_table
from redraft.analysis.tables.table_columns import expand
from redraft.config import Experiments
from redraft.errors import UserError
from tests.measured import table_source
from tests.step_records import made_up_scores, made_up_step

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
TABLE_3 = next(table for table in EXPERIMENTS.tables("spec_rl").tables if table.number == 3)


SPEC = EXPERIMENTS.reported("spec_rl")


def read_reported(folder, number):
    return read(folder, number, SPEC)


def sheet(spec, cells):
    return render.Sheet(spec, spec.columns, cells)


def run_steps(cell, seed, tokens, seconds, **values):
    """Three steps of one epoch each."""
    return [
        made_up_step(
            cell, seed, i, i, seconds, drafts=i > 0, tokens_decoded=tokens, tokens_reused=5 if i else 0, **values
        )
        for i in range(3)
    ]


BENCHMARKS = {name: benchmark.role for name, benchmark in EXPERIMENTS.preset("tiny").benchmarks.items()}


@pytest.fixture
def runs():
    """GRPO and two speculative cells, three seeds; l = 1 decodes half, inf a tenth."""
    cells = {"grpo-vanilla": (100, 4.0, 60), "grpo-spec-l0": (50, 2.0, 57), "grpo-spec-linf": (10, 1.0, 40)}
    steps, scores, lines = [], [], []
    for cell, (tokens, seconds, correct) in cells.items():
        for seed in (0, 1, 2):
            steps += run_steps(cell, seed, tokens + seed, seconds)
            lines.append(
                {
                    "cell": cell,
                    "seed": seed,
                    "fingerprint": "f",
                    "seconds": 1.0,
                    "manifest": f"results/tiny/runs/spec_rl/{cell}/seed{seed}/manifest.json",
                    "initial": f"results/tiny/initial/qwen3-1.7b-base/seed{seed}/generations.json",
                }
            )
            scores += made_up_scores(cell, seed, 3, correct + seed, BENCHMARKS)
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


@pytest.fixture
def table3(runs):
    spec = expand(TABLE_3, EXPERIMENTS.preset("tiny").benchmarks)
    reported = read_reported(ROOT / "experiments/spec_rl", 3)
    source = table_source(runs, reported, EXPERIMENTS)
    return spec, make_table(spec, source)


def cell_of(cells, row, column):
    return cells[(cells["row"] == row) & (cells["column"] == column)].iloc[0]


def test_table_3_has_the_contract_s_columns_and_every_cell(table3):
    spec, cells = table3
    assert list(cells.columns) == COLUMNS
    assert {"row", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"} <= set(COLUMNS)
    assert len(cells) == len(spec.rows) * len(spec.columns)


def test_relative_values_are_paired_by_seed_and_compared_with_the_paper_s(table3):
    _, cells = table3
    cell = cell_of(cells, "+ SPEC-RL, ℓ = 1", "tokens_relative")
    assert cell["reproduced"] == pytest.approx(stats.gmean([50 / 100, 51 / 101, 52 / 102]))
    assert cell["reported"] == pytest.approx(419.1 / 554.8)
    assert cell["deviation"] == pytest.approx(cell["reproduced"] - cell["reported"])
    assert (cell["n_seeds"], cell["verdict"]) == (3, "same direction")
    assert len(cell["manifests"].split()) == 6, "those of the cell and of the baseline"
    assert cell_of(cells, "+ SPEC-RL, ℓ = ∞", "speedup")["reported"] == 14.86
    math_reported = cell_of(cells, "+ SPEC-RL, ℓ = ∞", "math_difference")["reported"]
    assert math_reported == pytest.approx(np.mean([30.2 - 35.0, 4.4 - 7.8, 60.4 - 64.4, 19.9 - 26.5, 23.7 - 25.5]))


def test_absolute_values_of_another_model_have_no_reported_one(table3):
    _, cells = table3
    cell = cell_of(cells, "GRPO", "tokens_m")
    assert (cell["verdict"], math.isnan(cell["reported"])) == ("not comparable", True)
    assert cell["reproduced"] == pytest.approx(3 * 101e-6)


def test_at_paper_scale_absolute_values_are_compared(runs):
    table = TABLE_3
    reported = read_reported(ROOT / "experiments/spec_rl", 3)
    source = table_source(runs, reported, EXPERIMENTS, paper_scale=True)
    cell = cell_of(make_table(expand(table, {}), source), "GRPO", "tokens_m")
    assert (cell["reported"], cell["verdict"]) == (554.8, "differs")


def test_what_was_not_run_is_missing_and_never_zero_or_reported(table3):
    spec, cells = table3
    missing = cells[cells["row"] == "+ SPEC-RL, ℓ = e^0.5"]
    assert set(missing["verdict"]) == {"missing"}
    assert missing["reproduced"].isna().all()
    assert (missing["n_seeds"] == 0).all()
    lines = render.markdown(sheet(spec, cells)).splitlines()
    line = next(line for line in lines if line.startswith("| + SPEC-RL, ℓ = e^0.5"))
    texts = [text.strip() for text in line.split("|")[2:-1]]
    assert texts[:7] == ["missing", "missing", "0.33", "missing", "0.28", "missing", "2.29"]


def test_no_reported_value_can_become_a_reproduced_one(runs):
    """Every reported value is replaced by nonsense: not one reproduced value moves."""
    spec = expand(TABLE_3, EXPERIMENTS.preset("tiny").benchmarks)
    reported = read_reported(ROOT / "experiments/spec_rl", 3)
    nonsense = replace(reported, lines=[line | {"value": line["value"] * 7 + 1} for line in reported.lines])
    columns = ["reproduced", "low", "high", "n_seeds"]
    tables = [
        make_table(spec, table_source(runs, table, EXPERIMENTS, paper_scale=True)) for table in (reported, nonsense)
    ]
    pd.testing.assert_frame_equal(tables[0][columns], tables[1][columns])
    assert not tables[0]["reported"].equals(tables[1]["reported"])


def test_a_table_is_rendered_as_it_was(table3):
    """The golden Markdown of Table 3 on the made-up runs; `tests/golden/table03.md` is changed only on purpose."""
    spec, cells = table3
    assert render.markdown(sheet(spec, cells)) == (ROOT / "tests/golden/table03.md").read_text()


def test_latex_and_html_hold_the_same_cells(table3):
    spec, cells = table3
    tex, page = render.latex(sheet(spec, cells)), render.html(sheet(spec, cells), Path("results/tiny"))
    groups = {row.group for row in spec.rows} - {""}
    assert tex.count("\\\\") == len(spec.rows) + len(groups) + 1
    assert tex.isascii()
    headings = [line for line in tex.splitlines() if r"\emph" in line and "multicolumn" in line]
    assert len(headings) >= len(groups)
    assert all(line.endswith(r"\\") for line in headings), "each on a line of its own"
    assert 'href="runs/spec_rl/grpo-spec-l0/seed2/manifest.json"' in page
    assert page.count('<span class="absent">not run</span>') == 7 * len(spec.columns)
    assert page.count('<tr class="not-run">') == 7
    assert "3 of 10 rows run" in page
    assert "not run: + SPEC-RL, ℓ = e^0.2; + SPEC-RL, ℓ = e^0.5; + SPEC-RL, ℓ = e^0.8; + SPEC-RL, ℓ = e^2; " in page
    assert tex.count("\\verdictmissing") == 7 * len(spec.columns) + 2, "and once each where it is defined and explained"


def estimated(mean, low, high):
    return Estimate(mean, Interval(low, high), (0, 1))


@pytest.mark.parametrize(
    ("found", "reported", "relative", "expected"),
    [
        (Estimate(math.nan, NONE, ()), 1.0, "ratio", "missing"),
        (estimated(0.5, 0.4, 0.6), math.nan, "ratio", "not comparable"),
        (estimated(0.5, 0.4, 0.6), 0.45, "ratio", "agrees"),
        (estimated(0.5, 0.4, 0.6), 0.9, "ratio", "same direction"),
        (estimated(0.5, 0.4, 0.6), 1.1, "ratio", "opposite direction"),
        (estimated(0.5, 0.4, 0.6), 1.0, "ratio", "differs"),
        (estimated(0.9, 0.8, 1.1), 0.85, "ratio", "inconclusive"),
        (estimated(-3.0, -4.0, -2.0), 2.0, "difference", "opposite direction"),
        (Estimate(0.5, NONE, (0,)), 0.5, "ratio", "inconclusive"),
        (estimated(0.5, 0.4, 0.6), 0.9, None, "differs"),
        (estimated(0.5, 0.4, 0.6), 0.5, None, "agrees"),
        (estimate(dict.fromkeys(range(3), 0.1 + 0.2)), 0.3, None, "agrees"),
        (estimate(dict.fromkeys(range(3), 3.0000000000000004), log=True), 3.0, "speedup", "agrees"),
        (estimate(dict.fromkeys(range(3), 1.0 - 1e-16), log=True), 0.5, "ratio", "inconclusive"),
        (estimate(dict.fromkeys(range(3), 0.3 + 1e-9)), 0.3, None, "differs"),
        (estimate({0: 0.4, 1: 0.4}), 0.3, None, "inconclusive"),
    ],
)
def test_verdicts(found, reported, relative, expected):
    assert verdict(found, reported, relative) == expected


def test_an_interval_needs_two_seeds_and_verdicts_rest_on_the_wider_one():
    assert math.isnan(estimate({0: 1.0}).interval.low)
    found = estimate({0: 1.0, 1: 2.0, 2: 4.0})
    assert found.bootstrap == Interval(1.0, 4.0)
    assert found.mean == pytest.approx(7 / 3)
    # Student's t with two degrees of freedom is 4.3027, the standard error 1.5275 / sqrt(3).
    assert found.interval.high - found.mean == pytest.approx(4.3027 * 1.5275 / math.sqrt(3), rel=1e-3)
    alike = estimate({0: 3.0, 1: 3.0, 2: 3.0})
    assert (alike, alike.bootstrap) == (Estimate(3.0, Interval(3.0, 3.0), (0, 1, 2)), Interval(3.0, 3.0))
    assert estimate({}).seeds == ()
    assert estimate({0: math.nan, 1: 2.0, 2: 3.0}).seeds == (1, 2)


def test_pairing_takes_only_shared_seeds():
    assert paired({0: 2.0, 1: 3.0}, {1: 6.0, 2: 1.0}, "ratio") == {1: 0.5}
    assert paired({1: 3.0}, {1: 6.0}, "speedup") == {1: 2.0}


def test_an_unknown_quantity_is_named(runs):
    with pytest.raises(UserError, match="no such quantity(.|\n)*luck(.|\n)*tokens_decoded"):
        by_seed(runs, "luck", "grpo-vanilla")
    assert by_seed(runs, "accuracy:aime24", "grpo-vanilla") == {}, "the preset does not sample it"


def test_reported_tables_that_are_missing_or_damaged_are_named(tmp_path):
    (tmp_path / "reported").mkdir()
    with pytest.raises(UserError, match=r"table03\.csv: this reported table is missing"):
        read_reported(tmp_path, 3)
    whole = (ROOT / "experiments/spec_rl/reported/table03.csv").read_text()
    lines = whole.splitlines(keepends=True)
    for text, word in (
        ("".join(lines[:-10]), r"cut off(.|\n)*value:   60(.|\n)*allowed: 70"),
        (whole + lines[-1], "occurs twice"),
        (whole.replace("qwen", "qw\xe9n"), "damaged"),
        (whole[:-3], "cut off"),
        (whole[: whole.rindex("qwen")], "cut off"),
        (whole.replace(",29.2", ",many"), "not a number"),
        (whole.replace(",29.2", ",2_9.2"), "not a number"),
        (whole.replace(",90,", ",9O,", 1), "line 2 is no whole number"),
        (whole.replace("grpo,", "grpo ,", 1), "a blank begins or ends a text of line 2"),
        ("a,b\n1,2\n", "wrong header"),
        ("", "damaged"),
    ):
        (tmp_path / "reported/table03.csv").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=word):
            read_reported(tmp_path, 3)
    (tmp_path / "reported/table03.csv").unlink()
    (tmp_path / "reported/table03.csv").mkdir()
    with pytest.raises(UserError, match="a folder and no file"):
        read_reported(tmp_path, 3)


def test_the_reported_row_of_a_cell_is_that_of_its_lenience():
    reported = read_reported(ROOT / "experiments/spec_rl", 3)
    speedups = [reported.row(EXPERIMENTS.cell(f"spec_rl/grpo-spec-l{x}"))["speedup"] for x in ("0", "0.5", "inf")]
    assert speedups == [1.22, 2.29, 14.86]
