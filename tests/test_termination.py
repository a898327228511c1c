"""SIGTERM as an exit: at once, or at the end of a block that must not be broken off."""

import os
import signal
import threading

import pytest

from redraft.ops.termination import exit_on_sigterm, unbroken


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_exits_at_once():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, exit_on_sigterm():
        terminate()
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_unbroken_block_ends_first():
    done = []

    def nested():
        with unbroken():
            with unbroken():
                terminate()
                done.append("inner")
            done.append("outer")
        done.append("after it")

    with pytest.raises(SystemExit), exit_on_sigterm():
        nested()
    assert done == ["inner", "outer"]
    with exit_on_sigterm(), unbroken():
        pass  # asked once, exited once


def test_an_unbroken_block_of_another_thread_does_not_keep_this_one_from_exiting():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with unbroken():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(SystemExit), exit_on_sigterm():
        terminate()
    leave.set()
    thread.join()


def test_an_error_in_an_unbroken_block_is_the_cause_that_is_shown():
    def fail():
        with unbroken():
            terminate()
            raise ValueError("also wrong")

    with pytest.raises(SystemExit) as end, exit_on_sigterm():
        fail()
    assert isinstance(end.value.__context__, ValueError)
