"""Fixtures and hooks of all tests. Tests compute on one thread: for such small models a second one only waits."""

import gc
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; subprocesses inherit it
os.environ.pop("COLUMNS", None)  # of whoever calls; a test that is about a width sets its own
os.environ["HF_HUB_OFFLINE"] = "1"  # likewise before huggingface_hub

import pytest
from hypothesis import settings

from redraft.cli.app import main
from tests.checkout import ROOT, finished_campaign
from tests.forked_commands import forked_commands
from tests.tiers import check_marks, tier_of

settings.register_profile("redraft", deadline=None)  # a loaded machine is no failure
settings.load_profile("redraft")

gc.disable()  # until all tests are collected, as in redraft.cli.process
# Compiled files are kept, also where the environment says not to: else each process compiles what it imports again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser):
    parser.addoption(
        "--fork-commands",
        action="store_true",
        help="run commands in tests as forks of one process that has loaded the libraries",
    )


def pytest_configure(config):
    """Start the process before the workers, which inherit its address and which it loads beside."""
    if config.getoption("fork_commands") and not hasattr(config, "workerinput"):
        served = ExitStack()
        config.add_cleanup(served.close)
        served.enter_context(forked_commands(Path(served.enter_context(TemporaryDirectory()))))


@pytest.fixture
def folder(tmp_path):
    """A folder with a copy of the repository's experiments, without cells of one's own."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("own"))
    return tmp_path


@pytest.fixture
def mistake(monkeypatch, capsys):
    """Call `redraft` with a mistake, in this process and a folder; the message that it ends in, as one line."""

    def call(folder, *arguments):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        assert end.value.code == 2
        text = capsys.readouterr().err
        assert "error:" in text
        assert "Traceback" not in text
        return " ".join(text.split())

    return call


@pytest.fixture(scope="session")
def campaign(tmp_path_factory, worker_id):
    """Folder of a finished campaign of the smoke preset, made once for all workers; it is read, or copied first."""
    base = tmp_path_factory.getbasetemp()
    return finished_campaign((base if worker_id == "master" else base.parent) / "campaign")


LONGEST = (
    "test_verl",
    "test_workflow",
    "test_quickstart",
    "test_slurm",
    "test_slurm_new_user",
    "test_other_papers",
    "test_trainer",
    "test_workstation",
    "test_verl_config",
    "test_environments",
    "test_faults",
    "test_paper_preset",
    "test_lm_eval",
    "test_security",
    "test_figures",
    "test_self_speculation",
    "test_evaluate_command",
    "test_graders",
    "test_freeze",
    "test_cli",
    "test_instructions",
    "test_selfspec_fit",
    "test_engines",
)
"""Test files that start first, in this order, so that no worker waits for them at the end."""
LAST = ("test_vllm_speculation",)
"""After all others: n-grams load numba, and the installed vLLM can make no other engine in a process that has it."""


def pytest_collection_modifyitems(items):
    check_marks(items)
    order = {name: i for i, name in enumerate(LONGEST)} | {name: len(LONGEST) + 1 + i for i, name in enumerate(LAST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with tier_of(item):  # not a fixture, since those of wider scopes come before any that is one test's
        return (yield)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder of a model with a few thousand parameters that answers each problem of data/coin_problems.jsonl by 1 or 2.

    It writes a random digit and letter first, so that responses differ, end, and are right half of the time.
    """
    import numpy as np
    import torch

    from redraft.config import TinyModel
    from redraft.tasks.tokenizer import make_tokenizer
    from redraft.train import models

    tokenizer = make_tokenizer()
    shape = TinyModel(hidden_size=16, layers=1, heads=2, head_dim=8, intermediate_size=32)
    model = models.initialise(shape, tokenizer)
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=0.02), np.random.default_rng(0)
    for _ in range(60):
        drawn = zip(*(rng.integers(0, n, 32) for n in (8, 10, 8, 2)), strict=True)
        texts = [f"{i}{'abcdefgh'[i]}={d}{'abcdefgh'[j]};\\boxed{{{1 + k}}}<eos>" for i, d, j, k in drawn]
        tokens = torch.tensor(tokenizer(texts)["input_ids"])
        loss = torch.nn.functional.cross_entropy(model(input_ids=tokens).logits[:, 2:-1].mT, tokens[:, 3:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def hangup():
    """SIGHUP ends processes, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
