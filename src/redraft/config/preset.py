"""Presets: the scale at which a paper's cells are run."""

from pydantic import Field, field_validator, model_validator

from redraft.config.base import Config, Name, PaperName, WordyName, refuse_twice
from redraft.config.cell import Factor
from redraft.config.data import Benchmark, Data
from redraft.config.hyperparameters import TrainerFields
from redraft.config.model import Model
from redraft.config.trainer import Engine, Evaluation, InProcessEngine


class Preset(Config):
    """`experiments/presets/<name>.yaml`: what changes with scale, never the method."""

    name: Name
    """The file's name, and the folder under results/."""
    description: str
    """One sentence."""
    paper_scale: bool = False
    """Whether models and benchmarks are the papers' own, so that absolute values may be compared with reported ones."""
    seeds: list[int] = Field(min_length=1)
    """Each cell is run once a seed."""
    models: dict[Name, Model]
    """What stands for the papers' models."""
    data: dict[Name, Data]
    """What stands for the papers' training data."""
    trainer: TrainerFields = {}
    """Fields of `Trainer` that are other than the papers' at this scale, for every paper."""
    trainer_factors: dict[str, Factor] = {}
    """Numbers that fields of `Trainer` are multiplied by at this scale, such as the prompts of a step and an update."""
    engine: Engine = InProcessEngine()
    """How runs execute."""
    evaluation: Evaluation = Evaluation()
    """How policies are sampled on benchmarks."""
    protocol: str = ""
    """What policies are evaluated on: a protocol of experiments/benchmarks.yaml, instead of `benchmarks`."""
    benchmarks: dict[WordyName, Benchmark] = {}
    """What policies are evaluated on, if it is no protocol; the benchmarks of the protocol once it is read."""
    default: dict[PaperName, list[str]]
    """Paper to the grids that a bare `snakemake` runs."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        refuse_twice("seed", seeds)
        if min(seeds) < 0:
            raise ValueError("seeds must be >= 0")
        return seeds

    @model_validator(mode="after")
    def _evaluated_once(self) -> "Preset":
        if bool(self.protocol) == bool(self.benchmarks):
            raise ValueError("either protocol or benchmarks must be given")
        return self

    @model_validator(mode="after")
    def _models_of_the_papers(self) -> "Preset":
        made_here = [role for role, model in self.models.items() if model.kind != "pretrained"]
        if self.paper_scale and made_here:
            raise ValueError(f"paper_scale needs the papers' own models; {', '.join(made_here)} is made here")
        return self
