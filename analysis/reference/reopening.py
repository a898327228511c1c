"""Report of published results: they are unpacked into a folder of results, and tables and claims are made again."""

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from redraft.analysis.claims.files import write_claims
from redraft.analysis.data.measured import RECORD
from redraft.analysis.data.statistics import ROUNDING
from redraft.analysis.measuring import measure
from redraft.analysis.pages.report_pages import report
from redraft.analysis.reference.published import (
    AGAIN,
    PACKS,
    Published,
    inside,
    original,
    published_csv,
    read_runs,
    runs_file,
)
from redraft.analysis.tables.files import write_tables
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.layout import REOPENED, Layout, check_inside
from redraft.result_files import record_derived


def reopen(folder: Path, output: Path, *, again: bool = False) -> tuple[Layout, dict[str, list[str]]]:
    """Write the report of published results.

    Tables and claims are made again, from the collected runs, by the code and declarations of today. Figures are the
    published ones, since some need rollouts, which are in the archive.

    Args:
        folder: published results, named after their preset.
        output: folder in which `results/<preset>` is made; existing results there are replaced.
        again: whether to measure the collected runs again, but what needs rollouts, and to correct all p-values again.
            Else comparisons that were not declared or not possible before are not tested.

    Returns:
        The results, and for each paper the published tables and claims that differ from those made again.

    Raises:
        UserError: if the published results are damaged, or the folder of results is not from an earlier call.
    """
    published = Published.read(folder)
    papers = [paper for paper in Experiments().papers if paper in published.records]
    layout = Layout(folder.name, output / "results")
    _empty(layout.folder)
    try:
        for paper in papers:
            _unpack(published, paper, layout)
        with inside(output):
            if again:
                for paper in papers:
                    measure(folder.name, paper, keep=True)
            _write(Layout(folder.name), published, papers)
    finally:  # else what a failed call left could not be distinguished from results of a campaign
        write_atomically(layout.folder / REOPENED, "\n".join(sorted(_files(layout.folder))))
    return layout, {paper: _differing(published, paper, layout) for paper in papers}


def _write(layout: Layout, published: Published, papers: list[str]) -> None:
    """Make tables, claims and report again."""
    for paper in papers:
        figures = layout.figures(paper)
        record_derived(figures, figures.glob("*"), layout.collected(paper) / RECORD)
        write_tables(layout.preset, paper)
        if published.layout.claims(paper).exists():
            write_claims(layout.preset, paper)
    report(layout.preset, papers)


TOLERANCE = 1e-9
"""Largest relative difference of equal numbers."""
DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+(e[+-][0-9]+)?|-?[0-9]+e[+-][0-9]+")
"""A number that is not whole, as CSV files have it."""


def _empty(folder: Path) -> None:
    """Remove results of an earlier call; a UserError if there are other files, such as those of a campaign."""
    mark = folder / REOPENED
    if folder.is_symlink() or (folder.exists() and (not mark.exists() or _files(folder) - _written(mark))):
        raise UserError(
            "there are results that are not from an earlier call, and would be removed",
            file=folder,
            hint="choose another folder with `--output`",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()


def _files(folder: Path) -> set[str]:
    """Names of all files but the mark and a zip file of the report."""
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in (REOPENED, "report.zip")
    }


def _written(mark: Path) -> set[str]:
    return set(mark.read_text(encoding="utf-8").splitlines())


def _unpack(published: Published, paper: str, layout: Layout) -> None:
    """Copy all published files of a paper, and unpack its manifests."""
    source = published.layout
    for name in published.records[paper]["sha256"]:
        # Tables and claims are made again; copies of them could not differ from themselves.
        if Path(name).parts[0] not in (*AGAIN, *PACKS):
            own, content = original(name, source.folder / name)
            write_atomically(layout.folder / own, content)
    runs = runs_file(source, paper)
    for name, content in read_runs(published, paper).items():
        # Names are results/<preset>/..., and the file may be someone else's.
        file = check_inside(layout.root.parent / name, layout.folder, runs, "name")
        if file == layout.precision and file.exists() and file.read_bytes() != content:
            raise UserError(
                "papers published here took different precisions, which one report cannot show",
                file=runs,
                hint="name one paper",
            )
        write_atomically(file, content)


def _differing(published: Published, paper: str, layout: Layout) -> list[str]:
    """Published tables and claims that are not equal to those made again, and those that only one side has.

    Numbers are equal up to a relative 1e-9: processors round the last digits of logarithms differently.
    """
    made = {
        file.relative_to(layout.folder).as_posix(): file
        for folder in (layout.tables(paper), layout.claims(paper).parent)
        for file in folder.glob("*" if folder == layout.tables(paper) else f"{paper}.*")
        if file.suffix in (".csv", ".md") or folder != layout.tables(paper)
    }
    known = {name for name in published.records[paper]["sha256"] if Path(name).parts[0] in AGAIN}
    found = set(made) ^ known
    for name in known & set(made):
        again = published_csv(made[name]) if name.endswith(".csv") else made[name].read_bytes()
        before = (published.layout.folder / name).read_bytes()
        # The hash of a file follows from it.
        if not name.endswith(".sha256") and not _same(_content(name, again), _content(name, before)):
            found.add(name)
    return sorted(found)


def _content(name: str, data: bytes) -> Any:
    """What a file says: the rows of a CSV file, the content of a JSON file, else its bytes, as of a damaged one."""
    try:
        if name.endswith(".csv"):
            rows = csv.reader(io.StringIO(data.decode("utf-8")))
            return [[float(cell) if DECIMAL.fullmatch(cell) else cell for cell in row] for row in rows]
        return json.loads(data) if name.endswith(".json") else data
    except (ValueError, csv.Error):
        return data


def _same(one: Any, other: Any) -> bool:
    """Whether two contents are equal, numbers with decimals up to `TOLERANCE`."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=ROUNDING)
    return type(one) is type(other) and one == other
