"""What the papers report, transcribed: `experiments/<paper>/reported/table<NN>.csv`, long format."""

import io
from pathlib import Path

import pandas as pd

from redraft.config import Cell, Speculative, format_lenience
from redraft.errors import UserError

HEADER = ["model", "dataset", "algorithm", "method", "lenience", "step", "gen_step", "column", "value"]
METHODS = {"vanilla": "vanilla", "speculative": "spec-rl"}
"""A method's kind, and what the transcriptions call it."""


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
    last = frame.groupby(HEADER[:-2], sort=False)["column"].last()
    if not text.endswith("\n") or last.nunique() > 1:
        raise UserError("this reported table is cut off", file=file, key="line", value=len(frame) + 1)
    return frame.assign(value=values)


def reported_row(frame: pd.DataFrame, cell: Cell, override: dict[str, str] | None = None) -> dict[str, float]:
    """The reported values of a cell, by column; empty if the table has no such row.

    Where a table has several steps of it, the last one counts.
    """
    method = cell.method
    key = {
        "model": cell.model,
        "dataset": cell.data,
        "algorithm": cell.algorithm.kind,
        "method": METHODS[method.kind],
        "lenience": format_lenience(method.lenience) if isinstance(method, Speculative) else "",
    } | (override or {})
    chosen = frame[(frame[list(key)] == pd.Series(key)).all(axis=1)]
    if chosen.empty:
        return {}
    steps = chosen["step"].astype(int)
    return dict(zip(chosen["column"], chosen["value"], strict=True)) if steps.nunique() == 1 else dict(
        chosen[steps == steps.max()][["column", "value"]].itertuples(index=False)
    )  # fmt: skip
