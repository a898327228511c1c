"""Coordinates of cells in trend figures: products of settings of the cells' runs at a preset."""

import math
from pathlib import Path

from redraft.config.base import id_of
from redraft.config.cell import coordinate
from redraft.config.experiment import Run
from redraft.config.load import Experiments
from redraft.config.preset import Preset
from redraft.config.windows import run_at
from redraft.errors import UserError

LEAST = 3
"""Fewest different coordinates to which a line is fitted."""
ALLOWED = "keys that `redraft show` prints with a number, such as data.size or trainer.group_size"
Coordinates = dict[int, dict[str, dict[str, float]]]
"""Coordinates by figure number, panel title and cell."""


def coordinates(experiments: Experiments, preset: Preset, paper: str) -> Coordinates:
    """Coordinates of the cells in all panels with a trend over keys; a cell that the preset lacks has none.

    Raises:
        UserError: for a key at which a run has no finite number above 0, and for too few different coordinates.
    """
    found: Coordinates = {}
    for i, figure in enumerate(experiments.figures(paper).figures):
        for j, panel in enumerate(figure.panels):
            of_panel = found.setdefault(figure.number, {}).setdefault(panel.title, {})
            for k, key in enumerate(panel.trend.keys if panel.trend else ()):
                for name in panel.cells:
                    if run := run_at(experiments, preset, id_of(paper, name)):
                        number = _number(experiments, run, key, f"figures.{i}.panels.{j}.trend.keys.{k}")
                        of_panel[name] = of_panel.get(name, 1.0) * number
            if len(of_panel) >= LEAST > len(set(of_panel.values())):
                raise UserError(
                    f"a line needs {LEAST} different values, and these cells have {len(set(of_panel.values()))}",
                    file=_file(experiments, paper),
                    key=f"figures.{i}.panels.{j}.trend.keys",
                    value=", ".join(panel.trend.keys if panel.trend else ()),
                    allowed=ALLOWED,
                )
    return found


def _number(experiments: Experiments, run: Run, key: str, at: str) -> float:
    try:
        number = coordinate(run, key)
    except ValueError:
        number = 0.0
    if 0 < number < math.inf:
        return number
    raise UserError(
        f"the key has no finite number above 0 in a run of {run.paper}/{run.cell}",
        file=_file(experiments, run.paper),
        key=at,
        value=key,
        allowed=ALLOWED,
    )


def _file(experiments: Experiments, paper: str) -> Path:
    return experiments.path(paper, experiments.declaration(paper, "figures"))
