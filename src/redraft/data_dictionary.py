"""Unit and meaning of each column of the files that a campaign writes, defined once in `data_dictionary.csv`.

Parquet files have both as metadata of their fields, packed results in `columns.json`, and pages of the documentation as
tables. A line of the file may define a column of several tables. A part of a name in angle brackets,
as in `pass_at_<k>`, stands for any text.
"""

import csv
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from redraft.errors import UserError
from redraft.files import atomic, errors_of_reading, json_text, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FILE = Path(__file__).with_suffix(".csv")
COLUMNS = "columns.json"
"""Name of the file next to packed results."""
TABLES = {
    "runs": ("collected/*/runs.parquet", "one row per run"),
    "steps": ("collected/*/steps.parquet", "one row per step of each run, with its diversity"),
    "scores": ("collected/*/scores.parquet", "one row per run, evaluated policy and benchmark"),
    "measured": ("collected/*/measured.parquet", "one row per seed of each measurement"),
    "family": ("collected/*/family.parquet", "one row per comparison whose p-value is corrected"),
    "rollouts": ("rollouts/step-*.parquet", "one row per response that a step sampled"),
    "generations": ("generations.parquet", "one row per response that an evaluated policy sampled"),
    "grades": ("grades.parquet", "one row per response that was graded"),
    "diversity": ("diversity.parquet", "one row per step"),
    "reported_speedups": ("tables/*/table*_reported.csv", "speedups of a paper's own times, one row per setting"),
    "without_counterpart": ("tables/*/without_counterpart.csv", "rows of a paper's tables that were not reproduced"),
    "tables": ("tables/*/table*.csv", "one row per cell of a reproduced table"),
    "figures": ("figures/*/figure*.csv", "one row per point of a reproduced figure"),
    "timing": ("timing/*/seed*.parquet", "one row per run, step and round of `snakemake timing`"),
    "lighteval": ("lighteval.parquet", "one row per response to instructions that lighteval graded"),
    "sensitivity": ("sensitivity.csv", "one row per variant and benchmark"),
    "laboratory_drift": ("report/laboratory/drift.csv", "one row per rule and drift of policies"),
    "laboratory_numbers": ("report/laboratory/numbers.csv", "one row per use of random numbers, rule and epoch pass"),
    "laboratory_bandit": ("report/laboratory/bandit.csv", "one row per rule, learning rate, group size and epoch pass"),
    "laboratory_drafts": (
        "report/laboratory/*-drafts.csv",
        "one row per seed, pair of policies, kind of draft and rule",
    ),
    "laboratory_trained": ("report/laboratory/*-trained.csv", "one row per cell, seed and epoch"),
    "costs": ("costs.csv", "one row per cell, then one per table or figure (`redraft cost --csv`)"),
    "prompts": ("prompts.csv", "one row per step and prompt that it rolled out (`redraft prompts --file`)"),
    "advice": ("advice.csv", "one row per method (`redraft advise --csv`)"),
    "sweeps": ("calibrations/*.csv", "one row per measured kind of pass (`redraft calibrate`, rule `calibrate`)"),
    "problems": ("data/*/problems.parquet", "one row per training problem, as verl reads it"),
}
"""Pattern of the paths and content of the files of each table; the first pattern that a path matches counts.

Commands that write where the caller wants have a usual name here.
"""


@dataclass(frozen=True)
class Definition:
    """Unit and meaning of a column, and the heading under which a page lists it."""

    unit: str
    meaning: str
    group: str


@cache
def definitions(table: str) -> dict[str, Definition]:
    """Definitions of a table's columns by name, in the order of the file."""
    with FILE.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if table in row["tables"].split()]
    return {row["column"]: Definition(row["unit"], row["meaning"], row["group"]) for row in rows}


def definition(table: str, column: str) -> Definition | None:
    """Definition of a column; None for one that only a user-defined method writes."""
    found = definitions(table)
    return found.get(column) or next((each for name, each in found.items() if _is_of(column, name)), None)


def _is_of(column: str, name: str) -> bool:
    """Test for a column of a family of names, such as `pass_at_<k>`."""
    # `<key>` is a word, all others are numbers.
    pattern = re.sub(r"<\w+>", r"\\d+", re.escape(name).replace("<key>", r"\w+"))
    return "<" in name and bool(re.fullmatch(pattern, column))


