"""Published results of a campaign: the record of a paper, and the files that it names.

A folder of published results has the layout of a preset's results (`redraft.layout.Layout`), with fewer files. The
manifests of a paper's runs are in one pack. Data of tables and figures lack columns that are most of their size:
`manifests` follows from cell and seeds, and Markdown tables and drawings have the notice of `stand_in`. Data of figures
are compressed. The record of a paper lists every file with its hash.
"""

import contextlib
import csv
import io
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.analysis.reference.packs import read_pack
from redraft.data_dictionary import COLUMNS
from redraft.errors import UserError
from redraft.files import environment, errors_of_reading
from redraft.layout import CODE, Layout, check_inside, code_root, published_data
from redraft.layout import PUBLISHED as DATA
from redraft.result_files import Typed, check_hashes, check_listed, read_typed

REFERENCE = Path("results/reference")
"""Root of the published results in the repository."""


class _Archive(Typed):
    file: str
    bytes: int
    sha256: str
    doi: str | None


class _Record(Typed):
    preset: str
    paper: str
    commits: list[str]
    cells: dict[str, list[int]]
    hours: float
    sha256: dict[str, str]
    archive: _Archive


PUBLISHED: TypeAdapter[Any] = TypeAdapter(_Record)
"""Types of what is read of a paper's record."""


@dataclass(frozen=True)
class Published:
    """A folder of published results.

    Attributes:
        layout: its files.
        records: record of each paper.
    """

    layout: Layout
    records: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "Published":
        """Read a folder of published results, named after its preset, and compare all files with their hashes.

        Raises:
            UserError: if the folder has no record, or a file is missing, changed or outside the folder.
        """
        folder = folder.resolve()  # also `.` has a name
        layout = Layout(folder.name, folder.parent)
        files = sorted(file for file in folder.glob("*.json") if file.name != COLUMNS)
        if not files:
            # In this folder, or beside it.
            found = [folder / name for name in published_presets(folder)] or [
                folder.with_name(name) for name in published_presets(folder.parent)
            ]
            raise UserError(
                "there are no published results here",
                file=folder,
                allowed=map(str, found),
                hint="" if found else "`redraft publish PAPER` packs a campaign",
            )
        records = {}
        for file in files:
            record = read_typed(file, PUBLISHED)
            own = {"preset": folder.name, "paper": file.stem}
            for key, value in own.items():
                if record[key] != value:
                    raise UserError(
                        f"this is the record of another {key}",
                        file=file,
                        key=key,
                        value=record[key],
                        allowed=value,
                        hint="published results are in a folder with the name of their preset" * (key == "preset"),
                    )
            for name in record["sha256"]:
                check_inside(folder / name, folder, file, "sha256")
                if f"{name}{COMPRESSED}" in record["sha256"]:
                    raise UserError("the record has this file twice", file=file, value=f"{name}{COMPRESSED}")
            check_hashes(folder, record["sha256"], file)
            if unknown := files_of(layout, file.stem) - record["sha256"].keys():
                raise UserError("the record has no hash of this file", file=folder / min(unknown), value=file.name)
            needed = [runs_file(layout, file.stem), *(layout.collected(file.stem) / name for name in NEEDED)]
            check_listed((each.relative_to(folder).as_posix() for each in needed), record["sha256"], file)
            records[file.stem] = record
        return cls(layout, records)


def published_presets(root: Path) -> list[str]:
    """Presets whose results are published in folders of `root`."""
    return sorted({file.parents[1].name for file in root.glob("*/runs/*.tar.xz")})


NEEDED = ("collected.json", "runs.parquet", "steps.parquet", "scores.parquet", "measured.json", "measured.parquet")
"""Collected files without which nothing can be compared or shown."""


