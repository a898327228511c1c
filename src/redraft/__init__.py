"""redraft: earlier rollouts reused as drafts, and reproductions of the papers about it.

The public names (docs/api.md) are imported at first use, since numpy and PyTorch are installed by extras only.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "redraft.methods.acceptance.rule": ("Rule", "Distributions"),
    "redraft.methods.acceptance.ratio": ("SpecRLRule",),
    "redraft.methods.acceptance.residual": ("ResidualRule",),
    "redraft.methods.acceptance.block": ("BlockRule",),
    "redraft.methods.acceptance.weighted": ("WeightedRule",),
    "redraft.methods.strategy": ("Strategy",),
    "redraft.methods.reuse": ("ReuseMethod",),
    "redraft.rollout.context": ("RolloutContext", "Meter", "Streams"),
    "redraft.rollout.memory": ("Memory",),
    "redraft.rollout.types": ("Task", "Group", "Rollout"),
    "redraft.rollout.engine": ("Engine", "Session"),
    "redraft.engines.torch.engine": ("TorchEngine",),
    "redraft.engines.vllm.engine": ("VLLMEngine",),
    "redraft.tasks.grading": ("grade", "is_correct"),
    "redraft.analysis.data.statistics": ("Estimate", "estimate", "paired", "corrected"),
}
"""Public names by the module that defines them."""
__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
