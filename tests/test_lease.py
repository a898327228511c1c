"""Leases on a run's folder, with killed, stopped and ended owners, and under every order of looking and taking."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.errors import UserError
from redraft.ops.locking import entries
from redraft.ops.locking import lease as leases
from redraft.ops.locking import owner as owners
from redraft.ops.locking.entries import history, latest
from redraft.ops.locking.lease import LeaseLost, acquire, check_owner, lease, participants
from redraft.ops.slurm import jobs as slurm_queue

HOLDER = """
import sys
from pathlib import Path
from redraft.ops.locking.lease import lease
with lease(Path(sys.argv[1]), "run", Path("log.txt")):
    print("held", flush=True)
    sys.stdin.read()
"""


def never(_):
    pytest.fail("nothing has to be waited for")


@pytest.fixture
def hold():
    """Start a process that holds a folder until its input ends."""
    started = []

    def start(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def age(entry, seconds):
    """Make an owner's last heart-beat older."""
    os.utime(entry.file, (entry.beat - seconds, entry.beat - seconds))


def rewrite(entry, **fields):
    """Change what an entry says of its owner, the heart-beat left as it was."""
    content = json.loads(entry.file.read_text())
    content["owner"] |= fields
    entry.file.write_text(json.dumps(content))
    os.utime(entry.file, (entry.beat, entry.beat))


def test_a_living_owner_is_named_with_its_log_and_the_second_is_refused(hold, tmp_path):
    process = hold(tmp_path)
    with pytest.raises(UserError, match="another process works in this folder") as error:
        acquire(tmp_path, wait=never)
    assert error.value.file == tmp_path
    assert f"process {process.pid} on " in error.value.value
    assert "log.txt" in error.value.message
    assert len(history(tmp_path)) == 1


def test_a_folder_is_free_after_its_owner_has_left(hold, tmp_path):
    process = hold(tmp_path)
    process.communicate()
    assert (process.returncode, latest(tmp_path).content.end) == (0, "finished")
    assert acquire(tmp_path, wait=never).number == 2


