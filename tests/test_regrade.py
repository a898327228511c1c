"""Grading of published samples again: `redraft regrade`."""

import tarfile

import pandas as pd
import pytest

from redraft.errors import UserError
from redraft.evaluate.regrade import regrade
from redraft.files import hashes, read_json, write_json
from tests.checkout import ROOT, called

SAMPLES = ROOT / "results/reference"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A function that unpacks the sample of a published paper, and returns the run's folder."""

    def unpack(preset, paper="spec_rl"):
        folder = tmp_path_factory.mktemp(preset)
        with tarfile.open(SAMPLES / preset / f"samples/{paper}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        (manifest,) = folder.rglob("manifest.json")
        return manifest.parent

    return unpack


@pytest.mark.parametrize(("preset", "responses"), [("smoke", 120), ("smol", 500)])
def test_verdicts_and_scores_of_a_published_sample_are_made_again(unpacked, preset, responses):
    again = regrade(unpacked(preset))
    assert (again.equal, again.responses) == (True, responses)


def test_the_command_of_the_artifact_s_page_grades_a_sample_again(tmp_path):
    page = (ROOT / "docs/artifact.md").read_text(encoding="utf-8")
    (command,) = [line for line in page.split("`") if line.startswith("mkdir") and "redraft regrade" in line]
    command = command.replace("build/sample", str(tmp_path)).replace("/tiny/", "/smoke/")
    result = called(ROOT, "bash", "-euc", command)
    assert result.returncode == 0, result.stderr
    assert "120 responses" in result.stdout
    assert "all verdicts and scores are the recorded ones" in " ".join(result.stdout.split())


def record(folder):
    """Record the grades and scores in a folder as those that were made."""
    file = folder / "grades.json"
    write_json(file, read_json(file) | {"sha256": hashes(folder / "grades.parquet", folder / "scores.json")})


def test_another_verdict_or_score_is_found(unpacked):
    folder = unpacked("smoke")
    grades = pd.read_parquet(folder / "grades.parquet")
    changed = grades.index[grades["outcome"] == "wrong"][3]
    grades.loc[changed, "outcome"] = "correct"
    grades.to_parquet(folder / "grades.parquet", index=False)
    record(folder)
    again = regrade(folder)
    (difference,) = again.differences
    assert (difference["outcome"], difference["outcome_now"], again.equal) == ("correct", "wrong", False)
    assert difference["problem"] == grades["problem"][changed]
    assert again.scores_equal
    result = called(ROOT, "redraft", "regrade", str(folder))
    assert result.returncode == 1
    assert "120 responses" in result.stdout
    assert "1 differ" in " ".join(result.stdout.split())

    folder = unpacked("smoke")
    scores = read_json(folder / "scores.json")
    of = next(iter(next(iter(scores.values())).values()))
    of["correct"] += 1
    write_json(folder / "scores.json", scores)
    record(folder)
    assert (regrade(folder).differences, regrade(folder).scores_equal) == ([], False)


def test_a_sample_without_generations_or_with_others_is_refused(unpacked):
    folder = unpacked("smoke")
    generations = folder / "generations.parquet"
    frame = pd.read_parquet(generations)
    frame.loc[0, "text"] += " "
    frame.to_parquet(generations)
    with pytest.raises(UserError, match=r"generations\.parquet"):
        regrade(folder)
    generations.unlink()
    with pytest.raises(UserError, match="no generations to grade"):
        regrade(folder)
