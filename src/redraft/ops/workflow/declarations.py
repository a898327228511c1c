"""Files that a paper's tables, figures and claims are made from, besides its runs."""

from pathlib import Path
from typing import Literal

from redraft.config import Experiments, Panel, own
from redraft.layout import published_data
from redraft.ops.workflow import freeze
from redraft.published import curve_file, sweep_file

Kind = Literal["family", "measured", "figures", "cases", "reported"]
"""Tables and claims, whose p-values are corrected together; these and figures, whose
quantities are measured; figures, and the tables that say which model a published
sweep is of; case studies, which are declared with the figures; transcribed values, if there are any."""


class Declarations:
    """Files of papers by what they declare."""

    def __init__(self, experiments: Experiments) -> None:
        self.experiments = experiments

    def files(self, paper: str, *kinds: Kind) -> list[str]:
        """Files of these kinds as inputs."""
        return [str(self.experiments.path(paper, name)) for name in self.names(paper, *kinds)]

    def content(self, paper: str, *kinds: Kind) -> str:
        """Hash of these files, wherever they are."""
        return freeze.content_of(*(f"experiments/{paper}/{name}" for name in self.names(paper, *kinds)))

    def names(self, paper: str, *kinds: Kind) -> list[str]:
        """Names of these files in the paper's folder."""
        names: list[str] = []
        for kind in kinds:
            names += self._reported(paper) if kind == "reported" else self._declared(paper, *self._parts(paper, kind))
        return names

    def _parts(self, paper: str, kind: Kind) -> list[str]:
        if kind in ("family", "measured"):
            return ["tables", "claims", *["figures"] * (kind == "measured")]
        of_a_sweep = kind == "figures" and any(panel.roofline for panel in self._panels(paper))
        return ["figures", *["tables"] * of_a_sweep]

    def _declared(self, paper: str, *parts: str) -> list[str]:
        """Files with a paper's tables, figures or claims; its cells make what it does not declare."""
        names = [self.experiments.declaration(paper, part) for part in parts]
        without = not any(names) and self.experiments.cell_file(paper).bases
        return list(dict.fromkeys(filter(None, [*names, own.CELLS if without else ""])))

    def _reported(self, paper: str) -> list[str]:
        vocabulary = self.experiments.reported(paper)
        if not vocabulary:
            return []
        numbers = {table.reported_number for table in self.experiments.tables(paper).tables}
        if vocabulary.times:
            numbers.add(vocabulary.times.table)
        known = sorted(number for number in numbers if number is not None)
        return ["reported.yaml", *(f"reported/table{number:02d}.csv" for number in known)]

    def published_curves(self, paper: str) -> list[Path]:
        """Existing files that the authors published and tables replay."""
        tables = [table for table in self.experiments.tables(paper).tables if table.kind == "published"]
        found = (curve_file(table.folder, row.file) for table in tables for row in table.rows)
        return [file for file in found if file]

    def published_points(self, paper: str) -> list[Path]:
        """Existing files that the authors published and figures show."""
        panels = self._panels(paper)
        files = [published_data() / panel.published.file for panel in panels if panel.published]
        curves = [
            curve_file(panel.curves.folder, name)
            for panel in panels
            if panel.curves
            for name in panel.curves.files.values()
        ]
        sweeps = {sweep_file(panel.roofline) for panel in panels if panel.roofline}
        return [file for file in (*files, *curves, *sweeps) if file and file.exists()]

    def _panels(self, paper: str) -> list[Panel]:
        return [panel for figure in self.experiments.figures(paper).figures for panel in figure.panels]
