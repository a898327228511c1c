"""The family of a paper's report: all comparisons of its tables and claims, so that a number has one verdict in it."""

from dataclasses import replace

from redraft.analysis.claims import verdicts as claims
from redraft.analysis.data.reported import no_reported
from redraft.analysis.data.statistics import Family
from redraft.analysis.tables import comparison as tables
from redraft.analysis.tables.columns import expand
from redraft.analysis.tables.lines import Source
from redraft.config import TableWithoutRuns


def family_of(source: Source) -> Family:
    """Comparisons of every table of runs with "no effect", and of every decidable claim with its threshold."""
    experiments, paper = source.experiments, source.paper
    benchmarks, spec = experiments.preset_of(source.preset, paper).benchmarks, experiments.reported(paper)
    unreported = replace(source, reported=no_reported())
    declared = [table for table in experiments.tables(paper).tables if not isinstance(table, TableWithoutRuns)]
    whole = [expand(table, benchmarks, spec, source.preset) for table in declared]
    cells = [cell for table in whole for cell in tables.cells_of(table, unreported)]
    posed = claims.pose(experiments.claims(paper).claims, source.runs, source.paper_scale)
    return Family([*tables.comparisons(cells, source), *claims.comparisons(posed)], source.runs.blocks)
