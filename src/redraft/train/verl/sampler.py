"""Which finished groups verl trains on: decided when all are finished, in the order of their prompts."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.25
"""Between looks for finished groups; verl's two seconds would be most of a small step."""


class OrderedReplayBuffer(ReplayBuffer):
    """verl's buffer, told of filter and refill by its `sampler_kwargs`, as verl leaves it to custom ones.

    verl filters and refills while groups are still rolled out, so that what is refilled depends on which ended first.
    Here both wait for the last one, which makes a run the same every time it is done, and refills no more than needed.

    Attributes:
        watch: called between looks; raises if waiting is in vain.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, **settings["sampler_kwargs"], poll_interval=POLL_SECONDS)
        self.watch: Callable[[], None] = lambda: None

    def in_flight(self, partition_id: str) -> bool:
        """Whether a prompt of the partition was still being rolled out at the last look."""
        return bool(self.pending_keys[partition_id] or self.running_keys[partition_id])

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Any:
        if self.in_flight(partition_id):
            return set(), set(), set(), Counter()
        return super()._terminal_eviction_reasons(global_steps, partition_id)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> set[str]:
        if self.in_flight(partition_id):
            return set()
        return super()._sampleable_terminal_keys(partition_id, eviction_reasons)

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        """The groups of the prompts that came first; verl takes them in the order of a set."""
        self.watch()
        return super()._select_prompt_uids(partition_id, sorted(sampleable_keys), batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.watch()
        return super()._wait_for_next_poll(partition_id, last_debug_time)
