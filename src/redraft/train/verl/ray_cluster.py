"""Ray on the nodes of a Slurm job, for runs on several nodes: the head on the first node, workers on the others.

`with ray_cluster(nodes, gpus, folder, inherited) as variables:` runs in the job's process, on its first node. Slurm
starts one `python -m redraft.train.verl.ray_cluster` per node, which runs until Ray ends. Tested with two Slurm nodes
on one machine (tests/test_two_nodes.py), not on several machines.

Ray listens on the nodes' network, which others may share, so joins and calls need a token. It is generated for this
cluster and passed in environment variables only.
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
"""Limit for all nodes to join; importing Ray from a shared file system can take minutes."""
QUERY_SECONDS = 60.0
"""Limit for one query of the joined nodes; most of it is the import of Ray."""
END_SECONDS = 30.0
"""Limit for the nodes to end before they are killed."""
LOG = "ray.log"


def token() -> dict[str, str]:
    """Environment variables with a new token, without which no process can call this Ray on the network."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def ray_cluster(
    nodes: int, gpus: int, cpus: int, folder: Path, inherited: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Ray on all nodes of this Slurm job, ended with the block.

    Args:
        gpus: number of GPUs that Ray counts on each node.
        cpus: least number of CPUs that Ray counts on each node, even if Slurm granted fewer.
        inherited: environment variables for all of Ray's workers, which inherit those of their node's Ray, not those
            of the process that starts them.

    Yields:
        Environment variables with which `ray.init(address="auto")` finds this cluster.

    Raises:
        UserError: outside of a Slurm job, or if not all nodes join.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError("several nodes need a Slurm job that has them", key="engine.nodes", value=nodes, allowed="1")
    import ray

    with socket.socket() as listener:
        listener.bind(("", 0))
        address = f"{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"
    variables = {"RAY_ADDRESS": address, **token()}
    command = [  # one task per node with all of its CPUs and GPUs, next to the waiting task
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
        str(cpus),
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
    """Number of joined nodes, queried in another process, so that this one never initialises Ray."""
    code = (
        "import ray; ray.init(address='auto', log_to_driver=False, logging_level='error');"
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    try:
        query = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=QUERY_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 0
    return int(query.stdout.split()[-1]) if query.returncode == 0 else 0


def start_command(address: str, rank: int, processors: int, gpus: int) -> list[str]:
    """Command of a node: `ray start`, with `--head` on the first.

    The numbers of CPUs and GPUs are explicit, since Ray would use all of the node's. All ports except the head's are
    chosen among the free ones. The dashboard is off, since it would listen without a token.
    """
    host, port = address.rsplit(":", 1)
    head = ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
    role = head if rank == 0 else [f"--address={address}"]
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *role,
        f"--num-cpus={processors}",
        f"--num-gpus={gpus}",
        "--block",
        "--disable-usage-stats",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
    ]


def main(address: str, gpus: str, cpus: str) -> None:
    """Replace this process by Ray's process of the node."""
    rank, processors = (int(os.environ[name]) for name in ("SLURM_PROCID", "SLURM_CPUS_ON_NODE"))
    arguments = start_command(address, rank, max(processors, int(cpus)), int(gpus))
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
