"""What a certificate needs: a sampler that is tested, and a policy that gives reference log-probabilities.

Both are small, so that a server, a trainer's rollout function or a few lines of Python can be either.
"""

import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from redraft.errors import UserError

LARGEST = 2**31 - 1
"""Largest token id."""
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
        tokens: int (T, K), ids of the listed tokens, each once in a row; None for the whole vocabulary. They must not
            depend on the sampled token: a list to which it is always added is no list of the most probable ones.
        sampled: float (T,), of the response's tokens; None if `log_probs` has all of them.
    """

    log_probs: np.ndarray
    tokens: np.ndarray | None = None
    sampled: np.ndarray | None = None


def length_to_end(tokens: Sequence[int], ends: Collection[int]) -> int:
    """Number of tokens up to the first end token, which counts; all tokens without one."""
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))


class Sampler(Protocol):
    """Anything that samples responses.

    One whose model might change meanwhile may have a method `probe(prompts)`: it returns numbers, such as
    log-probabilities of the prompts, that stay the same as long as the model does.
    """

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


@contextmanager
def blamed(who: str) -> Iterator[None]:
    """Turn an exception of the user's code into one error, so that no crash is taken for a verdict.

    Raises:
        UserError: with the type and message of the exception, and the line that raised it.
    """
    try:
        yield
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{who} raised SyntaxError: {error.msg}", file=error.filename, value=error.text) from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"line {last.lineno}, in {last.name}"
        raise UserError(
            f"{who} raised {type(error).__name__}: {error}", file=last.filename, value=last.line or None, hint=where
        ) from error


def checked_responses(responses: object, prompts: int, samples: int, max_tokens: int) -> list[list[Sampled]]:
    """Responses as the protocol requires them, with tokens as integers.

    Raises:
        UserError: if the number of responses, a length, a token or a log-probability is impossible.
    """
    groups = _listed(responses, "responses to each prompt")
    if len(groups) != prompts:
        raise UserError("the sampler returned another number of prompts", value=len(groups), allowed=str(prompts))
    checked = []
    for prompt, group in enumerate(groups):
        found = _listed(group, f"`Sampled` for prompt {prompt}")
        if len(found) != samples:
            raise UserError(
                f"the sampler returned another number of samples of prompt {prompt}",
                value=len(found),
                allowed=str(samples),
            )
        for sample, each in enumerate(found):
            if problem := _problem(each, max_tokens):
                raise UserError(f"the sampler's response {sample} to prompt {prompt} {problem}")
        checked.append([Sampled(np.asarray(e.tokens, dtype=np.int64).tolist(), e.log_probs) for e in found])
    if len({each.log_probs is None for group in checked for each in group if each.tokens}) > 1:
        raise UserError("the sampler reported log-probabilities of some responses only")
    return checked


def _listed(values: object, what: str) -> list[Any]:
    """The sampler's values as a list, also of a generator, which may fail only now."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Sampled)):
        raise UserError(f"the sampler returned a {type(values).__name__}", allowed=f"a list of {what}")
    with blamed("the sampler"):
        return list(values)


def _problem(each: object, max_tokens: int) -> str | None:
    if not isinstance(each, Sampled):
        return f"is a {type(each).__name__} and no `Sampled(tokens, log_probs)`"
    if (tokens := _array(each.tokens)) is None:
        return f"has tokens that are no list of integers: {each.tokens!r:.80}"
    if len(tokens) > max_tokens:
        return f"has {len(tokens)} tokens, more than max_tokens = {max_tokens}"
    if len(tokens) and (tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > LARGEST):
        return f"has other token ids than integers from 0: {tokens.tolist()[:8]!r}"
    if each.log_probs is not None:
        if (values := _array(each.log_probs, float)) is None:
            return f"has log-probabilities that are no list of numbers: {each.log_probs!r:.80}"
        if len(values) != len(tokens):
            return f"has {len(values)} log-probabilities of {len(tokens)} tokens"
        if np.isnan(values).any() or (values > ROUNDING).any():
            return "has a log-probability that is NaN or above 0"
    return None


def _array(values: object, dtype: type | None = None) -> np.ndarray | None:
    """Values with one dimension; None if they have none or more, or are no numbers."""
    try:
        array = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError):
        return None
    return array if array.ndim == 1 else None


def checked_known(known: object, response: Sequence[int]) -> Known:
    """The policy's log-probabilities of a response as float64, normalised, with `sampled`.

    Raises:
        UserError: if shapes, token ids or total probabilities are impossible.
    """
    if not isinstance(known, Known):
        raise UserError(f"the policy returned a {type(known).__name__}", allowed="a `Known(log_probs)` a response")
    rows, chosen = np.asarray(known.log_probs, dtype=np.float64), np.asarray(response, dtype=np.int64)
    tokens = None if known.tokens is None else np.asarray(known.tokens, dtype=np.int64)
    if rows.ndim != 2 or len(rows) != len(response) or (tokens is not None and tokens.shape != rows.shape):
        raise UserError(
            "the policy's log-probabilities have another shape", value=rows.shape, allowed=f"({len(response)}, V)"
        )
    totals = np.exp(rows).sum(axis=1)
    wrong = ~(totals <= 1 + ROUNDING) | ((tokens is None) & (totals < 1 - ROUNDING))  # also NaN
    if wrong.any():
        position = int(wrong.argmax())
        raise UserError(
            f"the policy's probabilities at position {position} of a response do not sum to 1", value=totals[position]
        )
    # By rounding a total may be 1.01, and thousands of such factors would be evidence against an exact sampler.
    shift = np.log(totals if tokens is None else np.maximum(totals, 1.0))
    rows = rows - shift[:, None]
    if tokens is not None:
        return Known(rows, tokens, _listed_or_given(rows, tokens, chosen, known.sampled, shift))
    if (chosen >= rows.shape[1]).any():
        raise UserError(
            "a sampled token is not in the policy's vocabulary",
            value=int(chosen.max()),
            allowed=f"0 to {rows.shape[1] - 1}",
            hint="sampler and policy need the same tokenizer",
        )
    return Known(rows, None, rows[np.arange(len(chosen)), chosen])


def _listed_or_given(
    rows: np.ndarray, tokens: np.ndarray, chosen: np.ndarray, sampled: object, shift: np.ndarray
) -> np.ndarray:
    """Log-probability of each sampled token, float64 (T,); -inf if it is unknown."""
    ordered = np.sort(tokens, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        raise UserError("the policy lists a token twice at a position", value=int(ordered[:, 1:][twice][0]))
    listed = np.where(tokens == chosen[:, None], rows, -np.inf).max(axis=1, initial=-np.inf)
    if sampled is None:
        return listed
    given = _array(sampled, float)
    if given is None or len(given) != len(chosen) or not (given <= ROUNDING).all():  # also NaN
        raise UserError(
            "the policy's log-probabilities of sampled tokens are no numbers up to 0, one a token",
            key="sampled",
            allowed=f"({len(chosen)},)",
        )
    return np.maximum(listed, given - shift)
