"""Where results lie. The Snakefile and the commands ask here, so that no path is written twice."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import UserError

CODE = "REDRAFT_CODE"
"""Environment variable of a campaign's jobs: the frozen copy that they run from (redraft.ops.freeze)."""
FROZEN = "frozen.json"
"""In a frozen copy: its hash, and the commit that it was made of."""
PUBLISHED = "REDRAFT_PUBLISHED"
"""Environment variable: folder of raw data that authors published, which are never part of the repository."""
_PART = re.compile(r"[A-Za-z0-9_{*][A-Za-z0-9_.{}*-]*")
"""A part of a path: a name of the configuration, a workflow's `{wildcard}` or a pattern's `*`. No `..`, `/` or `~`."""


def code_root() -> Path:
    """Where experiments and workflows are read: the frozen copy of a campaign's job, else the working directory."""
    return Path(os.environ.get(CODE) or ".")


def published_data() -> Path:
    """Where raw data that authors published lie: where the user says, else `published` in the working directory."""
    return Path(os.environ.get(PUBLISHED) or "published")


@dataclass(frozen=True)
class Layout:
    """The files of one preset under one results root, which none of them can leave.

    Every method raises a UserError for a name that cannot be part of a path.
    """

    preset: str
    root: Path = Path("results")

    def __post_init__(self) -> None:
        _part("preset", self.preset)

    @property
    def folder(self) -> Path:
        """Everything of the preset."""
        return self.root / self.preset

    @property
    def code(self) -> Path:
        """The frozen copies that campaigns ran from, each named by its hash."""
        return self.folder / "code"

    def model(self, role: str) -> Path:
        """An initial policy in transformers' format."""
        return self.folder / "models" / _part("role", role)

    def data(self, role: str) -> Path:
        """Training problems as they were read, and what they were read from."""
        return self.folder / "data" / _part("role", role)

    def initial(self, role: str, seed: int | str) -> Path:
        """The evaluation of an initial policy with one seed."""
        return self.folder / "initial" / _part("role", role) / _part("seed", f"seed{seed}")

    def run(self, cell_id: str, seed: int | str) -> Path:
        """All files of one run."""
        paper, _, cell = cell_id.partition("/")
        return self.folder / "runs" / _part("paper", paper) / _part("cell", cell) / _part("seed", f"seed{seed}")

    def collected(self, paper: str) -> Path:
        """All runs of a paper in a few Parquet files."""
        return self.folder / "collected" / _part("paper", paper)

    def table(self, paper: str, number: int) -> Path:
        """A table, without the suffix."""
        return self.folder / "tables" / _part("paper", paper) / f"table{number:02d}"

    def figure(self, paper: str, number: int) -> Path:
        """A figure, without the suffix."""
        return self.folder / "figures" / _part("paper", paper) / f"figure{number:02d}"

    def main_result(self, paper: str) -> Path:
        """The comparisons of the first table that were run, without the suffix."""
        return self.folder / "tables" / _part("paper", paper) / "main_result"

    def reported_speedups(self, paper: str, number: int) -> Path:
        """Every kind of speedup from the times that a table of the paper reports, without the suffix."""
        return self.folder / "tables" / _part("paper", paper) / f"table{number:02d}_reported"

    def without_counterpart(self, paper: str) -> Path:
        """Reported rows beside which no reproduced one stands, without the suffix."""
        return self.folder / "tables" / _part("paper", paper) / "without_counterpart"

    def cases(self, paper: str) -> Path:
        """Case studies, without the suffix."""
        return self.folder / "figures" / _part("paper", paper) / "cases"

    def claims(self, paper: str) -> Path:
        """Claims with verdicts."""
        return self.folder / "claims" / f"{_part('paper', paper)}.json"

    @property
    def report(self) -> Path:
        """The page a person opens."""
        return self.folder / "report.html"

    @property
    def tracking(self) -> Path:
        """MLflow's database."""
        return self.folder / "mlflow.db"


def _part(key: str, name: str) -> str:
    if not _PART.fullmatch(name) or ".." in name:
        raise UserError("this cannot be part of a path", key=key, value=name,
                        allowed="letters, digits, _, - and single dots")  # fmt: skip
    return name
