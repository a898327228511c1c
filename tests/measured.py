"""Figures and claims of made-up runs, which are measured when they are asked for."""

from redraft.analysis.claims import verdicts
from redraft.analysis.data.measured import Measuring
from redraft.analysis.data.statistics import Family
from redraft.analysis.figures import points
from redraft.analysis.measuring import ask_for_figures
from redraft.config import Experiments


def figure_data(figure, runs, *arguments, **named):
    return points.figure_data(figure, Measuring(runs), *arguments, **named)


def judge(claims, runs, *arguments, **named):
    return verdicts.judge(claims, Measuring(runs), *arguments, **named)


def save_measured(runs, folder, paper):
    """Write made-up runs and what figures show of them."""
    runs.save(folder)
    measured = Measuring(runs)
    ask_for_figures(measured, Experiments(), paper, "tiny")
    measured.save(folder, Family([]))
