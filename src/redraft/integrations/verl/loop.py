"""Agent loops for an unmodified verl that reuse drafts: verl's own loops, with another client of its servers."""

from typing import Any

import ray
from verl.experimental.agent_loop import SingleTurnAgentLoop, ToolAgentLoop
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from redraft.errors import UserError
from redraft.integrations.verl.client import DraftingClient
from redraft.integrations.verl.plan import Plan
from redraft.integrations.verl.store import NAME

STEP, SAMPLE = "redraft_step", "redraft_sample"
"""Columns that the manager adds to verl's batches: the step, or 0 for validation; under V0 the sample's index too."""
_of_run: dict[str, tuple[Any, Plan]] = {}


async def store_and_plan() -> tuple[Any, Plan]:
    """Handle of the run's store, and its plan, once in each process."""
    if NAME not in _of_run:
        store = ray.get_actor(NAME)
        _of_run[NAME] = store, await store.settings.remote()
    return _of_run[NAME]


class _Reusing:
    """Mixin of verl's agent loops."""

    server_manager: Any

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Roll out one sample; validation gets verl's own loop.

        Raises:
            UserError: without this project's manager.
        """
        if STEP not in kwargs:
            raise UserError(
                "verl's manager of agent loops does not say which step this is",
                key="actor_rollout_ref.rollout.agent.agent_loop_manager_class",
                allowed="redraft.integrations.verl.manager.DraftManager",
            )
        if step := int(kwargs[STEP]):
            store, plan = await store_and_plan()
            sample = int(kwargs["session_id"] if "session_id" in kwargs else kwargs[SAMPLE])
            self.server_manager = DraftingClient(self.server_manager, plan, store, sample, step)
        return await super().run(sampling_params, **kwargs)  # type: ignore[misc]


class ReuseLoop(_Reusing, SingleTurnAgentLoop):
    """One response to a prompt."""


class ToolReuseLoop(_Reusing, ToolAgentLoop):
    """A dialogue with tools: each turn of the model may have a draft; tools are called again."""
