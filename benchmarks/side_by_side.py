"""Timing on a noisy machine: alternatives run in turn; medians are compared, also between commits.

Machines differ, so `figures.json` keeps multiples: the seconds of each alternative in a round over those of its
benchmark's first one in the same round, as median, minimum and maximum of the rounds. An alternative is slower if its
minimum now is above its maximum then. Matrix units change multiples as well (bfloat16 takes half the time of float32
with them and many times it without), so each kind of processor has its own figures.
"""

import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.provenance import machine

KINDS = {"AMX": "amx", "AVX-512": "avx512", "neither": ""}
"""Beginning of the instruction sets by which a kind of processor is known; a processor is of the first kind that fits.
Figures of machines whose instruction sets were not recorded are of the kind `UNKNOWN`, with which none is compared."""
UNKNOWN = "unknown"
FILE = Path(__file__).with_name("figures.json")
ROUNDS = 7
MEASURED: dict[str, dict[str, list[float]]] = {}
"""Seconds of each round, of all that this process measured, by title and alternative."""


def seconds(
    title: str,
    alternatives: dict[str, Callable[[], object]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Measure the seconds of each alternative, once per round, after a warm-up round.

    The title says what is measured, and of what size; the first alternative is what others are compared with.

    CPU seconds (`time.process_time`) depend less on other load of the machine. They suit work in this process on one
    thread.

    Returns:
        Seconds of each round by alternative.
    """
    measured: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(rounds + 1):
        for name, function in alternatives.items():
            began = clock()
            function()
            if number:
                measured[name].append(clock() - began)
    MEASURED[title] = measured
    return measured


def line(name: str, values: list[float], unit: str = "s") -> str:
    """A line with median, minimum and maximum."""
    return f"  {name:<44} {statistics.median(values):10.3f} {unit}  [{min(values):.3f}, {max(values):.3f}]"


def ratio(first: list[float], second: list[float]) -> float:
    """Median over rounds of the ratio first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


Multiples = dict[str, dict[str, list[float]]]
"""Median, least and most by title and alternative."""


def multiples(measured: dict[str, dict[str, list[float]]]) -> Multiples:
    """Multiples of the first alternative, of the seconds of all rounds by title and alternative."""
    return {
        title: {name: _of(values, next(iter(of.values()))) for name, values in of.items()}
        for title, of in measured.items()
    }


def _of(values: list[float], first: list[float]) -> list[float]:
    shares = [a / b for a, b in zip(values, first, strict=True)]
    return [round(number, 4) for number in (statistics.median(shares), min(shares), max(shares))]


def changes(now: Multiples, then: Multiples) -> Iterator[str]:
    """A line for each alternative that is slower or faster than the noise of both runs explains."""
    for title, alternatives in now.items():
        for name, (median, least, most) in alternatives.items():
            before = then.get(title, {}).get(name)
            if before is None:
                continue
            word = "slower" if least > before[2] else "faster" if most < before[1] else None
            if word:
                yield (
                    f'{word}: {title}, {name}: {median:.2f} [{least:.2f}, {most:.2f}] of "{next(iter(alternatives))}", '
                    f"was {before[0]:.2f} [{before[1]:.2f}, {before[2]:.2f}]"
                )


def kind_of(instructions: str) -> str:
    """Kind of a processor with these instruction sets (`redraft.provenance.machine`)."""
    return next(
        kind for kind, start in KINDS.items() if any(name.startswith(start) for name in instructions.split(" "))
    )


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Committed records by kind of processor and title; empty without a file.

    Raises:
        UserError: if there is another kind, or a record whose machine is of another kind than the one it is under.
    """
    committed = json.loads(file.read_text()) if file.exists() else {}
    for kind, records in committed.items():
        if kind not in (*KINDS, UNKNOWN):
            raise UserError("no such kind of processor", file=file, key=kind, allowed=", ".join((*KINDS, UNKNOWN)))
        for title, record in records.items():
            found = kind_of(instructions) if (instructions := record["machine"].get("instructions")) else kind
            if found != kind:
                raise UserError(f"the machine is of the kind {found}", file=file, key=f"{kind}, {title}")
    return committed


def compare(now: Multiples, file: Path = FILE) -> str:
    """What the committed figures of this kind of processor say of these, with when and where those were measured."""
    if not now:
        return "these benchmarks have no figures to compare"
    kind, every = kind_of(machine()["instructions"]), read(file)
    committed = every.get(kind, {})
    then = {title: record["multiples"] for title, record in committed.items()}
    known = [name in then.get(title, {}) for title, of in now.items() for name in of]
    if not any(known):
        others = ", ".join(other for other in every if other != kind) or "none"
        return (
            f"{file.name} has none of these figures for this kind of processor ({kind}; kinds with figures: {others}); "
            "`python -m benchmarks --write` adds them"
        )
    found = list(changes(now, then))
    records = (committed[title] for title in now if title in committed)
    origins = dict.fromkeys(f"{record['date']} ({record['machine']['processor']})" for record in records)
    head = (
        f"{sum(known)} of {len(known)} figures beside those of this kind of processor ({kind}), {', '.join(origins)}: "
    )
    return head + ("\n  ".join(["", *found]) if found else "none has changed by more than the noise of both runs")


def write(now: Multiples, file: Path = FILE) -> None:
    """Replace the committed figures of this kind of processor by these; others stay, with their origin."""
    known = {key: value for key, value in machine().items() if key != "system"}
    origin = {"date": datetime.date.today().isoformat(), "machine": known}
    committed = read(file)
    committed.setdefault(kind_of(known["instructions"]), {}).update(
        (title, {**origin, "multiples": of}) for title, of in now.items()
    )
    file.write_text(text_of(committed))


def text_of(committed: dict[str, dict[str, Any]]) -> str:
    """JSON with one line for each record."""
    kinds = []
    for kind in (*KINDS, UNKNOWN):
        records = committed.get(kind, {}).items()
        lines = (f"{json.dumps(title)}: {json.dumps(record)}" for title, record in records)
        if records:
            kinds.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"
