"""Configuration of presets: the scale at which the cells of all papers are run."""

from collections.abc import Iterable
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from redraft.config.base import LARGEST_SEED, Config, Name, PaperName, WordyName, check_distinct, invalid
from redraft.config.cell import Cell, Factor
from redraft.config.data import Benchmark, Data
from redraft.config.generated import Generated
from redraft.config.hyperparameters import TrainerFields
from redraft.config.model import Model, TinyModel
from redraft.config.quantities import similar
from redraft.config.trainer import Engine, Evaluation, InProcessEngine

SAME_FOR_ALL = {"kind", "device", "dtype", "gpus"}
"""Fields of an engine that are the same for all models of a preset."""


def check_seeds(seeds: list[int], *at: str) -> None:
    """Raise a ValueError for a seed that is repeated, negative or too large; `at` is the path of the seeds."""
    check_distinct("seed", seeds, *at)
    if seeds and not 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
        raise invalid(f"seeds must be >= 0 and at most {LARGEST_SEED}", at=at)


class Preset(Config):
    """`experiments/presets/<name>.yaml`: settings that change with scale. The method does not."""

    name: Name
    """Name of the file and of the folder under results/."""
    base: Name | None = None
    """Another preset, whose values hold where this file has none; mappings are merged."""
    description: str
    """Description in one sentence, for the report."""
    paper_scale: bool = False
    """True if models and benchmarks are the papers', so that absolute values are comparable with reported ones."""
    seeds: list[int] = Field(min_length=1, max_length=1000)
    """Seeds; each cell is run once per seed."""
    more_seeds: dict[PaperName, dict[str, list[int]]] = {}
    """Paper to grid to further seeds for the cells of that grid, such as those of the main comparison."""
    blocks: int = Field(default=1, ge=1, le=1000)
    """Number of blocks of seeds: seed s is in block s mod `blocks`. Each block has its own generated models and
    problems, which its seeds share, and intervals are over blocks. With one block intervals are over seeds, given one
    initial policy and one sample of problems."""
    models: dict[Name, Model]
    """Models that are used for the papers' models, by the papers' names."""
    data: dict[Name, Data]
    """Training data that are used for the papers' data, by the papers' names."""
    trainer: TrainerFields = {}
    """Fields of `TrainerConfig` that this scale replaces, for every paper."""
    trainer_factors: dict[str, Factor] = {}
    """Factors of fields of `TrainerConfig` at this scale, such as the prompts of a step and of an update."""
    engine: Engine = InProcessEngine()
    """Execution of runs."""
    engines: dict[Name, dict[str, Any]] = {}
    """Model to the fields of `engine` with which runs of that model are trained, such as the nodes of a large one.
    Evaluation uses `engine`."""
    evaluation: Evaluation = Evaluation()
    """Sampling of policies on benchmarks."""
    protocol: str = ""
    """Protocol of experiments/benchmarks.yaml for evaluation; excludes `benchmarks`."""
    protocols: dict[PaperName, str] = {}
    """Paper to its protocol, if that is not `protocol`."""
    probe: str = ""
    """Protocol for sampling initial policies on training prompts, for histograms of their pass rates. Without one these
    histograms are empty."""
    benchmarks: dict[WordyName, Benchmark] = {}
    """Benchmarks for evaluation; after loading, those of the protocol."""
    default: dict[PaperName, list[str]]
    """Paper to its grids that `snakemake` runs."""
    first: list[PaperName] = []
    """Papers that `snakemake` runs without `--config papers=…` and without a target of all cells (`reproduction`,
    `extras`); all papers of `default` if empty."""

    @property
    def stand_in(self) -> str:
        """Notice on every table and figure whose models and data are not the papers'; empty at the papers' scale."""
        return "" if self.paper_scale else f"Stand-in for the paper's models and data (preset {self.name})"

    @property
    def evaluation_threads(self) -> int:
        """CPU threads of an evaluation job: those of the in-process engine, else one."""
        return self.engine.threads if self.engine.kind == "torch" else 1

    def protocol_of(self, paper: str) -> str:
        """Name of a paper's evaluation protocol; the preset's name if the preset lists benchmarks."""
        return self.protocols.get(paper, self.protocol) or self.name

    def of_block(self, block: int) -> "Preset":
        """The preset with the generated models, training data and benchmarks of a block of seeds."""
        return self.model_copy(
            update={
                "models": {
                    role: m.of_block(block) if isinstance(m, TinyModel) else m for role, m in self.models.items()
                },
                "data": {role: _of_block(data, block) for role, data in self.data.items()},
                "benchmarks": {
                    name: benchmark.model_copy(update={"data": _of_block(benchmark.data, block)})
                    for name, benchmark in self.benchmarks.items()
                },
            }
        )

    def of_seed(self, seed: int) -> "Preset":
        """The preset with models and data of the block of a seed."""
        return self.of_block(seed % self.blocks)

    def of_models(self, *roles: str) -> "Preset":
        """The preset with these models only, since a job's Slurm request follows from the largest model; for a single
        model with its engine."""
        engine = self.engine_of(roles[0]) if len(roles) == 1 else self.engine
        return self.model_copy(update={"models": {role: self.models[role] for role in roles}, "engine": engine})

    def engine_of(self, role: str) -> Engine:
        """Engine with which runs of a model are trained."""
        # Validated again: fields that are valid alone may not fit together.
        return type(self.engine)(**self.engine.model_dump(exclude_unset=True) | self.engines.get(role, {}))

    def role(self, role: str, seed: int) -> str:
        """Name of the folder of a role's model or data for a seed: `role`, or `role@block` after the first block."""
        block = seed % self.blocks
        # The first block has no suffix, so that a preset which gets blocks keeps its models.
        return f"{role}@{block}" if block else role

    def lacks(self, cell: Cell) -> str:
        """Reason why the preset has nothing for a cell, whose model or data it lacks; empty if it has both."""
        if cell.model not in self.models:
            return f"the preset has no model {cell.model}"
        return "" if cell.data in self.data else f"the preset has no data {cell.data}"

    def unit(self, seed: int) -> int:
        """Unit of a seed in intervals: its block, or the seed itself if there is one block."""
        return seed % self.blocks if self.blocks > 1 else seed

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        check_seeds(seeds)
        return seeds

    @model_validator(mode="after")
    def _engines(self) -> "Preset":
        for role, fields in self.engines.items():
            if role not in self.models:
                raise invalid(
                    f"the preset has no model {role}", similar(role, self.models), ("engines", role), value=role
                )
            allowed = set(type(self.engine).model_fields) - SAME_FOR_ALL
            for name, value in fields.items():
                if name not in allowed:
                    known = similar(name, allowed)
                    raise invalid(
                        "a model cannot have a separate value here", known, ("engines", role, name), value=value
                    )
            try:
                self.engine_of(role)
            except ValidationError as error:
                # The error is of the merged engine; its key gets the place in `engines`, where the user wrote it.
                found = error.errors()[0]
                at = (*found.get("ctx", {}).get("at", ()), *found["loc"])
                raise invalid(found["msg"], "", ("engines", role, *at), value=found["input"]) from None
        return self

    @model_validator(mode="after")
    def _calibrated_models(self) -> "Preset":
        # After `_engines`, which has checked the types of their fields.
        named: dict[tuple[str, ...], dict[str, str]] = {("engine",): getattr(self.engine, "calibrations", {})}
        named |= {("engines", role): fields.get("calibrations") or {} for role, fields in self.engines.items()}
        for at, calibrations in named.items():
            for role in calibrations:
                if role not in self.models:
                    known = similar(role, self.models)
                    raise invalid(f"the preset has no model {role}", known, (*at, "calibrations", role), value=role)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "Preset":
        self._check_papers(self.more_seeds, "more_seeds")
        self._check_papers(self.first, "first")
        for paper, grids in self.more_seeds.items():
            for grid, seeds in grids.items():
                # Together with the preset's, since a seed in both would be one run that is counted twice.
                check_seeds([*self.seeds, *seeds], "more_seeds", paper, grid)
        # `Experiments.preset` adds the protocol's benchmarks later, by `model_copy`, which validates nothing.
        if bool(self.protocol) == bool(self.benchmarks):
            key = "benchmarks" if self.benchmarks else "protocol"
            raise invalid("either protocol or benchmarks must be given, and not both", at=(key,))
        if self.protocols and not self.protocol:
            raise invalid("protocols needs protocol", at=("protocols",))
        # A GGUF file may be of the paper's model, but quantised.
        generated = [role for role, model in self.models.items() if model.kind != "pretrained"]
        if self.paper_scale and generated:
            raise invalid(
                f"paper_scale needs the papers' models; {', '.join(generated)} is another one", at=("paper_scale",)
            )
        fixed = [role for role, model in self.models.items() if not isinstance(model, TinyModel)]
        if self.blocks > 1 and fixed:
            raise invalid(
                f"blocks need models of kind tiny; {', '.join(fixed)} is the same in all blocks", at=("blocks",)
            )
        return self

    def _check_papers(self, papers: Iterable[str], field: str) -> None:
        """Raise a ValueError for a paper that the preset does not have."""
        for i, paper in enumerate(papers):
            if paper not in self.default:
                # `first` is a list, the others are mappings by paper.
                at = (field, i) if field == "first" else (field, paper)
                raise invalid(f"the preset has no paper {paper}", similar(paper, self.default), at, value=paper)

    def papers(self, requested: list[str]) -> list[str]:
        """The requested papers in the order of the preset; all papers if none is requested.

        Raises:
            ValueError: for a paper that the preset does not have.
        """
        for paper in requested:
            if paper not in self.default:
                raise ValueError(f"the preset has no paper {paper}, only {', '.join(self.default)}")
        return [paper for paper in self.default if paper in requested or not requested]


def _of_block(data: Data, block: int) -> Data:
    return data.of_block(block) if isinstance(data, Generated) else data


def parted(name: str) -> tuple[str, int]:
    """Role and block of a name from `Preset.role`."""
    role, _, block = name.partition("@")
    return role, int(block or 0)
