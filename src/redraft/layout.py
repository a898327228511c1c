"""Paths of results, for the workflow and the commands, so that no path is written twice."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redraft.errors import UserError

CODE = "REDRAFT_CODE"
"""Environment variable of a campaign's jobs: their frozen copy of the code (`redraft.ops.workflow.freeze`)."""
FROZEN = "frozen.json"
"""File in a frozen copy with its hash and the commit of its checkout."""
PUBLISHED = "REDRAFT_PUBLISHED"
"""Environment variable: folder of raw data that authors published, which are never part of the repository."""
PACKAGED = Path(__file__).parent / "project"
"""Experiments and workflows as the package ships them: links into the repository, files in a wheel."""
MISSING = {
    "results": "no results here: call this in the folder that holds results/, such as a checkout of redraft",
    "Snakefile": "no workflow here: call this in a checkout of redraft",
}
_PART = re.compile(r"[A-Za-z0-9_{*][A-Za-z0-9_.@{}*-]*")
"""Part of a path: a configured name, a workflow's `{wildcard}` or a pattern's `*`, without `..`, `/` and `~`."""


def code_root() -> Path:
    """Root of experiments and workflows.

    The frozen copy in a campaign's jobs, else the working directory if it is a project, else the packaged copy.
    """
    return Path(os.environ.get(CODE) or ("." if is_project() else PACKAGED))


def is_project() -> bool:
    """Whether the working directory has experiments; a folder of that name with other files in it does not count."""
    folder = Path("experiments")
    return folder.is_dir() and (
        Path("Snakefile").exists() or (folder / "presets").is_dir() or any(folder.glob("*/cells.yaml"))
    )


def require(file: Literal["results", "Snakefile"]) -> None:
    """Check that a command which works on results, or runs the workflow, is called where they are.

    Raises:
        UserError: outside a project and without the file.
    """
    if not is_project() and not Path(file).exists():
        raise UserError(MISSING[file])


def published_data() -> Path:
    """Folder of raw data that authors published: the user's, else `published` in the working directory."""
    return Path(os.environ.get(PUBLISHED) or "published")


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
        """Frozen copies of the code, each named by its hash."""
        return self.folder / "code"

    def model(self, role: str) -> Path:
        """Initial policy in transformers' format."""
        return self.folder / "models" / _part("role", role)

    def calibration(self, role: str, bits: int | str) -> Path:
        """Roofline of a model on this machine, with a drafter of so many bits."""
        return self.folder / "calibrations" / f"{_part('role', role)}-w{bits}.json"

    def data(self, role: str) -> Path:
        """Training problems and their origin."""
        return self.folder / "data" / _part("role", role)

    def initial(self, protocol: str, role: str, seed: int | str) -> Path:
        """Evaluation of an initial policy with one seed by a protocol (`Preset.protocol_of`)."""
        initial = self.folder / "initial" / _part("protocol", protocol)
        return initial / _part("role", role) / _part("seed", f"seed{seed}")

    def run(self, cell_id: str, seed: int | str) -> Path:
        """Folder of one run."""
        paper, _, cell = cell_id.partition("/")
        return self.folder / "runs" / _part("paper", paper) / _part("cell", cell) / _part("seed", f"seed{seed}")

    def seeds(self, cell_id: str) -> set[int]:
        """Seeds with a folder of a run of a cell."""
        folders = self.run(cell_id, 0).parent.glob("seed*")
        return {int(folder.name[4:]) for folder in folders if folder.name[4:].isdigit()}

    def collected(self, paper: str) -> Path:
        """All runs of a paper in a few Parquet files."""
        return self.folder / "collected" / _part("paper", paper)

    def timing(self, paper: str, seed: int | str) -> Path:
        """Seconds of a seed's runs that were repeated side by side."""
        return self.folder / "timing" / _part("paper", paper) / f"{_part('seed', f'seed{seed}')}.parquet"

    def tables(self, paper: str) -> Path:
        """All tables of a paper and what goes with them."""
        return self.folder / "tables" / _part("paper", paper)

    def figures(self, paper: str) -> Path:
        """All figures of a paper."""
        return self.folder / "figures" / _part("paper", paper)

    def table(self, paper: str, number: int) -> Path:
        """A table, without the suffix."""
        return self.tables(paper) / f"table{number:02d}"

    def figure(self, paper: str, number: int) -> Path:
        """A figure, without the suffix."""
        return self.figures(paper) / f"figure{number:02d}"

    def main_result(self, paper: str) -> Path:
        """The comparisons of the first table that were run, without the suffix."""
        return self.tables(paper) / "main_result"

    def reported_speedups(self, paper: str, number: int) -> Path:
        """Every kind of speedup from the times that a table of the paper reports, without the suffix."""
        return self.tables(paper) / f"table{number:02d}_reported"

    def without_counterpart(self, paper: str) -> Path:
        """Reported rows beside which no reproduced one stands, without the suffix."""
        return self.tables(paper) / "without_counterpart"

    def cases(self, paper: str) -> Path:
        """Case studies, without the suffix."""
        return self.folder / "cases" / _part("paper", paper)

    def claims(self, paper: str) -> Path:
        """Claims with verdicts."""
        return self.folder / "claims" / f"{_part('paper', paper)}.json"

    @property
    def distributions(self) -> Path:
        """Distributions of the bias laboratory, which are the same at every preset."""
        return self.folder / "laboratory" / "laws.json"

    def observed(self, paper: str, seed: int | str) -> Path:
        """What the bias laboratory observes of a paper's run."""
        return self.folder / "laboratory" / _part("paper", paper) / f"{_part('seed', f'seed{seed}')}.json"

    @property
    def report(self) -> Path:
        """The page a person opens, which leads to the first of `pages`."""
        return self.folder / "report.html"

    @property
    def pages(self) -> Path:
        """All pages of the report."""
        return self.folder / "report"

    @property
    def calls(self) -> Path:
        """What each call of Snakemake took, a line each."""
        return self.folder / "calls.jsonl"

    @property
    def tracking(self) -> Path:
        """MLflow's database."""
        return self.folder / "mlflow.db"


def _part(key: str, name: str) -> str:
    if not _PART.fullmatch(name) or ".." in name:
        raise UserError(
            "this cannot be part of a path", key=key, value=name, allowed="letters, digits, _, -, @ and single dots"
        )
    return name
