"""Whether seconds of equal work agree."""

import math

import pandas as pd
import pytest

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.timing import first_epoch_spread, timed_unevenly


def runs(*lines):
    names = ["cell", "seed", "step", "epoch", "tokens_decoded", "seconds.rollout"]
    return Runs(pd.DataFrame(), pd.DataFrame(lines, columns=names), pd.DataFrame())


def test_runs_that_decode_the_same_in_the_first_epoch_are_compared():
    found = first_epoch_spread(
        runs(
            ("a", 0, 0, 0, 10, 1.0),
            ("a", 0, 1, 0, 12, 3.0),
            ("a", 0, 2, 1, 12, 99.0),
            ("b", 0, 1, 0, 12, 4.0),
            ("b", 0, 0, 0, 10, 2.0),
            ("b", 0, 2, 1, 3, 0.1),
            ("a", 1, 0, 0, 11, 1.0),
            ("b", 1, 0, 0, 11, 1.1),
        )
    )
    assert found.groups == 2
    assert found.largest == pytest.approx(6 / 4)
    assert found.median == pytest.approx((6 / 4 + 1.1) / 2)
    assert found.farthest == "b and a, seed 0"
    assert found.repeated == 0


def test_runs_of_other_seeds_or_other_tokens_are_not():
    assert first_epoch_spread(runs(("a", 0, 0, 0, 10, 1.0), ("b", 1, 0, 0, 10, 9.0))).groups == 0
    assert first_epoch_spread(runs(("a", 0, 0, 0, 10, 1.0), ("b", 0, 0, 0, 11, 9.0))).groups == 0


def test_times_are_not_decided_where_nothing_shows_how_evenly_the_machine_ran():
    """SPEED-RL screens from the first step, so no run does the work of its baseline."""
    of_runs = runs(("a", 0, 0, 0, 10, 1.0), ("b", 0, 0, 0, 11, 9.0))
    unknown = timed_unevenly(of_runs, [("a", "b")])
    assert unknown.text == "no two runs did equal work, which would show how evenly the machine ran"
    assert not unknown.comparable
    assert timed_unevenly(of_runs, [("a",)]) is None, "a share of its own time"
    uneven = runs(("a", 0, 0, 0, 10, 1.0), ("b", 0, 0, 0, 11, 9.0), ("c", 0, 0, 0, 10, 2.0))
    known = timed_unevenly(uneven, [("a", "b"), ("a", "c")])
    assert known.text == "equal work differed in time by a factor of up to 2.00"
    for repeats, cells, even in ((1.1, "ab", True), (1.3, "ab", False), (1.1, "a", False)):
        spread = of_runs.steps["cell"].isin([*cells]).map({True: repeats, False: math.nan})
        repeated = Runs(of_runs.runs, of_runs.steps.assign(repeats_spread=spread), of_runs.scores)
        found = timed_unevenly(repeated, [("a", "b")])
        assert (found is None) == even, (repeats, cells)
        if not even:
            assert found.text.startswith("repeats of equal work" if cells == "ab" else "no two runs"), found.text


EVEN = [(cell, 0, 0, 0, 10, seconds) for cell, seconds in (("a", 1.0), ("b", 1.1), ("c", 2.0))]
"""Equal work: a and b agree, c took twice as long."""


def test_the_times_of_two_cells_are_judged_by_their_own_runs():
    """Cell d did no equal work, so all runs tell how evenly it was timed."""
    of_runs = runs(*EVEN, ("d", 0, 0, 0, 9, 1.0))
    budget = "at_equal:seconds.total:a+b+c:accuracy:all"
    assert timed_unevenly(of_runs, [("a", "b")]) is None
    assert timed_unevenly(of_runs, [("a", "b")], ["seconds.total"]) is None
    for pairs, quantities in (([("a", "c")], []), ([("a", "d")], []), ([("d",)], []), ([("a", "b")], [budget])):
        assert timed_unevenly(of_runs, pairs, quantities).largest == pytest.approx(2.0), (pairs, quantities)
    assert timed_unevenly(runs(*EVEN[:2]), [("a", "d")]) is None
    assert timed_unevenly(runs(("d", 0, 0, 0, 9, 1.0)), [("a", "d")]) is None


def test_each_pair_is_judged_apart_and_the_worst_decides():
    """An even pair neither vouches for another one nor suffers from the hour in which that was timed."""
    slow = [("d", 0, 0, 0, 10, 2.1)]
    assert timed_unevenly(runs(*EVEN, *slow), [("a", "b"), ("c", "d")]) is None
    assert timed_unevenly(runs(*EVEN, *slow), [("a", "b"), ("b", "d")]).largest == pytest.approx(2.1 / 1.1)
    other_work = [("d", 0, 0, 0, 8, 1.0), ("e", 0, 0, 0, 7, 1.0)]
    assert timed_unevenly(runs(*EVEN, *other_work), [("a", "b"), ("d", "e")]).largest == pytest.approx(2.0)


