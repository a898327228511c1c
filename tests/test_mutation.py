"""The sample of mutants and its score, without mutmut."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.mutation import report, sample

ROOT = Path(__file__).parents[1]
NAMES = [f"package.module.x_function__mutmut_{number}" for number in range(500)]


def test_a_sample_is_fixed_nested_and_stays_where_other_mutants_go():
    small, large = (sample(reversed(NAMES), count, 0) for count in (50, 100))
    assert small == sample(NAMES, 50, 0) == large[:50]
    assert set(sample(NAMES, 50, 1)) != set(small)
    assert sample(set(NAMES) - {large[7]}, 99, 0) == [name for name in large if name != large[7]]


def test_a_sample_is_uniform():
    """Over 400 seeds: each mutant is in a tenth of the samples, with a standard deviation of 6."""
    counts = [sum(name in sample(NAMES[:50], 5, seed) for seed in range(400)) for name in NAMES[:50]]
    assert sum(counts) == 5 * 400
    assert max(abs(count - 40) for count in counts) < 25


def test_the_report_says_score_interval_and_kinds():
    statuses = dict(zip(NAMES, ["killed"] * 40 + ["timeout"] * 2 + ["survived"] * 5 + ["no tests"] * 3, strict=False))
    assert report(statuses) == (
        "42 of 50 mutants found, 84.0% [71.5%, 91.7%]: 40 killed, 5 survived, 3 no tests, 2 timeout"
    )


@pytest.mark.parametrize("key", ["only_mutate", "do_not_mutate", "also_copy", "source_paths"])
def test_what_mutmut_is_told_exists(key):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    assert all((ROOT / path.removesuffix("/*")).exists() for path in settings[key])


def test_files_that_mutmut_leaves_out_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    names = [file.as_posix() for file in (ROOT / "tests").glob("test_*.py")]
    for option in settings["pytest_add_cli_args_test_selection"][1:]:
        assert any(fnmatch(name, option.removeprefix("--ignore-glob=")) for name in names), option
