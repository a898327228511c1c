"""Presets: the scale at which the cells of all papers are run."""

from pydantic import Field, field_validator, model_validator

from redraft.config.base import Config, Name, PaperName, WordyName, refuse_twice
from redraft.config.cell import Factor
from redraft.config.data import Benchmark, Data
from redraft.config.generated import Generated
from redraft.config.hyperparameters import TrainerFields
from redraft.config.model import Model, TinyModel
from redraft.config.trainer import Engine, Evaluation, InProcessEngine


class Preset(Config):
    """`experiments/presets/<name>.yaml`: settings that change with scale. The method never does."""

    name: Name
    """Name of the file and of the folder under results/."""
    description: str
    """Description in one sentence, for the report."""
    paper_scale: bool = False
    """Models and benchmarks are the papers' own, so that absolute values compare with reported ones."""
    seeds: list[int] = Field(min_length=1)
    """Seeds; each cell is run once with each."""
    more_seeds: dict[PaperName, dict[str, list[int]]] = {}
    """Paper to grids, to seeds with which their cells are run beside `seeds`, such as those of the main comparison."""
    blocks: int = Field(default=1, ge=1)
    """Number of blocks that seeds are dealt to in turn: seed s is in block s mod `blocks`. Seeds of a block share the
    models and problems that are made here; each block has its own, and intervals are over blocks. With one
    block they are over seeds, given the one initial policy and the one draw of problems."""
    models: dict[Name, Model]
    """Models that stand for the papers', by the papers' names."""
    data: dict[Name, Data]
    """Training data that stand for the papers', by the papers' names."""
    trainer: TrainerFields = {}
    """Fields of `Trainer` that this scale replaces, for every paper."""
    trainer_factors: dict[str, Factor] = {}
    """Factors of fields of `Trainer` at this scale, such as the prompts of a step and of an update."""
    engine: Engine = InProcessEngine()
    """Execution of runs."""
    evaluation: Evaluation = Evaluation()
    """Sampling of policies on benchmarks."""
    protocol: str = ""
    """Protocol of experiments/benchmarks.yaml that policies are evaluated by; excludes `benchmarks`."""
    protocols: dict[PaperName, str] = {}
    """Paper to its protocol, where it is not `protocol`."""
    probe: str = ""
    """Protocol by which initial policies are sampled on training prompts, for histograms of their pass rates; without
    one these stay empty."""
    benchmarks: dict[WordyName, Benchmark] = {}
    """Benchmarks that policies are evaluated on; those of a paper's protocol once that is read."""
    default: dict[PaperName, list[str]]
    """Paper to the grids that `snakemake` runs of it."""
    first: list[PaperName] = []
    """Papers that `snakemake` runs unless it is asked for others (`--config papers=…`) or for all cells
    (`reproduction`, `extras`); all of `default` if empty."""

    @property
    def stand_in(self) -> str:
        """Text for every table and figure that is not of the papers' models and data; empty at the papers' scale."""
        return "" if self.paper_scale else f"Stand-in for the paper's models and data (preset {self.name})"

    @property
    def evaluation_threads(self) -> int:
        """CPU threads of a job that samples policies: the in-process engine's, whose precision it shares, else one."""
        return self.engine.threads if self.engine.kind == "torch" else 1

    def protocol_of(self, paper: str) -> str:
        """Name of the protocol that a paper's policies are evaluated by; the preset's own if it lists benchmarks."""
        return self.protocols.get(paper, self.protocol) or self.name

    def of_block(self, block: int) -> "Preset":
        """The preset with the models, training data and benchmarks of a block; those of files stay as they are."""
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
        """The preset with what the block of a seed has."""
        return self.of_block(seed % self.blocks)

    def of_models(self, *roles: str) -> "Preset":
        """The preset with these models alone: what a job of theirs asks of Slurm follows from the largest of them."""
        return self.model_copy(update={"models": {role: self.models[role] for role in roles}})

    def role(self, role: str, seed: int) -> str:
        """Name under which what stands for a role is kept for a seed: `role`, or `role@block` after the first block."""
        block = seed % self.blocks
        return f"{role}@{block}" if block else role

    def unit(self, seed: int) -> int:
        """Unit that a seed belongs to in intervals: its block, or itself if there is one block."""
        return seed % self.blocks if self.blocks > 1 else seed

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        refuse_twice("seed", seeds)
        if min(seeds) < 0:
            raise ValueError("seeds must be >= 0")
        return seeds

    @model_validator(mode="after")
    def _consistent(self) -> "Preset":
        for paper, grids in self.more_seeds.items():
            try:
                self.papers([paper])
                for seeds in grids.values():
                    self._distinct([*self.seeds, *seeds])
            except ValueError as error:
                raise ValueError(f"more_seeds of {paper}: {error}") from None
        self.papers(self.first)
        if bool(self.protocol) == bool(self.benchmarks):
            raise ValueError("either protocol or benchmarks must be given, and not both")
        if self.protocols and not self.protocol:
            raise ValueError("protocols are what differs from protocol, which is not given")
        made_here = [role for role, model in self.models.items() if model.kind != "pretrained"]
        if self.paper_scale and made_here:
            raise ValueError(f"paper_scale needs the papers' own models; {', '.join(made_here)} is made here")
        read = [role for role, model in self.models.items() if not isinstance(model, TinyModel)]
        if self.blocks > 1 and read:
            raise ValueError(f"blocks need models that are made here; {', '.join(read)} is the same in all of them")
        return self

    def papers(self, asked: list[str]) -> list[str]:
        """Those of the preset's papers that are asked for, in its order; all if none is.

        Raises:
            ValueError: for a paper that the preset does not have.
        """
        for paper in asked:
            if paper not in self.default:
                raise ValueError(f"the preset has no paper {paper}, only {', '.join(self.default)}")
        return [paper for paper in self.default if paper in asked or not asked]


def _of_block(data: Data, block: int) -> Data:
    return data.of_block(block) if isinstance(data, Generated) else data


def parted(name: str) -> tuple[str, int]:
    """Role and block of a name that `Preset.role` gave."""
    role, _, block = name.partition("@")
    return role, int(block or 0)
