"""`redraft doctor`: check this machine, or a compute node, before a campaign."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Preset
from redraft.cli.terminal import document, filled
from redraft.errors import UserError
from redraft.messages import echo

SUBMITTED_MINUTES = 10
"""Time limit of the job of `--submit`."""
COUNTED = {"ok": "ok", "warning": "warnings", "error": "errors"}
"""Words of the last line by state."""


def doctor(
    preset: Preset = DEFAULT_PRESET,
    submit: Annotated[
        bool,
        typer.Option("--submit", help="Also check a compute node, in a Slurm job with one GPU at most."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine can run a preset: packages, GPUs, disk, models, data and Slurm.

    Each line is ok, a warning or an error with what to do; the exit code is 1 after an error.
    """
    from redraft.config import Experiments
    from redraft.config.site import load_site, site_file
    from redraft.layout import Layout
    from redraft.ops.doctor.checks import Campaign, diagnose
    from redraft.ops.doctor.node import Node

    experiments = Experiments()
    settings, site = experiments.preset(preset), load_site()
    campaign = Campaign(experiments, settings, site, site_file(), Layout(preset).folder, _storage_gb(preset))
    rows = [{"where": "here"} | vars(finding) for finding in diagnose(Node(), campaign)]
    if submit:
        # After the local checks, whose findings may say what is missing.
        if not Node().program("srun"):
            raise UserError("srun is not on the PATH", key="--submit", value=True, allowed="a machine with Slurm")
        rows += [row | {"where": "compute node"} for row in _submitted(preset, site.resources("train", settings))]
    if as_json:
        echo(document("doctor", {"preset": preset, "submit": submit}, rows))
    else:
        echo("\n".join(_lines(rows)))
    if any(row["state"] == "error" for row in rows):
        raise typer.Exit(1)


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for i, row in enumerate(rows):
        if i and row["where"] != rows[i - 1]["where"]:
            lines.append(f"\n{row['where']}:")
        lines.append(filled(f"{row['state']:<8} {row['check']}: {row['text']}", " " * 11))
        if row["hint"]:
            lines.append(filled(f"{'':<8} -> {row['hint']}", " " * 12))
    counts = [f"{sum(row['state'] == state for row in rows)} {name}" for state, name in COUNTED.items()]
    return [*lines, ", ".join(counts)]


def _storage_gb(preset: str) -> float | None:
    """What the preset's `reproduction` keeps on disk, in 1e9 bytes, by `redraft cost`; None if unknown."""
    from redraft.analysis.cost import campaign_cost
    from redraft.config import Experiments
    from redraft.layout import Layout

    experiments = Experiments()
    settings = experiments.preset(preset)
    cells = [cell for found in campaign_cost.wanted(experiments, settings, []).values() for cell in found]
    costs = campaign_cost.costs_of(cells, experiments, settings, Layout(preset))
    stored = [cost.stored for cost in costs if cost.stored is not None]
    # No cell with a known size is not a size of 0.
    return sum(stored) / 1e9 if stored else None


def _submitted(preset: str, resources: dict[str, int | str]) -> list[dict[str, Any]]:
    """Rows of this command in a job on one node of the stage `train`, with one GPU where the stage has any."""
    from redraft.config.site import GPUS_PER_NODE

    options = {"slurm_partition": "partition", "slurm_account": "account", "qos": "qos", "constraint": "constraint"}
    # A short, small job, which starts soon also on a full cluster.
    command = ["srun", "--nodes=1", "--ntasks=1", f"--time={SUBMITTED_MINUTES}", "--mem=4G", "--quiet"]
    command += [f"--{option}={resources[name]}" for name, option in options.items() if name in resources]
    for option in str(resources.get("slurm_extra", "")).split():
        # GPUs of a type with a hyphen are such an option (`Site.resources`), with the number of the whole stage; the
        # site's own options may have one without a type.
        kind, colon, _ = option.removeprefix(GPUS_PER_NODE).rpartition(":")
        command.append(f"{GPUS_PER_NODE}{kind}{colon}1" if option.startswith(GPUS_PER_NODE) else option)
    if gres := str(resources.get("gres", "")):
        command.append(f"--gres={gres.rpartition(':')[0]}:1")
    command += [sys.executable, "-m", "redraft", "doctor", "--preset", preset, "--json"]
    # Standard error is not captured: messages of srun and of the job are shown as they come.
    answer = subprocess.run(command, cwd=Path.cwd(), stdout=subprocess.PIPE, text=True, errors="replace", check=False)
    try:
        return json.loads(answer.stdout)["rows"]
    except ValueError:
        raise UserError(
            f"the job on a compute node gave no report (exit code {answer.returncode})",
            key="--submit",
            value=" ".join(command[: command.index(sys.executable)]),
            hint="its error is above; set partition, account or options in the site file",
        ) from None
