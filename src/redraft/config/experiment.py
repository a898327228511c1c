"""Configuration of runs: a cell at a preset's scale with one seed."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from redraft.config.algorithm import Algorithm
from redraft.config.base import Config, defining
from redraft.config.data import Data
from redraft.config.decoding import Decoding, Plain, SelfSpeculation, Speculation
from redraft.config.generated import Generated, Grading
from redraft.config.model import Model
from redraft.config.preset import parted
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.trainer import Engine, InProcessEngine, Reward, TrainerConfig, VerlEngine
from redraft.config.verl_keys import precision
from redraft.errors import UserError
from redraft.layout import Layout

FIRST_DEFAULTS = {
    "epochs": 15,
    "prompts_per_step": 1024,
    "group_size": 8,
    "prompts_per_update": 256,
    "learning_rate": 5e-7,
    "weight_decay": 0.01,
    "gradient_clip": 1.0,
    "max_prompt_tokens": 1024,
    "max_response_tokens": 4096,
    "evaluate_every": 10,
}
"""Values of trainer fields that fingerprints omit, since they were defaults when the first runs were trained."""

BYTES_PER_ROLLOUT = 1024
"""Size of the objects and arrays of a rollout with one token."""


class Run(Config):
    """Training run: a cell at a preset's scale with one seed."""

    preset: str
    """Name of the preset."""
    paper: str
    """Folder under experiments/."""
    cell: str
    """Name of the cell."""
    seed: int
    """Seed of every random stream of the run."""
    model_role: str
    """Model of the paper, with the block of the seed if that is not the first."""
    data_role: str
    """Training data of the paper, also with the block."""
    model: Model
    """Initial policy."""
    data: Data
    """Training data."""
    algorithm: Algorithm
    """Algorithm that updates the policy."""
    reuse: Reuse
    """Reuse of earlier rollouts."""
    schedule: Schedule
    """Selection of prompts and groups."""
    decoding: Decoding = Plain()
    """Generation of tokens by the engine."""
    trainer: TrainerConfig
    """Batch, length and duration of training, from the paper, the preset and the cell."""
    engine: Engine
    """Execution; not part of the identity."""

    @property
    def reward(self) -> Reward | Literal["choice", "instructions", "reasoning_gym"]:
        """Reward rule (`redraft.tasks.rewards`): the trainer's, unless the data need another one."""
        return self.trainer.reward if self.grading == "math" else self.grading

    @property
    def grading(self) -> Grading:
        """Grader of the training data, by their columns."""
        if isinstance(self.data, Generated):
            return self.data.grading
        if isinstance(self.data.answer, list):
            return "instructions"
        return "math" if self.data.choices is None else "choice"

    @property
    def steps(self) -> int:
        """Total number of training steps."""
        return self.trainer.steps(self.data.size)

    @property
    def longest_sequence(self) -> int:
        """Tokens of vLLM's longest sequence: prompt and response, and the token that it generates after a draft that
        it scores as a prompt.
        """
        return self.trainer.max_prompt_tokens + self.trainer.max_response_tokens + self.reuse.scores

    @property
    def least_bytes(self) -> float:
        """Lower bound of the memory of a step's rollouts, whatever their lengths, in bytes."""
        responses = max(self.trainer.group_size, self.trainer.fresh_samples) * (1 + self.reuse.retention.visits)
        return float(BYTES_PER_ROLLOUT * self.trainer.prompts_per_step * responses)

    @property
    def most_evaluations(self) -> int:
        """Upper bound of the number of evaluated policies, since every step may have an update batch."""
        # With the clock of update batches there are at most as many as steps.
        return math.ceil(self.steps / self.trainer.evaluate_every)

    def evaluated_steps(self, records: Iterable[Mapping[str, Any]]) -> list[int]:
        """Numbers of finished steps of the evaluated policies, from the records of the steps."""
        steps = self.steps
        return [
            done
            for done, record in ((record["step"] + 1, record) for record in records)
            if self.trainer.evaluates(done, steps, record["training_step"], record["updated"])
        ]

    @property
    def unsupported(self) -> str:
        """Reason why the engine cannot train this run exactly; empty if it can."""
        lacking = sorted((self.reuse.needs | self.decoding.needs) - self.engine.capabilities)
        if lacking:
            return f"engine.kind {self.engine.kind} does not support {' or '.join(lacking)}"
        return ""

    def check_supported(self) -> None:
        """Check that the engine can train this run exactly.

        Raises:
            UserError: with the part of the run that needs another engine.
        """
        for key, part, kinds in (("reuse", self.reuse, Reuse), ("decoding", self.decoding, Decoding)):
            if part.needs - self.engine.capabilities:
                raise UserError(
                    self.unsupported,
                    key=key,
                    value=part.kind,
                    allowed=_kinds(kinds, self.engine),
                    hint="use another one, or engine.kind: torch",
                )
        if (
            isinstance(self.decoding, Speculation)
            and self.decoding.when != "always"
            and self.decoding.ramp >= self.engine.max_rows
        ):
            raise UserError(
                "no rollout decodes as many responses at once, so nothing would speculate",
                key="decoding.ramp",
                value=self.decoding.ramp,
                allowed=f"at most {self.engine.max_rows - 1}, below engine.max_rows",
            )
        if self.engine.bitwise and isinstance(self.decoding, Speculation):
            raise UserError(
                "what a drafter proposes depends on the batch, so results are not bit-identical",
                key="engine.bitwise",
                value=True,
                allowed=f"false for decoding of kind {self.decoding.kind}",
            )

    @property
    def calibration(self) -> Path | None:
        """File of the roofline that controls decoding; None if the decoding needs none.

        It is the preset's file for the model, else the file that the workflow measures. Seeds of all blocks share it,
        since their models differ only in their weights.
        """
        if not isinstance(self.decoding, SelfSpeculation) or self.decoding.when != "roofline":
            return None
        # The role without its block: one calibration for all blocks.
        role = parted(self.model_role)[0]
        named = self.engine.calibrations.get(role) if isinstance(self.engine, InProcessEngine) else None
        return Path(named) if named else Layout(self.preset).calibration(role, self.decoding.bits)

    @property
    def _precision(self) -> dict[str, Any]:
        """Precisions that the site chose for verl; other settings of the site affect execution only."""
        return precision(self.engine.verl_leaves) if isinstance(self.engine, VerlEngine) else {}

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that define the experiment, without defaults, so that a new field with a default changes nothing.

        Two exceptions keep the fingerprints of finished runs: `reuse` has its first name `method`, and the trainer
        omits `FIRST_DEFAULTS`.
        """
        trainer = self.trainer.model_dump(mode="json", exclude_defaults=True)
        schedule = {} if self.schedule == self.algorithm.usual_schedule else {"schedule": defining(self.schedule)}
        parts = {"model": self.model, "data": self.data, "algorithm": self.algorithm, "method": self.reuse}
        return (
            self.model_dump(mode="json", include={"paper", "cell", "seed", "decoding"}, exclude_defaults=True)
            | {"trainer": {name: v for name, v in trainer.items() if FIRST_DEFAULTS.get(name) != v}}
            | schedule
            | {name: defining(part) for name, part in parts.items()}
            | ({} if self.engine.dtype == "auto" else {"dtype": self.engine.dtype})
            | ({"precision": chosen} if (chosen := self._precision) else {})
        )


def _kinds(parts: Any, engine: Engine) -> list[str]:
    """Kinds of a union that the engine supports exactly with their default fields."""
    # Without validation, since a kind may have required fields.
    found = [model.model_construct() for model in get_args(get_args(parts)[0])]
    return [part.kind for part in found if part.needs <= engine.capabilities]
