"""What a certificate needs: a sampler that is tested, and a policy that gives reference log-probabilities.

Both are small, so that a server, a trainer's rollout function or a few lines of Python can be either.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.errors import UserError

ROUNDING = 1e-2
"""Largest error of a distribution's total probability; log-probs in bfloat16 come close to it."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """One sampled response.

    Attributes:
        tokens: token ids, the end token included if it was sampled.
        log_probs: log-probability of each token as the sampler reports it; None if it reports none.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float] | None = None


@dataclass(frozen=True, eq=False)
class Known:
    """Log-probabilities of a policy at temperature 1 at each of the T positions of a response.

    Attributes:
        log_probs: float (T, V), the whole vocabulary, or float (T, K), the tokens in `tokens`.
        tokens: int (T, K), ids of the listed tokens, each once in a row; None for the whole vocabulary.
        sampled: float (T,), of the response's tokens; None if `log_probs` has all of them.
    """

    log_probs: np.ndarray
    tokens: np.ndarray | None = None
    sampled: np.ndarray | None = None


class Sampler(Protocol):
    """Anything that samples responses."""

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> Sequence[Sequence[Sampled]]:
        """Sample `samples` responses to each prompt, until an end token or `max_tokens`."""
        ...


class Policy(Protocol):
    """Reference for the sampler's distribution."""

    @property
    def end_tokens(self) -> Collection[int]:
        """Tokens that end a response."""
        ...

    def log_probs(self, prompts: list[list[int]], responses: list[list[int]]) -> Iterable[Known]:
        """Log-probabilities of each response after its prompt, in order; a generator needs little memory."""
        ...


def checked_responses(
    responses: Sequence[Sequence[Sampled]], prompts: int, samples: int, max_tokens: int
) -> list[list[Sampled]]:
    """Responses as the protocol requires them, with tokens as integers.

    Raises:
        UserError: if the number of responses, a length, a token or a log-probability is impossible.
    """
    if len(responses) != prompts:
        raise UserError("the sampler returned another number of prompts", value=len(responses), allowed=str(prompts))
    for prompt, group in enumerate(responses):
        if len(group) != samples:
            raise UserError(
                f"the sampler returned another number of samples of prompt {prompt}",
                value=len(group),
                allowed=str(samples),
            )
        for sample, each in enumerate(group):
            if problem := _problem(each, max_tokens):
                raise UserError(f"the sampler's response {sample} to prompt {prompt} {problem}")
    flat = [each for group in responses for each in group]
    if len({each.log_probs is None for each in flat if len(each.tokens)}) > 1:
        raise UserError("the sampler reported log-probabilities of some responses only")
    return [
        [Sampled(np.asarray(each.tokens, dtype=np.int64).tolist(), each.log_probs) for each in group]
        for group in responses
    ]


def _problem(each: Sampled, max_tokens: int) -> str | None:
    if not isinstance(each, Sampled):
        return f"is a {type(each).__name__} and no `Sampled(tokens, log_probs)`"
    if len(each.tokens) > max_tokens:
        return f"has {len(each.tokens)} tokens, more than max_tokens = {max_tokens}"
    tokens = np.asarray(each.tokens)
    if len(tokens) and (tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0):
        return f"has other token ids than integers from 0: {list(each.tokens)[:8]!r}"
    if each.log_probs is not None:
        if len(each.log_probs) != len(each.tokens):
            return f"has {len(each.log_probs)} log-probabilities of {len(each.tokens)} tokens"
        values = np.asarray(each.log_probs, dtype=float)
        if np.isnan(values).any() or (values > ROUNDING).any():
            return "has a log-probability that is NaN or above 0"
    return None


def checked_known(known: Known, response: Sequence[int]) -> Known:
    """The policy's log-probabilities of a response as float64, normalised, with `sampled`.

    Raises:
        UserError: if shapes, token ids or total probabilities are impossible.
    """
    rows, chosen = np.asarray(known.log_probs, dtype=np.float64), np.asarray(response, dtype=np.int64)
    if rows.ndim != 2 or len(rows) != len(response) or (known.tokens is not None and known.tokens.shape != rows.shape):
        raise UserError(
            "the policy's log-probabilities have another shape", value=rows.shape, allowed=f"({len(response)}, V)"
        )
    totals = np.exp(rows).sum(axis=1)
    whole = known.tokens is None
    wrong = ~(totals <= 1 + ROUNDING) | (whole & (totals < 1 - ROUNDING))  # also NaN
    if wrong.any():
        position = int(wrong.argmax())
        raise UserError(
            f"the policy's probabilities at position {position} of a response do not sum to 1", value=totals[position]
        )
    # By rounding a total may be 1.01, and thousands of such factors would be evidence against an exact sampler.
    shift = np.log(totals if whole else np.maximum(totals, 1.0))
    rows = rows - shift[:, None]
    if whole:
        if (chosen >= rows.shape[1]).any():
            raise UserError(
                "a sampled token is not in the policy's vocabulary",
                value=int(chosen.max()),
                allowed=f"0 to {rows.shape[1] - 1}",
                hint="sampler and policy need the same tokenizer",
            )
        return Known(rows, None, rows[np.arange(len(chosen)), chosen])
    listed = np.where(known.tokens == chosen[:, None], rows, -np.inf).max(axis=1, initial=-np.inf)
    if known.sampled is not None:
        listed = np.maximum(listed, np.asarray(known.sampled, dtype=np.float64) - shift)
    return Known(rows, np.asarray(known.tokens, dtype=np.int64), listed)
