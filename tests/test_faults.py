"""Faults of machines: damaged and missing files, a full disk, signals. Nothing finished is lost; the end is the same.

Kills at every place of a step are in test_trainer.py; here a process also holds its folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from redraft.cli import app as cli
from redraft.config import run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json, write_json
from redraft.methods.schedule import ScheduleState
from redraft.ops.locking.entries import latest
from redraft.ops.locking.lease import acquire, lease, participants
from redraft.train.checkpoint import Checkpoints, TrainingState, damage, measure
from redraft.train.local.trainer import LocalTrainer
from redraft.train.verl.launch import reject_code_in_pickles
from tests.test_lease import age, never, rewrite
from tests.test_trainer import FILES, make_run, results, train

RUN = make_run()
FINGERPRINT = run_fingerprint(RUN)
CHECKPOINTS = Path("checkpoints") / FINGERPRINT
STATE = CHECKPOINTS / "step-000006" / "state.json"
STEPS = 6


@pytest.fixture(scope="module")
def undisturbed(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    train(RUN, tiny_model, folder)
    return folder


@pytest.fixture
def copy(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "run")


def cut(file):
    file.write_bytes(file.read_bytes()[:-9])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


DAMAGE = [(how, name) for name in FILES for how in (cut, flip, empty, Path.unlink)]


@pytest.mark.parametrize(("how", "name"), DAMAGE, ids=lambda value: getattr(value, "__name__", value))
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_resumes(
    how, name, copy, undisturbed, tiny_model, capfd
):
    how(copy / CHECKPOINTS / "step-000006" / name)
    train(RUN, tiny_model, copy)
    said = [line for line in capfd.readouterr().err.splitlines() if "step-000006" in line]
    assert len(said) == 1
    assert name in said[0]
    assert "set aside as damaged-step-000006" in said[0]
    assert results(copy) == results(undisturbed)
    assert sorted(path.name for path in (copy / CHECKPOINTS).iterdir()) == ["step-000004", "step-000006"]


def test_no_flipped_bit_of_the_state_is_believed(copy, capfd):
    """Each of 300 bits, in keys and values: the checkpoint before, or the same state where only white space changed."""
    checkpoints = Checkpoints(copy / CHECKPOINTS, FINGERPRINT, read_json(copy / STATE)["inputs"])
    file, content = copy / STATE, (copy / STATE).read_bytes()
    expected = checkpoints.latest(hashes=False)
    assert expected[1].step == 6
    for bit in range(0, 8 * len(content), 8 * len(content) // 300):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        found, state = checkpoints.latest(hashes=False)
        if found.name == "step-000006":  # white space
            assert (found, state) == expected
            assert damaged.split() == content.split()
        else:
            assert (found.name, state.step) == ("step-000004", 4)
            (aside,) = file.parents[1].glob("damaged-*")
            aside.rename(file.parent)
        file.write_bytes(content)


def test_a_damaged_checkpoint_stays_until_two_whole_ones_stand_again(copy, tiny_model):
    for step in (4, 6):
        cut(copy / CHECKPOINTS / f"step-{step:06d}" / "memory.arrow")
    seen = []

    def look(step, *_):
        seen.append((step, sorted(path.name for path in (copy / CHECKPOINTS).iterdir())))

    LocalTrainer(RUN, tiny_model, copy).train(look)
    aside = ["damaged-step-000004", "damaged-step-000006"]
    assert dict(seen)[3] == [*aside, "step-000002"]
    assert dict(seen)[5] == ["step-000002", "step-000004"]


def test_without_an_undamaged_checkpoint_an_unfinished_run_starts_anew(copy, undisturbed, tiny_model, capfd):
    for checkpoint in (copy / CHECKPOINTS).iterdir():
        flip(checkpoint / "model.safetensors")
    train(RUN, tiny_model, copy)
    assert results(copy) == results(undisturbed)
    assert capfd.readouterr().err.count("no undamaged checkpoint is left; the run starts again") == 1


@pytest.mark.parametrize("damaged", [1, 2], ids=["the last checkpoint", "both checkpoints"])
def test_a_finished_run_is_never_trained_over(damaged, copy, undisturbed, tiny_model):
    inputs = read_json(copy / CHECKPOINTS / "step-000006" / "state.json")["inputs"]
    write_json(copy / "manifest.json", {"fingerprint": FINGERPRINT, "inputs": inputs | {"data/x": "y"}})
    for checkpoint in sorted((copy / CHECKPOINTS).iterdir())[-damaged:]:
        flip(checkpoint / "model.safetensors")
    with pytest.raises(UserError, match="this run is finished") as error:
        train(RUN, tiny_model, copy)
    assert error.value.file == copy / "manifest.json"
    # The memory is part of the checkpoints, which are damaged here.
    found, expected = ({k: v for k, v in results(folder).items() if k != "memory"} for folder in (copy, undisturbed))
    assert found == expected


def test_a_manifest_of_other_inputs_protects_nothing(copy, undisturbed, tiny_model):
    write_json(copy / "manifest.json", {"fingerprint": FINGERPRINT, "inputs": {"initial_policy": "another"}})
    shutil.rmtree(copy / CHECKPOINTS)
    train(RUN, tiny_model, copy)
    assert results(copy) == results(undisturbed)


def test_a_truncated_file_is_found_without_reading_it(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    recorded = measure(tmp_path, [tmp_path / "a"])
    assert damage(tmp_path, recorded) == ""
    monkeypatch.setattr("redraft.train.checkpoint.sha256", lambda file: pytest.fail("it was read"))
    assert damage(tmp_path, recorded, sizes_only=True) == ""
    cut(tmp_path / "a")
    assert "has 0 bytes and had 5" in damage(tmp_path, recorded)


# verl's checkpoints

OWN = ["actor/model_world_size_1_rank_0.pt", "actor/huggingface/model.safetensors", "memory/shard-0.arrow"]


@pytest.fixture
def verl(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", "run", {"policy": "p"}, reject_code_in_pickles)


def path_of(checkpoints, step):
    return checkpoints.folder / f"step-{step:06d}"


def a_checkpoint(checkpoints, step, content=None):
    state = TrainingState(step, training_step=step - 1, seconds=1.5, commits=["abc"])
    with checkpoints.written(step, state) as folder:
        for name in OWN:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save(content or {"x": torch.full((64,), float(step)), "step": step}, folder / name)
        checkpoints.save_schedule(folder, ScheduleState({"waiting": []}))
    return state


@pytest.mark.parametrize("how", [cut, flip, empty, Path.unlink], ids=lambda value: value.__name__)
@pytest.mark.parametrize("name", [*OWN, "schedule/waiting.arrow"])
def test_every_file_of_verls_is_checked_and_the_checkpoint_before_resumes(how, name, verl, capfd):
    state = a_checkpoint(verl, 2)
    a_checkpoint(verl, 4)
    how(path_of(verl, 4) / name)
    assert verl.latest(hashes=True) == (path_of(verl, 2), state)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert name in said[0]
    assert verl.latest(hashes=False) == (path_of(verl, 2), state), "whoever looks next need not read them all"
    a_checkpoint(verl, 6)
    assert sorted(path.name for path in verl.folder.iterdir()) == ["step-000002", "step-000006"]


@pytest.mark.parametrize("how", [cut, empty], ids=lambda value: value.__name__)
def test_a_damaged_record_of_a_checkpoint_of_verls_is_no_traceback(how, verl):
    state = a_checkpoint(verl, 2)
    a_checkpoint(verl, 4)
    how(path_of(verl, 4) / "state.json")
    assert verl.latest(hashes=False) == (path_of(verl, 2), state)


def test_without_an_undamaged_checkpoint_of_verls_the_run_is_at_its_start(verl, capfd):
    for step in (2, 4):
        a_checkpoint(verl, step)
        flip(path_of(verl, step) / OWN[1])
    assert verl.latest(hashes=True) == (None, TrainingState())
    assert "starts again" in capfd.readouterr().err


def test_the_last_whole_checkpoint_counts_and_two_are_kept(verl):
    assert verl.latest(hashes=True) == (None, TrainingState())
    for step in (2, 4, 10):
        state = a_checkpoint(verl, step)
    assert verl.latest(hashes=True) == (path_of(verl, 10), state)
    assert sorted(path.name for path in verl.folder.iterdir()) == ["step-000004", "step-000010"]


def test_a_checkpoint_that_a_kill_left_unfinished_does_not_count_and_is_written_anew(verl):
    state = a_checkpoint(verl, 2)
    unfinished = verl.folder / ".step-000004"
    shutil.copytree(path_of(verl, 2), unfinished)
    (unfinished / "half").write_text("half")
    assert verl.latest(hashes=True) == (path_of(verl, 2), state)
    state = a_checkpoint(verl, 4)
    assert verl.latest(hashes=True) == (path_of(verl, 4), state)
    assert not unfinished.exists()
    assert not (path_of(verl, 4) / "half").exists()


def test_a_checkpoint_of_another_experiment_is_refused_and_of_other_inputs_set_aside(verl):
    a_checkpoint(verl, 2)
    with pytest.raises(UserError, match="another experiment"):
        Checkpoints(verl.folder, "other", {"policy": "p"}).latest(hashes=False)
    assert Checkpoints(verl.folder, "run", {"policy": "q"}).latest(hashes=False) == (None, TrainingState())
    assert not verl.folder.exists()


class Code:
    """What calls something when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_execute_code_never_reaches_verl(protocol, verl, tmp_path):
    with verl.written(2, TrainingState(2)) as folder:
        (folder / OWN[0]).parent.mkdir()
        torch.save({"x": Code(tmp_path / "executed")}, folder / OWN[0], pickle_protocol=protocol)
    with pytest.raises(UserError, match="execute code|cannot be checked") as error:
        verl.latest(hashes=True)
    assert error.value.file == path_of(verl, 2) / OWN[0]
    assert not (tmp_path / "executed").exists()


