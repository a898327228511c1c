"""Files of a run, and what is removed of them when the run goes on."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from redraft.errors import UserError
from redraft.files import remove, unfinished
from redraft.ops.locking.entries import FOLDER
from redraft.result_files import read_manifest


class RunFolder:
    """Files of a run, and what is removed of them when the run goes on.

    Attributes:
        records: one JSON line a step.
        manifest: written when the run is finished.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.records, self.manifest = path, path / "steps.jsonl", path / "manifest.json"

    def keep_finished(self, fingerprint: str, inputs: Mapping[str, str]) -> None:
        """Raise an error if the run is finished: without its last checkpoint it would overwrite its own results.

        The workflow removes the manifest of a run that it has to train again; other inputs are another run.

        Raises:
            UserError: if there is a manifest of this experiment from these inputs.
        """
        if not self.manifest.exists():
            return
        manifest = read_manifest(self.manifest)
        same_inputs = inputs.items() <= manifest.get("inputs", {}).items()
        if manifest.get("fingerprint") == fingerprint and same_inputs:
            raise UserError(
                "this run is finished, but its last checkpoint is not there undamaged",
                file=self.manifest,
                hint=f"take its results as they are, or remove {self.path} to start again",
            )

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing; the caller owns the folder, so no other process writes there.

        Files next to the entries of the lease are left: they are of processes that wait for it.
        """
        remove(path for path in unfinished(self.path) if path.parent != self.path / FOLDER)

    def policy(self, step: int) -> Path:
        """The policy after `step` steps, in transformers' format."""
        return self.path / "policies" / f"step-{step:04d}"

    def keep_policies(self, steps: Sequence[int]) -> None:
        """Remove the policies of other steps than these; a UserError if one of these is missing."""
        kept = {self.policy(step) for step in steps}
        for other in set(self.policy(0).parent.glob("step-*")) - kept:
            shutil.rmtree(other)
        for policy in sorted(kept):
            if not policy.exists():
                raise UserError(
                    "this policy of a finished step is missing",
                    file=policy,
                    hint=f"remove {self.path}, which starts the run again",
                )

    def checkpoints(self, fingerprint: str) -> Path:
        """Checkpoints of the experiment with that fingerprint, so that a changed one starts again."""
        return self.path / "checkpoints" / fingerprint

    def keep_checkpoints(self, fingerprint: str) -> None:
        """Remove those of other experiments, or set aside.

        This one overwrites their records and rollouts: going on from them later would mix two experiments.
        """
        kept = self.checkpoints(fingerprint)
        for other in set(kept.parent.glob("*")) - {kept}:
            shutil.rmtree(other)

    def rollouts(self, step: int) -> Path:
        """Rollouts of a step."""
        return self.path / "rollouts" / f"step-{step:04d}.parquet"

    def truncate_rollouts(self, count: int) -> None:
        """Keep those of the first `count` steps: a longer experiment's would be measured with this one's."""
        kept = {self.rollouts(step) for step in range(count)}
        for other in set(self.rollouts(0).parent.glob("step-*.parquet")) - kept:
            other.unlink()
