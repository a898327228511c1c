"""Case studies (SPEC-RL, Figures 12-15): rollouts of a real run beside the drafts they were made from.

The text of the paper's own figures is not in the copy that this follows. The kinds are those that Appendix C.2
describes: how prefixes are verified and reused, how a rejection starts a continuation, where needless generation is
avoided, and where an erroneous step is put right. What is shown is chosen by rule, never by hand.
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
from redraft.files import read_json, read_parquet, write_json
from redraft.tasks.problems import load_problems

COLUMNS = ("epoch", "prompt", "sample", "tokens", "sampled_at", "prefix_length", "draft_length", "reward")
KEY = ["prompt", "sample"]
RIGHT = 0.5
"""Rewards above this are of right answers; shaping may move them off 0 and 1."""


@dataclass(frozen=True)
class Kind:
    """What a case must be, and which of several is shown.

    Attributes:
        name: for files.
        title: for people.
        holds: which lines (of `_drafted`'s columns) qualify.
        rank: of two that do, the one with the lower value is shown; then the lower step, prompt and sample.
        differs: whether the tokens behind the prefix must be other than the draft's.
    """

    name: str
    title: str
    holds: Callable[[pd.DataFrame], pd.Series]
    rank: Callable[[pd.DataFrame], pd.Series]
    differs: bool = False


def _share(frame: pd.DataFrame) -> pd.Series:
    """The part of the draft that was kept, 0 to 1."""
    return frame["prefix_length"] / frame["draft_length"]


def _right(rewards: pd.Series) -> pd.Series:
    return rewards > RIGHT


KINDS = (
    Kind(
        "corrected", "a wrong rollout, cut and put right",
        lambda f: ~_right(f["old_reward"]) & _right(f["reward"]) & _share(f).between(0, 1, inclusive="neither"),
        lambda f: -_share(f), differs=True,
    ),
    Kind(
        "reused", "a draft reused whole",
        lambda f: _share(f) == 1,
        lambda f: -f["draft_length"],
    ),
    Kind(
        "continued", "a long verified prefix, continued otherwise to the same reward",
        lambda f: (f["old_reward"] == f["reward"]) & _share(f).between(0, 1, inclusive="neither"),
        lambda f: -_share(f), differs=True,
    ),
    Kind(
        "rejected", "a draft rejected early",
        lambda f: _share(f) < 1,
        # Nothing kept at all shows least, so it comes last.
        lambda f: _share(f).where(_share(f) > 0, 2.0),
    ),
)  # fmt: skip
"""In the order of Figures 12 to 15. What stood behind the cut was wrong if the new end is right; no more is known of
where the error was."""


def cases(run_folder: Path, file: Path) -> None:
    """Choose one case a kind from a finished run and write them as JSON.

    The latest epoch in which a kind occurs is taken. A kind that does not occur is said to be absent.

    Raises:
        UserError: if rollouts, the manifest or the tokenizer are missing or damaged, or a prefix is not the draft's.
    """
    manifest = read_json(run_folder / "manifest.json")
    problems = load_problems(TypeAdapter(Data).validate_python(manifest["configuration"]["data"]))
    rollouts = _Rollouts(run_folder / "rollouts")
    texts = _Texts(_tokenizer(run_folder), rollouts)
    drafted = rollouts.drafted()
    found = []
    for kind in KINDS:
        case = next(_candidates(kind, drafted, rollouts), None)
        found.append({"kind": kind.name, "title": kind.title} | ({"absent": _why_absent(drafted)} if case is None else {
            **texts.describe(case), "problem": problems[case["prompt"]].prompt,
            "answer": problems[case["prompt"]].answer,
        }))  # fmt: skip
    write_json(file, {"run": manifest["run"], "cases": found})


def _why_absent(drafted: pd.DataFrame) -> str:
    if drafted.empty:
        return "no rollout of this run had a draft"
    return f"none of the {len(drafted):,} rollouts with a draft is of this kind"


def _candidates(kind: Kind, drafted: pd.DataFrame, rollouts: "_Rollouts") -> Iterator[dict[str, Any]]:
    """Rollouts of a kind, latest epoch and best rank first."""
    chosen = drafted[kind.holds(drafted)] if len(drafted) else drafted
    chosen = chosen.assign(rank=kind.rank(chosen) if len(chosen) else 0.0, latest=-chosen["epoch"])
    for line in chosen.sort_values(["latest", "rank", "step", *KEY]).to_dict("records"):
        old, new = rollouts.tokens(line["old_step"], line), rollouts.tokens(line["step"], line)
        prefix = line["prefix_length"]
        if len(old) != line["draft_length"] or not np.array_equal(old[:prefix], new[:prefix]):
            raise UserError("this rollout was not made from the last epoch's", file=rollouts.file(line["step"]),
                            key="prompt, sample", value=f"{line['prompt']}, {line['sample']}")  # fmt: skip
        if not kind.differs or not np.array_equal(old, new):
            yield line


class _Rollouts:
    """The saved rollouts of a run; tokens are read only where they are shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.parquet"))
        if not self.steps:
            raise UserError("there are no saved rollouts here", file=folder)
        self.read = cache(self._read)

    def file(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{step:04d}.parquet"

    def _read(self, step: int) -> pd.DataFrame:
        return read_parquet(self.file(step), COLUMNS).set_index(KEY)

    def drafted(self) -> pd.DataFrame:
        """A line a rollout with a draft, with the `old_step` and `old_reward` of the last epoch's."""
        lines = [
            read_parquet(self.file(s), COLUMNS).drop(columns=["tokens", "sampled_at"]).assign(step=s)
            for s in self.steps
        ]
        frame = pd.concat(lines, ignore_index=True)
        old = frame[["epoch", *KEY, "step", "reward"]].assign(epoch=frame["epoch"] + 1)
        old = old.rename(columns={"step": "old_step", "reward": "old_reward"})
        return frame[frame["draft_length"] > 0].merge(old, on=["epoch", *KEY], validate="1:1")

    def tokens(self, step: int, line: dict[str, Any], column: str = "tokens") -> np.ndarray:
        """Tokens of a rollout, or the steps at which they were sampled."""
        return np.asarray(self.read(step).loc[(line["prompt"], line["sample"]), column])


class _Texts:
    """Rollouts as text."""

    def __init__(self, tokenizer: Any, rollouts: _Rollouts) -> None:
        self.tokenizer, self.rollouts = tokenizer, rollouts

    def describe(self, line: dict[str, Any]) -> dict[str, Any]:
        """Where a draft was cut, what was kept of it, and what came instead."""
        old, new = (self.rollouts.tokens(line[step], line) for step in ("old_step", "step"))
        sampled_at = self.rollouts.tokens(line["step"], line, "sampled_at")
        cut = int(line["prefix_length"])
        whole = cut == line["draft_length"]
        return {
            **{name: int(line[name]) for name in ("step", "old_step", "epoch", *KEY, "draft_length", "prefix_length")},
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


def _tokenizer(run_folder: Path) -> Any:
    """The tokenizer saved with the run's last policy.

    Raises:
        UserError: if there is none.
    """
    from transformers import AutoTokenizer

    folders = sorted((run_folder / "policies").glob("step-*"))
    if not folders:
        raise UserError("no policy was saved here, so there is no tokenizer", file=run_folder / "policies")
    try:
        return AutoTokenizer.from_pretrained(folders[-1], trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"no tokenizer can be loaded from here ({reason})", file=folders[-1]) from None
