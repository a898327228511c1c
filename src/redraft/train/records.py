"""A step's record: wall time by stage, counts and means, and the files it is kept in; the same for every trainer."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from redraft.config.base import STEP_STAGES
from redraft.errors import UserError
from redraft.files import atomic, write_atomically
from redraft.rollout.types import Finish, Group


class StageClock:
    """Seconds of a step by stage; `others` is the rest, so that stages always sum to the step.

    Args:
        now: seconds, of the device or machine that does the work.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._began = now()
        self._left_out = 0.0
        self.seconds = dict.fromkeys(STEP_STAGES, 0.0)

    def add(self, seconds: Mapping[str, float], unseen: float = 0.0) -> None:
        """Add seconds to stages; `unseen` of them passed while the clock did not advance."""
        for stage, value in seconds.items():
            self.seconds[stage] += value
        self._left_out -= unseen

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count a block's time as that stage."""
        began = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - began

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave a block's time out of the step: measurement and checkpoints, which training itself does not need."""
        began = self.now()
        try:
            yield
        finally:
            self._left_out += self.now() - began

    def finish(self) -> dict[str, float]:
        """Seconds by stage and in `total`."""
        total = self.now() - self._began - self._left_out
        claimed = sum(seconds for name, seconds in self.seconds.items() if name != "others")
        # Not negative by rounding; `total` is the sum of the stages in any case.
        self.seconds["others"] = max(total - claimed, 0.0)
        return {**self.seconds, "total": claimed + self.seconds["others"]}


def describe(groups: Sequence[Group], step: int, steps_per_epoch: int) -> dict[str, Any]:
    """Counts and means over the rollouts of a step; those about drafts are None where no rollout had one.

    Samples that a group carries from an earlier step or from memory are left out: that step has counted them. Shares of
    prompts leave out those that are continued, which were chosen by their rewards; they are None where all are.

    Args:
        groups: graded, at least one, of any size.
        step: at which they were completed.
        steps_per_epoch: turns ages in steps into epochs.
    """
    made = [sample for group in groups for sample in group.samples if not sample.carried]
    # Groups of new prompts: one that is continued has carried samples besides a replayed one.
    new = [g for g in groups if not any(s.carried and s is not g.replayed for s in g.samples)]
    rollouts = [sample.rollout for sample in made]
    drafted = [r for r in rollouts if r.draft_length]
    ages = step - np.concatenate([r.sampled_at for r in rollouts])
    of_prompts = {
        "informative": [group.informative for group in new],
        "without_correct": [not any(s.correct for s in g.samples if s is not g.replayed) for g in new],
        "replayed": [group.replayed is not None for group in new],
    }
    return {
        "rollouts": len(rollouts),
        "tokens_decoded": sum(r.decoded for r in rollouts),
        "tokens_verified": sum(r.verified for r in rollouts),
        "tokens_reused": sum(r.prefix_length for r in rollouts),
        "response_length": float(np.mean([r.length for r in rollouts])),
        "truncated": float(np.mean([r.finish is Finish.LENGTH for r in rollouts])),
        "prefix_length": float(np.mean([r.prefix_length for r in drafted])) if drafted else None,
        "prefix_share": float(np.mean([r.prefix_length / r.draft_length for r in drafted])) if drafted else None,
        "full_reuse_ratio": float(np.mean([r.fully_reused for r in drafted])) if drafted else None,
        "token_age_epochs": float(ages.mean()) / steps_per_epoch,
        "rollouts_per_prompt": len(rollouts) / len(groups),
        **{name: float(np.mean(holds)) if holds else None for name, holds in of_prompts.items()},
        "reward": float(np.mean([sample.reward for sample in made])),
    }


def describe_batch(groups: Sequence[Group] | None, step: int) -> dict[str, float | None]:
    """Means over the samples that an update takes, carried ones included; None where there is no update.

    Args:
        groups: of the batch.
        step: of the update; `trained_age` is in steps since a token was sampled.
    """
    if groups is None:
        return dict.fromkeys(("trained_rollouts", "trained_reward", "trained_age"))
    samples = [sample for group in groups for sample in group.updated.samples]
    ages = step - np.concatenate([sample.rollout.sampled_at for sample in samples])
    return {
        "trained_rollouts": len(samples),
        "trained_reward": float(np.mean([sample.reward for sample in samples])),
        "trained_age": float(ages.mean()),
    }


def save_groups_of_step(file: Path, epoch: int, groups: Sequence[Group]) -> None:
    """Write the rollouts that a step made as Parquet, one line each: for diversity, cases and `redraft predict`."""
    samples = [(group, sample) for group in groups for sample in group.samples if not sample.carried]
    rollouts = [sample.rollout for _, sample in samples]
    frame = pd.DataFrame(
        {
            "epoch": epoch,
            "prompt": [group.prompt for group, _ in samples],
            "sample": [r.sample for r in rollouts],
            "tokens": [r.tokens for r in rollouts],
            "log_probs": [r.log_probs for r in rollouts],
            "sampled_at": [r.sampled_at for r in rollouts],
            "prefix_length": [r.prefix_length for r in rollouts],
            "draft_length": [r.draft_length for r in rollouts],
            "finish": [str(r.finish) for r in rollouts],
            "reward": np.array([sample.reward for _, sample in samples], dtype=np.float32),
            "visit": [group.visit for group, _ in samples],
            # step at which the group's response from memory was completed, -1 if it has none
            "replayed_from": [
                -1 if (kept := group.replayed) is None else int(kept.rollout.sampled_at[-1]) for group, _ in samples
            ],
        }
    )
    with atomic(file) as temporary:
        # `read_parquet` verifies the checksums: a flipped bit is an error and not another token.
        frame.to_parquet(temporary, index=False, write_page_checksum=True)


def append_record(file: Path, record: dict[str, Any]) -> None:
    """Add one line of JSON, on the disk before a checkpoint counts on it."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record, allow_nan=False) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def truncate_records(file: Path, count: int, expected: str) -> None:
    """Keep the first `count` lines, those of the checkpoint that is resumed from.

    Args:
        expected: their SHA-256 by the checkpoint; not compared without a line.

    Raises:
        UserError: if there are fewer, or others.
    """
    # A last line that a kill cut off is of a step beyond `count`.
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    remedy = f"restore this file from a copy, or remove {file.parent}, which starts the run again"
    if len(lines) < count:
        raise UserError(
            "records of finished steps are missing",
            file=file,
            value=len(lines),
            allowed=f"at least {count}",
            hint=remedy,
        )
    kept = b"".join(lines[:count])
    if count and (found := hashlib.sha256(kept).hexdigest()) != expected:
        raise UserError(
            "records of finished steps differ from those of the checkpoint",
            file=file,
            key="sha256",
            value=found,
            allowed=expected,
            hint=remedy,
        )
    write_atomically(file, kept)
