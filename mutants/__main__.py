"""`python -m mutants [package, folder or file ...]`: try every fault; a score by package and what survives."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from mutants.faults import Fault, faults
from mutants.trial import FORK, Outcome, copy_tree, load_libraries, run_tests, trial

ENOUGH = 0.95
"""Share of faults that must be found."""
_COPY: list[Path] = []


def main() -> int:
    """Exit code: 0 if enough faults are found."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("chosen", nargs="*", help="packages, folders or files; all if none")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    arguments = parser.parse_args()
    chosen = faults(arguments.chosen)
    load_libraries()
    with TemporaryDirectory(prefix="mutants-") as folder:
        sound = copy_tree(Path(mkdtemp(dir=folder)))
        if not _sound(chosen, sound):
            return 2
        found = {}
        began = time.perf_counter()
        for fault, outcome in _outcomes(chosen, sound, arguments.jobs):
            found[fault] = outcome
            print(f"{time.perf_counter() - began:6.0f} s  {outcome:8}  {fault.file}: {fault.what}", flush=True)
    print("\n" + report(found))
    return 0 if score(found) >= ENOUGH else 1


def _sound(chosen: Sequence[Fault], copy: Path) -> bool:
    """Whether the tests pass where nothing is wrong: only then a failure says that a fault was found."""
    tests = tuple(dict.fromkeys(test for fault in chosen for test in fault.tests))
    if run_tests(tests, copy, seconds=3600) == 0:
        return True
    print((copy / "output").read_text(encoding="utf-8")[-3000:], "\nthese tests fail without a fault", file=sys.stderr)
    return False


def _outcomes(chosen: Sequence[Fault], sound: Path, jobs: int) -> Iterator[tuple[Fault, Outcome]]:
    with ProcessPoolExecutor(jobs, mp_context=FORK, initializer=_prepare, initargs=(sound,)) as pool:
        yield from zip(chosen, pool.map(_try, chosen), strict=True)


def _prepare(sound: Path) -> None:
    """A process's own copy of the tree, with what was compiled in the sound one."""
    _COPY.append(copy_tree(Path(mkdtemp(dir=sound.parent)), sound))
    (_COPY[0] / "compiled").touch()


def _try(fault: Fault) -> Outcome:
    return trial(fault, _COPY[0])


def score(found: dict[Fault, Outcome]) -> float:
    """Share of the faults that were found."""
    return sum(outcome is Outcome.FOUND for outcome in found.values()) / len(found)


def report(found: dict[Fault, Outcome]) -> str:
    """A line a package, and a line a fault that was not found."""
    packages = dict.fromkeys(fault.package for fault in found)
    parts = {name: {fault: o for fault, o in found.items() if fault.package == name} for name in packages}
    lines = [_line(name, part) for name, part in parts.items()] + [_line("all", found)]
    missed = [f"{o}: {f.file}: {f.what} ({' '.join(f.tests)})" for f, o in found.items() if o is not Outcome.FOUND]
    return "\n".join([*lines, *missed])


def _line(name: str, found: dict[Fault, Outcome]) -> str:
    count = sum(outcome is Outcome.FOUND for outcome in found.values())
    return f"{name:10} {count:4} of {len(found):4} found, {score(found):.1%}"


if __name__ == "__main__":
    sys.exit(main())
