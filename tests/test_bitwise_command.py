"""The command that checks on a GPU whether answers depend on the batch, tried on a processor."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import bitwise
from tests.checkout import ROOT


def called(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["bitwise", *map(str, arguments)])
    return bitwise.main(), capsys.readouterr().out


def test_the_in_process_engine_has_the_same_bits_in_any_batch(monkeypatch, capsys):
    code, printed = called(monkeypatch, capsys, "--batches", 6, "--sessions", 4)
    assert code == 0
    assert " 0 of " in printed
    assert "differ from those alone" in printed


def test_without_the_option_the_command_finds_the_difference(monkeypatch, capsys):
    engine = bitwise.TorchEngine
    monkeypatch.setattr(bitwise, "TorchEngine", lambda *a, **k: engine(*a, **k | {"bitwise": False}))
    code, printed = called(monkeypatch, capsys, "--batches", 6, "--sessions", 6)
    assert code == 1
    assert "nats at most" in printed


@pytest.mark.servers
def test_vllm_is_served_the_same_sessions_with_a_cache_that_preempts():
    """vLLM's build for processors promises nothing, so only that the command runs to its end."""
    command = [sys.executable, "-m", "benchmarks.bitwise", "--engine", "vllm", "--batches", "4", "--sessions", "6"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr[-2000:]
    assert "4 batches of up to 6 sessions" in result.stdout


def test_differences_are_counted_by_session():
    one, other = np.zeros(2, np.float32), np.array([0, 1e-7], np.float32)
    tokens = np.array([1, 2], np.int32)
    assert bitwise.different({0: [one, tokens], 1: [one, tokens]}, {0: [one, tokens], 1: [other, tokens]}) == (
        1,
        pytest.approx(1e-7),
    )
    assert bitwise.different({0: [one, tokens]}, {0: [one, tokens[:1]]}) == (1, 0.0)


def test_records_of_two_runs_are_compared_without_how_they_were_computed(monkeypatch, capsys, tmp_path):
    def run(name, **changes):
        (tmp_path / name).mkdir()
        lines = [{"step": i, "reward": 0.5, "seconds": {"rollout": i}} | changes for i in range(2)]
        (tmp_path / name / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    one = run("one")
    same, printed = called(monkeypatch, capsys, "--records", one, run("other", seconds={"rollout": 9.0}))
    assert (same, printed) == (0, "0 of 2 steps differ; 2 and 2 steps are recorded\n")
    differs, printed = called(monkeypatch, capsys, "--records", one, run("third", reward=0.25))
    assert (differs, printed.splitlines()[0]) == (1, "step 0: reward")
