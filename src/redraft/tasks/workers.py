"""Worker processes for code that may hang or crash, such as graders, and their functions for grading responses.

A hang or crash loses one item, which is not retried. The time limit applies to an item, the memory limit to a worker.
The module imports little: a worker is forked from a process that has loaded the grader, and would have to import
everything else again.
"""

import multiprocessing
import multiprocessing.util
import os
import resource
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessPool

from redraft.files import socket_folder
from redraft.tasks.answers import Outcome

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY = 4 << 30
"""Bytes that a worker may map in addition to those at its start; more raises MemoryError in the worker."""

LONGEST_FOLDER = 75
"""Bytes of a folder's name in which `multiprocessing` can make its sockets: it appends 32."""

InstructionVerdicts = tuple[Outcome, list[bool], list[bool], list[bool] | None, list[bool] | None]
"""An outcome, and the verdicts on each instruction: strict, loose, and both of the unchanged checkers."""


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    seconds: float,
    lost: Callable[[Item, Exception], Result],
) -> list[Result]:
    """Apply a function to each item in worker processes and return the results in the items' order.

    Args:
        function: picklable; runs in the main thread of a worker, so that alarms work.
        items: picklable; no process starts if there are none.
        seconds: time limit for each item; a worker that exceeds it is killed and replaced.
        lost: returns the result of an item that raised an exception, exceeded the limit (`TimeoutError`) or killed
            its worker (`pebble.ProcessExpired`).
    """
    if not items:
        return []
    with pool(min(processes, len(items))) as workers:
        answers, results = workers.map(function, items, timeout=seconds).result(), []
        # The iterator goes on after an item whose result is an exception.
        for item in items:
            try:
                results.append(next(answers))
            except Exception as error:
                results.append(lost(item, error))
    return results


def pool(processes: int) -> ProcessPool:
    """Create a pool of workers with bounded memory and a loaded grader; they start with the first item."""
    return ProcessPool(processes, initializer=_limit_memory, context=context())


def context() -> Any:
    """Fork workers from a server that has loaded the grader, since forking this process with its threads is unsafe.

    The server also preloads this module and the imports of a job's main module, which would take each worker 0.08 s.
    """
    # multiprocessing makes its folder of sockets once, where tempfile's folder is then
    before, tempfile.tempdir = tempfile.tempdir, socket_folder(LONGEST_FOLDER)
    try:
        multiprocessing.util.get_temp_dir()
    finally:
        tempfile.tempdir = before
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redraft.cli.app", "redraft.tasks.rewards", __name__])
    return context


def _limit_memory() -> None:
    # The first number is the size of the address space, which the limit is about.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    mapped = pages * os.sysconf("SC_PAGE_SIZE")
    # A process may not raise its limit above the hard one.
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def compare_answers(pair: tuple[str, str]) -> Outcome:
    """Compare the content of a box with the answer."""
    from redraft.tasks.grading import compare  # only workers load the grader

    return compare(*pair)


def score_answers(pair: tuple[str, str]) -> Outcome:
    """Let reasoning-gym's scorer compare an extracted answer with a problem of its."""
    from redraft.tasks.gym import compare

    return compare(*pair)


def reward(texts: list[str], answer: str, rule: str) -> tuple[list[float], float]:
    """`redraft.tasks.rewards.rewards_of` in a worker, so that only workers load the grader."""
    from redraft.tasks.rewards import rewards_of

    return rewards_of(texts, answer, rule)


def check_instructions(item: tuple[str, str, str]) -> InstructionVerdicts:
    """Check the instructions of a response.

    Args:
        item: prompt, response and the problem's answer, which lists the instructions.
    """
    from redraft.tasks.instructions import grade_instructions

    prompt, text, answer = item
    verdicts = grade_instructions(prompt, text, answer)
    right = Outcome.CORRECT if all(verdicts.strict) else Outcome.WRONG
    official = verdicts.official
    unchanged = (official.strict, official.loose) if official else (None, None)
    return right if text.strip() else Outcome.EMPTY, verdicts.strict, verdicts.loose, *unchanged
