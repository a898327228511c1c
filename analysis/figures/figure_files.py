"""Files of a paper's figures: the data of each, and its drawing if it has data."""

import numpy as np

from redraft.analysis.data.measured import RECORD, Measured
from redraft.analysis.figures.figure_drawing import draw
from redraft.analysis.figures.figure_parts import LINES, still_drawing, unsampled_benchmarks, with_data
from redraft.analysis.figures.points import figure_data, published_rooflines, reported_bars
from redraft.config import Experiments, id_of
from redraft.config.trends import coordinates
from redraft.files import atomic
from redraft.layout import Layout
from redraft.result_files import record_derived


def write_figures(preset: str, paper: str) -> None:
    """Regenerate all figures of a paper as CSV, PNG and SVG.

    A figure without data has the CSV file alone. One that has both lines and bars also has a drawing of the bars, for
    pages that draw the lines themselves.
    """
    layout, experiments = Layout(preset), Experiments()
    measured, scale = Measured.load(layout.collected(paper)), experiments.preset_of(preset, paper)
    unsampled, trends = unsampled_benchmarks(experiments, preset, paper), coordinates(experiments, scale, paper)
    for figure in experiments.figures(paper).figures:
        reported = reported_bars(figure, experiments, paper) if scale.paper_scale else {}
        cells = {name: experiments.cell(id_of(paper, name)) for panel in figure.panels for name in panel.cells}
        rooflines = published_rooflines(figure, experiments, paper)
        at = trends[figure.number]
        data = figure_data(figure, measured, scale.paper_scale, reported, cells, unsampled, scale.probe, rooflines, at)
        of_files = [panel.title for panel in figure.panels if panel.from_files]
        stem = layout.figure(paper, figure.number)
        with atomic(stem.with_suffix(".csv")) as temporary:
            stand_in = np.where(data["panel"].isin(of_files), "", scale.stand_in)
            data.assign(stand_in=stand_in).to_csv(temporary, index=False)
        shown = with_data(figure, data)
        still = [panel for panel in shown if figure.axis(panel) not in LINES]
        wanted = {stem: shown, still_drawing(stem): still if len(still) < len(shown) else []}
        for drawing, panels in wanted.items():
            if panels:
                # Published data are of the paper's own models, which need no stand-in notice.
                of_runs = any(not panel.from_files for panel in panels)
                draw(figure, data, drawing, scale.stand_in if of_runs else "", panels)
            else:
                for suffix in (".png", ".svg"):
                    # A drawing of an earlier call would be shown next to data that no longer have it.
                    drawing.with_suffix(suffix).unlink(missing_ok=True)
    written = layout.figures(paper)
    record_derived(written, (file for file in written.glob("*") if file.is_file()), layout.collected(paper) / RECORD)
