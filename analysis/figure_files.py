"""Files of a paper's figures: the data and the drawing of each."""

from analysis.collect import Runs
from analysis.figure_data import figure_data, reported_bars
from analysis.figures import draw
from redraft.config import Experiments, id_of
from redraft.files import atomic
from redraft.layout import Layout


def write_figures(preset: str, paper: str) -> None:
    """Regenerate all figures of a paper as CSV, PNG and SVG."""
    layout, experiments = Layout(preset), Experiments()
    runs, scale = Runs.load(layout.collected(paper)), experiments.preset_of(preset, paper)
    for figure in experiments.figures(paper).figures:
        reported = reported_bars(figure, experiments, paper) if scale.paper_scale else {}
        cells = {name: experiments.cell(id_of(paper, name)) for panel in figure.panels for name in panel.cells}
        stand_in = "" if all(panel.from_files for panel in figure.panels) else scale.stand_in
        unsampled = experiments.benchmark_file().sets.keys() - scale.benchmarks.keys()
        data = figure_data(figure, runs, scale.paper_scale, reported, cells, unsampled, scale.probe)
        stem = layout.figure(paper, figure.number)
        with atomic(stem.with_suffix(".csv")) as temporary:
            data.assign(stand_in=stand_in).to_csv(temporary, index=False)
        draw(figure, data, stem, stand_in)