def described(schema: "pa.Schema", table: str) -> "pa.Schema":
    """A schema whose fields have `unit` and `description` as metadata."""
    import pyarrow as pa

    fields = [field.with_metadata(_described(table, field.name)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _described(table: str, column: str) -> dict[str, str]:
    found = definition(table, column)
    return {"unit": found.unit, "description": found.meaning} if found else {}


def write_parquet(frame: "pd.DataFrame", file: Path, table: str) -> None:
    """Write a complete Parquet file whose fields are described, or nothing."""
    import pyarrow as pa

    schema = described(pa.Schema.from_pandas(frame, preserve_index=False), table)
    # Measured values rarely repeat. Their bytes are stored by significance, since the high ones do.
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    others = [field.name for field in schema if field.name not in floats]
    with atomic(file) as temporary:
        frame.to_parquet(
            temporary,
            index=False,
            schema=schema,
            compression="zstd",
            use_dictionary=others,
            use_byte_stream_split=floats,
        )


def described_files(files: Mapping[str, Path]) -> dict[str, Any]:
    """The described files among some: for each kind of table its files, and unit and meaning of their columns.

    A file may lack columns of features that its runs do not use.

    Args:
        files: by the name that they have beside `columns.json`.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(files):
        path = PurePosixPath(name.removesuffix(".xz"))  # published data of figures are compressed
        if table := next((table for table, (pattern, _) in TABLES.items() if path.match(pattern)), None):
            found.setdefault(table, []).append(name)
    tables = []
    for table in sorted(found, key=list(TABLES).index):
        columns = dict.fromkeys(column for name in found[table] for column in _columns(table, files[name]))
        described = [{"name": column, **_described(table, column)} for column in columns]
        tables.append({"name": table, "description": TABLES[table][1], "files": found[table], "columns": described})
    return {"tables": tables}


def _columns(table: str, file: Path) -> list[str]:
    if file.suffix in (".csv", ".xz"):
        opened = lzma.open if file.suffix == ".xz" else open
        damage = (ValueError, lzma.LZMAError, EOFError)
        with errors_of_reading(file, *damage), opened(file, "rt", encoding="utf-8", newline="") as handle:
            return next(csv.reader(handle), [])
    if not any("<" in name for name in definitions(table)):
        return list(definitions(table))  # without pyarrow, which `redraft share` can do without
    import pyarrow.parquet as pq

    with errors_of_reading(file, OSError, ValueError):
        return list(pq.read_schema(file).names)


def write_descriptions(folder: Path, check: bool = False) -> list[Path]:
    """Write `columns.json` of all files in a folder; with `check` nothing is written.

    Returns:
        The file, if it was out of date.
    """
    file = folder / COLUMNS
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    text = json_text(described_files(files))
    if not folder.exists() or (file.exists() and file.read_text(encoding="utf-8") == text):
        return []
    if not check:
        write_atomically(file, text)
    return [file]


MARK = re.compile(r"(<!-- columns of (\w+)(?:: ([^>]+))? -->\n).*?(<!-- end of columns -->)", re.DOTALL)
"""Place of a generated table in a page: the table, and the group that it is limited to, if any."""


def write_pages(folder: Path, check: bool) -> list[Path]:
    """Write the tables of definitions into the pages of a folder; with `check` nothing is written.

    Returns:
        Pages that were out of date.

    Raises:
        UserError: if a page names an unknown table or group.
    """
    changed = []
    for page in sorted(folder.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = MARK.sub(partial(_filled, page), before)
        if after != before:
            changed.append(page)
            if not check:
                write_atomically(page, after)
    return changed


def _filled(page: Path, mark: re.Match[str]) -> str:
    start, table, group, end = mark.groups()
    rows = {name: each for name, each in definitions(table).items() if group in (None, each.group)}
    if not rows:
        raise UserError("nothing is defined of these columns", file=page, key=table, value=group)
    lines = [f"| `{name}` | {each.unit} | {each.meaning} |" for name, each in rows.items()]
    return "\n".join([start, "| column | unit | meaning |", "|---|---|---|", *lines, "", end])
