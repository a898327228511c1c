"""Kinds of tables on runs and curves made up here: times to targets, stages, published curves; every number by hand."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import by_seed, over_time
from redraft.analysis.data.reported_tables import ReportedTable, match_of, no_reported
from redraft.analysis.data.statistics import estimate
from redraft.analysis.data.timing import TimingSpread
from redraft.analysis.tables import render
from redraft.analysis.tables.cell_verdicts import budget_verdicts, verdict
from redraft.analysis.tables.comparison import make_table
from redraft.analysis.tables.table_columns import expand
from redraft.analysis.tables.without_runs import make_published, published_columns
from redraft.config import (
    BudgetTable,
    CellTable,
    Experiments,
    PublishedTable,
    Reported,
    StageTable,
    StepTable,
    Table,
    TargetTable,
)
from redraft.config.figures import FigureFile
from redraft.config.tables import Row, TableFile
from redraft.errors import UserError
from redraft.layout import PUBLISHED as LOCATION
from redraft.published import check_published
from tests.measured import table_source

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
BENCHMARKS = EXPERIMENTS.preset("tiny").benchmarks
STEPS, HOUR = 6, 3600.0
SLOW, FAST, WEAK = "grpo-vanilla", "grpo-spec-l0.5", "grpo-spec-l0"


def made_up(cells, seeds=(0, 1)):
    """Runs of cells: name to hours a step, and percent right after 0, 2, 4 and 6 steps; one more in the second seed."""
    steps, scores, lines = [], [], []
    for cell, (hours, percents) in cells.items():
        for seed in seeds:
            lines.append(
                {
                    "cell": cell,
                    "seed": seed,
                    "manifest": f"results/tiny/runs/{cell}/{seed}.json",
                    "initial": f"results/tiny/initial/{seed}.json",
                }
            )
            steps += [
                {
                    "cell": cell,
                    "seed": seed,
                    "step": i,
                    "epoch": i // 2,
                    "responses": 8 - i,
                    "reward": i / 10,
                    "tokens_decoded": int(1000 * hours),
                    "seconds.total": hours * HOUR,
                    "seconds.rollout": hours * HOUR / 2,
                    "seconds.verification": 0.0,
                    "seconds.assembly": 0.0,
                }
                for i in range(STEPS)
            ]
            scores += [
                {
                    "cell": cell,
                    "seed": seed,
                    "step": 2 * i,
                    "benchmark": "arithmetic",
                    "role": "in-distribution",
                    "correct": percent + seed,
                    "total": 100,
                }
                for i, percent in enumerate(percents)
            ]
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


RUNS = made_up({SLOW: (2.0, [10, 20, 30, 40]), FAST: (1.0, [10, 30, 40, 50]), WEAK: (1.0, [10, 11, 12, 13])})


def source(runs=RUNS, reported=None, paper_scale=False):
    return table_source(runs, reported or no_reported(), EXPERIMENTS, paper_scale=paper_scale)


TARGETS = TargetTable(
    number=101,
    title="t",
    baseline=SLOW,
    mean_row=True,
    targets=[
        {"name": "low", "title": "30 %", "quantity": "accuracy:all", "at_least": 30, "reported": ["low"]},
        {"name": "high", "title": "45 %", "quantity": "accuracy:all", "at_least": 45, "reported": ["high"]},
    ],
    rows=[{"label": "slow", "cell": SLOW}, {"label": "fast", "cell": FAST}, {"label": "weak", "cell": WEAK}],
)


def made(table, **arguments):
    whole = expand(table, BENCHMARKS, EXPERIMENTS.reported("spec_rl"))
    return whole, make_table(whole, source(**arguments)).set_index(["row", "column"])


def text(table, cells):
    return render.markdown(render.Sheet(table, table.columns, cells.reset_index()))


# Time to target


def test_the_first_hour_and_the_first_step_at_which_a_target_is_reached():
    assert by_seed(RUNS, "hours_to:30:accuracy:all", SLOW) == {0: 8.0, 1: 8.0}, "30 % after four steps of two hours"
    assert by_seed(RUNS, "steps_to:30:accuracy:all", FAST) == {0: 2.0, 1: 2.0}
    assert by_seed(RUNS, "steps_to:41:accuracy:all", SLOW) == {0: math.inf, 1: 6.0}, "the second seed has one more"
    assert by_seed(RUNS, "hours_to:10:accuracy:all", SLOW)[0] == 0.0, "the initial policy is there at once"
    two = [RUNS.scores.assign(total=500, correct=k, benchmark=name) for name, k in (("a", 3), ("b", 489))]
    mean = replace(RUNS, scores=pd.concat(two))
    assert by_seed(mean, "steps_to:49.2:accuracy:all", SLOW)[0] == 0.0, "0.6 % and 97.8 % are 98.4 % together"
    assert by_seed(RUNS, "accuracy:all", SLOW, at=0) == {0: 10.0, 1: 11.0}
    assert by_seed(RUNS, "hours_to:+20:accuracy:all", SLOW) == {0: 8.0, 1: 8.0}, (
        "30 and 31 %, from each run's own start"
    )
    assert by_seed(RUNS, "steps_to:+20.5:accuracy:all", SLOW) == {0: 6.0, 1: 6.0}, "31 % is not 31.5 %"
    assert by_seed(RUNS, "steps_to:+99:accuracy:all", SLOW) == {0: math.inf, 1: math.inf}
    without = replace(RUNS, scores=RUNS.scores[(RUNS.scores["seed"] == 1) | (RUNS.scores["step"] > 0)])
    assert set(by_seed(without, "steps_to:+1:accuracy:all", SLOW)) == {1}, "where the start is not known"
    for below, step in ((3e-11, 1.0), (9e-11, math.inf)):
        lengths = replace(RUNS, steps=RUNS.steps.assign(response_length=49.2 - below))
        found = by_seed(lengths, "steps_to:49.2:response_length", SLOW)[0]
        assert found == step, "rounding is relative to a large target"
    assert by_seed(RUNS, "steps_to:0.3:reward", SLOW)[0] == 4.0, "at the end of the fourth step"
    assert by_seed(RUNS, "steps_to:0.3:reward", SLOW, at=3)[0] == math.inf


def test_a_target_table_shows_hours_speedups_daggers_and_means():
    table, cells = made(TARGETS)
    assert cells.loc[("slow", "low"), "reproduced"] == 8.0
    assert cells.loc[("fast", "low"), "reproduced"] == 2.0
    assert cells.loc[("fast", "low_speedup"), "reproduced"] == 4.0
    assert cells.loc[("slow", "low_speedup"), "verdict"] == "baseline"
    assert cells.loc[("fast", "high"), "reproduced"] == 6.0
    assert cells.loc[("fast", "high_speedup"), "verdict"] == "not applicable", "the baseline never got there"
    assert cells.loc[("weak", "low"), "reproduced"] == math.inf
    assert cells.loc[("fast", "average_speedup"), "reproduced"] == 4.0
    assert cells.loc[("weak", "average_speedup"), "verdict"] == "not applicable"
    assert cells.loc[("Mean", "low_speedup"), "reproduced"] == 4.0, "of the rows that have one"
    shown = {line.split("|")[1].strip(): line for line in text(table, cells).splitlines() if line.startswith("|")}
    assert [part.strip() for part in shown["fast"].split("|")[2:5]] == [
        "2.0 (n = 2, without seed 2) (4.0 ×)",
        "6.0 (n = 2, without seed 2) (†)",
        "4.0 (n = 2, without seed 2)",
    ]
    assert [part.strip() for part in shown["weak"].split("|")[2:5]] == [
        *["† (n = 2, without seed 2) (†)"] * 2,
        "–",
    ]
    page = render.html(render.Sheet(table, table.columns, cells.reset_index()), Path("results"))
    assert '2.0 <span class="spread">(n = 2)</span> (4.0 ×)</button>' in page


def test_a_mean_that_leaves_out_what_one_side_alone_reached_is_not_tested():
    """It would be a mean of successes only. What no run reaches depends on no method."""
    # Speedups of 6 and 4: 29 and 30 % after four steps.
    runs = made_up({SLOW: (2.0, [10, 20, 29, 40]), FAST: (1.0, [10, 30, 41, 50]), WEAK: (1.0, [10, 11, 12, 13])})
    for second, tested in ((45, False), (99, True)):
        targets = [TARGETS.targets[0], TARGETS.targets[1].model_copy(update={"at_least": second})]
        _, cells = made(TARGETS.model_copy(update={"targets": targets}), runs=runs)
        assert math.isfinite(cells.loc[("fast", "average_speedup"), "p"]) == tested, second
        assert 4 < cells.loc[("fast", "average_speedup"), "reproduced"] < 6
    assert math.isnan(cells.loc[("Mean", "low_speedup"), "p"]), "the weak row never reaches it"
    _, cells = made(TARGETS.model_copy(update={"rows": TARGETS.rows[:2]}), runs=runs)
    assert math.isfinite(cells.loc[("Mean", "low_speedup"), "p"])


def test_a_speedup_of_seeds_of_which_one_never_arrives_is_none():
    runs = made_up({SLOW: (2.0, [10, 20, 30, 40]), FAST: (1.0, [10, 30, 40, 50])})
    table = TARGETS.model_copy(
        update={
            "targets": [TARGETS.targets[0].model_copy(update={"at_least": 41.0})],
            "rows": TARGETS.rows[:2],
        }
    )
    _, cells = made(table, runs=runs)
    assert cells.loc[("slow", "low"), "reproduced"] == math.inf, "one of two seeds is not half of an answer"
    assert cells.loc[("fast", "low_speedup"), "verdict"] == "not applicable"


def test_a_declared_target_above_the_initial_policy_counts_from_it():
    """Initial policies have 10 and 11 %, so +20 points are 30 and 31 %, which a target of 20 % is not."""
    targets = [{"name": "gain", "title": "+20", "quantity": "accuracy:all", "at_least": 20, "above_initial": True}]
    rows = [{"label": "slow", "cell": SLOW}, {"label": "fast", "cell": FAST}]
    whole, cells = made(TargetTable(number=150, title="t", baseline=SLOW, clock="steps", targets=targets, rows=rows))
    assert [column.quantity for column in whole.columns[:2]] == ["steps_to:+20:accuracy:all"] * 2
    assert cells.loc[("slow", "gain"), "reproduced"] == 4
    assert cells.loc[("fast", "gain"), "reproduced"] == 2
    with pytest.raises(ValidationError, match="needs an accuracy"):
        TargetTable(number=150, title="t", baseline=SLOW, targets=[targets[0] | {"quantity": "reward"}], rows=rows)
    declared = Experiments(ROOT).tables("speed_rl").tables[0].at["tiny"]
    assert all(target.above_initial for target in declared)


def test_a_target_that_some_seeds_reached_is_certain_of_nothing():
    some, none = estimate({0: math.inf, 1: 3.0}), estimate({0: math.inf, 1: math.inf})
    verdicts = [verdict(found, reported, None) for found in (some, none) for reported in (math.inf, 3.0)]
    assert verdicts == ["inconclusive", "inconclusive", "agrees", "differs"]


def test_what_was_not_run_is_missing_and_never_a_dagger():
    runs = made_up({SLOW: (2.0, [10, 20, 30, 40])})
    table, cells = made(TARGETS, runs=runs)
    assert set(cells.loc["fast", "verdict"]) == {"missing"}
    line = next(line for line in text(table, cells).splitlines() if line.startswith("| fast"))
    assert "†" not in line


VOCABULARY = Reported.model_validate({"key": {"method": {"of": "reuse.kind"}}, "positions": []})


def transcription(*lines):
    return ReportedTable([dict(zip(VOCABULARY.header, line, strict=True)) for line in lines], VOCABULARY)


def test_a_target_has_another_value_in_a_group_and_others_at_a_preset():
    """The slow cell reaches 20 % after 4 hours and 40 % after 12; the fast one 50 % after 6."""
    content = TARGETS.model_dump(exclude={"at", "mean_row"})
    content["targets"] = [content["targets"][0] | {"in_groups": {"large": 40.0}}]
    content["rows"] = [
        {"label": "slow", "cell": SLOW, "group": "small"},
        {"label": "fast", "cell": FAST},
        {"label": "slow again", "cell": SLOW, "group": "large"},
    ]
    content["at"] = {"tiny": [{"name": "other", "title": "20 %", "quantity": "accuracy:all", "at_least": 20}]}
    table = TargetTable.model_validate(content)
    _, cells = made(table)
    assert list(cells.loc[(slice(None), "low"), "reproduced"]) == [8.0, 2.0, 12.0]
    assert list(cells.loc[(slice(None), "low_speedup"), "reproduced"])[1] == 4.0
    tiny = expand(table, BENCHMARKS, None, "tiny")
    assert [column.name for column in tiny.columns] == ["other", "other_speedup", "average_speedup"]
    assert make_table(tiny, source()).set_index(["row", "column"]).loc[("slow", "other"), "reproduced"] == 4.0
    content["at"]["tiny"][0]["in_groups"] = {"huge": 1.0}
    with pytest.raises(ValidationError, match="must be a group of rows"):
        TargetTable.model_validate(content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"at": {"medium": [{"name": "x", "title": "x", "quantity": "accuracy:all", "at_least": 1}]}},
            r"no such preset\n  key:     tables.0.at\n  value:   'medium'\n  allowed: (.*)tiny",
        ),
        (
            {"targets": [{"name": "x", "title": "x", "quantity": "accuracy:math500+mathh", "at_least": 1}]},
            r"no such benchmark or role\n  key:     tables.0.targets.0.quantity\n"
            r"  value:   'accuracy:math500\+mathh'\n  allowed: math500",
        ),
    ],
)
def test_a_target_of_an_unknown_preset_or_benchmark_is_refused_when_files_are_read(tmp_path, change, words):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    table = TARGETS.model_dump(mode="json", exclude_defaults=True) | {"kind": "targets"} | change
    (tmp_path / "experiments/spec_rl/tables.yaml").write_text(yaml.safe_dump({"tables": [table]}))
    with pytest.raises(UserError, match=words):
        Experiments(tmp_path).tables("spec_rl")


def test_an_accuracy_of_several_benchmarks_is_their_mean():
    other = RUNS.scores.assign(benchmark="arithmetic-minus", correct=lambda scores: scores["correct"] + 10)
    runs = Runs(RUNS.runs, RUNS.steps, pd.concat([RUNS.scores, other]))
    assert by_seed(runs, "accuracy:arithmetic+arithmetic-minus", SLOW)[0] == 45.0
    assert by_seed(runs, "hours_to:30:accuracy:arithmetic+arithmetic-minus", SLOW)[0] == 8.0, "25 %, then 35 %"
    assert by_seed(runs, "accuracy:arithmetic+math500", SLOW) == {}, "not the mean of those that were sampled"


def test_reported_hours_stand_beside_at_the_paper_s_scale_and_speedups_at_any():
    reported = transcription(
        ("vanilla", "low", 25.9), ("vanilla", "high", math.inf), ("speculative", "low", 7.4), ("speculative", "high", 6)
    )
    table = TARGETS.model_copy(update={"transcription": 1, "rows": TARGETS.rows[:2]})
    _, cells = made(table, reported=reported)
    assert math.isnan(cells.loc[("fast", "low"), "reported"])
    assert cells.loc[("fast", "low_speedup"), "reported"] == pytest.approx(25.9 / 7.4)
    assert math.isnan(cells.loc[("fast", "high_speedup"), "reported"]), "nothing is so many times faster than never"
    assert cells.loc[("fast", "average_speedup"), "reported"] == pytest.approx(25.9 / 7.4)
    _, cells = made(table, reported=reported, paper_scale=True)
    fast = cells.loc[("fast", "low")]
    assert (fast["reported"], fast["verdict"]) == (7.4, "inconclusive"), "the hours of both seeds are equal"
    assert cells.loc[("slow", "high"), "verdict"] == "agrees", "neither the run nor the paper's reached it"


@pytest.mark.parametrize("name", ["math500", "out-of-distribution", "math500+arithmetic"])
def test_a_benchmark_or_role_that_the_preset_leaves_out_is_not_missing(name):
    targets = [TARGETS.targets[0].model_copy(update={"quantity": f"accuracy:{name}"})]
    _, cells = made(TARGETS.model_copy(update={"targets": targets}))
    assert set(cells["verdict"]) == {"not applicable"}


# Stages


def test_a_row_without_runs_is_not_run_also_where_the_preset_samples_none_of_its_benchmarks():
    targets = [target.model_copy(update={"quantity": "accuracy:math500"}) for target in TARGETS.targets]
    of_slow = Runs(*(frame[frame["cell"] == SLOW] for frame in (RUNS.runs, RUNS.steps, RUNS.scores)))
    table, cells = made(TARGETS.model_copy(update={"targets": targets, "mean_row": False}), runs=of_slow)
    shown = render.Sheet(table, table.columns, cells.reset_index())
    assert (shown.extent, shown.not_run) == ("1 of 3 rows run", ["fast", "weak"])


def test_stages_become_columns_with_the_reported_ones_of_the_vocabulary():
    table = StageTable(
        number=4,
        title="t",
        baseline=SLOW,
        stages={"rollout": "Rollout"},
        decimals=1,
        speedups={"honest": "Honest"},
        rows=[{"label": "slow", "cell": SLOW}, {"label": "fast", "cell": FAST}],
    )
    columns = expand(table, BENCHMARKS, EXPERIMENTS.reported("spec_rl")).columns
    assert [(c.name, c.title, c.quantity, c.reported) for c in columns] == [
        ("rollout_s", "Rollout (s)", "seconds:rollout", ["rollout_s"]),
        ("speedup_honest", "Honest", "speedup:honest", ["total_s"]),
    ]
    _, cells = made(table)
    assert cells.loc[("fast", "speedup_honest"), "reproduced"] == 2.0
    assert expand(table, BENCHMARKS, None).columns[0].reported == []


# Published curves


CURVES = PublishedTable(
    number=102,
    title="t",
    folder="authors",
    time="seconds",
    scale=1 / HOUR,
    transcription=1,
    targets=[
        {"name": "low", "title": "0.3", "fields": ["val/*/mean@*"], "at_least": 0.3, "reported": ["low"]},
        {"name": "high", "title": "0.9", "fields": ["val/acc/mean@4"], "at_least": 0.9, "reported": ["high"]},
    ],
    rows=[
        {"label": "slow", "file": "slow.json", "validations": 5, "group": "data", "reported": {"method": "vanilla"}},
        {
            "label": "fast",
            "file": "fast.json",
            "validations": 3,
            "baseline": "slow",
            "reported": {"method": "speculative"},
        },
        {"label": "gone", "baseline": "slow"},
    ],
)


@pytest.fixture
def curves(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCATION, str(tmp_path))
    (tmp_path / "authors").mkdir()
    for name, accuracies in (("slow", [0.1, 0.2, 0.25, 0.31, 0.3]), ("fast", [0.1, 0.35, 0.2])):
        lines = [
            json.dumps({"seconds": 1800 * i, "val/acc/mean@4": a, "val/acc/best@4/std": 0.1}) + "\n"
            for i, a in enumerate(accuracies)
        ]
        (tmp_path / f"authors/{name}.json").write_text("".join(lines))
    return tmp_path / "authors"


def replayed(table=CURVES, **reported):
    lines = [(method, column, value) for method, row in reported.items() for column, value in row.items()]
    return make_published(table, transcription(*lines)).set_index(["row", "column"])


def test_a_replay_takes_the_first_time_and_agrees_with_what_is_printed_so(curves):
    cells = replayed(vanilla={"low": 1.5, "high": math.inf}, speculative={"low": 0.6, "high": math.inf})
    assert (cells.loc[("slow", "low"), "reproduced"], cells.loc[("slow", "low"), "verdict"]) == (1.5, "agrees")
    assert (cells.loc[("fast", "low"), "reproduced"], cells.loc[("fast", "low"), "verdict"]) == (0.5, "differs")
    speedup = cells.loc[("fast", "low_speedup")]
    assert (speedup["reproduced"], speedup["reported"], speedup["verdict"]) == (3.0, 2.5, "differs")
    assert cells.loc[("slow", "low_speedup"), "verdict"] == "baseline"
    assert cells.loc[("fast", "high"), "verdict"] == "agrees", "both say never"
    assert cells.loc[("fast", "average_speedup"), "reproduced"] == 3.0
    assert set(cells.loc["gone", "verdict"]) == {"no data"}
    shown = render.markdown(render.Sheet(CURVES, published_columns(CURVES), cells.reset_index()))
    fast = next(line for line in shown.splitlines() if line.startswith("| fast "))
    assert [part.strip() for part in fast.split("|")[2:4]] == ["0.5 (3.0 ×)", "0.6 (2.5 ×)"]
    assert "no data" in shown


def test_a_replayed_time_is_judged_by_the_decimals_of_its_target(curves):
    low, high = CURVES.targets
    table = CURVES.model_copy(update={"targets": [low.model_copy(update={"decimals": 0}), high]})
    printed = {"vanilla": {"low": 2.0}, "speculative": {"low": 1.0}}
    assert replayed(**printed).loc[("slow", "low"), "verdict"] == "differs", "1.5 hours"
    assert replayed(table, **printed).loc[("slow", "low"), "verdict"] == "agrees"


def test_without_their_folder_a_replay_has_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCATION, str(tmp_path))
    assert set(replayed()["verdict"]) == {"no data"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            None,
            r"authors: this published file is missing\n  key:     file\n  value:   'slow.json'\n  allowed: fast.json",
        ),
        (
            '{"seconds": 1, "val/acc/mean@4": 0.1}\n{"sec',
            r"not a JSON object; the file is truncated or damaged(.|\n)*line\n  value:   2",
        ),
        ("", "is empty"),
        ('{"seconds": 1}\n', r"no such field(.|\n)*val/\*/mean@\*'\n  allowed: seconds"),
        ('{"seconds": 1, "val/a/mean@1": 0, "val/b/mean@1": 0}\n', r"several keys(.|\n)*val/a/mean@1, val/b/mean@1"),
        ('{"seconds": 1, "val/acc/mean@4": 0.1}\n{"seconds": 2}\n', r"lacks a number(.|\n)*line 2, val/acc/mean@4"),
        ('{"seconds": 1, "val/acc/mean@4": NaN}\n', "lacks a number"),
        ('{"seconds": 2, "val/acc/mean@4": 0}\n{"seconds": 1, "val/acc/mean@4": 0}\n', r"backwards(.|\n)*more than 2"),
        ('{"seconds": 1, "val/acc/mean@4": 31.0}\n', r"in percent instead of a share(.|\n)*line 1(.|\n)*0 to 1"),
        ('{"seconds": -1, "val/acc/mean@4": 0}\n', r"out of range(.|\n)*line 1, seconds"),
        ('{"seconds": 1, "val/acc/mean@4": -0.1}\n', "out of range"),
        (
            '{"seconds": %s, "val/acc/mean@4": 0}\n' % ("9" * 400),
            r"lacks a number(.|\n)*line 1, seconds(.|\n)*400 char",
        ),
        ('{"seconds": %s, "val/acc/mean@4": 0}\n' % ("9" * 5000), r"damaged(.|\n)*line\n  value:   1"),
        ('{"seconds": 1, "val/acc/mean@4": 1e400}\n', "lacks a number"),
        ("[" * 100_000 + "\n", r"damaged(.|\n)*line\n  value:   1"),
        ('{"seconds": 1, "val/acc/mean@4": 0}\n\n{"seconds": 2, "val/acc/mean@4": 0}\n', r"damaged(.|\n)*value:   2"),
        ('{"seconds": 1, "val/acc/mean@4": 0}\n'.encode("utf-16"), r"UTF-16(.|\n)*line\n  value:   1"),
        ('{"seconds": 1, "val/acc/mean@4": 0}\n{"é": 1}\n'.encode("latin-1"), r"another encoding(.|\n)*value:   2"),
    ],
)
def test_a_folder_with_a_missing_or_damaged_curve_is_one_error_and_before_anything_starts(curves, content, words):
    if content is None:
        (curves / "slow.json").unlink()
    else:
        (curves / "slow.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        replayed()
    with pytest.raises(UserError, match=words):
        check_published(Declared(TableFile(tables=[CURVES])), "made up")


def test_a_byte_order_mark_is_no_part_of_a_curve_and_percent_may_be_declared(curves):
    lines = (curves / "slow.json").read_text()
    (curves / "slow.json").write_bytes(lines.encode("utf-8-sig"))
    assert replayed().loc[("slow", "low"), "reproduced"] == 1.5
    slow, *others = CURVES.model_dump()["rows"]
    percent = {"name": "low", "title": "t", "fields": ["val/*/mean@*"], "at_least": 30}
    with pytest.raises(ValidationError, match=r"the target 30 of low is above the highest value \(1\)"):
        declared(CURVES, targets=[percent])
    (curves / "slow.json").write_text('{"seconds": 1800, "val/acc/mean@4": 31}\n')
    table = declared(CURVES, targets=[percent | {"highest": 100}], rows=[slow | {"validations": 1}, *others])
    assert replayed(table).loc[("slow", "low"), "reproduced"] == 0.5


def test_a_curve_has_the_declared_number_of_validations_and_an_optional_one_may_be_missing(curves):
    """The slow curve reaches 0.3 at its fourth validation; without it the target would look as if never reached."""
    slow, *others = CURVES.model_dump()["rows"]
    with pytest.raises(ValidationError, match="a row with a file needs the number of its validations"):
        declared(CURVES, rows=[slow | {"validations": None}, *others])
    table = CURVES
    assert replayed(table).loc[("slow", "low"), "reproduced"] == 1.5
    file = curves / "slow.json"
    whole = file.read_text().splitlines(keepends=True)
    panel = {"title": "t", "quantity": "accuracy"} | {
        "curves": {
            "folder": "authors",
            "files": {"a": "slow.json"},
            "validations": {"a": 5},
            "time": "seconds",
            "fields": ["val/acc/mean@4"],
        }
    }
    figures = FigureFile.model_validate({"figures": [{"number": 1, "title": "t", "x": "hours", "panels": [panel]}]})
    last = whole[-1].replace("7200", "9000")
    for lines, words in ((whole[:3], "cut off"), (whole[:1] + whole[2:], "cut off"), ([*whole, last], "longer")):
        file.write_text("".join(lines))
        with pytest.raises(UserError, match=rf"slow.json: (.*){words}(.|\n)*value:   {len(lines)}(.|\n)*allowed: 5"):
            replayed(table)
        for declarations in (Declared(TableFile(tables=[table])), Declared(figures=figures)):
            with pytest.raises(UserError, match=words):
                check_published(declarations, "made up")
    file.write_text("".join([*whole, whole[-1]]))
    with pytest.raises(UserError, match="a validation occurs twice"):
        replayed(table)
    file.unlink()
    optional = declared(table, rows=[slow | {"optional": True}, *others])
    assert set(replayed(optional).loc["slow", "verdict"]) == {"no data"}
    check_published(Declared(TableFile(tables=[optional])), "made up")
    file.mkdir()
    with pytest.raises(UserError, match="missing"):
        replayed(optional)


def declared(table, **changes):
    return PublishedTable.model_validate(table.model_dump() | changes)


def test_a_replayed_speedup_is_judged_against_the_printed_one_not_the_ratio_of_printed_hours(curves):
    """Hours of 1.5 and 0.5 give 3.0; 1.5 and 0.6 are printed, whose ratio is 2.5."""
    rows = {"vanilla": {"low": 1.5}, "speculative": {"low": 0.6, "low_speedup": 3.0, "average_speedup": 2.9}}
    cells = replayed(**rows).loc["fast"]
    assert (cells.loc["low_speedup", "reported"], cells.loc["low_speedup", "verdict"]) == (3.0, "agrees")
    assert (cells.loc["average_speedup", "reported"], cells.loc["average_speedup", "verdict"]) == (2.9, "differs")


def test_curves_that_figures_name_are_checked_too(curves):
    shown = {"folder": "authors", "files": {"slow": "slow.json", "gone": "gone.json"}, "time": "seconds"}
    shown["validations"] = {"slow": 5, "gone": 1}
    panel = {"title": "t", "quantity": "accuracy", "curves": shown | {"fields": ["val/acc/mean@4"]}}
    figures = FigureFile.model_validate({"figures": [{"number": 1, "title": "t", "x": "hours", "panels": [panel]}]})
    with pytest.raises(UserError, match=r"missing(.|\n)*gone\.json"):
        check_published(Declared(figures=figures), "made up")


class Declared:
    """Experiments of one paper with these tables and figures."""

    def __init__(self, tables=None, figures=None):
        self.tables = lambda paper: tables or TableFile()
        self.figures = lambda paper: figures or FigureFile()


def test_a_target_may_be_the_mean_of_several_fields_and_another_one_in_a_group(curves):
    """Means 0.1, 0.25, 0.15: two fields of the fast curve, which its own group asks for less of."""
    lines = [
        {"seconds": 3600 * i, "a/mean@4": a, "b/mean@4": b} for i, (a, b) in enumerate([(0, 0.2), (0.5, 0), (0.3, 0)])
    ]
    (curves / "fast.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (curves / "slow.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = {
        "name": "both",
        "title": "t",
        "fields": ["a/mean@*", "b/mean@*"],
        "at_least": 0.26,
        "in_groups": {"small": 0.25},
    }
    rows = [
        {"label": "slow", "file": "slow.json", "validations": 3, "group": "large"},
        {"label": "fast", "file": "fast.json", "validations": 3, "group": "small"},
    ]
    content = CURVES.model_dump() | {"targets": [target], "rows": rows}
    cells = replayed(PublishedTable.model_validate(content))
    assert (cells.loc[("slow", "both"), "reproduced"], cells.loc[("fast", "both"), "reproduced"]) == (math.inf, 1.0)
    target["in_groups"] = {"tiny": 0.1}
    with pytest.raises(ValidationError, match=r"in_groups \(tiny\) must be a group of rows"):
        PublishedTable.model_validate(content)


# Quantities that nothing names


def test_whatever_steps_record_is_a_quantity_by_its_own_name():
    assert by_seed(RUNS, "mean:responses", SLOW)[0] == 5.5
    assert by_seed(RUNS, "sum:responses", SLOW, at=2)[0] == 15
    assert by_seed(RUNS, "max:reward", SLOW)[0] == 0.5
    assert (by_seed(RUNS, "first_epoch:responses", SLOW)[0], by_seed(RUNS, "last_epoch:responses", SLOW)[0]) == (
        7.5,
        3.5,
    )
    assert by_seed(RUNS, "reuse_epochs:responses", SLOW)[0] == 4.5
    assert list(over_time(RUNS, "responses", SLOW, "epoch")[0]) == [7.5, 5.5, 3.5]
    assert by_seed(RUNS, "mean@2-4:responses", SLOW)[0] == 6.0, "7, 6 and 5"
    assert (by_seed(RUNS, "max@3-9:responses", SLOW)[0], by_seed(RUNS, "sum@1-2:responses", SLOW)[0]) == (6.0, 15.0)
    for unknown in ("mean:luck", "median:responses", "mean@2:responses"):
        with pytest.raises(UserError, match="no such quantity of a run(.|\n)*mean:<quantity of a step>"):
            by_seed(RUNS, unknown, SLOW)


def test_over_hours_a_point_stands_at_the_end_of_its_step_and_a_policy_at_its_last():
    assert list(over_time(RUNS, "reward", SLOW, "hours").index) == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert list(over_time(RUNS, "accuracy:all", FAST, "hours").index) == [0.0, 2.0, 4.0, 6.0]
    assert list(over_time(RUNS, "accuracy:all", FAST, "step").index) == [-1, 1, 3, 5], "steps count from 0"
    with pytest.raises(UserError, match="not by epoch"):
        over_time(RUNS, "accuracy:all", FAST, "epoch")


# Declarations


def test_a_kind_is_declared_and_takes_only_its_own_fields():
    table = {"number": 1, "title": "t", "baseline": SLOW, "rows": [{"label": "a", "cell": SLOW}]}
    column = {"name": "x", "title": "x", "quantity": "hours"}
    adapter = TypeAdapter(Table)
    assert isinstance(adapter.validate_python(table | {"kind": "cells", "columns": [column]}), CellTable)
    for wrong in (
        table | {"columns": [column]},
        table | {"kind": "trajectory", "columns": [column]},
        table | {"kind": "cells", "columns": []},
        table | {"kind": "cells", "columns": [column], "stages": {"rollout": "Rollout"}},
        table | {"kind": "targets", "targets": []},
        table | {"kind": "stages", "stages": {}},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    assert TableFile().tables == []


def test_a_cell_s_row_follows_from_the_declared_key_columns():
    spec = EXPERIMENTS.reported("spec_rl")
    assert match_of(EXPERIMENTS.cell("spec_rl/grpo-spec-l0.5"), spec) == {
        "model": "qwen3-1.7b-base",
        "dataset": "deepmath-6k",
        "algorithm": "grpo",
        "method": "spec-rl",
        "lenience": "e^0.5",
    }
    assert match_of(EXPERIMENTS.cell("spec_rl/grpo-release-l0.5"), spec) is None, "the paper reports none such"
    by_schedule = Reported.model_validate({"key": {"sampling": {"of": "schedule.kind"}}})
    assert match_of(EXPERIMENTS.cell("spec_rl/dapo-vanilla"), by_schedule) == {"sampling": "dynamic"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": {"method": {"of": "reuse.sort"}}}, "no cell has reuse.sort"),
        ({"positions": ["method"]}, "'method' occurs twice"),
        ({"base": {"model": "x"}}, "model is not declared"),
        ({"clocks": [{"column": "step", "total": 9}]}, "step is not declared"),
        ({"speedup": {"column": "speedup", "quantity": "rollout_seconds"}}, "rollout_seconds is not declared"),
        ({"cost": {"hardware": "h", "reference": {"method": "x"}, "reference_name": "x"}}, "needs times and speedup"),
    ],
)
def test_a_vocabulary_that_cannot_be_meant_is_refused(change, words):
    with pytest.raises(ValidationError, match=words):
        Reported.model_validate({"key": {"method": {"of": "reuse.kind"}}} | change)


def test_transcribed_tables_without_a_vocabulary_are_refused(tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    (tmp_path / "experiments/spec_rl/reported.yaml").unlink()
    with pytest.raises(UserError, match=r"reported\.yaml: no such file"):
        Experiments(tmp_path).reported("spec_rl")
    shutil.rmtree(tmp_path / "experiments/spec_rl/reported")
    assert Experiments(tmp_path).reported("spec_rl") is None


def test_a_reported_value_of_never_is_infinite_and_never_reaches_a_reproduced_one():
    reported = transcription(("vanilla", "low", 25.9), ("speculative", "low", 7.4))
    nonsense = replace(reported, lines=[line | {"value": math.inf} for line in reported.lines])
    table = TARGETS.model_copy(update={"transcription": 1})
    columns = ["reproduced", "low", "high", "n_seeds"]
    first, second = (made(table, reported=values, paper_scale=True)[1] for values in (reported, nonsense))
    pd.testing.assert_frame_equal(first[columns], second[columns])


# Equal budgets

BUDGETS = BudgetTable(
    number=101,
    title="t",
    baseline=SLOW,
    accuracy="accuracy:all",
    budgets=[
        {"name": "tokens", "title": "tokens", "quantity": "tokens_decoded", "whom": "those who pay for tokens"},
        {"name": "seconds", "title": "seconds", "quantity": "seconds.total", "whom": "those in a hurry"},
    ],
    rows=[{"label": "slow", "cell": SLOW}, {"label": "fast", "cell": FAST}, {"label": "weak", "cell": WEAK}],
)


def test_an_accuracy_at_an_equal_budget_is_interpolated_at_what_every_run_reaches():
    """Slow runs decode 2,000 tokens a step, the others 1,000; all take six steps, so that 6,000 is equal."""
    quantity = f"at_equal:tokens_decoded:{SLOW}+{FAST}:accuracy:all"
    assert by_seed(RUNS, quantity, SLOW) == {0: 25.0, 1: 26.0}, "half way between 20 % and 30 %"
    assert by_seed(RUNS, quantity, FAST) == {0: 50.0, 1: 51.0}, "the end of its run"
    assert by_seed(RUNS, f"at_equal:tokens_decoded:{SLOW}:accuracy:all", SLOW) == {0: 40.0, 1: 41.0}
    assert by_seed(RUNS, f"at_equal:tokens_decoded:{SLOW}+not-run:accuracy:all", SLOW) == {}
    # Steps without an update spend nothing, and a cell that never records what is spent has no budget.
    steps = RUNS.steps.assign(trained=RUNS.steps["tokens_decoded"].where(RUNS.steps["step"] % 2 == 1))
    assert by_seed(replace(RUNS, steps=steps), quantity.replace("tokens_decoded", "trained"), SLOW) == {
        0: 20.0 + 10 / 2,
        1: 21.0 + 10 / 2,
    }
    lacks = replace(RUNS, steps=steps.assign(trained=steps["trained"].where(steps["cell"] != FAST)))
    assert by_seed(lacks, quantity.replace("tokens_decoded", "trained"), SLOW) == {}
    assert math.isnan(by_seed(lacks, "sum:trained", FAST)[0]), "not 0"


def test_a_budget_is_what_the_run_that_spends_least_in_its_seed_reaches():
    """Other seeds do not change it: they would change what a block shows, and with it earlier looks."""
    in_seed_1 = (RUNS.steps["cell"] == FAST) & (RUNS.steps["seed"] == 1)
    shorter = replace(RUNS, steps=RUNS.steps[~in_seed_1 | (RUNS.steps["step"] < 4)])
    assert by_seed(shorter, f"at_equal:tokens_decoded:{SLOW}+{FAST}:accuracy:all", SLOW) == {0: 25.0, 1: 21.0}
    missing = replace(RUNS, steps=RUNS.steps[~in_seed_1])
    assert by_seed(missing, f"at_equal:tokens_decoded:{SLOW}+{FAST}:accuracy:all", SLOW) == {0: 25.0}


def test_a_table_of_budgets_says_what_is_spent_and_bought():
    _, cells = made(BUDGETS)
    assert cells.loc[("slow", "tokens_spent"), "reproduced"] == 12000
    assert cells.loc[("fast", "tokens_spent"), "reproduced"] == 6000
    assert cells.loc[("slow", "tokens_accuracy"), "reproduced"] == 25.5
    assert cells.loc[("fast", "tokens_difference"), "reproduced"] == 25.0
    assert cells.loc[("slow", "tokens_difference"), "verdict"] == "baseline"
    assert cells.loc[("weak", "seconds_difference"), "reproduced"] == -12.0
    titles = [column.title for column in expand(BUDGETS, BENCHMARKS).columns]
    assert len(set(titles)) == len(titles) == 6


def test_the_verdict_of_a_budget_names_the_best_and_what_is_told_apart():
    table, cells = made(BUDGETS)
    assert "By the 95 % interval" not in budget_verdicts(table, cells.reset_index())[0], "two equal seeds"
    cells.loc[("fast", ["tokens_difference", "seconds_difference"]), ["low", "high"]] = (0.5, 2.0)
    cells.loc[("weak", "tokens_difference"), ["low", "high"]] = (-30.0, -4.0)
    cells.loc[("weak", "seconds_difference"), ["low", "high"]] = (-30.0, 4.0)
    first, second = budget_verdicts(table, cells.reset_index())
    assert first == (
        "At equal tokens, fast is highest with 50.5 %. By the 95 % interval of the difference, above slow: fast; "
        "below slow: weak. This is for those who pay for tokens."
    )
    assert "above slow: fast; indistinguishable from slow: weak. This is for those in a hurry." in second
    cells.loc[("weak", "tokens_accuracy"), "reproduced"] = 50.5
    assert "At equal tokens, fast and weak are highest with 50.5 %." in budget_verdicts(table, cells.reset_index())[0]
    whole = cells.reset_index()
    whole.loc[(whole["row"] == "fast") & (whole["column"] == "tokens_difference"), ["low", "high"]] = 3.55e-15
    assert "indistinguishable from" in budget_verdicts(table, whole)[0], "a difference of rounding"


@pytest.mark.parametrize("end", [0.0, 100.0])
def test_where_all_rows_are_at_an_end_of_the_scale_no_budget_has_a_best(end):
    table, cells = made(BUDGETS)
    cells = cells.reset_index()
    cells.loc[cells["column"].str.endswith("_accuracy"), "reproduced"] = end
    tokens = budget_verdicts(table, cells)[0]
    assert tokens == f"At equal tokens nothing is decided: all rows are at {end:.0f} %."


def test_there_is_no_verdict_on_a_budget_that_is_not_known():
    table, cells = made(BUDGETS.model_copy(update={"rows": [*BUDGETS.rows, Row(label="none", cell="ppo-vanilla")]}))
    assert budget_verdicts(table, cells.reset_index()) == []


def test_what_runs_spend_may_be_an_axis():
    tokens = over_time(RUNS, "accuracy:all", SLOW, "tokens")
    assert tokens.index.tolist() == pytest.approx([0.0, 0.004, 0.008, 0.012])
    assert tokens[0].tolist() == [10.0, 20.0, 30.0, 40.0]
    assert over_time(RUNS, "accuracy:all", FAST, "hours").index.tolist() == [0.0, 2.0, 4.0, 6.0]


def by_training_steps(last):
    """Runs whose second seed takes twice the time, and whose third and fifth steps, by number from 1, do not update.

    Both seeds are evaluated after every second training step, and at the end, after `last` steps of the second seed.
    """
    steps, scores = RUNS.steps.copy(), RUNS.scores.copy()
    of_second = steps["seed"] == 1
    steps.loc[of_second, "seconds.total"] *= 2
    steps["updated"] = ~(of_second & steps["step"].isin([2, 4]))
    steps["training_step"] = steps.groupby(["cell", "seed"])["updated"].cumsum()
    scores.loc[(scores["seed"] == 1) & (scores["step"] == 6), "step"] = last
    return replace(RUNS, steps=steps, scores=scores)


def test_a_point_of_policies_has_the_same_training_steps_of_every_seed():
    """The second seed has four updates after its six steps, and its fourth step is the third one."""
    runs = by_training_steps(6)
    third = (runs.scores["seed"] == 1) & (runs.scores["step"] == 4)
    runs = replace(runs, scores=runs.scores[~third])
    apart = over_time(runs, "accuracy:all", FAST, "hours")
    assert apart.index.tolist() == [0.0, 3.0, 9.0], "after 0 and 2 training steps, and at the end"
    assert (apart[0].tolist(), apart[1].tolist()) == ([10, 30, 50], [11, 31, 51])
    assert over_time(runs, "accuracy:all", FAST, "step").index.tolist() == [-1.0, 1.0, 5.0]


def test_a_run_with_fewer_training_steps_is_no_run_of_more():
    """The first seed has six training steps, the second one four."""
    runs = by_training_steps(6).by("training_steps")
    assert by_seed(runs, "training_steps", FAST, at=4) == {0: 4.0, 1: 4.0}
    assert by_seed(runs, "training_steps", FAST, at=6) == {0: 6.0}
    assert set(by_seed(runs, "steps_to:0.3:reward", FAST, at=6)) == {0}


def test_seconds_have_no_verdict_where_equal_work_took_unequal_time_and_nothing_without_an_interval():
    table, cells = made(BUDGETS)
    first, second = budget_verdicts(table, cells.reset_index(), TimingSpread(3, 1.1, 1.5))
    assert "fast is highest" in first
    assert second == "At equal seconds nothing is decided: equal work differed in time by a factor of up to 1.50."
    _, second = budget_verdicts(table, cells.reset_index(), TimingSpread(0, math.nan, math.nan))
    assert second.startswith("At equal seconds nothing is decided: no two runs did equal work")
    cells[["low", "high"]] = math.nan
    assert "indistinguishable" not in " ".join(budget_verdicts(table, cells.reset_index()))


@pytest.mark.parametrize("change", [{"mean_row": True}, {"rows": [{"label": "slow", "cell": SLOW, "at": "start"}]}])
def test_rows_of_budgets_are_whole_runs(change):
    with pytest.raises(ValidationError, match="a table of budgets has neither"):
        BudgetTable(**BUDGETS.model_dump() | change)


def test_an_accuracy_at_an_equal_budget_is_no_column_of_a_table_along_steps():
    column = {"name": "a", "title": "a", "quantity": f"at_equal:tokens_decoded:{SLOW}:accuracy:all"}
    fields = {"number": 1, "title": "t", "baseline": SLOW, "rows": [{"label": "slow", "cell": SLOW, "group": "g"}]}
    assert CellTable(**fields, columns=[column])
    with pytest.raises(ValidationError, match="is of whole runs"):
        StepTable(**fields, columns=[column])
    with pytest.raises(ValidationError, match="is of whole runs"):
        StepTable(**fields, columns=[column | {"quantity": "reward", "in_groups": {"g": column["quantity"]}}])


@pytest.mark.parametrize("relation", [{"relative": "ratio"}, {"relative": "speedup"}, {"quantity": "speedup:step"}])
def test_a_ratio_has_no_scale_since_no_effect_is_1(relation):
    column = {"name": "a", "title": "a", "quantity": "tokens_decoded", "scale": 100, **relation}
    fields = {"number": 1, "title": "t", "baseline": SLOW, "rows": [{"label": "slow", "cell": SLOW}]}
    assert CellTable(**fields, columns=[column | {"scale": 1}])
    with pytest.raises(ValidationError, match=r"scale \(a\) must be 1"):
        CellTable(**fields, columns=[column])


def test_two_budgets_of_one_name_are_refused():
    with pytest.raises(ValidationError, match="budget"):
        BudgetTable(**BUDGETS.model_dump() | {"budgets": [BUDGETS.budgets[0].model_dump()] * 2})
