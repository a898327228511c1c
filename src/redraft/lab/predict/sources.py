"""What is to be judged by what: drafts and two policies, of a run's folder or of a file of rollouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.lab.predict.drafts import Saved, read_file
from redraft.lab.predict.runs import open_run
from redraft.train import models


@dataclass(frozen=True)
class Source:
    """Drafts with the folders of the policy that judges them and of the one that sampled them, None if not known.

    `between` says to people what lies between the two; the drafts were sampled at `temperature`.
    """

    saved: Saved
    policy: Path
    drafter: Path | None
    between: str
    temperature: float = 1.0


def source(
    path: Path,
    start: int | None = None,
    stop: int | None = None,
    policy: Path | None = None,
    drafter: Path | None = None,
    temperature: float | None = None,
) -> Source:
    """What a user names by the options of `redraft predict`.

    Raises:
        UserError: if there is nothing, or an option belongs to the other kind.
    """
    if path.is_dir():
        given = {"--policy": policy, "--drafter": drafter, "--temperature": temperature}
        _refuse(given, "a run's policies and its temperature stand in its manifest")
        run = open_run(path)
        first, last = run.pair(start, stop)
        sampled_by = run.policy(first) if first in run.policies else None
        between = f"drafts of step {first}, policy after {last} steps; epochs between: {run.epochs(first, last):.3g}"
        return Source(
            run.saved(first, last), run.policy(last), sampled_by, between, run.configuration.trainer.temperature
        )
    _refuse({"--from": start, "--to": stop}, "a file of rollouts has no steps")
    if policy is None:
        raise UserError("rollouts of a file need the current policy", key="--policy", allowed="a folder")
    return Source(read_file(path), policy, drafter, "drafts of the last epoch but one", temperature or 1.0)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise UserError(f"this option does not fit: {why}", key=key, value=str(value))


def load_policies(source: Source, device: str, path: Path) -> tuple[Any, Any]:
    """The current policy and the drafter's, None if that is not known.

    Raises:
        UserError: if one cannot be loaded, or the rollouts do not fit it.
    """
    config = models.load_config(source.policy)
    source.saved.check_fits(config.vocab_size, getattr(config, "max_position_embeddings", None), path)
    return _load(source.policy, device), _load(source.drafter, device) if source.drafter else None


def _load(folder: Path, device: str) -> Any:
    return models.load(folder)[0].to(models.device_of(device))
