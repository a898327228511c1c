"""Names that experiment files take from one another: cells of a paper, and quantities of its runs."""

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from redraft.config.base import near


def _known(name: str, info: ValidationInfo) -> str:
    """The name, if it is among the cells of the context; without a context every name is accepted."""
    cells = (info.context or {}).get("cells", [name])
    if name not in cells:
        raise PydanticCustomError("no_such_cell", "no such cell", {"expected": ", ".join(near(name, cells))})
    return name


CellName = Annotated[str, AfterValidator(_known)]
"""Name of a cell of the same paper; or `paper/cell`, if the paper's own cells start from it (`Grid.base`)."""


def id_of(paper: str, cell: str) -> str:
    """Id of a cell by the name that a paper's files have for it."""
    return cell if "/" in cell else f"{paper}/{cell}"


Quantity = str
"""Name of a quantity of a run or a step; docs/metrics.md lists them."""

BEYOND = 100
"""Tables and figures with numbers above this are not in the paper."""

GENERATION_STAGES = ("verification", "rollout", "assembly", "reward")
"""Stages of a step in which its rollouts come about; groups go through them separately, at the same time."""
STEP_STAGES = (
    *GENERATION_STAGES, "old_log_probs", "ref", "values", "adv", "update_critic", "update_actor", "others",
)  # fmt: skip
"""Stages of a step whose seconds are recorded (SPEC-RL, Table 4); they sum to `total`."""
