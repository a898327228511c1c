"""Case studies (SPEC-RL, Figures 12-15): rollouts of a finished run next to the drafts that they reused.

The kinds of cases are those of Appendix C.2: prefixes are verified and reused, a rejection starts a continuation,
needless generation is avoided, an erroneous step is corrected. A rule chooses the cases; none is chosen by hand. The
text inside the paper's own figures is not available here, so the paper's cases are not reproduced word for word.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from redraft.config.data import Data
from redraft.errors import UserError
from redraft.files import read_parquet, steps_in
from redraft.result_files import read_manifest, rollout_files, write_with_hash
from redraft.tasks.problems import problems_of_run

COLUMNS = ("visit", "prompt", "sample", "tokens", "sampled_at", "prefix_length", "draft_length", "reward")
KEY = ["prompt", "sample"]
RIGHT = 0.5
"""Rewards above this mean a correct answer. Shaped rewards can differ from 0 and 1."""


@dataclass(frozen=True)
class Kind:
    """A kind of case: its condition, and the order among the rollouts that meet it.

    Attributes:
        name: short name, for files.
        title: heading, for readers.
        holds: the condition; maps lines with the columns of `_Rollouts.drafted` to booleans.
        rank: the qualifying line with the lowest value is shown. Ties go to the lower step, prompt and sample.
        differs: if true, the tokens after the prefix must differ from the draft's.
    """

    name: str
    title: str
    holds: Callable[[pd.DataFrame], pd.Series]
    rank: Callable[[pd.DataFrame], pd.Series]
    differs: bool = False


def _share(frame: pd.DataFrame) -> pd.Series:
    """Kept share of the draft, 0 to 1."""
    return frame["prefix_length"] / frame["draft_length"]


def _right(rewards: pd.Series) -> pd.Series:
    return rewards > RIGHT


KINDS = (
    Kind(
        "corrected",
        "a wrong rollout, cut and corrected",
        lambda f: ~_right(f["old_reward"]) & _right(f["reward"]) & _share(f).between(0, 1, inclusive="neither"),
        lambda f: -_share(f),
        differs=True,
    ),
    Kind(
        "reused",
        "a draft reused whole",
        lambda f: _share(f) == 1,
        lambda f: -f["draft_length"],
    ),
    Kind(
        "continued",
        "a long verified prefix with another continuation and the same reward",
        lambda f: (f["old_reward"] == f["reward"]) & _share(f).between(0, 1, inclusive="neither"),
        lambda f: -_share(f),
        differs=True,
    ),
    Kind(
        "rejected",
        "a draft rejected early",
        lambda f: _share(f) < 1,
        # A draft of which nothing was kept is the least instructive, so it comes last.
        lambda f: _share(f).where(_share(f) > 0, 2.0),
    ),
)
"""The kinds in the order of Figures 12 to 15. In a "corrected" case the error comes after the cut, since the new ending
is correct; its exact position is unknown."""


def cases(run_folder: Path, file: Path) -> None:
    """Choose one case of each kind from a finished run and write them as JSON.

    The case comes from the latest epoch pass in which its kind occurs. A kind that does not occur is listed with the
    reason.

    Raises:
        UserError: if rollouts, the manifest or the tokenizer are missing or damaged, or if a prefix differs from its
            draft.
    """
    file_of_run = run_folder / "manifest.json"
    manifest = read_manifest(file_of_run, "run", "configuration")
    data: Data = TypeAdapter(Data).validate_python(manifest["configuration"]["data"])
    problems = problems_of_run(data, manifest, file_of_run)
    rollouts = _Rollouts(run_folder)
    drafted = rollouts.drafted()
    absent = f"none of the {len(drafted):,} rollouts with a draft is of this kind"
    if drafted.empty:
        absent = "no rollout of this run had a draft"
    chosen = []
    for kind in KINDS:
        case: dict[str, Any] = {"absent": absent}
        if line := next(rollouts.of_kind(kind, drafted), None):
            problem = problems[line["prompt"]]
            case = rollouts.describe(line) | {"problem": problem.prompt, "answer": problem.answer}
        chosen.append({"kind": kind.name, "title": kind.title} | case)
    write_with_hash(file, {"run": manifest["run"], "cases": chosen})


class _Rollouts:
    """A run's saved rollouts and its last policy's tokenizer. Tokens are read only for rollouts that are shown."""

    def __init__(self, run_folder: Path) -> None:
        from transformers import AutoTokenizer

        self.files = rollout_files(run_folder)
        policies = list(steps_in(run_folder / "policies").values())
        if not policies:
            raise UserError("no policy was saved in this run, so there is no tokenizer", file=run_folder / "policies")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(policies[-1], trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the tokenizer cannot be loaded ({reason})", file=policies[-1]) from None
        # Candidates of a kind are often of the same steps.
        self.read = cache(lambda step: read_parquet(self.files[step], COLUMNS).set_index(KEY))

    def drafted(self) -> pd.DataFrame:
        """One line per rollout with a draft from the previous epoch pass; `old_step` and `old_reward` are the
        draft's."""
        lines = [
            read_parquet(file, COLUMNS).drop(columns=["tokens", "sampled_at"]).assign(step=step)
            for step, file in self.files.items()
        ]
        frame = pd.concat(lines, ignore_index=True)
        # A draft joins the rollout of the next visit with the same prompt and sample.
        old = frame[["visit", *KEY, "step", "reward"]].assign(visit=frame["visit"] + 1)
        old = old.rename(columns={"step": "old_step", "reward": "old_reward"})
        return frame[frame["draft_length"] > 0].merge(old, on=["visit", *KEY], validate="1:1")

    def tokens(self, step: int, line: dict[str, Any], column: str = "tokens") -> np.ndarray:
        """A rollout's tokens, or with `column="sampled_at"` the step at which each was sampled; int, (length,)."""
        return np.asarray(self.read(step).loc[(line["prompt"], line["sample"]), column])

    def of_kind(self, kind: Kind, drafted: pd.DataFrame) -> Iterator[dict[str, Any]]:
        """Lines of `drafted` of one kind: latest epoch pass first, then the best rank."""
        chosen = drafted[kind.holds(drafted)] if len(drafted) else drafted
        chosen = chosen.assign(rank=kind.rank(chosen) if len(chosen) else 0.0, latest=-chosen["visit"])
        for line in chosen.sort_values(["latest", "rank", "step", *KEY]).to_dict("records"):
            old, new = self.tokens(line["old_step"], line), self.tokens(line["step"], line)
            prefix = line["prefix_length"]
            # A case shown with the draft of another rollout would not look wrong to a reader.
            if len(old) != line["draft_length"] or not np.array_equal(old[:prefix], new[:prefix]):
                raise UserError(
                    "the prefix of a rollout differs from that of its draft, the rollout of the previous epoch pass",
                    file=self.files[line["step"]],
                    key="prompt, sample",
                    value=f"{line['prompt']}, {line['sample']}",
                )
            if not kind.differs or not np.array_equal(old, new):
                yield line

    def describe(self, line: dict[str, Any]) -> dict[str, Any]:
        """The index of the cut, and as texts the kept prefix, the rejected tail and the continuation."""
        old, new = (self.tokens(line[step], line) for step in ("old_step", "step"))
        sampled_at = self.tokens(line["step"], line, "sampled_at")
        cut = int(line["prefix_length"])
        whole = cut == line["draft_length"]
        return {
            **{name: int(line[name]) for name in ("step", "old_step", "visit", *KEY, "draft_length", "prefix_length")},
            "length": len(new),
            "reward": {"old": float(line["old_reward"]), "new": float(line["reward"])},
            "oldest_token_step": int(sampled_at[:cut].min()) if cut else None,
            "rejected": None if whole else {"index": cut, "token": self._text(old[cut : cut + 1])},
            "verified_prefix": self._text(old[:cut]),
            "rejected_tail": self._text(old[cut:]),
            "continuation": self._text(new[cut:]),
        }

    def _text(self, tokens: np.ndarray) -> str:
        return str(self.tokenizer.decode(tokens.tolist()))
