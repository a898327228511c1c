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
    """Drafts with the policies that judge and made them.

    Attributes:
        saved: drafts and lengths of later responses.
        policy: folder of the current policy.
        drafter: folder of the policy that sampled the drafts; None if it is not known.
        between: what lies between the two, for people.
        temperature: at which the drafts were sampled.
    """

    saved: Saved
    policy: Path
    drafter: Path | None
    between: str
    temperature: float = 1.0


def source(
    path: Path, start: int | None = None, stop: int | None = None, policy: Path | None = None,
    drafter: Path | None = None, temperature: float | None = None,
) -> Source:  # fmt: skip
    """What a user names.

    Args:
        path: folder of a run, or a Parquet file of rollouts (docs/predict.md).
        start: step of a run's drafts.
        stop: steps done by a run's current policy.
        policy: folder of the current policy for a file's rollouts.
        drafter: folder of the policy that sampled a file's drafts.
        temperature: of a file's drafts; 1 if None.

    Raises:
        UserError: if there is nothing, or an option belongs to the other kind.
    """
    if path.is_dir():
        given = {"--policy": policy, "--drafter": drafter, "--temperature": temperature}
        _refuse(given, "a run's policies and its temperature stand in its manifest")
        return _of_run(path, start, stop)
    _refuse({"--from": start, "--to": stop}, "a file of rollouts has no steps")
    if policy is None:
        raise UserError("rollouts of a file need the current policy", key="--policy", allowed="a folder")
    return Source(read_file(path), policy, drafter, "drafts of the last epoch but one", temperature or 1.0)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise UserError(f"this option does not fit: {why}", key=key, value=str(value))


def _of_run(folder: Path, start: int | None, stop: int | None) -> Source:
    opened = open_run(folder)
    first, last = opened.pair(start, stop)
    drafter = opened.policy(first) if first in opened.policies else None
    between = f"drafts of step {first}, policy after {last} steps; epochs between: {opened.epochs(first, last):.3g}"
    temperature = opened.configuration.trainer.temperature
    return Source(opened.saved(first, last), opened.policy(last), drafter, between, temperature)


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
