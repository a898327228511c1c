"""Locations of the files of papers and of custom cells."""

from pathlib import Path

from redraft.config import own
from redraft.errors import UserError
from redraft.layout import code_root


class PaperFiles:
    """Files of the papers under one root, and of a custom file of cells.

    Args:
        root: root of the repository, or a folder with an `experiments` folder of the same layout;
            `redraft.layout.code_root` if None.
        cells: custom file of cells (`redraft.config.own`), which is treated as a paper; if None and without a root, the
            file of the environment variable.

    Raises:
        UserError: if there are no experiments, or if a paper has the name of that file.
    """

    def __init__(self, root: Path | str | None = None, cells: Path | None = None) -> None:
        self.root = code_root() if root is None else Path(root)
        self.folder = self.root / "experiments"
        if root is None and not self.folder.is_dir():
            raise UserError("no experiments here: call this in a checkout of redraft", file=self.folder)
        # Another root is a copy or a test's, to which the variable of this process does not refer.
        self.named = own.cells_file() if root is None and cells is None else cells
        self._named_paper = own.paper_of(self.named) if self.named else ""
        there = self.folder / self._named_paper / own.CELLS
        # `--cells` may also name a paper's own file.
        if self.named and there.exists() and not there.samefile(self.named):
            raise UserError(
                "another paper has this name; give the file another name",
                file=self.named,
                key="paper",
                value=self._named_paper,
            )

    @property
    def papers(self) -> list[str]:
        """Names of all papers."""
        beside = {file.parent.name for file in self.folder.glob(f"*/{own.CELLS}")}
        return sorted(beside | ({self._named_paper} if self.named else set()))

    @property
    def own_papers(self) -> list[str]:
        """Papers of custom cells. They need no line in a preset, and all their grids are run."""
        return [paper for paper in self.papers if paper in (own.OWN, self._named_paper)]

    def folder_of(self, paper: str) -> Path:
        """Folder of a paper's files. For a custom file with another name than `cells.yaml` this folder does not
        exist."""
        if self.named and paper == self._named_paper and self.named.name == own.CELLS:
            return self.named.parent
        return self.folder / paper

    def cells_of(self, paper: str) -> Path:
        """File of a paper's cells."""
        return self.named if self.named and paper == self._named_paper else self.folder / paper / own.CELLS

    def path(self, paper: str, name: str) -> Path:
        """Path of a paper's file from its name."""
        return self.cells_of(paper) if name == own.CELLS else self.folder_of(paper) / name
