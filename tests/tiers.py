"""The two tiers of tests: only tests marked `servers` start vLLM, Ray for verl, a Slurm, lighteval or TRL, resolve
packages from an index, or run the campaign of the papers that no other test needs.

`make test` runs the others, from the main environment alone. An unmarked test runs with variables under which vLLM and
Ray refuse to start, in its own process and in every process that it starts; the error names the marker. Slurm,
lighteval and TRL have no such variable: the collection of tests refuses an unmarked test in a file that names them.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

MARKER = "servers"
REFUSED = {name: f"refused-to-tests-without-the-marker-{MARKER}" for name in ("VLLM_PORT", "RAY_ADDRESS")}
"""Values that are neither a port nor an address."""
NAMED = re.compile(r"\.venv-(lighteval|trl|vllm-of-gpu)\b|\btests\.(slurm|verl_runs)\b")
"""Names in test files that start lighteval, TRL or a Slurm, or use the set-up for training under verl."""


@contextmanager
def tier_of(item: pytest.Item) -> Iterator[None]:
    """Refuse vLLM and Ray to a test, its fixtures and their processes, unless it is marked."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in REFUSED.items():
            if not item.get_closest_marker(MARKER):
                environment.setenv(name, value)
        yield


def check_marks(items: Iterable[pytest.Item]) -> None:
    """Refuse a collection in which an unmarked test stands in a file that starts servers.

    Raises:
        pytest.UsageError: if there is one.
    """
    unmarked = {item.path: item.nodeid for item in items if not item.get_closest_marker(MARKER)}
    for path, test in unmarked.items():
        if named := NAMED.search(path.read_text(encoding="utf-8")):
            raise pytest.UsageError(f"{test}: its file names {named[0]}; mark it `{MARKER}` or move it to another file")
