"""Tables, figures and claims of made-up runs, which are measured when they are asked for."""

from dataclasses import replace

from redraft.analysis.claims import verdicts
from redraft.analysis.data.measured import Measuring
from redraft.analysis.data.reported_tables import match_of
from redraft.analysis.data.statistics import Families
from redraft.analysis.figures import points
from redraft.analysis.measuring import ask_for_figures
from redraft.analysis.tables.comparison import TableSource
from redraft.analysis.tables.resolved import resolve
from redraft.config import Experiments, id_of


def figure_data(figure, runs, *arguments, **named):
    return points.figure_data(figure, Measuring(runs), *arguments, **named)


def judge(claims, runs, *arguments, **named):
    return verdicts.judge(claims, Measuring(runs), *arguments, **named)


def table_source(runs, reported, experiments, paper="spec_rl", preset="tiny", paper_scale=False):
    """What tables are made from, at this preset with the paper's scale or not."""
    resolved = replace(resolve(experiments, paper, preset, runs), paper_scale=paper_scale)
    if reported.lines:  # of a paper that a test makes up, perhaps
        matches = {name: match_of(experiments.cell(id_of(paper, name)), reported.spec) for name in resolved.cells}
        cells = {name: replace(cell, reported=matches[name]) for name, cell in resolved.cells.items()}
        resolved = replace(resolved, cells=cells)
    return TableSource(Measuring(runs), reported, resolved)


def save_measured(runs, folder, paper):
    """Write made-up runs and what figures show of them."""
    runs.save(folder)
    measured = Measuring(runs)
    ask_for_figures(measured, Experiments(), paper, "tiny")
    measured.save(folder, Families(), {})
