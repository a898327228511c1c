"""Configuration as Pydantic models. `config/X.py` is the configuration of X.

The package imports without torch, so that commands and the workflow start at once.
"""

from redraft.config.algorithm import DAPO, GRPO, PPO, REINFORCE, RLOO, Algorithm, Overlong
from redraft.config.base import Config, format_lenience, id_of, parse_lenience
from redraft.config.capability import Capability
from redraft.config.cell import Cell, Exclusion, Grid
from redraft.config.claims import (
    Bound,
    Claim,
    Compare,
    Correlation,
    Extreme,
    Fluctuation,
    Monotone,
    Pairs,
    Peak,
    Printed,
    Range,
    Several,
    Test,
    Trend,
    Unmeasured,
)
from redraft.config.data import Benchmark, BenchmarkFile, Data, HubProblems, ProblemFile
from redraft.config.decoding import Decoding, LearnedHead, NGram, Plain, SelfSpeculation, Speculation, Suffix
from redraft.config.experiment import Run
from redraft.config.figures import Figure, Panel, PublishedSweep
from redraft.config.generated import ArithmeticProblems, InstructionPrompts, WordProblems
from redraft.config.gym import GymProblems
from redraft.config.hyperparameters import HyperparameterFile, Stated
from redraft.config.identity import (
    benchmarks_fingerprint,
    fingerprint,
    run_fingerprint,
    sampling_fingerprint,
    training_fingerprint,
)
from redraft.config.load import Experiments
from redraft.config.model import GgufModel, Model, PretrainedModel, TinyModel, WarmStart
from redraft.config.preset import Preset
from redraft.config.reported import CostRules, KeyColumn, Reported, ReportedTimes
from redraft.config.retention import Retention
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.tables import (
    BudgetTable,
    CellTable,
    Column,
    DecompositionTable,
    Headline,
    PublishedTable,
    Row,
    RunTable,
    StageTable,
    StepTable,
    Table,
    TableWithoutRuns,
    TargetTable,
)
from redraft.config.trainer import Clock, Engine, Evaluation, InProcessEngine, TrainerConfig, VerlEngine
from redraft.methods.adaptive import AdaptiveReuse
from redraft.methods.block import BlockReuse
from redraft.methods.delayed import DelayedReuse
from redraft.methods.dynamic import DynamicSampling
from redraft.methods.epochs import Epochs
from redraft.methods.gumbel import CoupledReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.random import RandomReuse
from redraft.methods.release import ReleaseVariant
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.methods.speed import Speed
from redraft.methods.staged import Staged
from redraft.methods.vanilla import Vanilla
from redraft.methods.weighted import WeightedReuse

__all__ = [
    "DAPO",
    "GRPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "AdaptiveReuse",
    "Algorithm",
    "ArithmeticProblems",
    "Benchmark",
    "BenchmarkFile",
    "BlockReuse",
    "Bound",
    "BudgetTable",
    "Capability",
    "Cell",
    "CellTable",
    "Claim",
    "Clock",
    "Column",
    "Compare",
    "Config",
    "Correlation",
    "CostRules",
    "CoupledReuse",
    "Data",
    "Decoding",
    "DecompositionTable",
    "DelayedReuse",
    "DynamicSampling",
    "Engine",
    "Epochs",
    "Evaluation",
    "Exclusion",
    "Experiments",
    "Extreme",
    "Figure",
    "Fluctuation",
    "GgufModel",
    "Grid",
    "GymProblems",
    "Headline",
    "HubProblems",
    "HyperparameterFile",
    "InProcessEngine",
    "InstructionPrompts",
    "KeyColumn",
    "LearnedHead",
    "Model",
    "Monotone",
    "NGram",
    "OneHotReuse",
    "Overlong",
    "Pairs",
    "Panel",
    "Peak",
    "Plain",
    "Preset",
    "PretrainedModel",
    "Printed",
    "ProblemFile",
    "PublishedSweep",
    "PublishedTable",
    "RandomReuse",
    "Range",
    "ReleaseVariant",
    "Reported",
    "ReportedTimes",
    "ResidualReuse",
    "Retention",
    "Reuse",
    "Row",
    "Run",
    "RunTable",
    "Schedule",
    "SelfSpeculation",
    "Several",
    "Speculation",
    "Speculative",
    "Speed",
    "StageTable",
    "Staged",
    "Stated",
    "StepTable",
    "Suffix",
    "Table",
    "TableWithoutRuns",
    "TargetTable",
    "Test",
    "TinyModel",
    "TrainerConfig",
    "Trend",
    "Unmeasured",
    "Vanilla",
    "VerlEngine",
    "WarmStart",
    "WeightedReuse",
    "WordProblems",
    "benchmarks_fingerprint",
    "fingerprint",
    "format_lenience",
    "id_of",
    "parse_lenience",
    "run_fingerprint",
    "sampling_fingerprint",
    "training_fingerprint",
]