def test_a_killed_owner_is_followed_at_once(hold, tmp_path, capfd):
    process = hold(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not latest(tmp_path).free
    assert acquire(tmp_path, wait=never).number == 2
    assert f"taken over from process {process.pid}" in capfd.readouterr().err


def test_an_owner_that_nobody_has_waited_for_yet_is_dead(hold, tmp_path):
    process = hold(tmp_path)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists()
    assert acquire(tmp_path, wait=never).number == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_releases(hangup, hold, tmp_path, number):
    process = hold(tmp_path)
    process.send_signal(number)
    assert process.wait() == 128 + number
    entry = latest(tmp_path)
    assert (entry.free, entry.content.end) == (True, "SystemExit")


def test_a_stopped_process_of_this_machine_keeps_its_folder_however_long_it_is_silent(hold, tmp_path):
    process = hold(tmp_path)
    process.send_signal(signal.SIGSTOP)
    age(latest(tmp_path), 10 * owners.EXPIRED_SECONDS)
    with pytest.raises(UserError, match="another process works"):
        acquire(tmp_path, wait=never)
    process.send_signal(signal.SIGCONT)
    process.communicate()
    assert latest(tmp_path).free


def test_an_owner_that_finds_its_folder_taken_stops_and_writes_nothing(hold, tmp_path):
    process = hold(tmp_path)
    process.send_signal(signal.SIGSTOP)
    rewrite(first := latest(tmp_path), machine="elsewhere")
    age(first, 2 * owners.EXPIRED_SECONDS)
    before = first.file.read_text()
    second = acquire(tmp_path, wait=never)
    process.send_signal(signal.SIGCONT)
    process.communicate()
    assert first.file.read_text() == before, "it did not release what is not its own"
    second.check()
    with pytest.raises(LeaseLost, match="taken over this folder"):
        check_owner(tmp_path, json.loads(before)["owner"]["token"])


def test_a_folder_is_held_by_its_owner_alone_and_by_nobody_once_it_was_left(tmp_path):
    with lease(tmp_path) as held:
        check_owner(tmp_path, held.token)
        with pytest.raises(LeaseLost, match="taken over this folder"):
            check_owner(tmp_path, "another")
    with pytest.raises(LeaseLost, match="taken over this folder"):
        check_owner(tmp_path, held.token)
    with pytest.raises(LeaseLost, match="taken over this folder"):
        held.check()


def test_a_process_with_the_same_number_but_another_start_is_not_the_owner(tmp_path):
    held = acquire(tmp_path, wait=never)
    pid, started = held.content.owner.processes[0]
    rewrite(latest(tmp_path), processes=[(pid, started - 1)])
    assert acquire(tmp_path, wait=never).number == 2


def elsewhere(folder, silent=0.0, **fields):
    """The entry of an owner on another machine."""
    acquire(folder, wait=never)
    entry = latest(folder)
    rewrite(entry, machine="another machine", **fields)
    age(entry, silent)
    return latest(folder)


def test_silence_of_another_machine_is_waited_out(tmp_path):
    elsewhere(tmp_path, silent=30)
    waited = []

    def passing(seconds):
        waited.append(seconds)
        age(latest(tmp_path), seconds)

    assert acquire(tmp_path, wait=passing).number == 2
    assert owners.EXPIRED_SECONDS - 32 < sum(waited) <= owners.EXPIRED_SECONDS - 28


def test_a_heart_beat_of_another_machine_refuses_at_once(tmp_path):
    entry = elsewhere(tmp_path, silent=100)
    waited = []

    def beating(seconds):
        waited.append(seconds)
        age(entry, -10)

    with pytest.raises(UserError, match="another process works"):
        acquire(tmp_path, wait=beating)
    assert len(waited) == 1


def test_an_owner_whose_children_still_run_is_not_gone(hold, tmp_path):
    process = hold(tmp_path)
    held = acquire(tmp_path / "other", wait=never)
    held.add_process(process.pid)
    own, child = held.content.owner.processes
    rewrite(latest(tmp_path / "other"), processes=[(own.pid, own.started - 1), tuple(child)])

    def end(_):
        process.kill()
        process.wait()

    assert acquire(tmp_path / "other", wait=end).number == 2


def test_an_unreadable_entry_is_waited_out_and_never_overwritten(tmp_path):
    acquire(tmp_path, wait=never)
    file = latest(tmp_path).file
    file.write_text('{"owner": ')
    assert acquire(tmp_path, wait=lambda seconds: age(latest(tmp_path), seconds)).number == 2
    assert file.read_text() == '{"owner": '


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A `squeue` and a `scontrol` that answer what they are told to."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def answer(script, config="exit 1"):
        slurm_queue.cluster_name.cache_clear()
        for name, content in {"squeue": script, "scontrol": config}.items():
            (folder / name).write_text(f"#!/bin/sh\n{content}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    yield answer
    slurm_queue.cluster_name.cache_clear()


INVALID = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'


@pytest.mark.parametrize("script", [INVALID, "true"], ids=["unknown to Slurm", "not listed"])
def test_a_job_that_left_the_queue_is_dead_at_once(script, slurm, tmp_path, capfd):
    slurm(script)
    elsewhere(tmp_path, slurm_job="17")
    assert acquire(tmp_path, wait=never).number == 2
    assert "Slurm job 17 is no longer in the queue" in capfd.readouterr().err


def test_a_suspended_job_lives_however_long_it_is_silent(slurm, tmp_path):
    slurm("echo SUSPENDED")
    elsewhere(tmp_path, silent=10 * owners.EXPIRED_SECONDS, slurm_job="17")
    with pytest.raises(UserError, match="Slurm job 17 is suspended"):
        acquire(tmp_path, wait=never)


@pytest.mark.parametrize("script", ["echo RUNNING", "echo down >&2; exit 1"], ids=["running", "Slurm is down"])
def test_otherwise_the_heart_beat_decides(script, slurm, tmp_path):
    slurm(script)
    elsewhere(tmp_path, silent=owners.EXPIRED_SECONDS + 1, slurm_job="17")
    assert acquire(tmp_path, wait=never).number == 2


def test_a_job_that_slurm_started_again_follows_itself(slurm, tmp_path, monkeypatch):
    slurm("echo RUNNING")
    elsewhere(tmp_path, slurm_job="17")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert acquire(tmp_path, wait=never).number == 2


def test_a_job_of_another_cluster_is_not_asked_for_here(slurm, tmp_path, monkeypatch):
    slurm(INVALID)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "b")
    entry = elsewhere(tmp_path, slurm_job="17", slurm_cluster="a")
    assert entry.judge(entry.beat + 1).state == "silent"


@pytest.mark.parametrize(("cluster", "state"), [("a", "dead"), ("b", "silent")])
def test_where_no_job_runs_slurm_says_which_cluster_it_is(slurm, tmp_path, monkeypatch, cluster, state):
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    slurm(INVALID, f"echo 'AuthType = munge'; echo 'ClusterName             = {cluster}'")
    entry = elsewhere(tmp_path, slurm_job="17", slurm_cluster="a")
    assert entry.judge(entry.beat + 1).state == state


def test_heart_beats_come_by_themselves_and_end_with_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.01)
    beats = threading.Event()
    with lease(tmp_path) as held:
        monkeypatch.setattr(held, "beat", beats.set)
        assert beats.wait(10)
    assert "heart-beat" not in [thread.name for thread in threading.enumerate()]
    assert latest(tmp_path).free


