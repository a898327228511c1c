"""Drafts and policies of a run's folder.

The policy after s updates samples the rollouts of step s. If that policy is saved, the full distributions of those
rollouts can be computed again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.config.experiment import Run
from redraft.config.read import parse
from redraft.errors import UserError
from redraft.files import read_parquet, sha256
from redraft.lab.predict.saved_rollouts import Draft, SavedRollouts, drafts_of, lengths_of
from redraft.layout import Layout
from redraft.provenance import policies_of
from redraft.result_files import check_hashes, check_listed, read_manifest
from redraft.tasks.problems import Problem, problems_of_run
from redraft.tasks.prompts import encode
from redraft.train.models import load_tokenizer
from redraft.train.run_folder import RunFolder

COLUMNS = ("prompt", "tokens", "log_probs", "draft_length")
"""Columns that drafts are read from."""
RESULTS_PARENT = 4
"""Index of the results root among the parents of a run's folder (`redraft.layout`)."""


@dataclass(frozen=True)
class SavedRun:
    """A finished run in the folder `path`, with its manifest and the folder of its initial policy, if that is known."""

    path: Path
    manifest: Mapping[str, Any]
    initial: Path | None

    @cached_property
    def configuration(self) -> Run:
        """Configuration of the run."""
        return parse(Run, self.manifest["configuration"], self.path / "manifest.json")

    @cached_property
    def policies(self) -> dict[int, Path]:
        """Folders of saved policies by the number of their updates, ascending; 0 is the initial policy."""
        initial = {0: self.initial} if self.initial else {}
        return initial | {step: self.path / name for step, name in policies_of(self.manifest).items()}

    @property
    def any_policy(self) -> Path:
        """Folder of the last saved policy, whose sizes and tokenizer are those of all.

        Raises:
            UserError: if none is saved.
        """
        if not self.policies:
            raise UserError("no policy of this run is saved", file=self.path, key="policies")
        return self.policies[max(self.policies)]

    @cached_property
    def problems(self) -> list[Problem]:
        """Training problems."""
        return problems_of_run(self.configuration.data, self.manifest, self.path / "manifest.json")

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over all prompts.

        Raises:
            UserError: if the run screens prompts: its passes have no fixed number of steps.
        """
        schedule = self.configuration.schedule
        if schedule.kind == "speed":
            raise UserError(
                "this run screens prompts, so its steps form no epochs",
                file=self.path / "manifest.json",
                key="configuration.schedule.kind",
                value=schedule.kind,
                allowed="a run that rolls out each prompt once an epoch",
            )
        return self.configuration.trainer.steps_per_epoch(len(self.problems))

    @property
    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts are saved."""
        return [step for step in range(self.configuration.steps) if self._name(step) in self.manifest["sha256"]]

    def epochs(self, start: int, stop: int) -> float:
        """Epochs between two steps."""
        return (stop - start) / self.steps_per_epoch

    def pair(self, start: int | None = None, stop: int | None = None) -> tuple[int, int]:
        """Steps of the drafts and of the current policy.

        `stop` is by default the last saved policy, `start` the saved policy nearest to one epoch before `stop`.

        Raises:
            UserError: if there are no two such policies, or no rollouts of that step.
        """
        stop = max(self.policies) if stop is None else stop
        if stop not in self.policies:
            raise UserError(
                "no policy is saved after this step",
                file=self.path,
                key="--to",
                value=stop,
                allowed=map(str, self.policies),
            )
        if start is None:
            earlier = [step for step in self.policies if step < stop]
            if not earlier:
                raise UserError(
                    "a prediction needs two saved policies of a run",
                    file=self.path,
                    key="--to",
                    value=stop,
                    hint="--from STEP takes rollouts of any earlier step",
                )
            # A run would reuse its rollouts after one epoch.
            start = min(earlier, key=lambda step: abs(step - (stop - self.steps_per_epoch)))
        if start >= stop or start not in self.rollout_steps:
            raise UserError(
                "no rollouts of this step are saved, or it is not before the policy's",
                file=self.path,
                key="--from",
                value=start,
                allowed=f"a step from 0, below {stop}",
            )
        return start, stop

    def policy(self, step: int) -> Path:
        """Folder of a saved policy.

        Raises:
            UserError: if its weights' hashes are not the manifest's.
        """
        if step == 0:
            recorded = self.manifest["inputs"]["initial_policy"]
            if sha256(self.policies[0] / "model.safetensors") != recorded:
                raise UserError(
                    "this is not the run's initial policy", file=self.policies[0], key="sha256", allowed=recorded
                )
        else:
            weights = f"{self.policies[step].relative_to(self.path).as_posix()}/"
            named = [name for name in self.manifest["sha256"] if name.startswith(weights)]
            # Without a file of this policy the missing hash of its folder is the error.
            self._check(*(named or [weights]))
        return self.policies[step]

    def drafts(self, step: int) -> list[Draft]:
        """Rollouts of a step that have no draft, so that the policy after `step` updates sampled all their tokens.

        Raises:
            UserError: if there are none, or they were saved without log-probabilities.
        """
        file = self._rollouts(step)
        frame = read_parquet(file, COLUMNS)
        # A draft that was itself continued from a draft has no single policy as q.
        new = frame[frame["draft_length"] == 0]
        if new.empty:
            raise UserError(
                "all rollouts of this step continue drafts, so several policies sampled their tokens",
                file=file,
                key="draft_length",
                hint="take a run without reuse, or --from a step of the first epoch",
            )
        return drafts_of(new, file)

    def epoch(self, number: int) -> pd.DataFrame:
        """Rollouts of an epoch pass that are saved, with the columns of `COLUMNS` and `step`."""
        steps = [step for step in self.rollout_steps if step // self.steps_per_epoch == number]
        frames = [read_parquet(self._rollouts(step), COLUMNS, only=True).assign(step=step) for step in steps]
        return pd.concat(frames, ignore_index=True)

    def prompts(self, drafts: Iterable[Draft]) -> dict[int, list[int]]:
        """Tokens of the prompts of drafts."""
        wanted = sorted({draft.prompt for draft in drafts})
        # Training does not change it, so any policy's will do.
        tokenizer = load_tokenizer(self.any_policy)
        tokens = encode(tokenizer, [self.problems[prompt].prompt for prompt in wanted])
        return dict(zip(wanted, tokens, strict=True))

    def saved(self, start: int, stop: int) -> SavedRollouts:
        """Drafts of step `start`, and response lengths of the saved step nearest to `stop`.

        Raises:
            UserError: as `drafts`.
        """
        # The policy after the last step has sampled no rollouts: the last step's are nearest.
        drafts, nearest = self.drafts(start), min(stop, max(self.rollout_steps))
        file = self._rollouts(nearest)
        later = lengths_of(read_parquet(file, ("prompt", "tokens"), only=True), file)
        return SavedRollouts(drafts, self.prompts(drafts), later)

    def _rollouts(self, step: int) -> Path:
        """Rollout file of a step; a UserError if it is not the one that the manifest names."""
        self._check(self._name(step))
        return RunFolder(self.path).rollouts(step)

    def _check(self, *names: str) -> None:
        file, recorded = self.path / "manifest.json", self.manifest["sha256"]
        check_listed(names, recorded, file)
        check_hashes(self.path, {name: recorded[name] for name in names}, file)

    def _name(self, step: int) -> str:
        """Key of a step's rollout file in the manifest."""
        return RunFolder(self.path).rollouts(step).relative_to(self.path).as_posix()


def open_run(folder: Path, initial: Path | None = None) -> SavedRun:
    """A finished run.

    Args:
        folder: the run's folder, `results/<preset>/runs/<paper>/<cell>/seed<n>`.
        initial: folder of its initial policy; None to look for it in the same results.

    Raises:
        UserError: if there is no manifest.
    """
    manifest = read_manifest(folder / "manifest.json", "configuration", "inputs", "sha256")
    configuration, parents = manifest["configuration"], folder.resolve().parents
    # A run that was copied elsewhere has no models beside it.
    if initial is None and len(parents) > RESULTS_PARENT:
        model = Layout(configuration["preset"], parents[RESULTS_PARENT]).model(configuration["model_role"])
        initial = model if (model / "model.safetensors").exists() else None
    return SavedRun(folder, manifest, initial)
