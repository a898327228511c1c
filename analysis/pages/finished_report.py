"""Use of a finished report: its headline numbers as text for the terminal, and one zip file of all its pages."""

import posixpath
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.cli.terminal import filled
from redraft.errors import UserError
from redraft.files import atomic, sha256, write_json
from redraft.layout import Layout, check_inside
from redraft.result_files import DERIVED, Typed, check_hashes, check_listed, read_record, read_with_hash


class _Headline(Typed):
    sentence: str


class _Paper(Typed):
    method: str
    headlines: list[_Headline]
    claims: dict[str, int]


class _Missing(Typed):
    runs: int
    time: str
    command: str


class _Summary(Typed):
    papers: dict[str, _Paper]
    missing: _Missing
    left_out: dict[str, str] = {}


SUMMARY: TypeAdapter[Any] = TypeAdapter(_Summary)
"""Types of what is printed of `summary.json`."""


def headline_summary(layout: Layout) -> dict[str, Any]:
    """Content of `summary.json`: headline numbers, counts of verdicts and missing runs.

    Raises:
        UserError: if there is no report.
    """
    file = layout.pages / "summary.json"
    if not file.exists():
        raise UserError(
            "there is no report yet", file=file, hint=f"`snakemake --config preset={layout.preset}` makes it"
        )
    content: dict[str, Any] = read_with_hash(file, SUMMARY)
    return content


def summary_text(summary: dict[str, Any], layout: Layout) -> str:
    """The summary as text: sentences and verdicts by paper, cells that do not fit, missing runs, the page to open."""
    lines = []
    for paper in summary["papers"].values():
        lines.append(f"\n{paper['method']}")
        sentences = [headline["sentence"] for headline in paper["headlines"]]
        if paper["claims"]:
            counted = ", ".join(f"{count} {verdict}" for verdict, count in paper["claims"].items())
            sentences.append(f"{sum(paper['claims'].values())} claims: {counted}")
        lines += [filled(f"  {sentence}", "    ") for sentence in sentences]
    left_out = summary.get("left_out", {}).items()
    lines += ["\n" + filled(f"left out: {cell}: does not fit: {reason}", "  ") for cell, reason in left_out]
    missing = summary["missing"]
    if missing["runs"]:
        time = f", {missing['time']}" if missing["time"] else ""
        lines.append(f"\n{missing['runs']} runs of the papers are missing{time}:\n  {missing['command']}")
    return "\n".join([*lines, f"\nopen {layout.report}"]).strip()


class _Links(HTMLParser):
    """Files that a page links to, relative to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # A colon is that of a scheme, such as https or data: no file of the report.
        link = (dict(attrs).get("href") or "").partition("#")[0]
        if link and ":" not in link:
            self.links.append(link)


def _linked(layout: Layout) -> Iterator[tuple[Path, str, str]]:
    """Page, link and path of each page and of each file that it links to; paths are relative to the preset's folder.

    Raises:
        UserError: for a page or link out of the preset's folder.
    """
    for page in [layout.report, *layout.pages.rglob("*.html")]:
        path = check_inside(page, layout.folder, page, "page").relative_to(layout.folder).as_posix()
        yield page, "", path
        for link in _Links(page.read_text(encoding="utf-8", errors="replace")).links:
            # Up from a folder that a symbolic link leads to is another folder: names are joined as a browser does.
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
            check_inside(layout.folder / linked, layout.folder, page, "href")
            yield page, link, linked


def record_report(layout: Layout) -> None:
    """Record the hashes of all pages, and of the files that they link to, in the folder of pages."""
    paths = {path for _, _, path in _linked(layout) if (layout.folder / path).is_file()}
    write_json(layout.pages / DERIVED, {"sha256": {path: sha256(layout.folder / path) for path in sorted(paths)}})


def pack_report(layout: Layout, file: Path) -> int:
    """Write a zip of all pages and the files that they link to, and return the number of files.

    The zip has one folder, named after the preset; `report.html` in it is the page to open.

    Raises:
        UserError: if there is no report, it links to a file that is not there or not in the preset's folder, or a file
            is not the one that was there when the report was written.
    """
    if not layout.report.exists():
        raise UserError(
            "there is no report yet", file=layout.report, hint=f"`snakemake --config preset={layout.preset}` makes it"
        )
    paths, hint = set(), "write the report again, from the current results"
    for page, link, path in _linked(layout):
        if not (layout.folder / path).is_file():
            raise UserError("a page links to a file that is not there", file=page, key="href", value=link, hint=hint)
        paths.add(path)
    record = layout.pages / DERIVED
    recorded = read_record(record, "sha256")["sha256"]
    check_listed(sorted(paths), recorded, record)
    try:
        check_hashes(layout.folder, {path: recorded[path] for path in sorted(paths)}, record)
    except UserError as error:
        raise error.replace(hint=hint) from None
    # Not strict about times: zip has none before 1980, and some file systems give files without a time that of 1970.
    with (
        atomic(file) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
    ):
        for path in sorted(paths):
            archive.write(layout.folder / path, f"{layout.preset}/{path}")
    return len(paths)
