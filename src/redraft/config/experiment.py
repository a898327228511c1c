"""Runs: a cell at a preset's scale with one seed."""

from typing import Any

from redraft.config.algorithm import Algorithm
from redraft.config.base import Config, defining
from redraft.config.data import Data
from redraft.config.decoding import Decoding, Plain
from redraft.config.model import Model
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.trainer import Engine, Trainer

FIRST_DEFAULTS = {
    "epochs": 15, "prompts_per_step": 1024, "group_size": 8, "prompts_per_update": 256, "learning_rate": 5e-7,
    "weight_decay": 0.01, "gradient_clip": 1.0, "max_prompt_tokens": 1024, "max_response_tokens": 4096,
    "evaluate_every": 10,
}  # fmt: skip
"""Values of the trainer's fields that fingerprints leave out. They were defaults when the first runs were made."""


class Run(Config):
    """A cell at a preset's scale with one seed: everything that defines one training run."""

    preset: str
    """Name of the preset it was resolved with."""
    paper: str
    """Folder under experiments/."""
    cell: str
    """Name of the cell."""
    seed: int
    """Seed of every random stream of the run."""
    model_role: str
    """The paper's model."""
    data_role: str
    """The paper's training data."""
    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    algorithm: Algorithm
    """How the policy is updated."""
    reuse: Reuse
    """What rollouts take over from earlier ones."""
    schedule: Schedule
    """Which prompts are rolled out and which groups are trained on."""
    decoding: Decoding = Plain()
    """How the engine makes tokens."""
    trainer: Trainer
    """How much is trained."""
    engine: Engine
    """How it executes; not part of the identity."""

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.trainer.steps(self.data.size)

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps done by the policies that are evaluated."""
        return self.trainer.evaluated_steps(self.data.size)

    @property
    def unsupported(self) -> str:
        """Why what trains at this preset cannot train this exactly, or nothing."""
        lacking = sorted(self.reuse.needs - self.engine.capabilities)
        return f"engine.kind {self.engine.kind} cannot do {' or '.join(lacking)}" if lacking else ""

    @property
    def identity(self) -> dict[str, Any]:
        """What defines the experiment, defaults left out, so that a new field with a default changes nothing.

        `reuse` keeps the name that it had first, so that runs of then are those of now.
        """
        trainer = self.trainer.model_dump(mode="json", exclude_defaults=True)
        schedule = {} if self.schedule == self.algorithm.usual_schedule else {"schedule": defining(self.schedule)}
        parts = {"model": self.model, "data": self.data, "algorithm": self.algorithm, "method": self.reuse}
        return (
            self.model_dump(mode="json", include={"paper", "cell", "seed", "decoding"}, exclude_defaults=True)
            | {"trainer": {name: v for name, v in trainer.items() if FIRST_DEFAULTS.get(name) != v}}
            | schedule
            | {name: defining(part) for name, part in parts.items()}
        )
