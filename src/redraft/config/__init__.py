"""Configuration as Pydantic models. It imports without torch, so that commands and the workflow start at once."""

from redraft.config.algorithm import DAPO, GRPO, PPO, RLOO, Algorithm, Overlong
from redraft.config.base import Config, format_lenience, parse_lenience
from redraft.config.capability import Capability
from redraft.config.cell import Cell, Exclusion, Grid
from redraft.config.data import ArithmeticProblems, Benchmark, BenchmarkFile, Data, HubProblems, ProblemFile
from redraft.config.decoding import Decoding, Plain
from redraft.config.experiment import Run
from redraft.config.hyperparameters import HyperparameterFile, Stated
from redraft.config.identity import benchmarks_fingerprint, fingerprint, run_fingerprint, sampling_fingerprint
from redraft.config.load import Experiments
from redraft.config.model import Model, PretrainedModel, TinyModel, WarmStart
from redraft.config.preset import Preset
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
from redraft.config.reuse import DelayedReuse, RandomReuse, ReleaseVariant, Retention, Reuse, Speculative, Vanilla
from redraft.config.schedule import DynamicSampling, Epochs, Schedule
from redraft.config.trainer import Engine, Evaluation, InProcessEngine, Trainer, VerlEngine

__all__ = [
    "DAPO", "GRPO", "PPO", "RLOO", "Algorithm", "ArithmeticProblems", "Benchmark", "BenchmarkFile", "Bound",
    "Capability", "Cell", "Claim", "Column", "Compare", "Config", "Correlation", "Data", "Decoding", "DelayedReuse",
    "DynamicSampling", "Engine", "Epochs", "Evaluation", "Exclusion", "Experiments", "Extreme", "Figure",
    "Fluctuation", "Grid", "HubProblems", "HyperparameterFile", "InProcessEngine", "Model", "Monotone", "Overlong",
    "Pairs", "Panel", "Peak", "Plain", "Preset", "PretrainedModel", "Printed", "ProblemFile", "RandomReuse", "Range",
    "ReleaseVariant", "Retention", "Reuse", "Row", "Run", "Schedule", "Speculative", "Stated", "Table", "Test",
    "TinyModel", "Trainer", "Trend", "Vanilla", "VerlEngine", "WarmStart", "benchmarks_fingerprint", "fingerprint",
    "format_lenience", "parse_lenience", "run_fingerprint", "sampling_fingerprint",
]  # fmt: skip
