"""Check of windows of steps in tables, figures and claims, such as `mean@2-101:`, against the runs of a preset."""

from collections.abc import Iterator
from typing import Any

from redraft.config.base import id_of
from redraft.config.claims import cells_of
from redraft.config.experiment import Run
from redraft.config.load import Experiments
from redraft.config.preset import Preset
from redraft.config.quantities import WINDOW
from redraft.config.tables import TableOfCells
from redraft.errors import UserError


def check_windows(experiments: Experiments, preset: Preset, paper: str) -> None:
    """Check that every window begins before the runs of its cells end; a later one has no value.

    Claims that only the papers' scale can decide are checked at that scale.

    Raises:
        UserError: for the first window that begins too late.
    """
    for part, key, content, cells in _declared(experiments, preset, paper):
        for path, quantity, first in _windows(content, key):
            for cell in (id_of(paper, cell) for cell in cells):
                run = run_at(experiments, preset, cell)
                # Only the first step counts: a window that ends after the run has the value of the steps there are.
                if run and first > run.steps:
                    raise UserError(
                        f"the runs of {cell} at the preset {preset.name} end before these steps",
                        file=experiments.path(paper, experiments.declaration(paper, part)),
                        key=path,
                        value=quantity,
                        allowed=f"steps 1 to {run.steps}",
                    )


def _declared(experiments: Experiments, preset: Preset, paper: str) -> Iterator[tuple[str, str, Any, list[str]]]:
    """What names quantities: the part of the paper's files, its key, its content, and its cells."""
    for i, table in enumerate(experiments.tables(paper).tables):
        if isinstance(table, TableOfCells):
            yield "tables", f"tables.{i}", {"columns": [column.model_dump() for column in table.columns]}, table.cells
    for i, figure in enumerate(experiments.figures(paper).figures):
        for j, panel in enumerate(figure.panels):
            at = f"figures.{i}.panels.{j}"
            yield "figures", at, {"quantity": panel.quantity}, [*panel.cells, *panel.compared_with]
            if panel.trend:
                yield "figures", f"{at}.trend", {"quantity": panel.trend.quantity}, [*panel.cells, *panel.compared_with]
    for i, claim in enumerate(experiments.claims(paper).claims):
        if claim.scale == "any" or preset.paper_scale:
            yield "claims", f"claims.{i}.test", claim.test.model_dump(), cells_of(claim.test)


def _windows(content: Any, key: str) -> Iterator[tuple[str, str, int]]:
    """Key, text and first step of each quantity in parsed content that has a window."""
    if isinstance(content, str) and (window := WINDOW.match(content)):
        yield key, content, int(window[2])
    elif isinstance(content, dict | list | tuple):
        for name, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _windows(value, f"{key}.{name}")


def run_at(experiments: Experiments, preset: Preset, cell: str) -> Run | None:
    """A run of a cell at a preset; None if the preset leaves the cell out."""
    found = experiments.cell(cell)
    # Before `run`, which raises for a cell that the preset leaves out on purpose.
    if not experiments.has_run(found, preset):
        return None
    # Seeds, and their blocks, differ in random numbers only: all runs of a cell are equally long.
    return experiments.run(cell, preset.seeds[0], preset.name)
