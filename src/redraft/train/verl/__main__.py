"""`python -m redraft.train.verl FILE`: train what a complete configuration of verl says, in this process and Ray's."""

import ctypes
import os
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
"""Option of Linux' prctl: the signal to get when the parent dies."""


def main(file: str) -> None:
    """Run verl's trainer to the end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # else a killed workflow would leave Ray running
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    @ray.remote
    class TaskRunner:
        """verl's runner, in a process that knows this project's trainer."""

        def run(self, config: Any) -> None:
            import redraft.train.verl.trainer  # noqa: F401  registers it

            TaskRunnerV1.__ray_metadata__.modified_class().run(config)

    try:
        run_ppo(OmegaConf.load(file), TaskRunner)
    except SystemExit:
        ray.shutdown()
        os.killpg(0, signal.SIGKILL)  # what Ray did not end: vLLM's engines look after no parent


if __name__ == "__main__":
    main(sys.argv[1])
