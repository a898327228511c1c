"""Whether seconds of equal work agree."""

import pandas as pd
import pytest

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.timing import first_epoch_spread


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


def test_runs_of_other_seeds_or_other_tokens_are_not():
    assert first_epoch_spread(runs(("a", 0, 0, 0, 10, 1.0), ("b", 1, 0, 0, 10, 9.0))) is None
    assert first_epoch_spread(runs(("a", 0, 0, 0, 10, 1.0), ("b", 0, 0, 0, 11, 9.0))) is None


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
