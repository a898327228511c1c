"""The loop of an engine in this process: sessions that wait for something outside neither stop it nor spin."""

import asyncio
import time

import pytest

from redraft.engines.torch.loop import IDLE_TURNS, Outside, run_to_end


class Engine:
    """Answers one request a pass, and counts how often it was called."""

    def __init__(self):
        self.queue, self.events, self.turns = [], [], 0

    async def ask(self, name):
        answer = asyncio.get_running_loop().create_future()
        self.queue.append((name, answer))
        await answer

    def work(self):
        self.turns += 1
        if not self.queue:
            return False
        name, answer = self.queue.pop(0)
        self.events.append(name)
        answer.set_result(None)
        return True

    def run(self, *coroutines, outside=None):
        return asyncio.run(run_to_end(coroutines, self.work, lambda: "no requests", outside))


async def rewarded(engine, outside, seconds, passes=0, reward=1.0):
    """A session that decodes, waits for a reward and decodes again; grading lasts for `passes` and `seconds`."""

    async def grade():
        engine.events.append("graded from")
        while engine.events.count("decoded") < passes:
            await asyncio.sleep(0)
        await asyncio.sleep(seconds)
        engine.events.append("graded to")
        return reward

    await engine.ask("before")
    found = await outside.wait(grade())
    await engine.ask("after")
    return found


async def decoding(engine, passes):
    for _ in range(passes):
        await engine.ask("decoded")


def test_the_engine_decodes_for_others_while_a_reward_is_awaited():
    engine, outside = Engine(), Outside()
    waiting = rewarded(engine, outside, 0, passes=30, reward=3.0)
    results = engine.run(waiting, decoding(engine, 60), outside=outside)
    assert results == [3.0, None]
    events = engine.events
    during = events[events.index("graded from") : events.index("graded to")]
    assert during.count("decoded") >= 25
    assert events.index("graded to") < events.index("after")
    assert "decoded" not in events[events.index("after") :], "it goes on when the engine has nothing else to do"
    assert outside.seconds < 0.05, "the engine always had something to do"


def test_an_idle_wait_is_measured_and_does_not_spin():
    engine, outside = Engine(), Outside()
    began = time.perf_counter()
    assert engine.run(rewarded(engine, outside, 0.3), outside=outside) == [1.0]
    assert 0.25 < outside.seconds <= time.perf_counter() - began
    assert engine.turns < 3 * IDLE_TURNS
    assert not outside.waiting


def test_idle_waits_add_up_and_a_second_wait_beside_the_first_counts_once():
    engine, outside = Engine(), Outside()
    began = time.perf_counter()
    engine.run(*(rewarded(engine, outside, seconds) for seconds in (0.1, 0.2, 0.2)), outside=outside)
    assert 0.15 < outside.seconds <= time.perf_counter() - began
    engine.run(rewarded(engine, outside, 0.1), outside=outside)
    assert 0.24 < outside.seconds <= time.perf_counter() - began


def test_a_wait_is_measured_by_the_clock_of_the_stage():
    engine, outside = Engine(), Outside(clock=time.process_time)
    engine.run(rewarded(engine, outside, 0.3), outside=outside)
    assert outside.seconds < 0.1, "a sleeping process does not compute"


def test_work_in_a_thread_or_a_process_is_awaited_as_anything_else():
    engine, outside = Engine(), Outside()

    async def session():
        await engine.ask("before")
        loop = asyncio.get_running_loop()
        return await outside.wait(loop.run_in_executor(None, lambda: time.sleep(0.1) or "graded"))

    assert engine.run(session(), outside=outside) == ["graded"]
    assert outside.seconds > 0.05


def test_nothing_pending_outside_is_a_standstill_as_before():
    engine, outside = Engine(), Outside()

    async def forever():
        await rewarded(engine, outside, 0.01)
        await asyncio.Event().wait()

    for given in (outside, None):
        with pytest.raises(RuntimeError, match="no requests"):
            engine.run(forever(), outside=given) if given is not None else engine.run(asyncio.Event().wait())


def test_a_wait_unknown_to_the_loop_is_a_standstill():
    engine = Engine()
    with pytest.raises(RuntimeError, match="no requests"):
        engine.run(rewarded(engine, Outside(), 5.0))


def test_an_error_outside_reaches_the_session_and_ends_the_run():
    engine, outside = Engine(), Outside()

    async def fail():
        await asyncio.sleep(0.05)
        raise ValueError("the grader died")

    async def session():
        await engine.ask("before")
        await outside.wait(fail())

    began = time.perf_counter()
    with pytest.raises(ValueError, match="the grader died"):
        engine.run(session(), rewarded(engine, outside, 30.0), outside=outside)
    assert time.perf_counter() - began < 5
    assert not outside.waiting


def test_an_error_elsewhere_does_not_wait_for_what_is_outside():
    engine, outside = Engine(), Outside()

    async def session():
        await asyncio.sleep(0.3)
        raise ValueError("a test")

    began = time.perf_counter()
    with pytest.raises(ValueError, match="a test"):
        engine.run(rewarded(engine, outside, 30.0), session(), outside=outside)
    assert time.perf_counter() - began < 5


async def turns(count):
    """An answer after `count` turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", range(IDLE_TURNS - 10, IDLE_TURNS + 10))
def test_an_answer_that_comes_when_the_loop_s_patience_ends_is_no_standstill(count):
    """After its answer a session needs a few more turns, however long it waited."""
    engine, outside = Engine(), Outside()

    async def session():
        await outside.wait(turns(count))
        await turns(5)
        return "done"

    assert engine.run(session(), outside=outside) == ["done"]


@pytest.mark.parametrize("seconds", [(0.0, 0.02, 0.04), (0.04, 0.02, 0.0), (0.02, 0.0, 0.04)])
def test_sessions_go_on_in_the_order_of_their_requests_however_long_each_waits(seconds):
    engine, outside = Engine(), Outside()

    async def session(name, pause):
        await engine.ask(f"before {name}")
        await outside.wait(asyncio.sleep(pause))
        await engine.ask(f"after {name}")

    engine.run(*(session(name, pause) for name, pause in zip("abc", seconds, strict=True)), outside=outside)
    assert engine.events == [f"{when} {name}" for when in ("before", "after") for name in "abc"]
