"""Files of a run's saved rollouts, one per step (`redraft.train.run_folder` writes them)."""

from pathlib import Path

from redraft.errors import UserError


def rollout_files(run_folder: Path) -> dict[int, Path]:
    """Rollout file of each step, in the order of steps.

    Raises:
        UserError: if the run has no saved rollouts.
    """
    folder = run_folder / "rollouts"
    files = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.parquet")}
    if not files:
        raise UserError("there are no saved rollouts in this folder", file=folder)
    return dict(sorted(files.items()))
