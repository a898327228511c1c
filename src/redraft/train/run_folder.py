"""Where a run keeps its files."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import UserError


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files."""

    path: Path

    @property
    def records(self) -> Path:
        """One JSON line a step."""
        return self.path / "steps.jsonl"

    def policy(self, step: int) -> Path:
        """The model after so many steps, in transformers' format."""
        return self.path / "policies" / f"step-{step:04d}"

    def keep_policies(self, steps: Sequence[int]) -> None:
        """Remove the policies of other steps: they are of another experiment, or will be made again.

        Raises:
            UserError: if one of these is missing.
        """
        kept = {self.policy(step) for step in steps}
        for other in set(self.policy(0).parent.glob("step-*")) - kept:
            shutil.rmtree(other)
        for policy in sorted(kept):
            if not policy.exists():
                raise UserError("this policy of a finished step is missing", file=policy,
                                allowed=f"after removing {self.path}, which starts the run anew")  # fmt: skip

    def checkpoints(self, fingerprint: str) -> Path:
        """Checkpoints of the experiment with that fingerprint, so that a changed one starts anew."""
        return self.path / "checkpoints" / fingerprint

    def keep_checkpoints(self, fingerprint: str) -> None:
        """Remove those of other experiments, or set aside.

        This one overwrites their records and rollouts: going on from them later would mix two experiments.
        """
        kept = self.checkpoints(fingerprint)
        for other in set(kept.parent.glob("*")) - {kept}:
            shutil.rmtree(other)

    def rollouts(self, step: int) -> Path:
        """What a step rolled out."""
        return self.path / "rollouts" / f"step-{step:04d}.parquet"

    def truncate_rollouts(self, count: int) -> None:
        """Keep those of the first `count` steps: a longer experiment's would be measured with this one's."""
        kept = {self.rollouts(step) for step in range(count)}
        for other in set(self.rollouts(0).parent.glob("step-*.parquet")) - kept:
            other.unlink()
