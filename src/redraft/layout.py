"""Paths of results, defined once for the workflow and the commands."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redraft.errors import UserError

CODE = "REDRAFT_CODE"
"""Environment variable of a campaign's jobs with the path of their frozen code (`redraft.ops.workflow.freeze`)."""
FROZEN = "frozen.json"
"""File in a frozen copy of the code with its hash and the commit of its checkout."""
PUBLISHED = "REDRAFT_PUBLISHED"
"""Environment variable with the folder of raw data that authors published. They are never part of the repository."""
PACKAGED = Path(__file__).parent / "project"
"""Experiments and workflows of the package: links into the repository in a checkout, files in a wheel."""
MISSING = {
    "results": "no results here: call this in the folder that holds results/, such as a checkout of redraft",
    "Snakefile": "no workflow here: call this in a checkout of redraft",
}
_PART = re.compile(r"[A-Za-z0-9_{*][A-Za-z0-9_.@{}*-]*")
"""Part of a path: a configured name, a `{wildcard}` of a rule or the `*` of a pattern, without `..`, `/` and `~`."""
_SEED = re.compile(r"seed(0|[1-9][0-9]*)")
"""Folder of a run."""
_CELL = re.compile(r"([a-z0-9_]+/)?[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
"""Name of a cell, or its id `paper/cell`."""


def code_root() -> Path:
    """Root of experiments and workflows.

    The frozen copy in a campaign's jobs, else the working directory if it is a project, else the packaged copy.
    """
    return Path(os.environ.get(CODE) or ("." if is_project() else PACKAGED))


def is_project() -> bool:
    """True if the working directory has a folder `experiments` with cells or presets, which replaces all others."""
    folder = Path("experiments")
    return (folder / "presets").is_dir() or any(folder.glob("*/cells.yaml"))


def require(file: Literal["results", "Snakefile"]) -> None:
    """Check that the working directory has the results, or the workflow, that a command needs.

    Raises:
        UserError: outside a project, if the file is missing.
    """
    # In a project without results, commands say themselves what has not run.
    if not Path(file).exists() and (file == "Snakefile" or not is_project()):
        raise UserError(MISSING[file], file=Path.cwd())


def require_writable(folder: Path) -> None:
    """Check that a folder, or the one in which it would be made, can be written.

    Raises:
        UserError: if it is a file, or is read-only.
    """
    # The folder may not exist yet: the nearest existing one decides.
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError("results cannot be written here: this is a file", file=existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError("results cannot be written here: this folder is read-only", file=existing)


def published_data() -> Path:
    """Folder of raw data that authors published: that of the environment variable, else `published` here.

    Raises:
        UserError: if the environment variable names none. The default one may be missing.
    """
    named = os.environ.get(PUBLISHED)
    if named and not Path(named).is_dir():
        raise UserError("there is no such folder", key=PUBLISHED, value=named, allowed="a folder, or nothing")
    return Path(named or "published")


REOPENED = ".reopened"
"""File in a folder of published results that `redraft report` unpacked, with the names of all files that it wrote."""


@dataclass(frozen=True)
class Layout:
    """Paths of one preset, all under the root of results.

    Attributes:
        preset: name of the preset.
        root: root of all results.

    Raises:
        UserError: from every method, for a name that cannot be part of a path.
    """

    preset: str
    root: Path = Path("results")

    def __post_init__(self) -> None:
        _part("preset", self.preset)

    @property
    def folder(self) -> Path:
        """Folder of the preset."""
        return self.root / self.preset

    @property
    def code(self) -> Path:
        """Folder of frozen copies of the code, each in a folder named by its hash."""
        return self.folder / "code"

    @property
    def precision(self) -> Path:
        """Precision that was taken for all runs of the preset (`engine.dtype: fastest`)."""
        return self.folder / "precision.json"

    def model(self, role: str) -> Path:
        """Initial policy in transformers' format."""
        return self.folder / "models" / _part("role", role)

    def calibration(self, role: str, bits: int | str) -> Path:
        """Roofline of a model on this machine, with a drafter of `bits` bits per weight."""
        return self.folder / "calibrations" / f"{_part('role', role)}-w{bits}.json"

    def data(self, role: str) -> Path:
        """Folder of training problems and their origin."""
        return self.folder / "data" / _part("role", role)

    def benchmarks(self, protocol: str) -> Path:
        """Record of the hub's benchmarks of a protocol."""
        return self.folder / "benchmarks" / f"{_part('protocol', protocol)}.json"

    def initial(self, protocol: str, role: str, seed: int | str) -> Path:
        """Folder with the evaluation of an initial policy by a protocol (`Preset.protocol_of`)."""
        initial = self.folder / "initial" / _part("protocol", protocol)
        return initial / _part("role", role) / _part("seed", f"seed{seed}")

    def run(self, cell_id: str, seed: int | str) -> Path:
        """Folder of one run."""
        paper, _, cell = cell_id.partition("/")
        return self.folder / "runs" / _part("paper", paper) / _part("cell", cell) / _part("seed", f"seed{seed}")

    def seeds(self, cell_id: str) -> set[int]:
        """Seeds of a cell whose run has a folder."""
        # A copy such as `seed0.bak` is no run.
        folders = self.run(cell_id, 0).parent.glob("seed*")
        return {int(folder.name[4:]) for folder in folders if _SEED.fullmatch(folder.name)}

    def manifests(self, paper: str, cell: str = "*") -> list[Path]:
        """Manifests of a paper's finished runs. A folder that is not named after a seed, such as a copy, is no run."""
        found = (self.folder / "runs").glob(f"{_part('paper', paper)}/{_part('cell', cell)}/seed*/manifest.json")
        return sorted(file for file in found if _SEED.fullmatch(file.parent.name))

    def collected(self, paper: str) -> Path:
        """Folder of Parquet files with the data of all runs of a paper."""
        return self.folder / "collected" / _part("paper", paper)

    def timing(self, paper: str, seed: int | str) -> Path:
        """Wall times of a seed's runs, repeated one after another on one machine (`snakemake timing`)."""
        return self.folder / "timing" / _part("paper", paper) / f"{_part('seed', f'seed{seed}')}.parquet"

    def tables(self, paper: str) -> Path:
        """Folder of a paper's tables and their supplements."""
        return self.folder / "tables" / _part("paper", paper)

    def figures(self, paper: str) -> Path:
        """Folder of a paper's figures."""
        return self.folder / "figures" / _part("paper", paper)

    def table(self, paper: str, number: int) -> Path:
        """Path of a table without the suffix."""
        return self.tables(paper) / f"table{number:02d}"

    def figure(self, paper: str, number: int) -> Path:
        """Path of a figure without the suffix."""
        return self.figures(paper) / f"figure{number:02d}"

    def main_result(self, paper: str) -> Path:
        """Path, without the suffix, of the comparisons of the first table that were run."""
        return self.tables(paper) / "main_result"

    def reported_speedups(self, paper: str, number: int) -> Path:
        """Path, without the suffix, of all kinds of speedup computed from the times in a table of the paper."""
        return self.tables(paper) / f"table{number:02d}_reported"

    def without_counterpart(self, paper: str) -> Path:
        """Path, without the suffix, of the list of reported rows that have no reproduced row."""
        return self.tables(paper) / "without_counterpart"

    def cases(self, paper: str) -> Path:
        """Path of the case studies without the suffix."""
        return self.folder / "cases" / _part("paper", paper)

    def claims(self, paper: str) -> Path:
        """Claims of a paper with their verdicts."""
        return self.folder / "claims" / f"{_part('paper', paper)}.json"

    def looks(self, paper: str) -> Path:
        """Plan of a paper's sequential campaign (`redraft run-until`)."""
        return self.folder / "looks" / f"{_part('paper', paper)}.json"

    def sensitivity(self, cell_id: str, seed: int | str) -> Path:
        """Folder with evaluations of a run's policies under other settings, one folder per policy and protocol."""
        paper, _, cell = cell_id.partition("/")
        parts = _part("paper", paper), _part("cell", cell), _part("seed", f"seed{seed}")
        return self.folder.joinpath("sensitivity", *parts)

    @property
    def sensitivities(self) -> list[Path]:
        """Records of finished comparisons of such evaluations (`redraft sensitivity`)."""
        found = (self.folder / "sensitivity").glob("*/*/seed*/*/sensitivity.json")
        return sorted(file for file in found if _SEED.fullmatch(file.parents[1].name))

    @property
    def distributions(self) -> Path:
        """Distributions of the bias laboratory. They do not depend on the preset."""
        # The file keeps its first name.
        return self.folder / "laboratory" / "laws.json"

    def observed(self, paper: str, seed: int | str) -> Path:
        """Observations of the bias laboratory on one run of a paper."""
        return self.folder / "laboratory" / _part("paper", paper) / f"{_part('seed', f'seed{seed}')}.json"

    @property
    def report(self) -> Path:
        """Entry page of the report; it redirects to the first of `pages`."""
        return self.folder / "report.html"

    @property
    def pages(self) -> Path:
        """Folder of the report's pages."""
        return self.folder / "report"

    @property
    def calls(self) -> Path:
        """Wall time of each call of Snakemake, one JSON line per call."""
        return self.folder / "calls.jsonl"

    @property
    def left_out(self) -> Path:
        """Cells that the latest call of Snakemake left out since they do not fit, with reasons, if there are any."""
        return self.folder / "left_out.json"

    @property
    def tracking(self) -> Path:
        """MLflow's database."""
        return self.folder / "mlflow.db"


def _part(key: str, name: str) -> str:
    # The pattern allows single dots.
    if not _PART.fullmatch(name) or ".." in name:
        raise UserError(
            "this name cannot be part of a path",
            key=key,
            value=name,
            allowed="letters, digits, _, -, @ and single dots",
        )
    return name


def check_cell(name: object, file: Path) -> str:
    """The name of a cell, or its id `paper/cell`, which a results file contains; pages and links are named after it.

    Raises:
        UserError: if it is another text, which could lead out of the results.
    """
    if not isinstance(name, str) or not _CELL.fullmatch(name):
        raise UserError(
            "this is no name of a cell",
            file=file,
            key="cell",
            value=name,
            allowed="letters, digits, _, - and single dots, or two such names joined by a slash",
            hint="a results file of someone else may have been changed; collect the runs again",
        )
    return name


def check_inside(path: Path, folder: Path, file: Path, key: str) -> Path:
    """A path that a results file contains, which has to lead into a folder of results, also through symbolic links.

    Raises:
        UserError: if it leads out of the folder.
    """
    # Resolved, since a symbolic link may lead anywhere.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            "this path leads out of the results",
            file=file,
            key=key,
            value=str(path),
            allowed=f"files in {folder}",
            hint="a results file of someone else may have been changed; make it again",
        )
    return path
