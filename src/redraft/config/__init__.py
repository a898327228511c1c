"""Configuration of everything, as Pydantic models. Imports without torch."""

from redraft.config.algorithm import GRPO, Algorithm
from redraft.config.base import Config, format_lenience, parse_lenience
from redraft.config.data import ArithmeticProblems, Benchmark, Data, ProblemFile
from redraft.config.experiment import Cell, Exclusion, Grid, Preset, Run
from redraft.config.identity import benchmarks_fingerprint, fingerprint, run_fingerprint
from redraft.config.load import Experiments
from redraft.config.method import Method, Speculative, Vanilla
from redraft.config.model import Model, PretrainedModel, TinyModel, WarmStart
from redraft.config.report import Bound, Claim, Column, Compare, Figure, Monotone, Panel, Peak, Row, Table
from redraft.config.trainer import Engine, Trainer

__all__ = [
    "GRPO", "Algorithm", "ArithmeticProblems", "Benchmark", "Bound", "Cell", "Claim", "Column", "Compare", "Config",
    "Data", "Engine", "Exclusion", "Experiments", "Figure", "Grid", "Method", "Model", "Monotone", "Panel", "Peak",
    "Preset", "PretrainedModel", "ProblemFile", "Row", "Run", "Speculative", "Table", "TinyModel", "Trainer", "Vanilla",
    "WarmStart", "benchmarks_fingerprint", "fingerprint", "format_lenience", "parse_lenience", "run_fingerprint",
]  # fmt: skip
