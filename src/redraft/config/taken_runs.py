"""Runs that a paper takes from another one, where only the names differ (`CellFile.runs_from`)."""

from collections.abc import Mapping
from contextlib import suppress

from redraft.config.identity import training_fingerprint
from redraft.config.load import Experiments
from redraft.config.preset import Preset
from redraft.config.read import check_known
from redraft.errors import UserError


def taken_cells(experiments: Experiments, preset: Preset) -> dict[str, str]:
    """Ids of the cells whose runs are those of another paper's cell, and the id of that cell.

    Papers without a line in the preset have none, and neither have cells that cannot be run at it. Papers with a
    mistake in their files are left out: it is reported where they are used (`sources_of`).
    """
    taken: dict[str, str] = {}
    for paper in dict.fromkeys([*preset.default, *experiments.own_papers]):
        with suppress(UserError):
            taken |= _taken_cells(experiments, preset, paper)
    return taken


def _taken_cells(experiments: Experiments, preset: Preset, paper: str) -> dict[str, str]:
    sources = sources_of(experiments, paper)
    # The first of equal cells, in the order of `runs_from`.
    trained = [cells for source in sources for cells in _trained(experiments, preset, source).items()]
    equal = dict(reversed([(training, cell) for cell, training in trained]))
    own = _trained(experiments, preset, paper) if sources else {}
    return {cell: equal[training] for cell, training in own.items() if training in equal}


def sources_of(experiments: Experiments, paper: str) -> list[str]:
    """Papers that a paper takes runs from.

    Raises:
        UserError: for an unknown paper, for the paper itself, and for one that takes runs from it.
    """
    sources = experiments.cell_file(paper).runs_from
    others = [other for other in experiments.papers if other != paper]
    check_known(sources, others, "no such paper", experiments.cells_of(paper), "runs_from")
    reached, pending = set[str](), list(sources)
    while pending:
        if (source := pending.pop()) == paper:
            raise UserError(
                "papers take runs from each other",
                file=experiments.cells_of(paper),
                key="runs_from",
                value=", ".join(sources),
                allowed="papers that take none from this one, also not through others",
            )
        if source not in reached:
            reached.add(source)
            pending += experiments.cell_file(source).runs_from
    return sources


def _trained(experiments: Experiments, preset: Preset, paper: str) -> Mapping[str, str]:
    """Training fingerprints of a paper's cells by their ids, without cells that have no run at the preset."""
    found = {}
    for cell in experiments.cells(paper):
        with suppress(UserError):  # a mistake is reported where the cell is used
            found[cell.id] = training_fingerprint(experiments.run(cell.id, preset.seeds[0], preset.name))
    return found
