"""Saved rollouts as drafts, and their validation."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from redraft.errors import UserError
from redraft.files import read_parquet

COLUMNS = ("prompt", "sample", "epoch", "tokens", "log_probs", "prompt_tokens")
"""Columns of a file of rollouts (docs/predict.md)."""
KEY = ["epoch", "prompt", "sample"]
MAX_LOG_PROB = 1e-4
"""Log-probabilities up to this, above 0, are taken as rounding errors."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A saved response, used as a draft.

    Attributes:
        tokens: integer (n,), at least one.
        log_probs: float (n,), of each token under the policy that sampled it, as stored with it.
    """

    prompt: int
    tokens: np.ndarray
    log_probs: np.ndarray


@dataclass(frozen=True, eq=False)
class SavedRollouts:
    """Drafts of an earlier policy, and response lengths of about the current one.

    Attributes:
        drafts: at least one.
        prompts: token ids of the drafts' prompts, by prompt id.
        later: prompt id and number of tokens of each later response; at least one.
    """

    drafts: list[Draft]
    prompts: dict[int, list[int]]
    later: list[tuple[int, int]]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its draft."""
        return max(len(self.prompts[draft.prompt]) + len(draft.tokens) for draft in self.drafts)

    def check_fits(self, vocabulary: int, positions: int | None, file: Path) -> None:
        """Check that tokens are in the vocabulary and sequences no longer than `positions` (None: unlimited).

        Raises:
            UserError: if they are not.
        """
        tokens = np.concatenate([*(draft.tokens for draft in self.drafts), *map(np.array, self.prompts.values())])
        outside = tokens[(tokens < 0) | (tokens >= vocabulary)]
        if len(outside):
            raise UserError(
                "a token is outside the policy's vocabulary: another model sampled the rollouts",
                file=file,
                key="tokens",
                value=int(outside[0]),
                allowed=f"0 to {vocabulary - 1}",
            )
        if positions is not None and self.longest > positions:
            raise UserError(
                "prompt and response are longer than the policy's positions",
                file=file,
                key="tokens",
                value=self.longest,
                allowed=f"at most {positions}",
            )


def read_file(file: Path) -> SavedRollouts:
    """The last two epochs of a Parquet file: drafts from the earlier one, response lengths from the later one.

    Raises:
        UserError: for a file that does not have the format of docs/predict.md.
    """
    frame = read_parquet(file, COLUMNS)
    for name in KEY:
        if not pd.api.types.is_integer_dtype(frame[name]) or frame[name].isna().any():
            raise UserError("this column must have whole numbers, and none missing", file=file, key=name)
    epochs = sorted(set(frame["epoch"]))
    if len(epochs) < 2:
        raise UserError("a prediction needs rollouts of two epochs", file=file, key="epoch", value=epochs)
    if frame.duplicated(KEY).any():
        first = frame.loc[frame.duplicated(KEY), KEY].iloc[0].to_dict()
        raise UserError("this rollout occurs twice", file=file, key=", ".join(KEY), value=tuple(first.values()))
    # Drafts of the last epoch but one: the last one was sampled by about the current policy.
    earlier, later = (frame[frame["epoch"] == epoch] for epoch in epochs[-2:])
    drafts = drafts_of(earlier, file)
    _check_lists(frame["prompt_tokens"], "iu", "whole numbers", file)
    prompts: dict[int, list[int]] = {}
    # Of all epochs: an id names one prompt, and with other tokens it would be another one.
    for prompt, tokens in zip(frame["prompt"], frame["prompt_tokens"], strict=True):
        if prompts.setdefault(int(prompt), tokens.tolist()) != tokens.tolist():
            raise UserError("one prompt has different tokens in two rows", file=file, key="prompt_tokens", value=prompt)
    drafted = {draft.prompt for draft in drafts}
    of_drafts = {prompt: tokens for prompt, tokens in prompts.items() if prompt in drafted}
    return SavedRollouts(drafts, of_drafts, lengths_of(later, file))


def drafts_of(frame: pd.DataFrame, file: Path) -> list[Draft]:
    """The rollouts of a frame with the columns `prompt`, `tokens` and `log_probs`.

    Raises:
        UserError: for a rollout without tokens, with different numbers of tokens and log-probabilities, or with a
            log-probability that is not finite or above 0.
    """
    _check_lists(frame["tokens"], "iu", "whole numbers", file)
    _check_lists(frame["log_probs"], "f", "floating-point numbers", file)
    drafts = []
    for prompt, tokens, log_probs in zip(frame["prompt"], frame["tokens"], frame["log_probs"], strict=True):
        # NumPy would broadcast a single log-probability over all tokens.
        if len(tokens) != len(log_probs):
            raise UserError(
                f"a rollout of prompt {prompt} has different numbers of tokens and log-probabilities",
                file=file,
                key="log_probs",
                value=len(log_probs),
                allowed=str(len(tokens)),
            )
        invalid = log_probs[~np.isfinite(log_probs) | (log_probs > MAX_LOG_PROB)]
        if len(invalid):
            raise UserError(
                f"a log-probability of prompt {prompt} is not one of a sampled token",
                file=file,
                key="log_probs",
                value=float(invalid[0]),
                allowed="finite, at most 0",
            )
        drafts.append(Draft(int(prompt), tokens, log_probs))
    return drafts


def _check_lists(column: pd.Series, kinds: str, allowed: str, file: Path) -> None:
    """Check that each row is a non-empty list of numbers of NumPy's dtype `kinds`."""
    for row in column:
        if not isinstance(row, np.ndarray) or row.dtype.kind not in kinds or not len(row):
            raise UserError(
                "this row has the wrong type",
                file=file,
                key=str(column.name),
                value=row,
                allowed=f"a list of {allowed}, at least one",
            )


def lengths_of(frame: pd.DataFrame, file: Path) -> list[tuple[int, int]]:
    """Prompt and number of tokens of each rollout of a frame with the columns `prompt` and `tokens`.

    Raises:
        UserError: for a rollout without tokens.
    """
    _check_lists(frame["tokens"], "iu", "whole numbers", file)
    return [(int(prompt), len(tokens)) for prompt, tokens in zip(frame["prompt"], frame["tokens"], strict=True)]
