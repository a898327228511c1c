"""The commands `redraft` and `snakemake` as forks of one process that has loaded their libraries.

Loading takes seconds of each process. Commands of these names, first in the path, hand their arguments, folder,
environment and open files to that process and end with the exit code of the fork. It runs the same code as the real
command, in a process of its own; graders are forked from one server for all jobs. `make test` starts one such process
for all of its workers. Tests that signal a command, or measure its processor seconds, start the real one, and so do
all tests without the option `--fork-commands`.

This file is both programs: `python forked_commands.py SOCKET` serves, with a command behind it, it asks.
"""

import json
import logging
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redraft.cli.process import FastExit

LOADED = (
    "redraft.analysis.figures.figure_files",
    "redraft.analysis.pages.case_studies",
    "redraft.analysis.pages.report_pages",
    "redraft.analysis.tables.files",
    "mlflow.tracking",
    "redraft.cli.app",
    "redraft.evaluate.cases",
    "redraft.evaluate.diversity",
    "redraft.evaluate.generate",
    "redraft.evaluate.grade",
    "redraft.ops.locking.lease",
    "redraft.train.job",
    "redraft.train.local.trainer",
    "redraft.train.initial_policy",
    "smart_open",
    "snakemake.cli",
    "snakemake_logger_plugin_redraft",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
)
"""What the stages and Snakemake import."""
LIMIT = 2**17
"""Bytes of a message: a job's arguments, folder and environment."""


COMMANDS = {"redraft": "redraft.cli.app", "snakemake": "snakemake.cli"}
"""Modules whose `main` is a command."""
FOLDER = "REDRAFT_FORKED_COMMANDS"
"""Variable that names the folder of the commands while they are served."""


def environment() -> dict[str, str]:
    """Variables under which a process finds forked commands if they are served, else the real ones."""
    folder = os.environ.get(FOLDER)
    return os.environ | ({"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"} if folder else {})


@contextmanager
def forked_commands(folder: Path) -> Iterator[None]:
    """Serve commands until the block ends; those that are served already are enough.

    Args:
        folder: an existing one for the commands and the socket.
    """
    if FOLDER in os.environ:
        yield
        return
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        for name in COMMANDS:
            ask = shlex.join([sys.executable, "-IS", __file__, str(path), name])
            (folder / name).write_text(f'#!/bin/sh\nexec {ask} "$@"\n')
            (folder / name).chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())], pass_fds=[listener.fileno()]
        )
        os.environ[FOLDER] = str(folder)
        try:
            yield
        finally:
            del os.environ[FOLDER]
            server.terminate()
            server.wait()


def ask(path: str, arguments: list[str]) -> int:
    """Have a command run; returns its exit code."""
    message = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [message], [0, 1, 2])
        return int(server.recv(16) or 1)


def serve(descriptor: int) -> None:
    """Fork a command for each connection and answer with its exit code; one whose asker has gone is ended."""
    from importlib import import_module
    from multiprocessing import forkserver

    from redraft.cli.process import FastExit, gc_paused
    from redraft.tasks.workers import context

    fast_exit = FastExit()
    context()
    forkserver.ensure_running()  # one for all jobs; else each loads the grader anew
    with gc_paused():
        for module in LOADED:
            import_module(module)
        import_module("snakemake.cli").get_argument_parser()  # which loads its plugins
    listener = socket.socket(fileno=descriptor)
    jobs: dict[socket.socket, int] = {}
    while True:
        for ready in select.select([listener, *jobs], [], [], 0.02)[0]:
            if ready is not listener:
                os.kill(jobs[ready], signal.SIGTERM)
                continue
            connection, _ = listener.accept()
            message, files, *_ = socket.recv_fds(connection, LIMIT, 3)
            jobs[connection] = os.fork()
            if not jobs[connection]:
                return run(*json.loads(message), files, fast_exit)
            for file in files:
                os.close(file)
        for connection, job in list(jobs.items()):
            ended, status = os.waitpid(job, os.WNOHANG)
            if ended:
                with suppress(OSError):  # its asker has gone
                    connection.send(b"%d" % abs(os.waitstatus_to_exitcode(status)))
                connection.close()
                del jobs[connection]


def run(command: list[str], folder: str, environment: dict[str, str], files: list[int], fast_exit: "FastExit") -> None:
    """Run a command in this process, which ends with it."""
    from importlib import import_module
    from multiprocessing import forkserver

    import numpy as np
    import torch

    forkserver._forkserver.ensure_running = lambda: None  # it is this process's parent's, and runs
    torch.seed()  # random states of its own, as without forks, so that draws without a seed are noticed
    np.random.seed()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # Python's objects remember what the server's streams were, such as a file in which one can seek.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    if command[0] == "snakemake":
        logging.getLogger().handlers.clear()  # a library of the jobs has added one, to which Snakemake would write
    try:
        import_module(COMMANDS[command[0]]).main()
    except SystemExit as end:
        fast_exit.enabled = not end.code
        raise


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.argv[2:] else serve(int(sys.argv[1])))
