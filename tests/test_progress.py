"""Progress lines of a campaign, on a simulated clock."""

import pytest

import snakemake_logger_plugin_redraft as plugin


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(plugin.time, "monotonic", lambda: now[0])
    return now


def test_the_rest_is_estimated_from_the_jobs_that_ended_and_says_what_it_leaves_out(clock):
    campaign = plugin.Campaign()
    campaign.plan({"train": 4, "grade": 4, "all": 1, "total": 9})
    assert campaign.total == 9
    for job in (0, 1):
        campaign.start(job, "train")
    assert campaign.rest() == "time left not known yet"
    clock[0] = 60.0
    assert campaign.finish(0) == ("train", 60.0)
    # Three trainings of 60 s are left, one of which has run for 60 s; two run at a time.
    assert campaign.rest() == "about 60 s left and 4 jobs of kinds not timed yet"
    campaign.finish(1)
    campaign.start(2, "grade")
    clock[0] = 62.0
    campaign.finish(2)
    assert campaign.rest() == "about 63 s left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (7500, "2 h 05 min")]
)
def test_durations(seconds, text):
    assert plugin.duration(seconds) == text