def test_the_history_names_who_took_part(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with suppress(RuntimeError), lease(tmp_path, "run") as held:
        held.record_resume(0)
        raise RuntimeError
    with lease(tmp_path, "another experiment"):
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with lease(tmp_path, "run") as held:
        held.record_resume(4)
        now = participants(tmp_path, "run", 6)
    with lease(tmp_path, "run") as held:
        held.record_resume(6)
    parts = participants(tmp_path, "run", 6)
    assert [(p["resumed_from"], p["end"]) for p in parts] == [(0, "RuntimeError"), (4, "finished")]
    assert [(p["slurm_job"], p["slurm_restarts"], p["devices"], p["end"]) for p in now] == [
        ("17", 0, "0,1", "RuntimeError"),
        ("17", 1, "0,1", None),
    ]
    assert all(p["started"] <= p["ended"] for p in now)


def test_nothing_but_entries_is_left(tmp_path):
    with lease(tmp_path):
        pass
    assert [file.name for file in (tmp_path / "lease").iterdir()] == ["000001.json"]


def compete(folder, start, end, results):
    start.wait()
    try:
        results.put(acquire(Path(folder), wait=lambda _: None).number)
    except UserError:
        results.put(None)
    end.wait()  # a loser must find the winner alive


def test_of_processes_that_take_over_at_the_same_time_one_succeeds(tmp_path):
    fork = multiprocessing.get_context("fork")
    for i in range(10):
        folder = tmp_path / str(i)
        acquire(folder, wait=never)
        rewrite(latest(folder), processes=[(1, 1)])
        start, end, results = fork.Barrier(4), fork.Barrier(4), fork.SimpleQueue()
        rivals = [fork.Process(target=compete, args=(folder, start, end, results)) for _ in range(4)]
        for rival in rivals:
            rival.start()
        won = [results.get() for _ in rivals]
        for rival in rivals:
            rival.join()
        assert sorted(won, key=str) == [2, None, None, None]


# Every order of looking and taking


class Turns:
    """Threads of which one goes on at a time: to its next look at, or change of, the file system."""

    def __init__(self, order):
        self.order, self.waiting, self.changed = list(order), {}, threading.Condition()
        self.running, self.errors = 0, []

    def pause(self):
        """Called by a thread: wait for its turn."""
        me = threading.Event()
        with self.changed:
            self.waiting[threading.get_ident()] = me
            self.running -= 1
            self.changed.notify()
        assert me.wait(20)

    def play(self, actors):
        """Run these functions to their ends, in the drawn order of turns."""
        threads = [threading.Thread(target=self._guarded, args=(actor,)) for actor in actors]
        self.running = len(threads)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with self.changed:
                assert self.changed.wait_for(lambda: not self.running, 20)
                if not self.waiting:
                    break
                names = sorted(self.waiting)
                chosen = names[(self.order.pop() if self.order else 0) % len(names)]
                self.running += 1
                self.waiting.pop(chosen).set()
        for thread in threads:
            thread.join()
        assert self.errors == []

    def _guarded(self, actor):
        self.pause()
        try:
            actor()
        except BaseException as error:
            self.errors.append(error)
        with self.changed:
            self.running -= 1
            self.changed.notify()


class Rivals:
    """Actors on one folder. Each takes it, if it may, works in it, and leaves it or dies.

    Attributes:
        working: tokens of those that hold the folder and live.
    """

    def __init__(self, folder, turns, link=os.link):
        self.folder, self.turns, self.link = folder, turns, link
        self.working, self.alive, self.names = set(), set(), threading.local()
        self.overlaps = 0

    def os(self):
        """The module `os` with a pause before each look and each change."""
        paused = {
            name: self._paused(function)
            for name, function in {"listdir": os.listdir, "link": self.link, "utime": os.utime}.items()
        }
        return SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("_")} | paused)

    def _paused(self, function):
        def call(*arguments):
            self.turns.pause()
            return function(*arguments)

        return call

    def this_process(self):
        return owners.this_process().model_copy(update={"token": self.names.token})

    def judge(self, owner, silence):
        return owners.Liveness("alive" if owner.token in self.alive else "dead", "as it was played")

    def actor(self, token, end):
        def act():
            self.names.token = token
            self.alive.add(token)
            try:
                held = acquire(self.folder, wait=lambda _: None)
            except UserError:
                return
            self._enter(token)
            self.turns.pause()
            held.check()
            if end == "release":
                self.working.discard(token)
                held.release()
            self._leave(token)

        return act

    def _enter(self, token):
        self.working.add(token)
        self.overlaps += len(self.working) > 1

    def _leave(self, token):
        self.working.discard(token)
        self.alive.discard(token)


