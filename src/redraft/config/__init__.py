"""Configuration of everything, as Pydantic models. Imports without torch."""

from redraft.config.algorithm import DAPO, GRPO, PPO, RLOO, Algorithm, Overlong
from redraft.config.base import Config, format_lenience, parse_lenience
from redraft.config.data import ArithmeticProblems, Benchmark, BenchmarkFile, Data, HubProblems, ProblemFile
from redraft.config.experiment import Cell, Exclusion, Grid, Preset, Run
from redraft.config.identity import benchmarks_fingerprint, fingerprint, run_fingerprint, sampling_fingerprint
from redraft.config.load import Experiments
from redraft.config.method import DelayedReuse, Method, RandomReuse, ReleaseVariant, Speculative, Vanilla
from redraft.config.model import Model, PretrainedModel, TinyModel, WarmStart
from redraft.config.report import (
    Bound,
    Claim,
    Column,
    Compare,
    Correlation,
    Extreme,
    Figure,
    Fluctuation,
    Monotone,
    Pairs,
    Panel,
    Peak,
    Printed,
    Range,
    Row,
    Table,
    Test,
    Trend,
)
from redraft.config.trainer import Engine, Evaluation, Trainer

__all__ = [
    "DAPO", "GRPO", "PPO", "RLOO", "Algorithm", "ArithmeticProblems", "Benchmark", "BenchmarkFile", "Bound", "Cell",
    "Claim", "Column", "Compare", "Config", "Correlation", "Data", "DelayedReuse", "Engine", "Evaluation", "Exclusion",
    "Experiments", "Extreme", "Figure", "Fluctuation", "Grid", "HubProblems", "Method", "Model", "Monotone",
    "Overlong", "Pairs", "Panel", "Peak", "Preset", "PretrainedModel", "Printed", "ProblemFile", "RandomReuse",
    "Range", "ReleaseVariant", "Row", "Run", "Speculative", "Table", "Test", "TinyModel", "Trainer", "Trend",
    "Vanilla", "WarmStart", "benchmarks_fingerprint", "fingerprint", "format_lenience", "parse_lenience",
    "run_fingerprint", "sampling_fingerprint",
]  # fmt: skip
