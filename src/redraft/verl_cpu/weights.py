"""Extension of vLLM's worker on a CPU that receives the trainer's weights."""

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's extension, changed to reload all weights at once.

    vLLM's CPU build packs linear weights for its matrix products. verl loads weights in place, which would not reach
    the packed ones. `reload_weights` undoes the packing, loads the weights and packs them again.
    """

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all weights from the trainer, then load them at once."""
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        received: dict[str, torch.Tensor] = {}

        def keep(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # The receiver reuses its buffer for the next bucket.
            received.update((name, tensor.clone()) for name, tensor in weights)

        device = torch.device("cpu")
        BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=device, use_shm=use_shm).receive_weights(keep)
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        runner.reload_weights(weights_iterator=iter(received.items()))
