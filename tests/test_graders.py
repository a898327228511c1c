"""Graders beside the engine: what they lose, what they keep from the engine, and that their processes end."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from redraft.rollout.types import Finish, Rollout
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train.local import grading
from redraft.train.local.grading import Graders
from redraft.train.local.trainer import LocalTrainer
from tests.test_trainer import make_run

TOKENIZER = make_tokenizer()
RIGHT, WRONG = "1a=;\\boxed{7}", "1a=;\\boxed{8}"
FAKES = """
import os, signal, time

def grade(texts, answer, rule):
    return [one(text, answer) for text in texts], 0.25

def one(text, answer):
    if text == "hangs":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(1000)
    if text == "dies":
        os._exit(3)
    if text == "fills":
        bytearray(1 << 40)
    return float(answer in text)

def slow(texts, answer, rule):
    time.sleep(0.4 if texts[0] else 0.0)
    return [1.0] * len(texts), 0.01 if texts[0] else 0.0

def failing(texts, answer, rule):
    return 1 / len(texts[0])
"""
"""Graders in place of the real one. A module of its own, since a worker cannot import a file of tests."""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    (tmp_path / "fake_graders.py").write_text(FAKES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_graders", raising=False)
    return importlib.import_module("fake_graders")


def rollouts_of(*texts):
    rows = [np.array(TOKENIZER(text)["input_ids"], np.int32) for text in texts]
    return [Rollout(0, i, row, np.zeros(len(row)), np.zeros(len(row)), Finish.EOS) for i, row in enumerate(rows)]


def grade(graders, *texts, prompt=0):
    return asyncio.run(graders.grade(prompt, rollouts_of(*texts))).tolist()


@pytest.fixture(scope="module")
def graders():
    with Graders(["7", "8"], TOKENIZER, 2, "last_box") as graders:
        yield graders


def test_responses_are_graded_by_their_prompt_s_answer_in_order(graders):
    assert grade(graders, RIGHT, WRONG, RIGHT) == [1, 0, 1]
    assert grade(graders, RIGHT, WRONG, prompt=1) == [0, 1]
    assert asyncio.run(graders.grade(0, rollouts_of(RIGHT))).dtype == np.float32


def test_seconds_of_graders_add_up_and_are_their_own(graders):
    before = graders.seconds
    grade(graders, RIGHT)
    after = graders.seconds
    assert after > before
    time.sleep(0.05)
    assert graders.seconds == after


class Words:
    """A tokenizer whose texts are the words themselves."""

    def __init__(self, *texts):
        self.texts = texts

    def batch_decode(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return [self.texts[int(row[0])] for row in rows]


@pytest.mark.parametrize("lost", ["hangs", "dies", "fills"])
def test_a_response_that_costs_its_worker_earns_nothing_and_the_others_their_own(lost, fakes, monkeypatch):
    monkeypatch.setattr(grading, "reward", fakes.grade)
    monkeypatch.setattr(grading, "SECONDS", 3.0)
    texts = ("right 7", lost, "wrong", "7 again")
    rollouts = [Rollout(0, i, np.array([i], np.int32), np.zeros(1), np.zeros(1), Finish.EOS) for i in range(4)]
    with Graders(["7"], Words(*texts), 2, "last_box") as graders:
        others = graders.grade(0, rollouts[:1])

        async def both():
            return await asyncio.gather(graders.grade(0, rollouts), others)

        group, other = asyncio.run(both())
    assert (group.tolist(), other.tolist()) == ([1, 0, 0, 1], [1])


def test_an_error_of_the_grader_itself_is_not_a_reward_of_nothing(fakes, monkeypatch):
    with Graders(["7"], TOKENIZER, 1, "last_box") as graders:
        monkeypatch.setattr(grading, "reward", fakes.failing)
        with pytest.raises(ZeroDivisionError):
            grade(graders, "")


def test_the_engine_decodes_other_groups_while_one_is_graded(tiny_model, tmp_path, fakes, monkeypatch):
    """Two groups fill the cache; were the engine to wait for rewards, the next two would be decoded only after them."""
    monkeypatch.setattr(grading, "reward", fakes.slow)
    trainer, passes, waits = LocalTrainer(make_run(max_rows=4), tiny_model, tmp_path), [], []
    grade, work = trainer.graders.grade, trainer.engine._pass

    async def noted(prompt, rollouts):
        began = time.perf_counter()
        rewards = await grade(prompt, rollouts)
        waits.append((began, time.perf_counter()))
        return rewards

    def counted():
        done = work()
        if done:
            passes.append(time.perf_counter())
        return done

    monkeypatch.setattr(trainer.graders, "grade", noted)
    monkeypatch.setattr(trainer.engine, "_pass", counted)
    with trainer.graders:
        trainer.roll_out(trainer.loop.schedule.next(0), 0)
    began, ended = min(waits)
    assert len(waits) == 4
    assert sum(began < at < ended for at in passes) > 2


def test_waiting_for_rewards_is_no_time_of_the_engine(tiny_model, tmp_path, fakes, monkeypatch):
    """All that is slept is unseen by a processor's clock; what graders worked bounds what counts as reward."""
    monkeypatch.setattr(grading, "reward", fakes.slow)
    trainer = LocalTrainer(make_run(), tiny_model, tmp_path)
    with trainer.graders:
        began = time.process_time()
        rolled = trainer.roll_out(trainer.loop.schedule.next(0), 0)
        own = time.process_time() - began
    assert rolled.grading_seconds == pytest.approx(4 * 0.01)
    assert rolled.seconds["reward"] == rolled.unseen == pytest.approx(4 * 0.01)
    assert 0 < rolled.seconds["rollout"] <= own


