"""The stage `measure`: all that a paper's tables, claims and figures show of its runs is measured here, once."""

from redraft.analysis.claims import verdicts as claims
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured, Measuring, main_quantities, of_rollouts
from redraft.analysis.data.quantities import of_accuracy
from redraft.analysis.data.reported_tables import no_reported
from redraft.analysis.data.statistics import Families
from redraft.analysis.figures.figure_parts import unsampled_benchmarks
from redraft.analysis.figures.points import points_of
from redraft.analysis.figures.trend_points import trend_rows
from redraft.analysis.tables import comparison as tables
from redraft.analysis.tables.comparison import TableSource
from redraft.analysis.tables.resolved import resolve
from redraft.analysis.tables.table_columns import expand
from redraft.config import Experiments, TableWithoutRuns
from redraft.layout import Layout


def measure(preset: str, paper: str, *, keep: bool = False) -> None:
    """Measure the collected runs of a paper, and correct the p-values of all comparisons of its report.

    Args:
        preset: name of the preset.
        paper: folder of the paper.
        keep: keep earlier measurements that need rollouts, which published results lack.
    """
    experiments, folder = Experiments(), Layout(preset).collected(paper)
    measured = Measuring(Runs.load(folder), of_rollouts(Measured.load(folder).found) if keep else None)
    resolved = resolve(experiments, paper, preset, measured.runs)
    # Before `save`: these calls make the measurements that are written.
    families = families_of(TableSource(measured, no_reported(), resolved), experiments)
    ask_for_figures(measured, experiments, paper, preset)
    for cell in measured.runs.runs["cell"].unique():
        for quantity in main_quantities(measured.runs, cell):
            measured.values(quantity, cell)
    measured.save(folder, families, resolved.content())


def families_of(source: TableSource, experiments: Experiments) -> Families:
    """Comparisons of every table of runs with "no effect", and of every decidable claim with its threshold.

    Tables and claims share the families, so that a number has one verdict in a paper's report. The primary family has
    the cells of tables that headlines name and the claims that are declared so.
    """
    resolved = source.resolved
    declared = [table for table in resolved.tables if not isinstance(table, TableWithoutRuns)]
    whole = {t.number: expand(t, resolved.benchmarks, resolved.reported, resolved.preset) for t in declared}
    cells = {number: tables.cells_of(table, source) for number, table in whole.items()}
    headlines = []
    for each in experiments.tables(resolved.paper).headlines:
        of_cell = [cell for cell in cells.get(each.table, []) if cell.line.row.cell == each.cell and cell.compared]
        # The last one, which the first screen shows: in a table along training that of the last policy.
        headlines += [cell for cell in of_cell if cell.column.name == each.column][-1:]
    every = [cell for found in cells.values() for cell in found]
    posed = claims.pose(experiments.claims(resolved.paper).claims, source.measured, resolved.paper_scale)
    return Families(
        [*tables.comparisons(headlines, source), *claims.comparisons(posed, primary=True)],
        [*tables.comparisons(every, source), *claims.comparisons(posed, primary=False)],
        source.measured.runs.blocks,
    )


def ask_for_figures(measured: Measuring, experiments: Experiments, paper: str, preset: str) -> None:
    """Measure what the figures of a paper show."""
    unsampled = unsampled_benchmarks(experiments, preset, paper)
    probe = experiments.preset_of(preset, paper).probe
    for figure in experiments.figures(paper).figures:
        for panel in figure.panels:
            if not unsampled.isdisjoint(of_accuracy(panel.quantity)):
                continue
            if panel.trend:
                trend_rows(panel, measured, {})
            else:
                for cell in panel.cells:
                    points_of(figure.axis(panel), panel, cell, measured, probe)
