"""Where results lie. The Snakefile and the commands ask here, so that no path is written twice."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The files of one preset under one results root."""

    preset: str
    root: Path = Path("results")

    @property
    def folder(self) -> Path:
        """Everything of the preset."""
        return self.root / self.preset

    def model(self, role: str) -> Path:
        """An initial policy in transformers' format."""
        return self.folder / "models" / role

    def data(self, role: str) -> Path:
        """Training problems as they were read, and what they were read from."""
        return self.folder / "data" / role

    def initial(self, role: str, seed: int | str) -> Path:
        """The evaluation of an initial policy with one seed."""
        return self.folder / "initial" / role / f"seed{seed}"

    def run(self, cell_id: str, seed: int | str) -> Path:
        """All files of one run."""
        return self.folder / "runs" / cell_id / f"seed{seed}"

    def collected(self, paper: str) -> Path:
        """All runs of a paper in a few Parquet files."""
        return self.folder / "collected" / paper

    def table(self, paper: str, number: int) -> Path:
        """A table, without the suffix."""
        return self.folder / "tables" / paper / f"table{number:02d}"

    def figure(self, paper: str, number: int) -> Path:
        """A figure, without the suffix."""
        return self.folder / "figures" / paper / f"figure{number:02d}"

    def reported_speedups(self, paper: str) -> Path:
        """Every kind of speedup from the paper's own times, without the suffix."""
        return self.folder / "tables" / paper / "table04_reported"

    def without_counterpart(self, paper: str) -> Path:
        """Reported rows beside which no reproduced one stands, without the suffix."""
        return self.folder / "tables" / paper / "without_counterpart"

    def cases(self, paper: str) -> Path:
        """Case studies, without the suffix."""
        return self.folder / "figures" / paper / "cases"

    def claims(self, paper: str) -> Path:
        """Claims with verdicts."""
        return self.folder / "claims" / f"{paper}.json"

    @property
    def report(self) -> Path:
        """The page a person opens."""
        return self.folder / "report.html"

    @property
    def tracking(self) -> Path:
        """MLflow's database."""
        return self.folder / "mlflow.db"
