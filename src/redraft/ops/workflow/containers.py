"""Jobs in containers: the image that a call names, and the recipes from which images are built (docs/slurm.md)."""

import sys
from pathlib import Path
from typing import Any

from redraft.config import Preset
from redraft.errors import UserError
from redraft.messages import echo

RECIPES = {"dockerfile": "Dockerfile", "apptainer": "redraft.def"}
"""Recipe in `envs/containers` by format of `snakemake --containerize`."""
BASE = "debian:12.12-slim"
"""Image from which the recipes start."""
OPTION = "--sdm apptainer"
ON_GPUS = "--nv"
"""Apptainer's option that gives a container the GPUs and the libraries of NVIDIA's driver."""


def image_of(workflow: Any, image: str, preset: Preset) -> str | None:
    """Image of all rules, with an absolute path if it is a file; None if jobs run without containers.

    Jobs at a preset with GPUs get `ON_GPUS`.

    Raises:
        UserError: for an image without `OPTION`, the reverse, a missing file, or blanks in the path or URL.
    """
    settings = workflow.deployment_settings
    if any(argument.startswith("--lint") for argument in sys.argv):  # it runs nothing and demands an image
        return f"docker://{BASE}"
    if settings is None or "apptainer" not in {method.item_to_choice() for method in settings.deployment_method}:
        if image:
            raise UserError(
                "an image without containers", file="--config", key="container", value=image, hint=f"add {OPTION}"
            )
        return None
    if not image:
        raise UserError(
            f"{OPTION} needs an image",
            file="--config",
            key="container",
            allowed="a file, or a URL such as docker://",
            hint="envs/containers has the recipes",
        )
    if preset.engine.gpus and ON_GPUS not in settings.apptainer_args.split():
        settings.apptainer_args = f"{settings.apptainer_args} {ON_GPUS}".strip()
    is_file = "://" not in image
    if is_file and not Path(image).exists():
        raise UserError("no such image", file="--config", key="container", value=image)
    found = str(Path(image).resolve()) if is_file else image
    # The whole path, also of a relative file. Snakemake's error would not name the key.
    if any(character.isspace() for character in found):
        raise UserError(
            "Snakemake accepts no blanks in the name of an image", file="--config", key="container", value=found
        )
    return found


def check_nodes(workflow: Any) -> None:
    """Reject jobs on several nodes in containers; call this in `onstart`.

    A job's process starts processes on the other nodes by Slurm's srun, which an image does not have.

    Raises:
        UserError: if there is such a job.
    """
    for job in workflow.dag.needrun_jobs():
        if job.container_img_url and (nodes := job.resources.get("nodes", 1)) > 1:
            raise UserError(
                "a run over several nodes does not start in a container",
                key="engine.nodes",
                value=nodes,
                allowed="1",
                hint=f"train {job.wildcards.cell} without {OPTION}, or on one node",
            )


def print_recipe_instead(workflow: Any, root: Path) -> None:
    """Let `snakemake --containerize` print this project's recipe; Snakemake's own only has conda environments."""

    def containerize(fmt: str = "dockerfile") -> None:
        echo(Path(root, "envs/containers", RECIPES[fmt]).read_text(encoding="utf-8"), nl=False)

    workflow.containerize = containerize
