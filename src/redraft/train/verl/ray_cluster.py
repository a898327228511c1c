"""Ray over the nodes of a Slurm job, for runs that take more than one: a head on the first, a worker on each other.

`with ray_cluster(nodes, gpus, folder, inherited) as variables:` runs in the job's own process, on its first node. Slurm
starts one `python -m redraft.train.verl.ray_cluster` a node, which stays for as long as Ray does. Tried with two nodes
of a Slurm that were one machine (tests/test_two_nodes.py); not on several.

Ray listens on the nodes' network, where others may be, so who joins or calls must know a token. It is made for this one
cluster and stands in environment variables only.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from redraft.errors import UserError

START_SECONDS = 300.0
"""Limit for all nodes to join; importing Ray from a file system that many nodes share can take minutes."""
LOOK_SECONDS = 60.0
"""Limit for one question to the nodes; importing Ray is the most of it."""
END_SECONDS = 30.0
"""Limit for nodes to end before they are killed."""
LOG = "ray.log"


def token() -> dict[str, str]:
    """Environment variables by which only these processes may call their Ray, whose agents listen on the network."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def ray_cluster(nodes: int, gpus: int, folder: Path, inherited: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Ray on all nodes of this Slurm job, ended with the block.

    Args:
        gpus: that Ray counts on each of them.
        inherited: environment variables that all of Ray's workers are to have: they have those of their node's Ray, and
            not those of whoever asks for them.

    Yields:
        Environment variables by which a process that asks Ray for the address `auto` finds it.

    Raises:
        UserError: outside of a Slurm job, or if not all nodes come up.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError("several nodes need a Slurm job that has them", key="engine.nodes", value=nodes, allowed="1")
    import ray

    with socket.socket() as listener:
        listener.bind(("", 0))
        address = f"{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"
    variables = {"RAY_ADDRESS": address, **token()}
    command = [  # one task a node, with all of its processors and GPUs, beside the task that waits for them
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--overlap",
        "--kill-on-bad-exit=1",
        "--cpu-bind=none",
        sys.executable,
        "-m",
        "redraft.train.verl.ray_cluster",
        address,
        str(gpus),
    ]
    log = folder / LOG
    with log.open("ab") as output:
        env = os.environ | inherited | variables
        step = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while (joined := _joined(variables)) < nodes:
            if step.poll() is not None or time.monotonic() > deadline:
                raise UserError("Ray did not start on all nodes", file=log, value=joined, allowed=str(nodes))
            time.sleep(1)
        yield variables
    finally:
        step.terminate()
        try:
            step.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()


def _joined(variables: dict[str, str]) -> int:
    """Number of nodes that have joined, asked in another process, so that nothing of Ray stays in this one."""
    code = (
        "import ray; ray.init(address='auto', log_to_driver=False, logging_level='error');"
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=LOOK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 0
    return int(asked.stdout.split()[-1]) if asked.returncode == 0 else 0


def start_command(address: str, rank: int, processors: int, gpus: int) -> list[str]:
    """Command of a node: `ray start`, as the head on the first.

    How many processors and GPUs there are is said, since Ray would take all that the node has. Ports but the head's are
    whichever are free, and the dashboard, which would listen for everybody, is off.
    """
    host, port = address.rsplit(":", 1)
    head = ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
    place = head if rank == 0 else [f"--address={address}"]
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *place,
        f"--num-cpus={processors}",
        f"--num-gpus={gpus}",
        "--block",
        "--disable-usage-stats",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
    ]


def main(address: str, gpus: str) -> None:
    """Become Ray's process on this node."""
    rank, processors = (int(os.environ[name]) for name in ("SLURM_PROCID", "SLURM_CPUS_ON_NODE"))
    arguments = start_command(address, rank, processors, int(gpus))
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
