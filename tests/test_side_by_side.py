"""Runs that are trained again side by side: the same work in every round, and seconds in place of training's."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from redraft.analysis.data.collect import SPREAD, Runs, with_repeats
from redraft.analysis.data.timing import first_epoch_spread
from redraft.config import Speculative, Vanilla
from redraft.config.base import GENERATION_STAGES, STEP_STAGES
from redraft.data_dictionary import definitions
from redraft.errors import UserError
from redraft.files import hashes, sha256, write_json
from redraft.layout import Layout
from redraft.train.local.side_by_side import check_work, train_side_by_side
from redraft.train.local.trainer import LocalTrainer
from tests.columns import same
from tests.test_trainer import STEPS, make_run, train

CELLS = {"plain": Vanilla(), "reuse": Speculative(lenience=1)}
LINES = [f"seconds.{stage}" for stage in STEP_STAGES]


@pytest.fixture(scope="module")
def runs():
    return [make_run(method).model_copy(update={"cell": cell}) for cell, method in CELLS.items()]


@pytest.fixture(scope="module")
def seconds(runs, tiny_model):
    return train_side_by_side(runs, [tiny_model] * 2, rounds=3)


def test_every_round_of_every_step_does_the_work_of_the_run_alone(runs, seconds, tiny_model, tmp_path):
    for run in runs:
        folder = tmp_path / run.cell
        records = train(run, tiny_model, folder)
        own = seconds[seconds["cell"] == run.cell]
        assert [(line.step, line.round) for line in own.sort_values(["step", "round"]).itertuples()] == [
            (step, number) for step in range(STEPS) for number in range(3)
        ]
        for record in records:
            assert set(own.loc[own["step"] == record["step"], "tokens_decoded"]) == {record["tokens_decoded"]}
        check_work(own, folder / "steps.jsonl")


def test_a_rehearsal_is_the_step_s_rollouts_and_leaves_nothing_behind(runs, tiny_model, tmp_path):
    trainer = LocalTrainer(runs[1], tiny_model, tmp_path)
    tasks = trainer.loop.schedule.next(0)
    with trainer.graders:
        trainer.roll_out(tasks, 0)
        again = [trainer.rehearse(tasks, 2) for _ in range(2)]
        real = trainer.roll_out(tasks, 2)
    for each in again:
        assert each.cached == real.cached
        for a, b in zip(each.groups, real.groups, strict=True):
            assert [r.tokens.tolist() for r in a.rollouts] == [r.tokens.tolist() for r in b.rollouts]
            assert [r.prefix_length for r in a.rollouts] == [r.prefix_length for r in b.rollouts]
            assert np.array_equal(a.rewards, b.rewards)


def test_rounds_repeat_rollouts_and_the_last_takes_the_step(seconds):
    repeated = [f"seconds.{stage}" for stage in GENERATION_STAGES]
    rehearsed, taken = seconds[seconds["round"] < 2], seconds[seconds["round"] == 2]
    assert rehearsed[repeated].notna().all().all()
    assert rehearsed[[name for name in LINES if name not in repeated]].isna().all().all()
    assert taken[LINES].notna().all().all()
    assert (seconds["seconds.rollout"] > 0).all()
    assert (seconds["grading_seconds"] > 0).all()


def test_each_column_is_defined(seconds):
    """Self-speculation alone has times of drafting, which are defined with those of the records."""
    drafting = {name for name in definitions("timing") if name.endswith("_seconds")} & {*definitions("records")}
    assert same("timing", {*seconds, *drafting})


def test_no_run_is_always_first_and_a_step_of_all_comes_before_the_next_of_any(seconds):
    assert seconds["step"].is_monotonic_increasing
    firsts = seconds.groupby(["step", "round"], sort=False)["cell"].first()
    assert set(firsts) == set(CELLS)


def test_runs_of_different_lengths_end_when_they_are_done(tiny_model):
    runs = [make_run(Vanilla(), epochs=epochs).model_copy(update={"cell": f"of {epochs}"}) for epochs in (1, 2)]
    found = train_side_by_side(runs, [tiny_model] * 2, rounds=1)
    assert found.groupby("cell")["step"].max().to_dict() == {"of 1": 1, "of 2": 3}


def test_other_work_than_the_finished_run_s_is_an_error(seconds, tmp_path):
    records = tmp_path / "steps.jsonl"
    own = seconds[seconds["cell"] == "plain"]
    decoded = own.drop_duplicates("step").set_index("step")["tokens_decoded"]
    lines = [{"step": step, "tokens_decoded": int(decoded[step]) + (step == 3)} for step in range(STEPS)]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"does other work.*step 3|step 3"):
        check_work(own, records)


# Seconds of two runs and two steps, by hand.
ROUNDS = pd.DataFrame(
    [
        {
            "cell": cell,
            "step": step,
            "round": number,
            "tokens_decoded": 5,
            "seconds.rollout": base + change,
            "seconds.verification": 1.0,
            "seconds.assembly": 0.0,
            "seconds.update_actor": 7.0 if number == 2 else math.nan,
            "drafting_seconds": base / 2 + change,
        }
        for cell, base in (("a", 2.0), ("b", 4.0))
        for step in (0, 1)
        for number, change in enumerate((0.0, 3.0, 1.0))
    ]
)


@pytest.fixture
def timed(tmp_path):
    """Layout with repeats of seed 0 of two runs; steps of both seeds; manifests."""
    layout = Layout("tiny", tmp_path)
    manifests = {}
    for cell in ("a", "b"):
        for seed in (0, 1):
            path = layout.run(f"p/{cell}", seed) / "manifest.json"
            path.parent.mkdir(parents=True)
            path.write_text(f"{cell} {seed}")
            manifests[cell, seed] = path
    file = layout.timing("p", 0)
    file.parent.mkdir(parents=True)
    ROUNDS.to_parquet(file, index=False)
    made_from = {cell: sha256(manifests[cell, 0]) for cell in ("a", "b")}
    write_json(file.with_suffix(".json"), {"sha256": hashes(file), "made_from": made_from})
    steps = pd.DataFrame(
        [
            {
                "cell": cell,
                "seed": seed,
                "step": step,
                "epoch": step,
                "tokens_decoded": 5,
                "seconds.rollout": 50.0,
                "seconds.verification": 9.0,
                "seconds.assembly": 9.0,
                "seconds.update_actor": 9.0,
                "seconds.total": 77.0,
                "drafting_seconds": 25.0,
                "grading_seconds": 4.0,
            }
            for cell in ("a", "b")
            for seed in (0, 1)
            for step in (0, 1)
        ]
    )
    return layout, steps, manifests


def test_seconds_are_medians_of_the_rounds_where_there_are_any(timed):
    layout, steps, manifests = timed
    found = with_repeats(steps, manifests, layout, "p").set_index(["cell", "seed", "step"])
    assert found.loc[("a", 0, 1), ["seconds.rollout", "seconds.verification", "seconds.update_actor"]].tolist() == [
        3,
        1,
        7,
    ]
    assert found.loc[("b", 0, 0), "seconds.total"] == 5 + 1 + 0 + 7
    assert found.loc[("a", 0, 0), SPREAD] == pytest.approx(6 / 3)
    assert found.loc[("a", 1, 0), "seconds.total"] == 77
    assert math.isnan(found.loc[("a", 1, 0), SPREAD])
    assert list(found["tokens_decoded"]) == [5] * 8
    assert found.loc[("a", 0, 1), "drafting_seconds"] == 1 + 1, "a part of a stage is of the same source as the stage"
    assert math.isnan(found.loc[("a", 0, 1), "grading_seconds"]), "these repeats lack it"
    assert found.loc[("a", 1, 1), ["drafting_seconds", "grading_seconds"]].tolist() == [25, 4]


def test_repeats_of_another_run_or_of_a_part_of_them_are_left_out_and_named(timed, capsys):
    layout, steps, manifests = timed
    manifests["b", 0].write_text("trained anew")
    found = with_repeats(steps, manifests, layout, "p")
    assert set(found["seconds.total"]) == {77.0}, "of no run, since seconds of one seed are compared"
    assert "b was not repeated" in capsys.readouterr().err


def test_a_changed_file_of_repeats_is_an_error(timed):
    layout, steps, manifests = timed
    ROUNDS.assign(**{"seconds.rollout": 0.1}).to_parquet(layout.timing("p", 0), index=False)
    with pytest.raises(UserError, match=r"differs from the hash in seed0\.json"):
        with_repeats(steps, manifests, layout, "p")


def test_the_agreement_says_how_far_rounds_are_apart(timed):
    layout, steps, manifests = timed
    agreement = first_epoch_spread(Runs(pd.DataFrame(), with_repeats(steps, manifests, layout, "p"), pd.DataFrame()))
    assert agreement.largest == pytest.approx(5 / 3)
    assert agreement.repeats == pytest.approx((6 / 3 + 8 / 5) / 2)
    assert agreement.repeated == 0.5, "those of one of two seeds"
    before = first_epoch_spread(Runs(pd.DataFrame(), steps, pd.DataFrame()))
    assert math.isnan(before.repeats)
