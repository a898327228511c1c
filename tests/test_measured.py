"""The file of measurements: what was measured is read as it was, and what was not is an error."""

import math
from pathlib import Path

import pandas as pd
import pytest

from redraft.analysis.data import measured as module
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import FAMILY, Measured, MeasuredPoint, Measuring
from redraft.analysis.data.statistics import Families
from redraft.analysis.tables.resolved import Resolved, resolve
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import read_json, write_json
from tests import uneven
from tests.uneven import PLAIN, REUSE

ROOT = Path(__file__).parents[1]
RUNS = uneven.runs()
COMPARISONS = [({0: 1.0, 1: 2.0, 2: 4.0}, 0.0, False), ({0: 1.0, 1: 2.5}, 1.0, True)]
ASKED = [
    ("tokens_decoded", PLAIN, None, "steps"),
    ("accuracy:many", REUSE, 2, "steps"),
    ("accuracy:all", PLAIN, 1, "steps"),  # no policy after one step
    ("steps_to:9:reward", PLAIN, None, "steps"),
    ("prefix_length", PLAIN, None, "steps"),  # never, and NaN
    ("sum:tokens_decoded", REUSE, 2, "training_steps"),
    ("tokens_decoded", "absent", None, "steps"),
]
SERIES = [("reward", PLAIN, "epoch"), ("accuracy:few", REUSE, "hours"), ("prefix_length", PLAIN, "step")]


@pytest.fixture
def folder(tmp_path):
    RUNS.save(tmp_path)
    measuring = Measuring(Runs.load(tmp_path))
    for asked in ASKED:
        measuring.values(*asked)
    for asked in SERIES:
        measuring.series(*asked)
    measuring.save(tmp_path, Families(COMPARISONS[:1], COMPARISONS), {})
    return tmp_path


def test_what_was_measured_is_read_bit_by_bit_and_nothing_is_computed(folder, monkeypatch):
    made, fresh = Measured.load(folder), Measuring(RUNS)
    expected = [str((fresh.values(*asked), fresh.noise(*asked))) for asked in ASKED]
    series = [[(x, values) for x, values, _ in fresh.series(*asked)] for asked in SERIES]
    monkeypatch.setattr(module, "by_seed", None)
    monkeypatch.setattr(module, "over_time", None)
    for asked, found in zip(ASKED, expected, strict=True):
        noise = made.noise(*asked)
        known = {} if all(map(math.isnan, noise.values())) else noise
        assert str((made.values(*asked), known)) == found
    assert [[(x, values) for x, values, _ in made.series(*asked)] for asked in SERIES] == series
    assert series[2] == []


def test_a_point_without_a_value_moves_no_later_one(tmp_path):
    RUNS.save(tmp_path)
    measuring = Measuring(Runs.load(tmp_path))
    points = [MeasuredPoint(float(x), {0: value} if value else {}, {}) for x, value in enumerate((1.0, None, 3.0))]
    measuring.found[PLAIN, "reward", "by step"] = points
    measuring.save(tmp_path, Families(), {})
    found = Measured.load(tmp_path).series("reward", PLAIN, "step")
    assert [point.values for point in found] == [{0: 1.0}, {}, {0: 3.0}]
    assert (found[0].x, found[2].x) == (0.0, 2.0)


def test_a_missing_measurement_is_an_error_that_names_it(folder):
    made = Measured.load(folder)
    with pytest.raises(UserError, match=rf"not measured(.|\n)*reward of {PLAIN} \(run\)"):
        made.values("reward", PLAIN)
    with pytest.raises(UserError, match=r"\(3 steps\)"):
        made.values("tokens_decoded", PLAIN, 3)
    with pytest.raises(UserError, match=r"\(by step\)"):
        made.series("reward", PLAIN, "step")
    assert (made.values("reward", "not-run"), made.series("reward", "not-run", "step")) == ({}, [])


def test_a_quantity_that_there_is_not_is_an_error_when_it_is_measured():
    with pytest.raises(UserError, match="no such quantity"):
        Measuring(RUNS).values("luck", PLAIN)


def test_measurements_of_other_runs_than_those_collected_are_an_error(folder):
    Runs(RUNS.runs, RUNS.steps.assign(reward=0.0), RUNS.scores).save(folder)
    with pytest.raises(UserError, match=r"steps.parquet: this file differs from the hash in measured.json"):
        Measured.load(folder)
    (folder / "measured.json").unlink()
    with pytest.raises(UserError, match=r"measured.json: this file is missing"):
        Measured.load(folder)


def test_the_family_is_written_with_them_and_gives_the_same_p_values(folder):
    made, read = Families(COMPARISONS[:1], COMPARISONS), Families.load(folder / FAMILY)
    assert len(read) == len(made) == 2
    assert [read.of(*each).corrected(*each) for each in COMPARISONS] == [
        made.of(*each).corrected(*each) for each in COMPARISONS
    ]
    assert set(read_json(folder / "measured.json")["sha256"]) == {"measured.parquet", "family.parquet", "resolved.json"}
    assert pd.read_parquet(folder / "measured.parquet")["seed"].isna().sum() == 2, "empty ones have one line"


def test_declarations_are_read_as_they_were_resolved(folder):
    experiments = Experiments(ROOT)
    for paper, preset in (("spec_rl", "tiny"), ("speed_rl", "smoke"), ("efficient_rollout", "paper")):
        made = resolve(experiments, paper, preset, RUNS)
        write_json(folder / "resolved.json", made.content())
        assert Resolved.load(folder) == made
    with pytest.raises(UserError, match=r"no such cell(.|\n)*grpo-vanila"):
        made.cell("grpo-vanila")


def test_the_policies_of_a_cell_follow_from_its_configuration_or_its_finished_runs():
    resolved = resolve(Experiments(ROOT), "spec_rl", "tiny", RUNS)
    plain, other = resolved.cell(PLAIN), resolved.cell("dapo-vanilla")
    assert (plain.clock, plain.ticks[-1], plain.evaluated, plain.lacks_run) == ("steps", plain.steps, True, "")
    assert (other.clock, other.evaluated) == ("training_steps", False), "no run is finished"
