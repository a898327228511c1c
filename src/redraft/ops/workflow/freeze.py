"""Frozen copy of the code, from which a campaign runs: edits of the checkout have no effect on its jobs.

The copy lies with the results and is named by the hash of its content. Jobs find it by two environment variables:
PYTHONPATH for packages, which goes before an editable install, and REDRAFT_CODE for experiments and workflows. Data,
environments and results are not copied, for their size. See docs/workstation.md.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from redraft.config import own, site
from redraft.config.identity import fingerprint
from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.layout import CODE, FROZEN, PACKAGED, Layout, code_root
from redraft.provenance import git_state

PACKAGES = ("redraft", "redraft.analysis", "snakemake_logger_plugin_redraft")
"""Packages that are copied from where Python imports them to `src`; a search for files does not follow the link to
`analysis`. The packaged project stays out, since `PARTS` are copied from the root."""
PARTS = ("Snakefile", "workflows", "experiments", "profiles", "envs", "CITATION.cff", "docs/metrics.md")
"""Files and folders of the repository that are copied too, if they are there."""


def freeze(root: Path, preset: str, results: Path = Path("results")) -> Path:
    """Copy the code of jobs to `<results>/<preset>/code/<hash>`, unless there is a copy with the same content.

    Raises:
        UserError: if the copy that is there was changed.
    """
    folder = Layout(preset, results).code
    unfinished = folder / f".{os.getpid()}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        for place, file in sources(root).items():
            target = unfinished / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)  # with its time, by which Snakemake judges it
            target.chmod(0o444)
        code = content_hash(unfinished)  # of the copy: the checkout may be edited while it is read
        write_json(unfinished / FROZEN, {"code": code, "git": git_state()})
        return _in_place(unfinished, folder / code)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _in_place(unfinished: Path, copy: Path) -> Path:
    """Rename a copy to its place; a copy with the same content that is there already stays."""
    try:
        unfinished.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
    if (found := content_hash(copy)) != copy.name:
        raise UserError(
            "this frozen copy was changed; remove it, once nothing runs from it",
            file=copy,
            key="hash",
            value=found,
            allowed=copy.name,
        )
    if unfinished.exists() and (state := read_json(unfinished / FROZEN))["git"]["modified"] is False:
        write_json(copy / FROZEN, state)  # what was not committed when the copy was made may be by now
    return copy


def sources(root: Path) -> dict[str, Path]:
    """Files that are copied, by their place in the copy, in the order of the places.

    Raises:
        UserError: if there is no Snakefile.
    """
    if not (root / "Snakefile").exists():
        raise UserError("this is not the repository's root", file=root, allowed="a folder with a Snakefile")
    places = {part: root / part for part in PARTS}
    places |= {f"src/{name.replace('.', '/')}": _package(name) for name in PACKAGES}
    found = (each for start, path in places.items() for each in _files(path, start))
    files = {place: file for place, file in found if not place.startswith(f"src/redraft/{PACKAGED.name}/")}
    named = Path(os.environ.get(site.VARIABLE, ""))
    if named.is_file():
        files[str(site.FILE)] = named  # jobs read it again
    if cells := own.cells_file():
        files |= own.files(cells)
    return dict(sorted(files.items()))


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UserError("this package is not installed", key="package", value=name)
    return Path(spec.origin).parent


def _files(path: Path, place: str) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(place, path)]
    found = (file for file in path.rglob("*") if file.is_file())
    named = ((file.relative_to(path), file) for file in found)
    return [
        (f"{place}/{name.as_posix()}", file)
        for name, file in named
        if not any(part == "__pycache__" or part.startswith(".") for part in name.parts)  # of Python, editors and tools
    ]


def content_hash(copy: Path) -> str:
    """Hash of a copy's files and their places, without the file that names its origin."""
    return _hash({place: file for place, file in _files(copy, ".") if place != f"./{FROZEN}"})


def checkout_hash(root: Path) -> str:
    """Name that `freeze` would give to a copy made now."""
    return _hash({f"./{place}": file for place, file in sources(root).items()})


def _hash(files: dict[str, Path]) -> str:
    return fingerprint({place: sha256(file) for place, file in sorted(files.items())})


def environment(copy: Path) -> dict[str, str]:
    """Environment variables by which a process in any working directory runs from a copy."""
    copy = copy.resolve()
    earlier = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    ours = str(copy / "src")
    path = os.pathsep.join([ours, *(part for part in earlier if part != ours)])
    named = {site.VARIABLE: str(copy / site.FILE)} if (copy / site.FILE).exists() else {}
    cells = {own.VARIABLE: str(copy / own.place(file))} if (file := own.cells_file()) else {}
    return {"PYTHONPATH": path, CODE: str(copy), **named, **cells}


def frozen(copy: Path | None = None) -> dict[str, Any] | None:
    """Hash and commit of a copy, by default of the one from which this process runs; None if it is none."""
    file = (code_root() if copy is None else copy) / FROZEN
    return read_json(file) if file.exists() else None


def start(workflow: Any, preset: str, expected: str, results: Path = Path("results")) -> Path:
    """Make all jobs of a campaign run from a copy; call it in `onstart`, which Snakemake skips in dry runs.

    Raises:
        UserError: if the checkout was edited since the Snakefile was read, with `expected` as its `checkout_hash`.
    """
    root = Path(workflow.basedir)
    copy = freeze(root, preset, results)
    if copy.name != expected:
        raise UserError(
            "files were edited while the campaign was planned; start it again",
            file=root,
            key="hash",
            value=copy.name,
            allowed=expected,
        )
    os.environ.update(environment(copy))
    # Executors took the name of the Snakefile when they were made; a cluster's jobs read that file again.
    for executor in (workflow.scheduler._executor, workflow.scheduler._local_executor):
        if executor is not None:
            executor.snakefile = os.path.relpath(copy / "Snakefile")
    return copy


def content_of(*files: Path | str) -> str:
    """Hash of files in the copy, by their places there, for the `params` of rules.

    A file that is edited while its rule runs from a copy is older than the rule's output, so its time alone would not
    mark the output as outdated. The files are named here, since Snakemake does not compare params that are functions of
    `input`.
    """
    return fingerprint({str(file): sha256(own.located(Path(file))) for file in files})
