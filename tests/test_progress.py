"""Progress lines of a campaign, on a simulated clock."""

import logging
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

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


def test_on_a_cluster_jobs_wait_until_the_queue_says_that_they_run(clock):
    campaign = plugin.Campaign()
    campaign.plan({"train": 3, "total": 3})
    assert campaign.counts() == ""
    for job in (0, 1, 2):
        campaign.submit(job, "train")
    assert campaign.counts() == "; 0 run, 3 wait"
    clock[0] = 100.0
    assert campaign.queue({0: "running", 1: "waiting", 2: "waiting"}) == [0]
    assert campaign.queue({0: "running", 1: "waiting"}) == [], "it ran already"
    assert campaign.counts() == "; 1 run, 2 wait"
    clock[0] = 160.0
    assert campaign.finish(0) == ("train", 60.0), "the wait is no part of it"
    assert campaign.finish(1) == ("train", 60.0), "it began when it was last seen to wait"
    assert campaign.counts() == "; 0 run, 1 wait"
    campaign.fail(2)
    campaign.submit(2, "train")
    campaign.queue({2: "running"})
    campaign.submit(2, "train")
    assert campaign.counts() == "; 0 run, 1 wait", "a job is once in the counts, whatever its attempts"


@pytest.fixture
def handler(capsys):
    """Sends records to the plugin; returns the lines that it writes."""
    made = object.__new__(plugin.LogHandler)
    logging.Handler.__init__(made)
    made.common_settings = SimpleNamespace(dryrun=False)
    made.__post_init__()

    def emit(text="", level=logging.INFO, **fields):
        record = logging.LogRecord("", level, "", 0, text, None, None)
        vars(record).update(fields)
        made.emit(record)
        return capsys.readouterr().err.splitlines()

    return emit


def test_the_lines_of_a_job_on_a_cluster(handler, clock):
    handler(event=LogEvent.RUN_INFO, stats={"train": 1, "tables": 1, "total": 2})
    job = {"event": LogEvent.JOB_INFO, "jobid": 7, "rule_name": "train", "wildcards": {"cell": "a"}}
    assert handler(**job, local=False) == ["  queue  train a"]
    assert handler("the queue", slurm_states={7: "waiting"}) == []
    assert handler("the queue", slurm_states={7: "running", 99: "running"}) == ["  start  train a"]
    assert handler("the queue", slurm_states={}) == []
    clock[0] = 5.0
    assert handler("Error in rule", level=logging.ERROR, event=LogEvent.JOB_ERROR, jobid=7) == ["Error in rule"]
    handler(**(job | {"jobid": 6}), local=False)
    handler("Error in rule", level=logging.ERROR, event=LogEvent.JOB_ERROR, jobid=6)
    handler(**job, local=False)
    (end,) = handler(event=LogEvent.JOB_FINISHED, job_id=7)
    assert end.endswith("; 0 run, 0 wait")
    assert handler(**(job | {"jobid": 8}), local=True) == ["  start  train a"]
    assert handler("2 jobs will never start", level=logging.WARNING) == ["2 jobs will never start"]