def files_of(layout: Layout, paper: str) -> set[str]:
    """Names of all files of a paper in a folder of published results, but not of its record."""
    folders = (layout.tables(paper), layout.figures(paper), layout.collected(paper))
    found = {file for folder in folders for file in folder.rglob("*") if file.is_file()}
    for folder in (layout.claims(paper).parent, layout.cases(paper).parent, *(layout.folder / n for n in PACKS)):
        found |= {file for file in folder.glob(f"{paper}.*") if file.is_file()}
    return {file.relative_to(layout.folder).as_posix() for file in found}


PACKS = ("runs", "samples")
"""Folders of packs."""
AGAIN = ("tables", "claims")
"""Folders of files that follow from the collected runs, and are made again for a report."""


def record_file(layout: Layout, paper: str) -> Path:
    """Record of a paper's published results."""
    # By the layout's rules for names, so that no name leads out of the folder.
    return layout.folder / layout.collected(paper).with_suffix(".json").name


def runs_file(layout: Layout, paper: str) -> Path:
    """Pack with the manifests and scores of a paper's runs, and the records of their initial policies' evaluation.

    Names in it are paths in a preset's results.
    """
    return layout.folder / "runs" / f"{layout.collected(paper).name}.tar.xz"


def read_runs(published: Published, paper: str) -> dict[str, bytes]:
    """Files of the pack of a paper's runs, by their names.

    Raises:
        UserError: if the pack is damaged, or lacks the manifest of a run that the record lists.
    """
    layout, record = published.layout, published.records[paper]
    file = runs_file(layout, paper)
    found = read_pack(file)
    for cell, seeds in record["cells"].items():
        for seed in seeds:
            # tarfile ends without an error at a damaged header.
            name = f"results/{layout.preset}/runs/{cell}/seed{seed}/manifest.json"
            if name not in found:
                raise UserError("this file is damaged (it lacks a manifest)", file=file, value=name)
    return found


def sample_file(layout: Layout, paper: str) -> Path:
    """Pack with all records of one run: the rollouts of its first and last step, generations and grades."""
    return layout.folder / "samples" / f"{layout.collected(paper).name}.tar.xz"


COMPRESSED = ".xz"
"""Suffix of a compressed file, after its own."""
LARGEST = 100_000_000
"""Bytes of a decompressed file; a small one from elsewhere could fill the memory."""


def published_name(name: str) -> str:
    """Name under which a file of results is published."""
    return name + COMPRESSED * (name.startswith("figures/") and name.endswith(".csv"))


def published_content(name: str, file: Path) -> bytes:
    """Published content of a file of results with the published name `name`."""
    content = published_csv(file) if file.suffix == ".csv" else file.read_bytes()
    return lzma.compress(content, preset=9) if name.endswith(COMPRESSED) else content


def original(name: str, file: Path) -> tuple[str, bytes]:
    """Name and content in a folder of results of the published file with the name `name`.

    Raises:
        UserError: if the file is damaged.
    """
    if not name.endswith(COMPRESSED):
        return name, file.read_bytes()
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    with errors_of_reading(file, lzma.LZMAError, EOFError):
        content = reader.decompress(file.read_bytes(), max_length=LARGEST)
        # `lzma.decompress` would ignore what follows the data, and take any size.
        if not reader.eof or reader.unused_data:
            raise lzma.LZMAError(f"it is no compressed file of at most {LARGEST / 1e6:.0f} MB")
    return name.removesuffix(COMPRESSED), content


LEFT_OUT = ("manifests", "stand_in")
"""Columns that published data of tables and figures lack."""


def published_csv(file: Path) -> bytes:
    """Data of a table or figure without the columns that are not published."""
    header, *rows = csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
    kept = [i for i, name in enumerate(header) if name not in LEFT_OUT]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([row[i] for i in kept] for row in (header, *rows))
    return text.getvalue().encode()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder with `results`, with the experiments and the authors' data of the folder before.

    Results name their files by paths that start with `results`.
    """
    variables = {CODE: str(code_root().absolute())}
    # The default one, of the folder that is left, may be missing.
    if (data := published_data()).is_dir():
        variables[DATA] = str(data.absolute())
    with environment(variables), contextlib.chdir(folder):
        yield
