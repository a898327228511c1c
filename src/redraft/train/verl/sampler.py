"""Which finished groups verl trains on, in an order that does not depend on which was finished first."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.25
"""Between looks for finished groups; verl's two seconds would be most of a small step."""


class OrderedReplayBuffer(ReplayBuffer):
    """verl's buffer, told of filter and refill by its `sampler_kwargs`, as verl leaves it to custom ones."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, **settings["sampler_kwargs"], poll_interval=POLL_SECONDS)

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        """The groups of the prompts that came first; verl takes them in the order of a set."""
        return super()._select_prompt_uids(partition_id, sorted(sampleable_keys), batch_size)
