"""Time that counts what a GPU does, which runs behind the program that tells it to."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds, for differences, read when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
