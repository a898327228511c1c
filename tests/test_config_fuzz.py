"""Mutated configuration files: each is read, or refused by one message with its file and key; none ends in a traceback.

REDRAFT_FUZZ=10000 tries that many instead of a sample.
"""

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from redraft.analysis.cost.campaign_cost import costs_of
from redraft.config import Experiments, load, run_fingerprint
from redraft.config.read import read_yaml
from redraft.config.requests import request_of
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.ops.workflow import status
from tests.config_fuzzer import mutants

ROOT = Path(__file__).parents[1]
COUNT = int(os.environ.get("REDRAFT_FUZZ", "150"))
SEED = 34
WITHOUT_KEY = (
    "not valid YAML",
    "not UTF-8",
    "nested more than",
    "nested too deeply",
    "aliases (*) expand",
    "no such file",
)
LONGEST = 10.0
"""Processor seconds that a file may take."""
LONGEST_TEXT = 20_000
"""Characters of a message."""
KEPT = os.environ.get("REDRAFT_FUZZ_KEPT")
"""Copy of a file that ends in a traceback."""


def use(root, file):
    """Read all that depends on a file, and what commands make of it."""
    experiments = Experiments(root)
    _, folder, *_ = file.split("/")
    if folder in ("presets", "benchmarks.yaml"):
        papers, presets = {"spec_rl", "ar3po"}, [Path(file).stem] if folder == "presets" else ["tiny", "paper"]
    else:
        papers, presets = {folder}, ["tiny"]
    for name in presets:
        preset = experiments.preset(name)
        for paper in sorted(papers & set(preset.default)):
            experiments.preset_of(name, paper)
            grids = experiments.default_grids(preset, paper)
            cells = experiments.cells(paper, grids)
            for cell in cells[:3]:
                if not experiments.misfit(cell.id, name):
                    run = experiments.run(cell.id, 0, name)
                    yaml.dump(run.model_dump(mode="json"), Dumper=yaml.CSafeDumper)
                    run_fingerprint(run)
                    experiments.seeds(cell, preset)
            costs_of(cells[:2], experiments, preset, Layout(name, root / "results"))
            for stage in ("train", "evaluate", "grade"):
                request_of(stage, preset)
        status.target(Layout(name, root / "results"), experiments)
    for paper in papers:
        for part in (experiments.tables, experiments.figures, experiments.claims, experiments.reported):
            part(paper)
        experiments.observed_cell(paper)


def refusal(root, file, kept):
    """The error of reading a file and all that depends on it; None if it is read.

    Raises:
        AssertionError: for any other exception; the file is copied to `kept`.
    """
    try:
        use(root, file)
    except UserError as error:
        return error
    except Exception as error:
        shutil.copy(root / file, kept)
        raise AssertionError(f"{file} ends in {type(error).__name__}; it is in {kept}") from error
    return None


@pytest.fixture
def root(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "read_yaml", reading_once())
    return tmp_path


def reading_once():
    """`read_yaml` that parses the original files once."""
    parsed = {}

    def read(file):
        original = ROOT / "experiments" / file.absolute().as_posix().partition("/experiments/")[2]
        if not (file.is_file() and original.is_file() and file.read_bytes() == original.read_bytes()):
            return read_yaml(file)
        if file not in parsed:
            parsed[file] = read_yaml(file)
        return parsed[file]

    return read


def test_no_mutated_file_ends_in_a_traceback(root):
    found = Counter()
    for number, (file, content) in enumerate(mutants(SEED, COUNT)):
        path, began = root / file, time.process_time()
        path.write_bytes(content)
        error = refusal(root, file, KEPT or root / "mutant.yaml")
        shutil.copy(ROOT / file, path)
        found["read" if error is None else "refused"] += 1
        if error is not None:
            text = f"mutant {number} of {file}: {error}"
            assert error.file is not None, text
            assert error.key or any(words in error.message for words in WITHOUT_KEY), text
            assert len(text) < LONGEST_TEXT, f"mutant {number} of {file}"
        assert time.process_time() - began < LONGEST, f"mutant {number} of {file}"
    print(dict(found))
    assert found["refused"] > 0.3 * COUNT
