"""Schedules: selection of the prompts that a step rolls out, and of the groups that the policy is updated from."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config
from redraft.config.trainer import Trainer
from redraft.errors import UserError


class Epochs(Config):
    """Epochs: each prompt once a pass, in a new order every pass. All groups of a step are trained on."""

    kind: Literal["epochs"] = "epochs"

    def check(self, trainer: Trainer, problems: int) -> None:
        """Refuse sizes that do not fit each other.

        Raises:
            UserError: if a step does not divide the data, or a batch is no whole number of steps.
        """
        size, batch = trainer.prompts_per_step, trainer.batch_prompts
        if batch % size:
            raise UserError("a batch must be a whole number of steps, since all groups are trained on",
                            key="trainer.prompts_per_batch", value=batch, allowed=f"multiples of {size}")  # fmt: skip
        _check_steps(trainer, problems)


class DynamicSampling(Config):
    """DAPO's dynamic sampling (arXiv 2503.14476, §3.2): groups of equal rewards are dropped, the next step refills."""

    kind: Literal["dynamic"] = "dynamic"

    def check(self, trainer: Trainer, problems: int) -> None:
        """Refuse sizes that do not fit each other; a batch is gathered over as many steps as it takes.

        Raises:
            UserError: if a step does not divide the data.
        """
        _check_steps(trainer, problems)


def _check_steps(trainer: Trainer, problems: int) -> None:
    if problems % trainer.prompts_per_step:
        raise UserError("prompts_per_step must divide the number of problems", key="trainer.prompts_per_step",
                        value=trainer.prompts_per_step, allowed=f"divisors of {problems}")  # fmt: skip


class Speed(Config):
    """SPEED-RL (arXiv 2506.09016, Algorithm 2): prompts are screened by a few responses, informative ones continued.

    A step screens `prompts_per_step` new prompts and continues as many qualified ones as its update batch
    (`prompts_per_batch`) lacks, in one pass of the engine. A group has `group_size` responses in all.
    """

    kind: Literal["speed"] = "speed"
    screening: int = Field(default=4, ge=2)
    """Responses that screen a prompt (N_init); the others (N_cont) follow. With one response nothing can pass."""
    low: float = Field(default=0.0, ge=0, lt=1)
    """Share of correct responses above which a prompt qualifies, strictly (P_low)."""
    high: float = Field(default=1.0, gt=0, le=1)
    """Share of correct responses below which it qualifies, strictly (P_high)."""
    buffer: int | None = Field(default=None, ge=1)
    """Maximum number of qualified prompts that wait to be continued, at least a batch; beyond it the oldest are
    dropped. If empty, as many as one step can add to a batch that waits, so that none is dropped."""
    stale: Literal["recomputed", "stored"] = "recomputed"
    """Old log-probabilities of responses that an earlier policy sampled: the current policy's, as in the release, or
    those of the policy that sampled each token."""

    def capacity(self, trainer: Trainer) -> int:
        """Maximum number of qualified prompts that wait."""
        return trainer.batch_prompts - 1 + trainer.prompts_per_step if self.buffer is None else self.buffer

    def check(self, trainer: Trainer, problems: int) -> None:
        """Refuse sizes that do not fit each other.

        Raises:
            UserError: for the first such size.
        """
        batch, capacity = trainer.batch_prompts, self.capacity(trainer)
        waiting = 2 * batch - 1  # at most, where a step screens: this batch's prompts, and not yet another batch
        checks = [
            (self.screening < trainer.group_size, "screening must leave responses to continue with",
             "schedule.screening", self.screening, f"2 to {trainer.group_size - 1}, below group_size"),
            (capacity >= batch, "the buffer must hold a batch", "schedule.buffer", capacity, f"at least {batch}"),
            (trainer.prompts_per_step <= problems - waiting, "a step needs so many prompts beside those that wait",
             "trainer.prompts_per_step", trainer.prompts_per_step,
             f"at most {problems - waiting}: {problems} problems less {waiting} that may wait"),
        ]  # fmt: skip
        for holds, message, key, value, allowed in checks:
            if not holds:
                raise UserError(message, key=key, value=value, allowed=allowed)

    @model_validator(mode="after")
    def _ordered(self) -> "Speed":
        if self.high <= self.low:
            raise ValueError(f"high ({self.high}) must be above low ({self.low})")
        return self


Schedule = Annotated[Epochs | DynamicSampling | Speed, Field(discriminator="kind")]