def overlaps(order, ends, link=os.link):
    """How often two worked at once, when actors that end so take turns in that order."""
    with tempfile.TemporaryDirectory() as name:
        turns = Turns(order)
        rivals = Rivals(Path(name), turns, link)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entries, "os", rivals.os())
            patch.setattr(leases, "this_process", rivals.this_process)
            patch.setattr(entries, "judge", rivals.judge)
            turns.play([rivals.actor(f"actor {i}", end) for i, end in enumerate(ends)])
        tokens = [entry.content.owner.token for entry in history(Path(name))]
        assert len(set(tokens)) == len(tokens) > 0
        return rivals.overlaps


ORDERS = st.lists(st.integers(0, 3), max_size=80)
ENDS = st.lists(st.sampled_from(["release", "die"]), min_size=2, max_size=4)


@settings(max_examples=150)
@given(order=ORDERS, ends=ENDS)
def test_in_no_order_of_looking_and_taking_do_two_work_at_once(order, ends):
    assert overlaps(order, ends) == 0


def test_the_search_over_orders_finds_a_lease_that_looks_and_then_overwrites():
    def overwriting(source, target):
        Path(target).write_bytes(Path(source).read_bytes())

    with pytest.raises(AssertionError):
        settings(max_examples=300, database=None)(
            given(order=ORDERS)(lambda order: _none(overlaps(order, ["die", "die"], overwriting)))
        )()


def _none(count):
    assert count == 0


def test_a_heart_beat_costs_next_to_nothing(tmp_path):
    held = acquire(tmp_path, wait=never)
    began = time.process_time()
    for _ in range(100):
        held.beat()
        held.check()
    assert (time.process_time() - began) / 100 < 0.01 * leases.BEAT_SECONDS
