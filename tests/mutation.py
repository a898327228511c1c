"""Mutation score of the core, by mutmut on a fixed random sample: `make mutation [N=50] [SEED=0]`.

`[tool.mutmut]` of `pyproject.toml` says what the core is and which tests count. A mutant runs the tests that called its
function, in a fork of a process that has loaded them. docs/tests.md has the score and a judgement of each survivor.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from scipy.stats import binomtest

MADE = Path("mutants")
"""mutmut's folder, relative to the repository: changed sources, a copy of the tests, which tests call what."""
FOUND = ("killed", "timeout")
MUTMUT = (sys.executable, "-m", "mutmut")


def sample(names: Iterable[str], count: int, seed: int) -> list[str]:
    """The mutants with the least hashes: a larger sample contains a smaller one, and changed code leaves the rest."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count]


def report(statuses: dict[str, str]) -> str:
    """The score with Wilson's 95 % interval, and how many there are of each kind.

    Args:
        statuses: mutmut's words by the mutants' names.
    """
    found = sum(status in FOUND for status in statuses.values())
    low, high = binomtest(found, len(statuses)).proportion_ci(method="wilson")
    kinds = ", ".join(f"{count} {status}" for status, count in Counter(statuses.values()).most_common())
    return f"{found} of {len(statuses)} mutants found, {found / len(statuses):.1%} [{low:.1%}, {high:.1%}]: {kinds}"


def make_mutants() -> None:
    """Write all mutants of the core to mutmut's folder, those of changed files again."""
    from mutmut.__main__ import create_mutants
    from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir

    MADE.mkdir(exist_ok=True)
    shutil.rmtree(MADE / "tests", ignore_errors=True)  # those that are gone would run still
    copy_src_dir()
    copy_also_copy_files()
    create_mutants(1)


def verdicts() -> Iterator[tuple[str, str]]:
    """Names and statuses of all mutants."""
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    for path in walk_mutatable_files():
        file = MADE / f"{path}.meta"
        for name, code in json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            yield name, status_by_exit_code[code]


def main() -> None:
    """Make the mutants, try a sample, and print the changes that nothing noticed, and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    asked = parser.parse_args()
    make_mutants()
    chosen = sample((name for name, _ in verdicts()), asked.n, asked.seed)
    if subprocess.run([*MUTMUT, "run", "--max-children", "1", *chosen], check=False).returncode:
        sys.exit("mutmut could not run; without a mutant all tests have to pass")
    statuses = {name: status for name, status in verdicts() if name in chosen}
    for name in sorted(chosen):
        if statuses[name] not in FOUND:
            print(f"\n{statuses[name]}: {name}", flush=True)
            subprocess.run([*MUTMUT, "show", name], check=True)
    print("\n" + report(statuses))


if __name__ == "__main__":
    main()
