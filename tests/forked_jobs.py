"""Jobs of a campaign as forks of one process that has loaded the libraries, which take seconds to load in each.

A command `redraft`, first in the path, hands its arguments, folder, environment and open files to that process and
ends with the exit code of the job. The job runs the same code as the real command, in a process of its own; its graders
are forked from one server for all jobs. Only the campaign that many tests read, those that go on from it and that of
the other papers are made so; jobs of all other workflows in tests are started as a user's are.

This file is both programs: `python forked_jobs.py SOCKET` serves, `python forked_jobs.py SOCKET redraft …` asks.
"""

import json
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

LOADED = (
    "analysis.figure_files", "analysis.stages", "analysis.table_files", "mlflow.tracking", "redraft.cli",
    "redraft.evaluate.cases", "redraft.evaluate.diversity", "redraft.evaluate.generate", "redraft.evaluate.grade",
    "redraft.ops.lease", "redraft.stages", "redraft.train.local", "redraft.train.warm_start",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3",
)  # fmt: skip
"""What stages import."""
LIMIT = 2**17
"""Bytes of a message: a job's arguments, folder and environment."""


@contextmanager
def forked_jobs(folder: Path) -> Iterator[dict[str, str]]:
    """Serve jobs until the block ends; yields the environment in which `redraft` asks for one.

    Args:
        folder: an existing one for the command and the socket.
    """
    path, command = folder / "jobs", folder / "redraft"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        ask = shlex.join([sys.executable, "-IS", __file__, str(path), "redraft"])
        command.write_text(f'#!/bin/sh\nexec {ask} "$@"\n')
        command.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())], pass_fds=[listener.fileno()]
        )
        try:
            yield os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        finally:
            server.terminate()
            server.wait()


def ask(path: str, arguments: list[str]) -> int:
    """Have a job done; returns its exit code."""
    message = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [message], [0, 1, 2])
        return int(server.recv(16) or 1)


def serve(descriptor: int) -> None:
    """Fork a job for each connection and answer with its exit code; a job whose asker has gone is ended."""
    from importlib import import_module
    from multiprocessing import forkserver

    from redraft.loading import loading
    from redraft.tasks.workers import context

    context()
    forkserver.ensure_running()  # one for all jobs; else each loads the grader anew
    with loading():
        for module in LOADED:
            import_module(module)
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
                return run(*json.loads(message), files)
            for file in files:
                os.close(file)
        for connection, job in list(jobs.items()):
            ended, status = os.waitpid(job, os.WNOHANG)
            if ended:
                with suppress(OSError):  # its asker has gone
                    connection.send(b"%d" % abs(os.waitstatus_to_exitcode(status)))
                connection.close()
                del jobs[connection]


def run(command: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Run a job in this process, which ends with it."""
    from multiprocessing import forkserver

    import numpy as np
    import torch

    from redraft.cli import main

    forkserver._forkserver.ensure_running = lambda: None  # it is this process's parent's, and runs
    torch.seed()  # random states of its own, as without forks, so that draws without a seed are noticed
    np.random.seed()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    main()


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.argv[2:] else serve(int(sys.argv[1])))
