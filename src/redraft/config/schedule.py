"""Schedules: selection of the prompts that a step rolls out, and of the groups that the policy is updated from."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config


class Epochs(Config):
    """Epochs: each prompt once a pass, in a new order every pass. All groups of a step are trained on."""

    kind: Literal["epochs"] = "epochs"


class DynamicSampling(Config):
    """DAPO's dynamic sampling (arXiv 2503.14476, §3.2): groups of equal rewards are dropped, the next step refills."""

    kind: Literal["dynamic"] = "dynamic"


Schedule = Annotated[Epochs | DynamicSampling, Field(discriminator="kind")]