def test_random_states_and_counters_are_no_code_and_what_stands_beside_them_is_named_alone(tmp_path):
    import random

    import numpy as np

    rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    extra = {"rng": rng, "lr_scheduler": {"last_epoch": 3, "base_lrs": [1e-6]}}
    torch.save(extra, tmp_path / "extra.pt")
    reject_code_in_pickles(tmp_path)
    torch.save(extra | {"code": Code(tmp_path / "executed")}, tmp_path / "extra.pt")
    with pytest.raises(UserError, match="would execute code") as error:
        reject_code_in_pickles(tmp_path)
    assert error.value.value == "posix.mkdir"


# A full disk


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk, left):
    """Use up a disk but for so many bytes."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert not shutil.disk_usage(disk).free
    os.truncate(ballast, ballast.stat().st_size // 4096 * 4096 - left)
    return ballast


@pytest.mark.parametrize("left", [0, 4096, 16384, 49152])
def test_a_disk_that_fills_up_ends_in_one_message_and_goes_on_when_there_is_space(
    left, disk, undisturbed, tiny_model, capsys
):
    folder, ballast = disk / "run", []

    def full(step, *_):
        if step == 2:
            ballast.append(fill(disk, left))

    def command(args):
        with lease(folder, FINGERPRINT) as held:
            LocalTrainer(RUN, tiny_model, folder).train(full, held)

    with pytest.raises(SystemExit) as end:
        cli.main([], command)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("no space left") == 1
    assert [path.name for path in (folder / CHECKPOINTS).iterdir()] == ["step-000002"]
    ballast[0].unlink()
    train(RUN, tiny_model, folder)
    assert results(folder) == results(undisturbed)


def filled_up(checkpoints, disk, ballast):
    """A checkpoint whose files fill the disk."""
    with checkpoints.written(4, TrainingState(4)) as folder:
        shutil.copytree(path_of(checkpoints, 2), folder, dirs_exist_ok=True)
        (folder / "state.json").unlink()
        ballast.append(fill(disk, 0))


def test_a_disk_that_is_full_when_verl_has_written_leaves_the_checkpoint_before(disk):
    checkpoints, ballast = Checkpoints(disk / "checkpoints", "run", {}, reject_code_in_pickles), []
    state = a_checkpoint(checkpoints, 2)
    with pytest.raises(UserError, match="no space left"):
        filled_up(checkpoints, disk, ballast)
    assert checkpoints.latest(hashes=True) == (path_of(checkpoints, 2), state)
    ballast[0].unlink()
    state = a_checkpoint(checkpoints, 4)
    assert checkpoints.latest(hashes=True) == (path_of(checkpoints, 4), state)


def test_a_full_disk_does_not_take_a_folder(disk):
    fill(disk, 0)
    with pytest.raises(UserError, match="no space left"):
        acquire(disk / "run", wait=never)


# Signals to a process that holds its folder

SIGNALLED = """
import json, os, signal, sys
from pathlib import Path
from redraft.cli.process import gc_paused

