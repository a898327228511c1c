"""SIGTERM and SIGHUP as an exit: at once, or at the end of a block that must not be broken off."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from redraft.ops.locking.termination import exit_deferred, exit_on_signal, sigterm_on_hangup

pytestmark = pytest.mark.usefixtures("hangup")


def terminate(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_exits_at_once_with_a_line(number, capfd):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, exit_on_signal():
        terminate(number)
    assert end.value.code == 128 + number
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr().err == f"ended by {number.name}\n"


def test_a_second_hangup_does_not_end_the_clean_up():
    done = []

    @contextmanager
    def cleaned_up():
        with exit_on_signal():
            try:
                yield
            finally:
                terminate(signal.SIGHUP)
                done.append("cleaned up")

    with pytest.raises(SystemExit) as end, cleaned_up(), cleaned_up():
        terminate(signal.SIGHUP)
    assert end.value.code == 128 + signal.SIGHUP
    assert len(done) == 2


def test_an_ignored_hangup_stays_ignored():
    """As under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with exit_on_signal():
        terminate(signal.SIGHUP)
        sigterm_on_hangup()
        terminate(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_block_without_a_signal_restores_the_handlers():
    with exit_on_signal():
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_a_hangup_becomes_sigterm_for_a_program_that_handles_only_that():
    sigterm_on_hangup()
    number, before = [], signal.signal(signal.SIGTERM, lambda received, _: number.append(received))
    terminate(signal.SIGHUP)
    signal.signal(signal.SIGTERM, before)
    assert number == [signal.SIGTERM]


def test_an_unbroken_block_ends_first():
    done = []

    def nested():
        with exit_deferred():
            with exit_deferred():
                terminate()
                done.append("inner")
            done.append("outer")
        done.append("after it")

    with pytest.raises(SystemExit), exit_on_signal():
        nested()
    assert done == ["inner", "outer"]
    with exit_on_signal(), exit_deferred():
        pass  # asked once, exited once


def test_an_unbroken_block_of_another_thread_does_not_keep_this_one_from_exiting():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exit_deferred():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(SystemExit), exit_on_signal():
        terminate()
    leave.set()
    thread.join()


def test_an_error_in_an_unbroken_block_is_the_cause_that_is_shown():
    def fail():
        with exit_deferred():
            terminate()
            raise ValueError("also wrong")

    with pytest.raises(SystemExit) as end, exit_on_signal():
        fail()
    assert isinstance(end.value.__context__, ValueError)


IN_A_LOOP = """
import asyncio, os, signal, sys
from redraft.engines.torch.loop import Outside, run_to_end
from redraft.ops.locking.termination import exit_on_signal, exit_deferred

turns, original = [0], asyncio.Handle._run

def run(handle):
    turns[0] += 1
    if turns[0] == int(sys.argv[1]):  # the loop has taken the task's turn from its queue, and has not given it yet
        os.kill(os.getpid(), signal.SIGTERM)
    original(handle)

asyncio.Handle._run = run

async def session(outside):
    while True:
        await asyncio.sleep(0) if outside is None else await outside.wait(asyncio.sleep(1000))

outside = Outside() if sys.argv[2] == "sleeping" else None
async def everything():
    sessions = [session(outside) for _ in range(3)]
    await run_to_end(sessions, lambda: outside is None, lambda: "nothing", outside)

with exit_on_signal(), exit_deferred():
    asyncio.run(everything())
"""


@pytest.mark.parametrize("place", [2, 3, 4, 7, 30])
@pytest.mark.parametrize("state", ["working", "sleeping"])
def test_an_engine_s_loop_ends_wherever_sigterm_comes(place, state):
    command = [sys.executable, "-c", IN_A_LOOP, str(place), state]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 128 + signal.SIGTERM, result.stderr[-2000:]
