"""One zip of a report: all pages, and every file that one of them links to, in their places."""

import posixpath
import zipfile
from html.parser import HTMLParser
from pathlib import Path

from redraft.errors import UserError
from redraft.files import atomic
from redraft.layout import Layout


class _Links(HTMLParser):
    """Files that a page links to, relative to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = (dict(attrs).get("href") or "").partition("#")[0]
        if link and ":" not in link:
            self.found.append(link)


def share(layout: Layout, file: Path) -> int:
    """Write the zip, whose one folder is named by the preset, and count its files; open `report.html` in it.

    Raises:
        UserError: if there is no report, or it links to a file that is not there.
    """
    if not layout.report.exists():
        raise UserError(
            "there is no report yet", file=layout.report, hint=f"`snakemake --config preset={layout.preset}` makes it"
        )
    places = set()
    for page in [layout.report, *layout.pages.rglob("*.html")]:
        place = page.relative_to(layout.folder).as_posix()
        places.add(place)
        for link in _Links(page.read_text(encoding="utf-8")).found:
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
            if not (layout.folder / linked).is_file():
                raise UserError(
                    "a page links to a file that is not there",
                    file=page,
                    key="href",
                    value=link,
                    hint="make a report that is as new as its results",
                )
            places.add(linked)
    with atomic(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for place in sorted(places):
            archive.write(layout.folder / place, f"{layout.preset}/{place}")
    return len(places)
