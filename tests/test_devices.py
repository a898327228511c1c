"""GPUs are shared without overlap, by real processes and locks. The GPUs are names in the environment."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import UserError
from redraft.ops.locking import devices as module
from redraft.ops.locking import gpus
from redraft.ops.locking.devices import devices, lock_descriptors
from redraft.ops.locking.gpus import VISIBLE, Device, available, check_devices, parse

ROOT = Path(__file__).parents[1]
HOLD = """
import json, sys
from redraft.ops.locking.devices import devices
with devices(int(sys.argv[1]), sys.argv[2]) as names:
    print(json.dumps(names), flush=True)
    sys.stdin.readline()
"""
# Takes devices, notes when it had them, by the clock that all processes share, and does a little in between.
BRIEFLY = """
import json, sys, time
from redraft.ops.locking.devices import devices
with devices(int(sys.argv[1]), "brief") as names:
    began, sum_ = time.monotonic_ns(), sum(range(200_000))
    ended = time.monotonic_ns()
print(json.dumps([names, began, ended]))
"""
VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", module.INHERITED, VISIBLE)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """No GPU but those that a test names, and locks of its own."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(module.LOCK_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setattr(gpus, "_installed", lambda: ())
    monkeypatch.setitem(sys.modules, "torch", None)
    return monkeypatch


