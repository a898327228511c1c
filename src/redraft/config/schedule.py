"""Schedules: which prompts are rolled out in a step, and which groups the policy is updated from."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config


class Epochs(Config):
    """Every pass takes each prompt once, in an order of its own; all groups of a step are trained on."""

    kind: Literal["epochs"] = "epochs"


class DynamicSampling(Config):
    """DAPO: groups whose rewards are all equal are left out and refilled by the next step (arXiv 2503.14476, §3.2)."""

    kind: Literal["dynamic"] = "dynamic"


Schedule = Annotated[Epochs | DynamicSampling, Field(discriminator="kind")]
