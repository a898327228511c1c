"""Names of Ray jobs that differ between runs on one machine; verl imports this module first in each of its processes.

verl 0.9.1 passes weights from the trainer to vLLM through a socket of `/tmp` whose name has the id of the Ray job, so
that two runs do not share it. But each run has its own Ray here, and the first job of any Ray has the same id. The
second run would delete the first one's socket.
"""

import os

from ray.runtime_context import RuntimeContext

_job_id = RuntimeContext.get_job_id


def job_name(context: RuntimeContext) -> str:
    """Ray's id of the job, followed by the run's own name."""
    return f"{_job_id(context)}-{os.environ['REDRAFT_VERL_RUN']}"


RuntimeContext.get_job_id = job_name
