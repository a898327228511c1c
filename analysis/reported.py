"""What the papers report, transcribed: `experiments/<paper>/reported/table<NN>.csv`, long format."""

import io
from fractions import Fraction
from pathlib import Path

import pandas as pd

from redraft.config import Cell, format_lenience
from redraft.errors import UserError

HEADER = ["model", "dataset", "algorithm", "method", "lenience", "step", "gen_step", "column", "value"]
KEY = HEADER[:-2]
"""What names a row of a reported table."""
METHODS = {"vanilla": "vanilla", "speculative": "spec-rl", "random": "random-reuse", "delayed": "delayed-reuse"}
"""A method's kind, and what the transcriptions call it; of others the paper reports nothing."""
BASE = {"algorithm": "", "method": "base", "lenience": ""}
"""How the transcriptions name the initial policy of a model."""
STEPS = {"deepmath-6k": 90, "simplerl-8k": 100}
"""Steps, or generation steps, of a whole run on each data set (Appendix A.1): the reported rows' share of a run."""


def read_reported(folder: Path, number: int) -> pd.DataFrame:
    """A reported table, `value` as float, everything else as text.

    Raises:
        UserError: if the file is missing or cut off, has another header, or a value is not a number.
    """
    file = folder / "reported" / f"table{number:02d}.csv"
    try:
        text = file.read_text(encoding="utf-8")
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError("this reported table is missing", file=file) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"this reported table is damaged ({error})", file=file) from None
    if list(frame.columns) != HEADER:
        raise UserError("wrong header", file=file, value=",".join(frame.columns), allowed=",".join(HEADER))
    values = pd.to_numeric(frame["value"], errors="coerce")
    if values.isna().any():
        line = int(values.isna().to_numpy().argmax()) + 2
        raise UserError(
            f"the value in line {line} is not a number", file=file, key="value", value=frame["value"][line - 2]
        )
    # Every row of a table is written with the same last column, so that a file cut at a line's end shows as well.
    last = frame.groupby(KEY, sort=False)["column"].last()
    if not text.endswith("\n") or last.nunique() > 1:
        raise UserError("this reported table is cut off", file=file, key="line", value=len(frame) + 1)
    return frame.assign(value=values)


def no_reported() -> pd.DataFrame:
    """What the paper reports in a table that it does not have."""
    return pd.DataFrame(columns=HEADER).astype({"value": float})


def reported_row(
    frame: pd.DataFrame, cell: Cell, override: dict[str, str] | None = None, at: Fraction | None = None
) -> dict[str, float]:
    """The reported values of a cell, by column; empty if the table has no such row.

    Args:
        override: fields that select the row where they differ from the cell's own.
        at: share of the run that is done, 0 being the initial policy. By default the table's last row of the cell.
    """
    key = reported_key(frame, cell, override, at)
    if key is None:
        return {}
    values = zip(_keys(frame), frame["column"].tolist(), frame["value"].tolist(), strict=True)
    return {column: value for of, column, value in values if of == key}


def reported_key(
    frame: pd.DataFrame, cell: Cell, override: dict[str, str] | None = None, at: Fraction | None = None
) -> tuple[str, ...] | None:
    """Which row of the table `reported_row` takes, as values of `KEY`; None if there is none.

    A row at another share of the run never stands in.
    """
    if cell.reuse.kind not in METHODS:
        return None
    selected = {
        "model": cell.model,
        "dataset": cell.data,
        "algorithm": cell.algorithm.kind,
        "method": METHODS[cell.reuse.kind],
        "lenience": format_lenience(cell.reuse.lenience) if hasattr(cell.reuse, "lenience") else "",
    }
    selected |= (BASE if at == 0 else {}) | (override or {})
    places = {KEY.index(name): value for name, value in selected.items()}
    rows = [key for key in dict.fromkeys(_keys(frame)) if all(key[i] == value for i, value in places.items())]
    if at:
        # DAPO's budget is one of generation steps, so that they say how much of a run is done.
        clock = KEY.index("gen_step" if selected["algorithm"] == "dapo" else "step")
        rows = [key for key in rows if key[clock] == str(at * STEPS.get(selected["dataset"], 0))]
    return max(rows, key=lambda key: int(key[KEY.index("step")] or 0), default=None)


def _keys(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The row that each line belongs to."""
    return list(zip(*(frame[name].tolist() for name in KEY), strict=True))