def children():
    """Processes below this one that are alive, by id."""
    found, parents = set(), {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z":
            parents[int(stat.parent.name)] = int(words[1])
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and process != above:
            found.add(process)
    return found


def workers():
    """Processes below this one without the fork server, which stays, as does its tracker of semaphores."""
    from multiprocessing import forkserver, resource_tracker

    kept = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    return children() - kept


def test_graders_processes_are_as_many_as_asked_for_and_end_with_the_block():
    before = workers()
    with Graders(["7"], TOKENIZER, 2, "last_box"):
        assert len(workers() - before) == 2
    assert workers() <= before


class Stopped(Exception):
    """Raised in the middle of a run."""


@pytest.mark.parametrize("error", [None, Stopped, KeyboardInterrupt])
def test_graders_end_with_the_trainer_also_when_it_raises(error, tiny_model, tmp_path):
    before, during = workers(), []

    def progress(done, *_):
        during.append(len(workers() - before))
        if error and done == 2:
            raise error

    trainer = LocalTrainer(make_run(), tiny_model, tmp_path)
    if error:
        with pytest.raises(error):
            trainer.train(progress)
    else:
        trainer.train(progress)
    assert set(during) == {1}
    assert workers() <= before
    assert trainer.graders.pool is None


KILLED = """
import os, sys
from pathlib import Path
from redraft.config import Run
from redraft.train.local.trainer import LocalTrainer

def kill(done, *_):
    print("stepped", flush=True)
    sys.stdin.readline()

LocalTrainer(Run.model_validate_json(sys.argv[3]), Path(sys.argv[1]), Path(sys.argv[2])).train(kill)
"""


def marked(mark):
    """Processes that inherited a mark in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(environment.parent.name)] * (mark.encode() in environment.read_bytes())
        except OSError:  # it ended, or is not ours
            continue
    return found


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_no_process_is_left_behind_by_a_trainer_that_was_killed(name, tiny_model, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tiny_model), str(tmp_path / "run"), make_run().model_dump_json()]
    marks = os.environ | {"REDRAFT_TEST": str(tmp_path)}
    process = subprocess.Popen(command, env=marks, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "stepped\n"
    assert len(marked(str(tmp_path))) >= 3, "the trainer, a fork server and a grader"
    process.send_signal(getattr(signal, name))
    process.wait()
    deadline = time.time() + 30
    while marked(str(tmp_path)):
        assert time.time() < deadline, "a process is left behind"
        time.sleep(0.1)


TERMINATED = """
import asyncio, collections, os, signal, sys, time
from redraft.ops.locking.termination import exit_on_signal
from redraft.train.local.grading import Graders

class Waiters(collections.deque):
    def remove(self, waiter):
        if not asked:
            asked.append(os.kill(os.getpid(), signal.SIGTERM))
            time.sleep(0.2)  # here Python runs the handler, and the woken thread goes on
        super().remove(waiter)

asked = []
with exit_on_signal(), Graders(["7"], None, 1, "last_box") as graders:
    time.sleep(0.2)  # until the pool's thread waits for work
    condition = graders.pool._context.task_queue.not_empty
    condition._waiters = Waiters(condition._waiters)
    asyncio.run(graders._graded(["7"], "7"))
    print("not terminated")
"""


def test_sigterm_while_work_is_handed_to_a_grader_loses_no_waiter():
    """What is raised in `notify` between waking a thread and forgetting it would leave the pool's thread asleep."""
    ended = subprocess.run([sys.executable, "-c", TERMINATED], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert "not terminated" not in ended.stdout