@contextmanager
def holder(count, purpose="", **variables):
    """A process that holds devices until the block ends; yields it, and what it holds."""
    command = [sys.executable, "-c", HOLD, str(count), purpose]
    process = subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def waiter(count, **variables):
    command = [sys.executable, "-c", HOLD, str(count), "waiter"]
    return subprocess.Popen(
        command,
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_get_disjoint_devices(machine):
    machine.setenv(VISIBLE, "0,1,2")
    with holder(2) as (_, first), devices(1) as second:
        assert first == ["0", "1"]
        assert second == ("2",)
        assert os.environ[VISIBLE] == "2"
    assert os.environ[VISIBLE] == "0,1,2"


@pytest.mark.parametrize("names", ["0,1,2", "GPU-aaaa,GPU-bbbb,GPU-cccc"])
def test_twenty_jobs_over_three_devices_never_overlap(machine, names):
    machine.setenv(VISIBLE, names)
    counts = [1, 2, 1, 3, 1] * 4
    jobs = [
        subprocess.Popen([sys.executable, "-c", BRIEFLY, str(n)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for n in counts
    ]
    spans = [json.loads(job.communicate(timeout=120)[0]) for job in jobs]
    assert [len(taken) for taken, _, _ in spans] == counts
    for device in names.split(","):
        turns = sorted((began, ended) for taken, began, ended in spans if device in taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(turns)), device
    assert {device for taken, _, _ in spans for device in taken} == set(names.split(","))


def test_a_killed_holder_lets_go_and_who_waits_said_once_for_whom(machine):
    machine.setenv(VISIBLE, "0,1")
    with holder(1, "spec_rl/grpo-vanilla") as (process, _):
        waiting = waiter(2)
        told = waiting.stderr.readline()
        assert "waiting for 2 GPUs" in told
        assert f"process {process.pid}" in told
        assert "spec_rl/grpo-vanilla" in told
        process.send_signal(signal.SIGKILL)
        assert json.loads(waiting.stdout.readline()) == ["0", "1"]
        assert waiting.communicate("\n", timeout=60)[1] == ""
        assert waiting.returncode == 0


def test_devices_are_not_free_before_a_child_that_outlives_its_killed_parent_has_ended(machine):
    machine.setenv(VISIBLE, "0")
    code = HOLD.replace(
        "    print(",
        (
            "    import subprocess\n"
            "    from redraft.ops.locking.devices import lock_descriptors\n"
            "    streams = {'stdin': open(sys.argv[2]), 'stdout': subprocess.DEVNULL}\n"
            "    child = subprocess.Popen(['cat'], pass_fds=lock_descriptors(), start_new_session=True, **streams)\n"
            "    names = [*names, child.pid]\n"
            "    print("
        ),
    )
    pipe = Path(os.environ[module.LOCK_VARIABLE]).parent / "pipe"
    os.mkfifo(pipe)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, "1", str(pipe)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with pipe.open("w"):
        name, _ = json.loads(parent.stdout.readline())
        assert name == "0"
        parent.kill()
        parent.communicate()
        waiting = waiter(1)
        assert "waiting for 1 GPU" in waiting.stderr.readline()
    assert json.loads(waiting.stdout.readline()) == ["0"]
    waiting.communicate("\n", timeout=60)


def test_who_needs_many_is_not_passed_over_by_who_needs_few(machine):
    machine.setenv(VISIBLE, "0,1")
    with holder(1) as (process, _):
        many = waiter(2)
        assert "waiting" in many.stderr.readline()
        few = waiter(1)
        assert "first in turn" in few.stderr.readline()
        process.kill()
        assert json.loads(many.stdout.readline()) == ["0", "1"]
        many.communicate("\n", timeout=60)
        taken = json.loads(few.stdout.readline())
        with devices(1) as other:  # which of the two was free first is chance; neither is lost or given twice
            assert sorted([*taken, *other]) == ["0", "1"]
        few.communicate("\n", timeout=60)


def test_too_few_devices_are_an_error_at_once_even_if_others_hold_them(machine):
    machine.setenv(VISIBLE, "0,1")
    with holder(2), pytest.raises(UserError, match="at most 2"), devices(3, "spec_rl/grpo-vanilla"):
        pass


def test_a_cell_that_needs_more_than_there_is_is_named():
    check_devices({"spec_rl/a": 8, "generate": 1}, 8)
    with pytest.raises(UserError, match="spec_rl/b needs 8 GPUs, but this machine has 2"):
        check_devices({"spec_rl/a": 2, "spec_rl/b": 8}, 2)
    with pytest.raises(UserError, match="needs 1 GPU, but this machine has 0"):
        check_devices({"spec_rl/a": 1}, 0)


def test_who_asks_for_none_sees_none(machine):
    machine.setenv(VISIBLE, "0,1")
    with devices(0) as names:
        assert names == ()
        assert os.environ[VISIBLE] == ""
    assert not Path(os.environ[module.LOCK_VARIABLE]).exists()


def test_a_child_shares_what_its_parent_holds(machine):
    machine.setenv(VISIBLE, "0,1")
    with devices(1) as mine, holder(1) as (_, theirs):
        assert tuple(theirs) == mine == ("0",)
        with pytest.raises(UserError, match="at most 1"), devices(2):
            pass
    assert module.INHERITED not in os.environ
    assert lock_descriptors() == ()


@pytest.mark.parametrize(
    ("listed", "names"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("2,0", ["2", "0"]), ("0, 1,-1,2", ["0", "1"]), ("1,1", ["1"])],
)
def test_visible_devices_are_read_as_cuda_reads_them(machine, listed, names):
    machine.setenv(VISIBLE, listed)
    assert [device.name for device in available()] == names


LISTING = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11aa-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22bb-2)\n"
SPLIT = "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n  MIG 1g.10gb     Device  1: (UUID: MIG-2)\n"


def test_what_nvidia_smi_lists_is_there_unless_less_is_visible(machine):
    machine.setattr(gpus, "_installed", lambda: parse(LISTING))
    assert [device.name for device in available()] == ["0", "1"]
    machine.setenv(VISIBLE, "1")
    assert [(device.name, device.lock) for device in available()] == [("1", "GPU-22bb-2")]


def test_an_index_and_a_uuid_of_one_gpu_have_one_lock(machine):
    machine.setattr(gpus, "_installed", lambda: parse(LISTING))
    machine.setenv(VISIBLE, "1")
    by_index = available()[0].lock
    machine.setenv(VISIBLE, "GPU-22bb")
    assert available()[0].lock == by_index


def test_a_split_gpu_is_its_parts():
    assert parse(SPLIT.join(["", LISTING])) == (("0", "GPU-11aa-1"), ("1", "GPU-22bb-2"))
    first, second = LISTING.splitlines(keepends=True)
    assert parse(first + SPLIT + second) == ((None, "MIG-1"), (None, "MIG-2"), ("1", "GPU-22bb-2"))


def test_nvidia_smi_is_asked(tmp_path, machine):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '%s' '{LISTING}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    command = [sys.executable, "-c", "from redraft.ops.locking.gpus import available; print(len(available()))"]
    for path, count in ((f"{tmp_path}:{os.environ['PATH']}", "2"), (f"{tmp_path}/none", "0")):
        result = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == count


def test_a_slurm_job_has_what_slurm_gave_and_nothing_else(machine):
    machine.setattr(gpus, "_installed", lambda: parse(LISTING))
    machine.setenv("SLURM_JOB_ID", "17")
    with pytest.raises(UserError, match="this machine has 0"), devices(1):
        pass
    machine.setenv("SLURM_JOB_GPUS", "1")
    assert [device.name for device in available()] == ["1"]
    machine.setenv(VISIBLE, "0")
    with devices(1) as names:
        assert names == ("0",)


def test_jobs_of_slurm_wait_for_nobody_outside_but_for_each_other_inside_one_allocation(machine):
    machine.setenv(VISIBLE, "0")
    with holder(1, SLURM_JOB_ID="17"):
        with holder(1, SLURM_JOB_ID="18") as (_, other), holder(1) as (_, outside):
            assert other == outside == ["0"]
        waiting = waiter(1, SLURM_JOB_ID="17")
        assert "waiting" in waiting.stderr.readline()
    assert json.loads(waiting.stdout.readline()) == ["0"]
    waiting.communicate("\n", timeout=60)


def test_a_lock_file_that_was_removed_holds_nobody_off(machine):
    machine.setenv(VISIBLE, "0")
    with devices(1):
        folder = Path(os.environ[module.LOCK_VARIABLE])
        text = (folder / "0.lock").read_text()
        assert f"process {os.getpid()}" in text
    assert (folder / "0.lock").stat().st_mode & 0o777 == 0o666
    assert folder.stat().st_mode & 0o7777 == 0o1777
    (folder / "0.lock").unlink()
    with devices(1) as names:
        assert names == ("0",)


def test_a_link_in_place_of_a_lock_is_never_followed(machine, tmp_path):
    machine.setenv(VISIBLE, "0")
    (tmp_path / "locks").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "locks/0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=module.LOCK_VARIABLE), devices(1):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


@given(st.text(alphabet="GPU-0123/.\\; $'\"\n", min_size=1, max_size=12))
def test_a_device_s_name_never_leaves_the_folder_of_locks(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv(module.LOCK_VARIABLE, str(folder))
        module._lock_devices([Device(name, name)], 1, "", stack)
        assert len(list(folder.iterdir())) == 2


def test_devices_are_given_back_after_an_error(machine):
    machine.setenv(VISIBLE, "0")
    with pytest.raises(ZeroDivisionError), devices(1):
        1 / 0  # noqa: B018
    with holder(1) as (_, names):
        assert names == ["0"]


def test_it_is_too_late_once_cuda_is_in_use(machine):
    used = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    machine.setitem(sys.modules, "torch", used)
    with pytest.raises(RuntimeError, match="ignores changes of CUDA_VISIBLE_DEVICES"), devices(0):
        pass
