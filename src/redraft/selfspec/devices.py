"""Rooflines of devices that are known without a file.

The A100's is EfficientRollout's calibration of Qwen2.5-7B as printed (arXiv 2606.18967, Appendix D.2). Nobody has
published one of an H100: here it is the A100's, with bandwidth and throughput times the ratios of the data sheets, and
the same overheads.
"""

from dataclasses import replace
from pathlib import Path

from redraft.errors import UserError
from redraft.selfspec.calibration import Calibration, read_calibration
from redraft.selfspec.constants import ModelConstants

QWEN_7B = ModelConstants(3584, 28, 28, 4, 128, 18944, 152064, tied=False, name="Qwen2.5-7B")
A100 = Calibration(QWEN_7B.name, QWEN_7B.costs, 1.617e12, 233.514e12, 26205, 1.334, 39.0, 69.0, 152.3)
H100_BANDWIDTH, H100_FLOPS = 3.35e12 / 2.039e12, 989.4e12 / 312e12
"""The H100's over the A100's, by data sheets (SXM, dense 16-bit operations)."""
DEVICES = {
    "a100": A100,
    "h100": replace(A100, bandwidth=A100.bandwidth * H100_BANDWIDTH, flops=A100.flops * H100_FLOPS),
}


def calibration_of(device: str, model: ModelConstants | None) -> Calibration:
    """Roofline of a device by name, or of a calibration's file, for another model if one is given.

    Raises:
        UserError: if there is no such device or file, or the file is no calibration.
    """
    if device in DEVICES:
        found = DEVICES[device]
    elif Path(device).exists():
        found = read_calibration(Path(device))
    else:
        raise UserError(
            "no roofline is known by this name",
            key="--roofline",
            value=device,
            allowed=f"{', '.join(DEVICES)}, or a file of `redraft calibrate`",
        )
    return found.of_model(model) if model else found
