"""Inputs of a prediction: drafts and two policies, from a run's folder or a file of rollouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.lab.predict.saved_rollouts import SavedRollouts, read_file
from redraft.lab.predict.saved_run import open_run
from redraft.train import models


@dataclass(frozen=True)
class PredictionInput:
    """Drafts, and the folders of the current policy and of the one that sampled the drafts (None if unknown).

    Attributes:
        between: the steps or epochs between the two policies, as a text for people.
        temperature: temperature at which the drafts were sampled.
    """

    saved: SavedRollouts
    policy: Path
    drafter: Path | None
    between: str
    temperature: float = 1.0


def prediction_input(
    path: Path,
    start: int | None = None,
    stop: int | None = None,
    policy: Path | None = None,
    drafter: Path | None = None,
    temperature: float | None = None,
) -> PredictionInput:
    """The input that the options of `redraft predict` name.

    Raises:
        UserError: if the input is missing, or an option belongs to the other kind of input.
    """
    if path.is_dir():
        given = {"--policy": policy, "--drafter": drafter, "--temperature": temperature}
        _reject(given, "a run's manifest has its policies and temperature")
        run = open_run(path)
        # Both policies of a run and its temperature are in its manifest, so options for them are rejected.
        first, last = run.pair(start, stop)
        sampled_by = run.policy(first) if first in run.policies else None
        between = f"drafts of step {first}, policy after {last} steps; epochs between: {run.epochs(first, last):.3g}"
        return PredictionInput(
            run.saved(first, last), run.policy(last), sampled_by, between, run.configuration.trainer.temperature
        )
    _reject({"--from": start, "--to": stop}, "a file of rollouts has no steps")
    if policy is None:
        raise UserError("rollouts of a file need the current policy", key="--policy", allowed="a folder")
    return PredictionInput(read_file(path), policy, drafter, "drafts of the last epoch but one", temperature or 1.0)


def _reject(options: Mapping[str, object], why: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise UserError(f"this option is not allowed here: {why}", key=key, value=str(value))


def load_policies(inputs: PredictionInput, device: str, path: Path) -> tuple[Any, Any]:
    """Models of the current policy and of the drafter, None if that is unknown.

    Raises:
        UserError: if one cannot be loaded, or the rollouts do not fit its vocabulary or positions.
    """
    config = models.load_config(inputs.policy)
    # Before the weights are loaded: the configuration is enough to find another model.
    inputs.saved.check_fits(config.vocab_size, getattr(config, "max_position_embeddings", None), path)
    for folder in filter(None, (inputs.policy, inputs.drafter)):
        models.check_rotation(folder, inputs.saved.longest)
    return _load(inputs.policy, device), _load(inputs.drafter, device) if inputs.drafter else None


def _load(folder: Path, device: str) -> Any:
    return models.load(folder)[0].to(models.device_of(device))
