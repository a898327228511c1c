"""The clock that stages are timed by: what the device does, not what else the machine is busy with."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds, for differences.

    On a GPU wall seconds, read when it has done all that it was given, since it runs behind the program that tells it
    to. On a CPU the process's processor seconds: runs share cores with each other and with whatever else runs, and wall
    seconds would compare how busy the machine was.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
