"""The command: what it prints, and that a mistake is one message with exit code 2 and no traceback."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path


def redraft(folder, *arguments):
    return subprocess.run(["redraft", *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_list_names_every_cell(folder):
    result = redraft(folder, "list")
    assert result.returncode == 0
    assert "spec_rl/grpo-vanilla" in result.stdout
    assert len(result.stdout.splitlines()) == 7


def test_show_prints_a_complete_run(folder):
    result = redraft(folder, "show", "spec_rl/grpo-spec-l0.5", "--seed", "3")
    shown = yaml.safe_load(result.stdout)
    assert (shown["seed"], shown["method"], shown["trainer"]["group_size"]) == (
        3,
        {"kind": "speculative", "lenience": "e^0.5"},
        4,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "spec_rl/grpo-spec-l9"], ["no such cell", "spec_rl/grpo-spec-l0.5"]),
        (["show", "spec_rl/grpo-vanilla-l2"], ["excluded", "no draft"]),
        (["show", "spec_rl/grpo-vanilla", "--preset", "huge"], ["huge.yaml", "no such file", "tiny"]),
        (["show", "spec_rl/grpo-vanilla", "--seed", "-1"], ["seed", "-1"]),
        (["run", "spec_rl/grpo-vanilla", "--seed", "1", "--seed", "1"], ["twice", "--seed", "1"]),
        (["run", "spec_rl/grpo-vanilla-l2"], ["excluded"]),
        (["compare", "spec_rl/grpo-vanilla", "spec_rl/grpo-spec-l0"], ["not finished", "redraft run"]),
        (["stage", "table", "tiny", "spec_rl", "3"], ["runs.parquet", "missing"]),
        (["stage", "grade", "tiny", "nothing.parquet", "scores.json"], ["nothing.parquet", "missing"]),
        (["stage", "diversity", ".", "0", "out.parquet"], ["rollouts", "no saved rollouts"]),
        (["stage", "train", "tiny", "spec_rl/grpo-vanilla", "0", "no-model", "out"], ["no-model", "no model"]),
        (["stage", "model", "tiny", "gpt-9", "out"], ["gpt-9", "qwen3-1.7b-base"]),
    ],
)
def test_a_mistake_is_one_message(folder, arguments, words):
    result = redraft(folder, *arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in ["error:", *words]), result.stderr


def test_no_space_left_is_one_message_and_keeps_what_was_there(tmp_path, monkeypatch):
    import errno

    from redraft.errors import UserError
    from redraft.files import write_atomically

    file = tmp_path / "scores.json"
    write_atomically(file, "old")

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="no space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
