"""Packing of a paper's campaign: published results for the repository, and an archive of all its responses."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from redraft.analysis.claims.files import judged
from redraft.analysis.data.measured import FAMILY, MEASURED, RECORD, RESOLVED, Measured
from redraft.analysis.pages import headline
from redraft.analysis.pages.claims_page import CLAIMS, counts
from redraft.analysis.pages.run_pages import RunView, views
from redraft.analysis.reference.packs import name_of, write_pack
from redraft.analysis.reference.published import (
    AGAIN,
    PUBLISHED,
    Published,
    files_of,
    published_content,
    published_name,
    record_file,
    runs_file,
    sample_file,
)
from redraft.config import Experiments
from redraft.data_dictionary import write_descriptions
from redraft.errors import UserError
from redraft.files import atomic, own_hash_file, sha256, write_atomically, write_json
from redraft.layout import Layout
from redraft.result_files import DERIVED, check_hashes, check_run, read_derived, read_record, read_typed, read_with_hash

TABLES, FIGURES = (".csv", ".md"), (".csv", ".svg")
"""Suffixes of the published files of tables and figures."""
NOT_ARCHIVED = ("checkpoints", "policies", "lease", "generations.parquet.parts")
"""Parts of a run's folder that regrading does not need, and that are most of its size."""
LARGEST_IN_SAMPLE = 500_000
"""Bytes up to which a file of the sampled run is in the repository; a larger one is in the archive alone."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of all files in a zip file: the earliest that the format has. Equal files make equal zip files."""


def publish(layout: Layout, paper: str, target: Layout, archives: Path) -> dict[str, Any]:
    """Publish the results of a paper: copy tables, figures, claims and collected data, and pack the runs.

    Args:
        layout: results of a campaign.
        paper: folder of the paper.
        target: published results; those of this paper are replaced.
        archives: folder for the archive of all rollouts, generations and grades.

    Returns:
        The paper's record.

    Raises:
        UserError: if a file is not the one that was recorded, tables, figures or claims are of other runs than the
            collected ones, or a run is from code that no commit names.
    """
    experiments = Experiments()
    measured = Measured.load(layout.collected(paper))
    runs = views(layout, paper, measured.runs)
    _check(layout, paper, runs)
    source = [
        *_of(layout.tables(paper), TABLES),
        *_of(layout.figures(paper), FIGURES),
        *(file for file in _of(layout.collected(paper), (".parquet", ".json")) if file.stem != "tracked"),
        *_with_hash(layout.claims(paper)),
        *layout.cases(paper).parent.glob(f"{paper}.*"),
    ]
    files = {published_name(path.relative_to(layout.folder).as_posix()): path for path in source}
    file = record_file(target, paper)
    previous = read_typed(file, PUBLISHED)["archive"] if file.exists() else {}
    for name in files_of(target, paper):
        (target.folder / name).unlink()
    for name, path in files.items():
        write_atomically(target.folder / name, published_content(name, path))
    root = layout.folder.parent
    small = [f for run in runs for f in (*_with_hash(run.folder / "manifest.json"), run.folder / "scores.json")]
    small += [Path(str(file)) for file in measured.runs.runs["initial"].unique()]
    small += [layout.precision] * layout.precision.exists()  # else `engine.dtype: fastest` would be open in a report
    write_pack(runs_file(target, paper), small, root)
    write_pack(sample_file(target, paper), _sample(runs[0]), root)
    archive = archives / f"{layout.preset}-{paper}.zip"
    number = _zip(archive, [*_archived(layout, paper, measured, runs)], root)
    digest = sha256(archive)
    described = {
        "file": archive.name,
        "bytes": archive.stat().st_size,
        "files": number,
        "sha256": digest,
        # Of an archive that is the same as the one with that identifier.
        "doi": previous["doi"] if previous.get("sha256") == digest else None,
    }
    published = [*files, *(f(target, paper).relative_to(target.folder).as_posix() for f in (runs_file, sample_file))]
    record = _record(layout, paper, experiments, measured, runs) | {
        "archive": described,
        "sha256": {name: sha256(target.folder / name) for name in sorted(published)},
    }
    write_json(file, record)
    write_descriptions(target.root)
    return record


def _check(layout: Layout, paper: str, runs: Iterable[RunView]) -> None:
    """Check that all results belong together, and that a commit names the code of each run."""
    folder = layout.collected(paper)
    for derived in (layout.tables(paper), layout.figures(paper)):
        # Also the files themselves: their record alone says only what they were made from.
        check_hashes(derived, read_derived(derived, folder / RECORD), derived / DERIVED)
    if layout.claims(paper).exists() and read_with_hash(layout.claims(paper), CLAIMS) != judged(layout, paper):
        raise UserError(
            "these claims are not those of the collected runs", file=layout.claims(paper), hint="judge them again"
        )
    for run in runs:
        check_run(run.folder, large=True)
        check_code(run)
    for record in sorted(layout.timing(paper, 0).parent.glob("*.json")):
        _check_commit(read_record(record, "git")["git"], record)


