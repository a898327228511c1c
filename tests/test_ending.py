"""The end of a process: exit handlers run, output is there, and failures keep their code."""

import subprocess
import sys

import pytest

HANDLERS = """
import atexit, logging, sys, threading, time
from redraft.cli.app import main
def late():
    time.sleep(0.2)
    print("a thread")
class Told:
    def __del__(self):
        print("destroyed")
def command(args=None):
    global told
    told = Told()
    atexit.register(print, "a handler")
    threading.Thread(target=late).start()
    logging.basicConfig(filename=sys.argv[1])
    logging.warning("logged")
    sys.stdout.write("written")
    {end}
main(None, command)
"""
"""A program that ends while it has a thread, an exit handler, an object, a log and output that is not written yet."""


def ended(end, file):
    command = [sys.executable, "-c", HANDLERS.format(end=end), str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "logged" in file.read_text()
    assert "writtena thread\na handler\n" in result.stdout
    return result


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)"])
def test_a_process_that_ends_well_runs_handlers_and_destroys_nothing(end, tmp_path):
    result = ended(end, tmp_path / "log")
    assert result.returncode == 0, result.stderr
    assert "destroyed" not in result.stdout


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("raise OSError", 1), ("raise ValueError", 1)]
)
def test_a_process_that_fails_ends_as_any_does(end, code, tmp_path):
    result = ended(end, tmp_path / "log")
    assert result.returncode == code, result.stderr
    assert "destroyed" in result.stdout


def test_a_call_within_a_process_leaves_it_its_end():
    program = "from redraft.cli.app import main\ntry: main(['--version'])\nexcept SystemExit: pass\nraise SystemExit(4)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 4
