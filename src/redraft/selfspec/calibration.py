"""A calibrated roofline of one model on one device, and its file.

The file has the layout of the authors' released files, so that those can be read too. An unreadable file is an error
here; the released code would then always speculate.
"""

import math
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json, write_json
from redraft.selfspec.constants import Costs, ModelConstants

COST_KEYS = {
    "target_bytes": "W_t",
    "draft_bytes": "W_d",
    "kv_bytes": "kappa_theoretical",
    "dense_flops": "C_dense",
    "attention_flops": "C_attn",
}
FITTED_KEYS = {
    "bandwidth": ("hardware", "BW_eff"),
    "flops": ("calibration", "F_eff"),
    "kv_bytes": ("calibration", "kappa_eff"),
    "draft_factor": ("calibration", "eta_d"),
    "target_overhead": ("calibration", "c_T"),
    "draft_overhead": ("calibration", "c_D"),
    "verify_overhead": ("calibration", "c_V"),
}
"""Section and key of each fitted parameter in the file."""
NEUTRAL = {
    ("hardware", "tp"): 1,
    ("hardware", "c_comm"): 0,
    ("calibration", "beta"): 0,
    ("calibration", "per_gamma"): {},
}
"""Parameters of the released files that this roofline does not model, with their neutral values."""
MAY_BE_ZERO = {"target_overhead", "draft_overhead", "verify_overhead"}


@dataclass(frozen=True)
class Calibration:
    """Roofline of a model on a device (section 4.2).

    Attributes:
        model: name of the model.
        costs: its bytes and operations.
        bandwidth: effective bandwidth of memory, bytes/s (BW_eff).
        flops: effective throughput, operations/s (F_eff), measured by products of matrices.
        kv_bytes: effective bytes of keys and values for one position (κ_eff = λκ).
        draft_factor: cost of reading quantised weights beyond their bytes (η_d).
        target_overhead: residual time of a target pass, µs a sequence (c_T).
        draft_overhead: the same of a drafter's pass (c_D).
        verify_overhead: the same of a verification (c_V).
    """

    model: str
    costs: Costs
    bandwidth: float
    flops: float
    kv_bytes: float
    draft_factor: float
    target_overhead: float
    draft_overhead: float
    verify_overhead: float

    @property
    def kv_share(self) -> float:
        """Effective share of the bytes of keys and values (λ)."""
        return self.kv_bytes / self.costs.kv_bytes

    def of_model(self, constants: ModelConstants) -> "Calibration":
        """The same device with another model: all parameters stay, with λ instead of κ_eff.

        An estimate: factor and overheads were fitted to this calibration's model.
        """
        costs = constants.costs
        return replace(self, model=constants.name, costs=costs, kv_bytes=self.kv_share * costs.kv_bytes)


def write_calibration(file: Path, calibration: Calibration, metadata: dict[str, Any]) -> None:
    """Write a calibration with metadata of its fit."""
    content: dict[str, dict[str, Any]] = {"hardware": {}, "model": {"name": calibration.model}, "calibration": {}}
    for (section, key), value in NEUTRAL.items():
        content[section][key] = value
    for name, key in COST_KEYS.items():
        content["model"][key] = asdict(calibration.costs)[name]
    for name, (section, key) in FITTED_KEYS.items():
        content[section][key] = getattr(calibration, name)
    write_json(file, content | {"metadata": metadata})


def read_calibration(file: Path) -> Calibration:
    """Read a calibration of this project or of the authors.

    Raises:
        UserError: if it is missing or damaged, lacks a number, or has a parameter that this roofline does not model.
    """
    content = read_json(file)
    for (section, key), value in NEUTRAL.items():
        if (given := _section(content, section, file).get(key, value)) != value:
            raise UserError(
                "the roofline does not model this", file=file, key=f"{section}.{key}", value=given, allowed=str(value)
            )
    name = _section(content, "model", file).get("name")
    costs = {field.name: _number(content, "model", COST_KEYS[field.name], file) for field in fields(Costs)}
    fitted = {key: _number(content, *where, file, zero=key in MAY_BE_ZERO) for key, where in FITTED_KEYS.items()}
    return Calibration(model=str(name or ""), costs=Costs(**costs), **fitted)


def _section(content: Any, section: str, file: Path) -> dict[str, Any]:
    part = content.get(section) if isinstance(content, dict) else None
    if not isinstance(part, dict):
        raise UserError(
            "this calibration lacks a section", file=file, key=section, allowed="hardware, model, calibration"
        )
    return part


LARGEST = sys.float_info.max
"""Largest number that a float holds; an integer in JSON may be larger."""


def _number(content: Any, section: str, key: str, file: Path, *, zero: bool = False) -> float:
    value = _section(content, section, file).get(key)
    # `ulp` is the smallest number above 0.
    lowest = 0.0 if zero else math.ulp(0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= LARGEST:
        raise UserError(
            "this calibration lacks a number",
            file=file,
            key=f"{section}.{key}",
            value=value,
            allowed="0 or more" if zero else "more than 0",
        )
    return float(value)
