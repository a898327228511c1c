"""Output of commands: tables that fit the terminal, or the same content as one JSON document (docs/cli.md)."""

import io
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from redraft.errors import UserError
from redraft.messages import CONTROLS, printable

WIDTH = 80
"""Columns of files, pipes, and terminals of unknown width."""


def terminal_width() -> int:
    """Columns of the terminal: $COLUMNS, else the detected width, else `WIDTH`."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = (),
    wraps: Collection[str] = (),
    wide: bool = False,
) -> str:
    """Lines of a table; the first column and `left` are aligned left, all others right.

    Args:
        header: heading of each column.
        rows: texts, one per heading in each row.
        left: headings of further columns that are aligned left.
        wraps: headings of the columns whose texts wrap at spaces if the table is wider than the terminal.
        wide: wrap nothing.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    # Escaped here, since that changes widths; also line feeds, which would look like another row.
    rows = [[printable(text).replace("\n", "\\n") for text in row] for row in rows]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, heading in enumerate(header):
        whole = wide or heading not in wraps
        texts = [heading, *(row[i] for row in rows)]
        least = max(cell_len(part) for text in texts for part in ([text] if whole else text.split() or [""]))
        side: Literal["left", "right"] = "left" if i == 0 or heading in left else "right"
        grid.add_column(Text(heading), justify=side, no_wrap=whole, min_width=least)
    for row in rows:
        grid.add_row(*map(Text, row))
    # Wide enough that measuring wraps nothing.
    console = Console(file=io.StringIO(), color_system=None, width=1_000_000)
    needed = Measurement.get(console, console.options, grid)
    # Never below the widest word: a name that is cut cannot be copied.
    width = needed.maximum if wide else max(min(terminal_width(), needed.maximum), needed.minimum)
    with console.capture() as capture:
        console.print(grid, width=width)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def filled(text: str, indent: str = "") -> str:
    """Wrap a text to the terminal; lines after the first one start with `indent`. Words are never broken."""
    # Below 40 columns an indented text would be one word a line.
    return textwrap.fill(
        text, max(terminal_width(), 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def error_text(error: UserError) -> str:
    """Wrap an error message to the terminal, and keep the text after a key such as `allowed:` in its column.

    In files and pipes, such as a job's log, lines are not wrapped, so that they can be searched.
    """
    if not sys.stderr.isatty():
        return f"error: {error}"
    first, *others = f"error: {error}".splitlines()
    lines = [filled(first, "  ")]
    for line in others:
        before, colon, _ = line.partition(":")
        lines.append(filled(line, " " * 11 if colon and before.startswith("  ") else "  "))
    return "\n".join(lines)


def document(
    command: str, request: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], notes: Iterable[str] = ()
) -> str:
    """JSON document of a command: its name, the request with defaults, the rows, and the lines around its table.

    Non-finite numbers become null. Control characters are escapes of JSON.
    """
    # Programs read these keys, so they keep their names.
    content = {"command": command, "asked": dict(request), "rows": [dict(row) for row in rows], "notes": list(notes)}
    # `allow_nan=False` finds what `_plain` missed: JSON has no NaN.
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    return CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; a path becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def records(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """Rows of a printed table as dictionaries by heading; numeric texts become numbers and `-` becomes None."""
    return [{key: _value(text) for key, text in zip(header, row, strict=True)} for row in rows]


def _value(text: str) -> Any:
    if text == "-":
        return None
    # `int` first, so that counts stay integers.
    for kind in (int, float):
        try:
            return kind(text.replace(",", ""))
        except ValueError:
            continue
    return text