def test_equal_work_in_one_seed_says_nothing_about_the_others():
    other = [("a", 1, 0, 0, 10, 1.0), ("b", 1, 0, 0, 11, 3.0)]
    assert timed_unevenly(runs(*EVEN, *other), [("a", "b")]).largest == pytest.approx(2.0), "of all runs"
    assert timed_unevenly(runs(*EVEN, other[0]), [("a", "b")]) is None, "seed 1 has no run of b"


def test_runs_that_speculated_do_other_work_for_equal_tokens():
    """With all responses truncated, every run decodes as many tokens; `efficient` never switched speculation on."""
    of_runs = runs(("ar", 0, 0, 0, 512, 10.0), ("always", 0, 0, 0, 512, 6.0), ("efficient", 0, 0, 0, 512, 10.1))
    steps = of_runs.steps.assign(speculated_passes=[None, 1.0, 0.0])
    found = first_epoch_spread(Runs(of_runs.runs, steps, of_runs.scores))
    assert (found.groups, found.largest) == (1, pytest.approx(1.01))
    assert found.comparable


def test_runs_that_speculated_are_compared_by_what_follows_from_their_tokens():
    """Also where all runs without speculation were timed elsewhere, as those that another paper trained."""
    of_runs = runs(("taken", 0, 0, 0, 512, 10.0), ("drafts", 0, 0, 0, 512, 6.0), ("other", 0, 0, 0, 500, 6.0))
    times = {"seconds.update_actor": [4.0, 6.0, 99.0], "seconds.old_log_probs": [1.0, 0.5, 9.0]}
    steps = of_runs.steps.assign(speculated_passes=[None, 1.0, 1.0], **times)
    found = first_epoch_spread(Runs(of_runs.runs, steps, of_runs.scores))
    assert (found.groups, found.largest) == (1, pytest.approx(6.5 / 5.0))
    assert not found.comparable


def speculating(*lines):
    """Runs of one seed and step that decoded as many tokens: passes that speculated, and seconds of rollout, update and
    log-probabilities before it, and trained rollouts."""
    names = [
        "speculated_passes",
        "seconds.rollout",
        "seconds.update_actor",
        "seconds.old_log_probs",
        "trained_rollouts",
    ]
    steps = pd.DataFrame(lines, columns=names)
    return Runs(
        pd.DataFrame(),
        steps.assign(cell=[*map(str, steps.index)], seed=0, step=0, epoch=0, tokens_decoded=9),
        pd.DataFrame(),
    )


@pytest.mark.parametrize(
    ("lines", "groups", "largest"),
    [
        ([(0.0, 2.0, 4.0, 1.0, 8), (0.0, 2.2, 4.0, 1.0, 8), (1.0, 0.5, 4.0, 1.0, 8)], 1, 1.1),
        ([(0.0, 2.0, 4.0, 1.0, 8), (0.0, 2.2, 4.0, 1.0, 8), (1.0, 0.5, 5.0, 1.0, 8)], 1, 1.2),
        # Others train on fewer of the responses, or have no such seconds.
        ([(0.0, 2.0, 4.0, 1.0, 8), (1.0, 0.5, 8.0, 1.0, 4), (1.0, 0.5, 4.0, 1.5, 8)], 1, 1.1),
        ([(0.0, 2.0, 4.0, 1.0, 8), (1.0, 0.5, 4.0, None, 8), (1.0, 0.5, 4.0, 1.5, 8)], 1, 1.1),
        ([(0.0, 2.0, 0.0, 0.0, 8), (1.0, 0.5, 4.0, 1.0, 8), (1.0, 0.5, 4.0, 1.5, 8)], 1, 1.1),
    ],
)
def test_each_set_counts_once_and_updates_of_other_work_are_not_compared(lines, groups, largest):
    found = first_epoch_spread(speculating(*lines))
    assert (found.groups, found.largest, found.median) == (groups, pytest.approx(largest), pytest.approx(largest))


def test_a_set_without_times_to_compare_shows_nothing():
    assert first_epoch_spread(speculating((0.0, 2.0, 4.0, 1.0, 8), (1.0, 0.5, None, None, 8))).groups == 0
    assert first_epoch_spread(speculating((0.0, 0.0, 0.0, 0.0, 8), (0.0, 0.0, 0.0, 0.0, 8))).groups == 0
