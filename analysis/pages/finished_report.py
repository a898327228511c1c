"""Use of a finished report: its headline numbers as text for the terminal, and one zip file of all its pages."""

import posixpath
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.cli.terminal import filled
from redraft.errors import UserError
from redraft.files import atomic
from redraft.layout import Layout, check_inside
from redraft.result_files import Typed, read_with_hash


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
    """The summary as text: sentences and verdicts by paper, the command for missing runs, and the page to open."""
    lines = []
    for paper in summary["papers"].values():
        lines.append(f"\n{paper['method']}")
        sentences = [headline["sentence"] for headline in paper["headlines"]]
        if paper["claims"]:
            counted = ", ".join(f"{count} {verdict}" for verdict, count in paper["claims"].items())
            sentences.append(f"{sum(paper['claims'].values())} claims: {counted}")
        lines += [filled(f"  {sentence}", "    ") for sentence in sentences]
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
        link = (dict(attrs).get("href") or "").partition("#")[0]
        if link and ":" not in link:
            self.links.append(link)


def pack_report(layout: Layout, file: Path) -> int:
    """Write a zip of all pages and the files that they link to, and return the number of files.

    The zip has one folder, named after the preset; `report.html` in it is the page to open.

    Raises:
        UserError: if there is no report, or it links to a file that is not there or not in the preset's folder.
    """
    if not layout.report.exists():
        raise UserError(
            "there is no report yet", file=layout.report, hint=f"`snakemake --config preset={layout.preset}` makes it"
        )
    paths = set()
    for page in [layout.report, *layout.pages.rglob("*.html")]:
        path = check_inside(page, layout.folder, page, "page").relative_to(layout.folder).as_posix()
        paths.add(path)
        for link in _Links(page.read_text(encoding="utf-8")).links:
            # Up from a folder that a symbolic link leads to is another folder: names are joined as a browser does.
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
            check_inside(layout.folder / linked, layout.folder, page, "href")
            if not (layout.folder / linked).is_file():
                raise UserError(
                    "a page links to a file that is not there",
                    file=page,
                    key="href",
                    value=link,
                    hint="write the report again, from the current results",
                )
            paths.add(linked)
    with atomic(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(paths):
            archive.write(layout.folder / path, f"{layout.preset}/{path}")
    return len(paths)
