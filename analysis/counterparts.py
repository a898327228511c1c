"""Which reported rows no regenerated row stands beside, and why: what a preset leaves of the paper's tables."""

from collections.abc import Mapping

import pandas as pd

from analysis.reported import KEY, reported_key
from analysis.tables import Line, Source, lines_of, lookup
from redraft.config import Experiments, Table
from redraft.errors import UserError

COLUMNS = ["table", *KEY, "cell", "reason"]

NO_ROW = "no row of the regenerated table refers to it"


def without_counterpart(
    tables: Mapping[int, Table], source: Source, reported: Mapping[int, pd.DataFrame]
) -> pd.DataFrame:
    """Every reported row that no line of the regenerated tables with finished runs refers to, with the reason.

    Args:
        tables: the paper's tables by number.
        source: its `reported` is not looked at.
        reported: the reported tables by number.

    Returns:
        One line a reported row, columns as in `COLUMNS`.
    """
    finished = set(source.runs.runs["cell"])
    lines = []
    for number, frame in reported.items():
        table = tables.get(number)
        candidates = lines_of(table, source) if table else []
        taken = {key: line for line in candidates if (key := _key(frame, line, source))}
        for key in frame[KEY].drop_duplicates().itertuples(index=False, name=None):
            cell, reason = _reason(key, taken, candidates, source, finished)
            if reason:
                lines.append((number, *key, cell, reason))
    return pd.DataFrame(lines, columns=COLUMNS)


def _key(frame: pd.DataFrame, line: Line, source: Source) -> tuple[str, ...] | None:
    return reported_key(frame, lookup(source, line.row.cell), line.row.reported, line.share) if line.known else None


def _reason(
    key: tuple[str, ...], taken: Mapping[tuple[str, ...], Line], lines: list[Line], source: Source, finished: set[str]
) -> tuple[str, str | None]:
    """The cell that a reported row is about, and why it has no counterpart; None if it has one."""
    if key in taken:
        cell = taken[key].row.cell
        if cell in finished:
            return cell, None
        return cell, _missing(cell, source)
    for line in lines:
        if not _about(key, line, source):
            continue
        if line.row.cell not in finished:
            return line.row.cell, _missing(line.row.cell, source)
        steps = _steps(source.experiments, source, line.row.cell)
        return line.row.cell, f"no policy at that share of the run ({steps})"
    return "", NO_ROW


def _about(key: tuple[str, ...], line: Line, source: Source) -> bool:
    """Whether a reported row is about a line's cell, at whatever step."""
    frame = pd.DataFrame([key], columns=KEY)
    return line.at != 0 and reported_key(frame, lookup(source, line.row.cell), line.row.reported) is not None


def _missing(cell: str, source: Source) -> str:
    try:
        source.experiments.run(f"{source.paper}/{cell}", 0, source.preset)
    except UserError as error:
        return f"{error.message}: {error.value}"
    return "its cell was not run"


def _steps(experiments: Experiments, source: Source, cell: str) -> str:
    run = experiments.run(f"{source.paper}/{cell}", 0, source.preset)
    return f"evaluated after {', '.join(map(str, run.evaluated_steps))} of {run.steps} steps"


def summary(missing: pd.DataFrame, reported: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """How many reported rows of each table have a counterpart and how many have none, by reason."""
    rows = [(n, len(frame[KEY].drop_duplicates()), int((missing["table"] == n).sum())) for n, frame in reported.items()]
    return pd.DataFrame(
        [(number, total, total - without, without) for number, total, without in rows],
        columns=["table", "reported rows", "with counterpart", "without"],
    )
