"""Frozen copy of the code, from which a campaign runs: edits of the checkout do not affect its jobs.

The copy is next to the results and named by the hash of its content. Jobs find it through two environment variables:
PYTHONPATH for packages, which has precedence over an editable install, and REDRAFT_CODE for experiments and workflows.
Data, environments and results are too large to copy. See docs/workstation.md.
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
from redraft.layout import CODE, FROZEN, PACKAGED, Layout, code_root, is_project
from redraft.provenance import git_state

PACKAGES = ("redraft", "redraft.analysis", "snakemake_logger_plugin_redraft")
"""Packages to copy from their import location to `src`; `analysis` is listed because it is a link, which a search for
files does not follow. The packaged project is left out, since `PARTS` are copied from the root."""
PARTS = (
    *("Snakefile", "config", "workflow", "workflows", "experiments", "profiles", "envs", "docs/metrics.md"),
    *("CITATION.cff", "LICENSE", "README.md", "pyproject.toml"),
)
"""Other files and folders of the repository to copy, if they exist; with the last ones the copy can be installed."""


def freeze(root: Path, preset: str, results: Path) -> Path:
    """Copy the code to `<results>/<preset>/code/<hash>`, unless a copy with the same content exists.

    Raises:
        UserError: if the existing copy was changed.
    """
    folder = Layout(preset, results).code
    unfinished = folder / f".copy.{os.getpid()}.tmp"  # a name that `redraft recover` knows (`files.TEMPORARY`)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        for path, file in sources(root).items():
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)  # with its modification time, which Snakemake compares
            # Read-only, since an edit would change what running jobs and their retries execute.
            target.chmod(0o444)
        code = content_hash(unfinished)  # of the copy, since the checkout may change while it is read
        write_json(unfinished / FROZEN, {"code": code, "git": git_state()})
        return _publish(unfinished, folder / code)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _publish(unfinished: Path, copy: Path) -> Path:
    """Rename a finished copy to its final path, or keep an existing copy with the same content."""
    try:
        unfinished.rename(copy)
    except OSError:
        # An earlier call, or one at the same moment, has made this copy; a rename replaces only an empty folder.
        if not copy.is_dir():
            raise
    if (content := content_hash(copy)) != copy.name:
        raise UserError(
            "this frozen copy was changed; remove it when nothing runs from it",
            file=copy,
            key="hash",
            value=content,
            allowed=copy.name,
        )
    if unfinished.exists() and (state := read_json(unfinished / FROZEN))["git"]["modified"] is False:
        write_json(copy / FROZEN, state)  # the files may have been committed since the copy was made
    return copy


def sources(root: Path) -> dict[str, Path]:
    """Files to copy by their path in the copy, sorted by that path.

    Experiments of the working directory replace those of the root, as in `redraft.layout.code_root`.

    Raises:
        UserError: if there is no Snakefile.
    """
    if not (root / "Snakefile").exists():
        raise UserError("this is not the repository's root", file=root, allowed="a folder with a Snakefile")
    origins = {part: root / part for part in PARTS}
    if is_project():
        origins["experiments"] = Path("experiments")
    origins |= {f"src/{name.replace('.', '/')}": _package(name) for name in PACKAGES}
    listed = (each for target, origin in origins.items() for each in _files(origin, target))
    files = {path: file for path, file in listed if not path.startswith(f"src/redraft/{PACKAGED.name}/")}
    # Jobs read the site file again: that of the variable or of the working directory, and not the one next to the code.
    files.pop(str(site.FILE), None)
    if (site_file := site.site_file()).is_file():
        files[str(site.FILE)] = site_file
    if cells := own.cells_file():
        files |= own.files(cells)
    return dict(sorted(files.items()))


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UserError("this package is not installed", key="package", value=name)
    return Path(spec.origin).parent


def _files(origin: Path, target: str) -> list[tuple[str, Path]]:
    """Path in the copy and source of a file, or of all files of a folder except caches and hidden files."""
    if origin.is_file():
        return [(target, origin)]
    # Also of linked folders, which the main process reads too.
    folders = ((Path(folder), names) for folder, _, names in os.walk(origin, followlinks=True))
    named = ((folder.relative_to(origin) / name, folder / name) for folder, names in folders for name in names)
    return [
        (f"{target}/{name.as_posix()}", file)
        for name, file in named
        if file.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in name.parts)
    ]


def content_hash(copy: Path) -> str:
    """Hash of a copy's files and their paths, without the file that records its origin."""
    return _hash({path: file for path, file in _files(copy, ".") if path != f"./{FROZEN}"})


def checkout_hash(root: Path) -> str:
    """Name that a copy of the current checkout would have."""
    return _hash({f"./{path}": file for path, file in sources(root).items()})


def _hash(files: dict[str, Path]) -> str:
    return fingerprint({path: sha256(file) for path, file in sorted(files.items())})


def environment(copy: Path) -> dict[str, str]:
    """Environment variables with which a process in any working directory runs from a copy."""
    copy = copy.resolve()
    earlier = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    source = str(copy / "src")
    path = os.pathsep.join([source, *(part for part in earlier if part != source)])
    site_variable = {site.VARIABLE: str(copy / site.FILE)} if (copy / site.FILE).exists() else {}
    cells = {own.VARIABLE: str(copy / own.place(file))} if (file := own.cells_file()) else {}
    return {"PYTHONPATH": path, CODE: str(copy), **site_variable, **cells}


def frozen(copy: Path | None = None) -> dict[str, Any] | None:
    """Hash and commit of a copy, by default of the one that this process runs from; None outside of a copy."""
    file = (code_root() if copy is None else copy) / FROZEN
    return read_json(file) if file.exists() else None


def start(workflow: Any, root: Path, preset: str, expected: str) -> Path:
    """Make all jobs of a campaign run from a copy; call this in `onstart`, which Snakemake skips in dry runs.

    Args:
        workflow: Snakemake's workflow.
        root: root of the code.
        preset: name of the preset.
        expected: `checkout_hash` at the time when the Snakefile was read.

    Raises:
        UserError: if the checkout was edited since then.
    """
    copy = freeze(root, preset, Path("results"))
    if copy.name != expected:
        raise UserError(
            "files were edited while the campaign was being planned; start it again",
            file=root,
            key="hash",
            value=copy.name,
            allowed=expected,
        )
    os.environ.update(environment(copy))
    # A Snakefile that uses this workflow as a module is no part of the copy.
    if Path(workflow.basedir) not in (root, root / "workflow"):
        return copy
    # Executors stored the Snakefile's path when they were created, and a cluster's jobs read that file again.
    for executor in (workflow.scheduler._executor, workflow.scheduler._local_executor):
        if executor is not None:
            executor.snakefile = os.path.relpath(copy / "Snakefile")
    return copy


def content_of(*files: Path | str) -> str:
    """Hash of files, for the `params` of rules; paths are those in the copy.

    A file that is edited while its rule runs from a copy is older than the rule's output, so its modification time
    alone would not mark the output as outdated. The files are arguments because Snakemake does not compare params that
    are functions of `input`.
    """
    return fingerprint({str(file): sha256(own.located(Path(file))) for file in files})
