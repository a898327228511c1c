"""`python -m redraft.train.verl FILE`: train by a complete configuration of verl, in this process and Ray's.

Its standard input is a pipe from the launcher. When the launcher ends for any reason, the pipe closes, and the whole
process group is killed.
"""

import os
import signal
import sys
import threading
from typing import Any


def main(file: str) -> None:
    """Run verl's trainer to the end."""
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    @ray.remote
    class TaskRunner:
        """verl's runner, in a process that knows this project's trainer."""

        def run(self, config: Any) -> None:
            import redraft.train.verl.trainer  # noqa: F401  registers the trainer

            # The class itself, in this process: `TaskRunnerV1` would start another actor.
            TaskRunnerV1.__ray_metadata__.modified_class().run(config)

    run_ppo(OmegaConf.load(file), TaskRunner)


def _end_with_the_launcher() -> None:
    """Kill the group when standard input ends.

    A signal at the launcher's death is not enough: Ray replaces its handler, the handler's exception can be lost in
    Ray's code or block Ray's shutdown for ever, and vLLM's engines do not watch their parent.
    """
    os.read(sys.stdin.fileno(), 1)  # not buffered: a thread in a buffer's lock makes Python abort at its normal end
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
