"""A static site of documentation and reports of all published results, in one folder."""

import posixpath
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from redraft.analysis.pages.finished_report import linked_files, pack_report
from redraft.analysis.reference.page import NOT_SHOWN
from redraft.analysis.reference.published import REFERENCE, inside
from redraft.analysis.reference.reopening import reopen
from redraft.analysis.tables.render import TEMPLATES
from redraft.errors import UserError
from redraft.files import read_json, write_atomically
from redraft.layout import Layout


def write_site(docs: str, output: str) -> None:
    """Write documentation and reports into a folder that any web server or a browser can show (`make site`).

    Args:
        docs: built documentation.
        output: the folder; an earlier site there is replaced.

    Raises:
        UserError: if a link of a page leads to no file.
    """
    site = Path(output)
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(docs, site / "docs", ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    reports = []
    for folder in sorted({file.parent for file in REFERENCE.glob("*/*.json")}):
        if folder.name != NOT_SHOWN:
            with TemporaryDirectory() as opened:
                layout, _ = reopen(folder, Path(opened))
                summary = read_json(layout.pages / "summary.json")
                packed = Path(opened, "report.zip")
                with inside(Path(opened)):
                    pack_report(Layout(folder.name), packed)
                with zipfile.ZipFile(packed) as archive:
                    archive.extractall(site)
            reports.append({"preset": folder.name, "papers": summary["papers"]})
    write_atomically(site / "index.html", TEMPLATES.get_template("site.html.j2").render(reports=reports))
    for page, link in broken_links(site):
        raise UserError("a page links to a file that is not there", file=page, key="href", value=link)


def broken_links(site: Path) -> Iterator[tuple[Path, str]]:
    """Page and link for each link of a page in a folder that leads to no file in it."""
    for page in sorted(site.rglob("*.html")):
        at = page.relative_to(site).parent.as_posix()
        for link in linked_files(page):
            name = posixpath.normpath(posixpath.join(at, unquote(link.partition("?")[0])))
            target = site / name
            if name.startswith(("../", "/")) or not (target.is_file() or (target / "index.html").is_file()):
                yield page, link