with gc_paused():
    from redraft.config import Run, run_fingerprint
    from redraft.ops.locking.lease import lease
    from redraft.train.local import trainer as local
    from transformers.models.qwen3 import modeling_qwen3

def train(model, folder, run, name):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in the background
    def signalled(step, *_):
        if step == 3:
            os.kill(os.getpid(), getattr(signal, name))
    with lease(folder, run_fingerprint(run)) as held:
        local.LocalTrainer(run, model, folder).train(signalled, held)

for line in sys.stdin:
    model, folder, run, name = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open(folder + ".errors", os.O_WRONLY | os.O_CREAT), 2)
        sys.exit(train(Path(model), Path(folder), Run.model_validate_json(run), name))
    status = 0x7F  # stopped
    while os.WIFSTOPPED(status):
        status = os.waitpid(child, os.WUNTRACED)[1]
        print(child, "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def signalled(tiny_model):
    """Starts a process that trains in a folder and sends itself a signal after its third step; what ends is printed.

    Processes are forked from one that has loaded the libraries.
    """
    command = [sys.executable, "-c", SIGNALLED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:

        def begin(folder, name):
            print(
                json.dumps([str(tiny_model), str(folder), RUN.model_dump_json(), name]), file=parent.stdin, flush=True
            )
            return parent.stdout

        yield begin


def finish(tiny_model, folder):
    """Train the rest in this process, as a restarted job would."""
    with lease(folder, FINGERPRINT) as held:
        LocalTrainer(RUN, tiny_model, folder).train(lease=held)


@pytest.mark.parametrize(
    ("name", "codes", "end"),
    [
        ("SIGKILL", {-9}, None),
        ("SIGTERM", {143}, "SystemExit"),
        ("SIGHUP", {129}, "SystemExit"),
        ("SIGINT", {-2, 1, 130}, "KeyboardInterrupt"),
    ],
)
def test_a_signalled_run_goes_on_in_another_process(name, codes, end, undisturbed, tiny_model, tmp_path, signalled):
    _, code = signalled(tmp_path / "run", name).readline().split()
    assert int(code) in codes, (tmp_path / "run.errors").read_text()
    finish(tiny_model, tmp_path / "run")
    assert results(tmp_path / "run") == results(undisturbed)
    parts = participants(tmp_path / "run", FINGERPRINT, STEPS)
    assert [(part["resumed_from"], part["end"]) for part in parts] == [(0, end), (2, "finished")]


def test_a_stopped_process_whose_folder_was_taken_writes_nothing_when_it_goes_on(
    undisturbed, tiny_model, tmp_path, signalled
):
    folder = tmp_path / "run"
    ends = signalled(folder, "SIGSTOP")
    process, state = ends.readline().split()
    assert state == "stopped"
    with pytest.raises(UserError, match="another process works in this folder"):
        finish(tiny_model, folder)
    rewrite(entry := latest(folder), machine="another machine")
    age(entry, 1000)
    finish(tiny_model, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path != entry.file}
    os.kill(int(process), signal.SIGCONT)
    assert ends.readline().split() == [process, "1"]
    assert "another process has taken over this folder" in (tmp_path / "run.errors").read_text()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path != entry.file} == before
    assert results(folder) == results(undisturbed)
