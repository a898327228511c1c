"""No campaign starts while an earlier call of Snakemake may own its runs."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from snakemake.persistence import PersistenceBase

from redraft.errors import UserError
from redraft.ops.workflow import other_owners
from redraft.ops.workflow.other_owners import check_before_lock, check_no_other_owner
from redraft.ops.workflow.recover import RunningParts


@pytest.fixture
def there(monkeypatch):
    """What runs: `workflows` on this machine, and `jobs` in Slurm's queue, one state of the queue a query."""
    parts = SimpleNamespace(workflows=(), jobs=[{}])
    monkeypatch.setattr(other_owners.time, "sleep", lambda _: None)
    monkeypatch.setattr(other_owners, "find_running", lambda _: RunningParts(parts.workflows))
    monkeypatch.setattr(
        other_owners.slurm, "jobs_of", lambda _: parts.jobs[0] if len(parts.jobs) == 1 else parts.jobs.pop(0)
    )
    return parts


def rejected(folder, **options):
    with pytest.raises(UserError) as error:
        check_no_other_owner(folder, **options)
    return str(error.value)


def test_a_campaign_alone_starts(there, tmp_path):
    check_no_other_owner(tmp_path, locked=False, submits=True)


@pytest.mark.parametrize("locked", [True, False])
def test_jobs_of_a_killed_call_are_counted_and_the_way_is_named_also_after_an_unlock(there, tmp_path, locked):
    there.jobs = [{str(job): "RUNNING" if job < 9 else "PENDING" for job in range(7, 50)}]
    text = rejected(tmp_path, locked=locked, submits=True)
    assert "jobs of an earlier call are still in Slurm's queue" in text
    assert "41 pending, 2 running (jobs 7, 8, 9, 10, 11 and others)" in text
    assert "redraft recover --cancel" in text
    assert "--unlock" not in text


def test_jobs_that_end_at_this_moment_are_waited_for(there, tmp_path):
    there.jobs = [{"7": "COMPLETING"}, {"7": "COMPLETING"}, {}]
    check_no_other_owner(tmp_path, locked=False, submits=True)
    there.jobs = [{"7": "COMPLETING"}, {"8": "RUNNING"}]
    assert "1 running (job 8)" in rejected(tmp_path, locked=False, submits=True)


def test_a_lock_without_owner_names_recover(there, tmp_path):
    text = rejected(tmp_path, locked=True, submits=False)
    assert "`redraft recover` cleans up and unlocks" in text


def test_a_living_workflow_is_named_only_if_it_has_the_same_files(there, tmp_path):
    there.workflows, there.jobs = (77,), [{"7": "RUNNING"}]
    assert "another workflow works on these files" in rejected(tmp_path, locked=True, submits=True)
    check_no_other_owner(tmp_path, locked=False, submits=True)


def test_a_call_without_slurm_does_not_ask_it(there, tmp_path, monkeypatch):
    monkeypatch.setattr(other_owners.slurm, "jobs_of", lambda _: pytest.fail("Slurm is asked"))
    check_no_other_owner(tmp_path, locked=False, submits=False)


def test_snakemake_asks_before_it_locks(monkeypatch):
    events = []

    @contextmanager
    def lock(persistence):
        events.append("locked")
        yield

    monkeypatch.setattr(PersistenceBase, "lock", lock)
    check_before_lock(SimpleNamespace(local_exec=False), lambda _, locked, submits: events.append((locked, submits)))
    with PersistenceBase.lock(SimpleNamespace(locked=True)):
        events.append("works")
    assert events == [(True, True), "locked", "works"]
