"""Use of a finished report: its headline numbers as text for the terminal, and one zip file of all its pages."""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.analysis.pages.ro_crate import metadata
from redraft.cli.terminal import filled
from redraft.data_dictionary import COLUMNS, described_files
from redraft.errors import UserError
from redraft.files import atomic, json_text, sha256, write_json
from redraft.layout import Layout, check_inside, code_root
from redraft.result_files import (
    DERIVED,
    Typed,
    check_evaluation,
    check_hashes,
    check_listed,
    check_run,
    read_manifest,
    read_record,
    read_with_hash,
)


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


def linked_files(page: Path) -> list[str]:
    """Files that a page links to, relative to it and without parts of pages."""
    return _Links(page.read_text(encoding="utf-8", errors="replace")).links


def _linked(layout: Layout) -> Iterator[tuple[Path, str, str]]:
    """Page, link and path of each page and of each file that it links to; paths are relative to the preset's folder.

    Raises:
        UserError: for a page or link out of the preset's folder.
    """
    for page in [layout.report, *layout.pages.rglob("*.html")]:
        path = check_inside(page, layout.folder, page, "page").relative_to(layout.folder).as_posix()
        yield page, "", path
        for link in linked_files(page):
            # Up from a folder that a symbolic link leads to is another folder: names are joined as a browser does.
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
            check_inside(layout.folder / linked, layout.folder, page, "href")
            yield page, link, linked


def record_report(layout: Layout) -> None:
    """Record the hashes of all pages, and of the files that they link to, in the folder of pages."""
    paths = {path for _, _, path in _linked(layout) if (layout.folder / path).is_file()}
    write_json(layout.pages / DERIVED, {"sha256": {path: sha256(layout.folder / path) for path in sorted(paths)}})


README = """# Results of the preset {preset}

`results/{preset}/report.html` is the page to open; it needs no network. Paths in tables and records are relative to
this folder.

- `results/{preset}/runs/`: the record of each run: manifest, steps, scores and grades{responses}.
- `results/{preset}/code/`: the code that made the runs, with its experiments, hyperparameters and locked versions of
  all packages (`envs/*/requirements.lock`). `pip install results/{preset}/code/HASH` installs it. The page of a run
  has the command that makes that run again.
- `columns.json` has the unit and the meaning of each column of the tables.
- `ro-crate-metadata.json` describes this folder as an RO-Crate: workflow, runs, papers and licence.
- `LICENSE` is the licence of code and results, `CITATION.cff` says how to cite them and the papers.
"""
RECORDS = (
    *("manifest.json", "manifest.json.sha256", "steps.jsonl", "scores.json", "grades.json", "grades.parquet"),
    *("generations.json", "diversity.json", "diversity.parquet"),
)
"""Files of a run or of an evaluated initial policy that are always packed."""
CODE_HASH = re.compile("[0-9a-f]{16}")
RESPONSES = ("generations.parquet", "rollouts/*.parquet")
"""Files that are packed only on request, since they are most of the size."""


def pack_report(layout: Layout, file: Path, *, full: bool = False) -> int:
    """Write a zip of the report and the records, grades and code of its runs; return the number of files.

    Paths in the zip are those of the working directory: `results/<preset>/report.html` is the page to open.

    Args:
        layout: results of the preset.
        file: the zip file.
        full: pack generations and rollouts too.

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
    root = layout.folder
    names = {f"results/{layout.preset}/{path}": root / path for path in paths | set(_records(layout, paths, full))}
    citation = {name: code_root() / name for name in ("LICENSE", "CITATION.cff") if (code_root() / name).exists()}
    responses = ", generations and rollouts" if full else " (`redraft share --full` also packs all responses)"
    columns = described_files(names)
    # Both files are written below and need no source.
    crate = metadata(layout.preset, names | citation | dict.fromkeys(("README.md", COLUMNS), root))
    # Not strict about times: zip has none before 1980, and some file systems give files without a time that of 1970.
    with (
        atomic(file) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
    ):
        archive.writestr("README.md", README.format(preset=layout.preset, responses=responses))
        archive.writestr(COLUMNS, json_text(columns))
        archive.writestr("ro-crate-metadata.json", json_text(crate))
        for name, source in sorted({**names, **citation}.items()):
            archive.write(source, name)
    return len(names) + len(citation) + 3


def _records(layout: Layout, linked: set[str], full: bool) -> Iterator[str]:
    """Records of all runs and initial policies that the pages link to, and the code of the runs, as paths."""
    codes = set()
    if layout.precision.exists():
        yield layout.precision.relative_to(layout.folder).as_posix()
    for path in sorted(linked):
        folder, name = (layout.folder / path).parent, posixpath.basename(path)
        if name not in ("manifest.json", "generations.json"):
            continue
        # Published results that were unpacked have neither steps nor grades.
        complete = (folder / "grades.json").exists()
        if name == "manifest.json":
            if code := read_manifest(folder / name, "git")["git"].get("code"):
                if not isinstance(code, str) or not CODE_HASH.fullmatch(code):
                    raise UserError("this is no hash of code", file=folder / name, key="git.code", value=code)
                codes.add(code)
            if complete:
                check_run(folder, large=full)
        elif complete:
            check_evaluation(folder, large=full)
        for pattern in (*RECORDS, *(RESPONSES if full else ())):
            yield from (found.relative_to(layout.folder).as_posix() for found in sorted(folder.glob(pattern)))
    for code in sorted(codes):
        for found in sorted((layout.code / code).rglob("*")):
            if found.is_file():
                check_inside(found, layout.code, layout.code / code, "code")
                yield found.relative_to(layout.folder).as_posix()