def publish_again(published: Published, paper: str, layout: Layout) -> None:
    """Replace what of a paper's published results follows from its collected runs: measurements, tables and claims.

    Args:
        published: published results.
        paper: folder of the paper.
        layout: what `reopening.reopen` made of them again.
    """
    target, record, declared = published.layout, published.records[paper], Experiments().tables(paper)
    made = [*_of(layout.tables(paper), TABLES), *_with_hash(layout.claims(paper))]
    made += [layout.collected(paper) / name for name in (MEASURED, FAMILY, RESOLVED, RECORD)]
    names = {path.relative_to(layout.folder).as_posix(): path for path in made}
    content = {name: published_content(name, path) for name, path in names.items()}
    kept = {
        name: digest
        for name, digest in record["sha256"].items()
        if name not in content and Path(name).parts[0] not in AGAIN
    }
    # Published results lack a figure that was declared later, and a preset may have no runs for a table.
    headlines = [each for each in declared.headlines if layout.table(paper, each.table).with_suffix(".csv").exists()]
    runs = Measured.load(layout.collected(paper)).runs
    points = headline.points(layout, paper, headlines, declared.tables, runs)
    claims = read_with_hash(layout.claims(paper), CLAIMS) if layout.claims(paper).exists() else []
    # From here on files change.
    for name in record["sha256"].keys() - kept - content.keys():
        (target.folder / name).unlink()
    for name, data in content.items():
        write_atomically(target.folder / name, data)
    made_again = {name: sha256(target.folder / name) for name in content}
    changed = {
        "headlines": headline.as_data(points),
        "claims": counts(claims),
        "sha256": dict(sorted((kept | made_again).items())),
    }
    write_json(record_file(target, paper), {**record, **changed})


def check_code(run: RunView) -> None:
    """Raise a UserError if no commit names the code of a run."""
    _check_commit(run.manifest["git"], run.folder / "manifest.json")


def _check_commit(git: Mapping[str, Any], file: Path) -> None:
    if not git["commit"] or git["modified"] is not False:
        raise UserError(
            "no commit names the code of this run",
            file=file,
            key="git",
            value=f"commit {git['commit']}, modified {git['modified']}",
            hint="commit all changes, remove this run, and train it again",
        )


def _record(
    layout: Layout, paper: str, experiments: Experiments, measured: Measured, runs: list[RunView]
) -> dict[str, Any]:
    """What a campaign was: code, cells, cost, machines and versions; and its headlines and verdicts."""
    manifests, preset = [run.manifest for run in runs], experiments.preset(layout.preset)
    declared = experiments.tables(paper)
    points = headline.points(layout, paper, declared.headlines, declared.tables, measured.runs)
    claims = read_with_hash(layout.claims(paper), CLAIMS) if layout.claims(paper).exists() else []
    cells: dict[str, list[int]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        cells.setdefault(run.cell_id, []).append(run.seed)
    return {
        "preset": layout.preset,
        "paper": paper,
        "method": experiments.cell_file(paper).method or paper,
        "commits": _distinct(commit for m in manifests for commit in m["git"].get("commits", [m["git"]["commit"]])),
        "code": _distinct(m["git"].get("code") for m in manifests),
        "cells": dict(sorted(cells.items())),
        "blocks": len({preset.unit(run.seed) for run in runs}),
        # Without those that another paper has trained.
        "hours": sum(run.seconds for run in runs if not run.manifest.get("taken_from")) / 3600,
        "finished": max(m["finished"] for m in manifests),
        "machines": _distinct(_machine(m) for m in manifests),
        "lock_sha256": _distinct(m["lock_sha256"] for m in manifests),
        "packages": _distinct(m["packages"] for m in manifests),
        "headlines": headline.as_data(points),
        "claims": counts(claims),
    }


def _machine(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: manifest["machine"][key]
        for key in ("processor", "model", "instructions", "cores", "gpus", "python")
        if key in manifest["machine"]
    }


def _distinct(found: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of the first occurrence."""
    values: list[Any] = []
    for value in found:
        if value is not None and value not in values:
            values.append(value)
    return values


def _of(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix in suffixes and not file.name.startswith("."))


def _with_hash(file: Path) -> list[Path]:
    return [found for found in (file, own_hash_file(file)) if found.exists()]


def _archived(layout: Layout, paper: str, measured: Measured, runs: Iterable[RunView]) -> Iterable[Path]:
    """All files of runs and of the evaluations of their initial policies that regrading needs."""
    folders = [run.folder for run in runs]
    folders += [Path(str(initial)).parent for initial in measured.runs.runs["initial"].unique()]
    for folder in dict.fromkeys(folders):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.relative_to(folder).parts[0] not in NOT_ARCHIVED:
                yield file
    if layout.precision.exists():
        yield layout.precision
    yield from sorted(layout.timing(paper, 0).parent.glob("seed*"))


def _sample(run: RunView) -> list[Path]:
    """All records of a run below the limit of size, with the rollouts of its first and last step alone."""
    rollouts = sorted((run.folder / "rollouts").glob("*.parquet"))
    kept = sorted(file for file in run.folder.glob("*") if file.suffix in (".json", ".jsonl", ".parquet", ".sha256"))
    return [f for f in (*kept, *rollouts[:1], *rollouts[1:][-1:]) if f.stat().st_size <= LARGEST_IN_SAMPLE]


def _zip(file: Path, content: Iterable[Path], root: Path) -> int:
    """Write a zip file that is the same for the same content, and return its number of files."""
    number = 0
    with atomic(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(content):
            entry = zipfile.ZipInfo(name_of(path, root), EPOCH)
            entry.external_attr = 0o644 << 16
            # Parquet files are compressed already.
            entry.compress_type = zipfile.ZIP_STORED if path.suffix == ".parquet" else zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
            number += 1
    return number
