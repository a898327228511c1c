"""Every sampled token next to the policy's distribution at its position, reduced to what the tests use.

Whatever the context, if a token is sampled from p, then

- u = (mass of the more probable tokens) + v p(token), with v uniform on (0, 1), is uniform and independent of all
  earlier tokens (the randomised probability integral transform; Rosenblatt 1952, Annals of Mathematical Statistics
  23:470),
- the likelihood ratio q(token) / p(token) has mean 1 for every distribution q that was chosen before,
- the indicator of a token less its probability has mean 0 and variance p (1 - p).

If only the top-k tokens are known, all others are one class, the least probable one. The facts hold for classes too.
N is the number of sampled tokens, over all responses, and A the number of alternative temperatures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from redraft.certify.protocol import Known, Policy, Sampled, blamed, checked_known
from redraft.certify.reuse import ERRORS, factors
from redraft.errors import UserError

TILTS = np.array([-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
"""Alternatives p^(1 + tilt), normalised: temperatures 1 / (1 + tilt) times the right one, (A,)."""
RANKS = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of most probable tokens to which a top-k sampler may be limited."""
KEPT = 32
"""Most probable tokens of each position whose counts are tested."""
BLOCK = 4_000_000
"""Probabilities in memory at once."""


@dataclass(frozen=True, eq=False)
class Positions:
    """The N sampled tokens; those of a response are consecutive.

    Attributes:
        call: int (N,), which call of the sampler.
        prompt: int (N,).
        sample: int (N,), index of the response among those of its prompt and call.
        index: int (N,), position in the response, from 0.
        token: int (N,), the token's id.
        previous: int (N,), the id of the token before it, also of the prompt.
        log_prob: float64 (N,), of the token at the sampling temperature; -inf if it is impossible, NaN if unknown.
        raw: float64 (N,), the same at the temperature of reported log-probabilities.
        reported: float64 (N,), as the sampler reports it; NaN if it reports none.
        u: float64 (N,), uniform on (0, 1).
        ratio: float64 (N, A), log of the likelihood ratio of each alternative temperature.
        information: float64 (N,), variance of log p, the Fisher information of the tilt at 0.
        rank: int (N,), number of more probable tokens; at least k for a token outside the top-k.
        beyond: float64 (N, R), probability of a rank of at least each of `RANKS`; NaN where ranks are unknown.
        top: int (N, KEPT), most probable tokens, the most probable one first; -1 where there are fewer.
        top_probs: float64 (N, KEPT), their probabilities.
        end_prob: float64 (N,), probability of the end tokens that are known.
        end: bool (N,), whether the token is one of them.
        seen_prob: float64 (N,), probability of those of `top` that occurred before, also in the prompt.
        seen: bool (N,), whether the token is one of them.
    """

    call: np.ndarray
    prompt: np.ndarray
    sample: np.ndarray
    index: np.ndarray
    token: np.ndarray
    previous: np.ndarray
    log_prob: np.ndarray
    raw: np.ndarray
    reported: np.ndarray
    u: np.ndarray
    ratio: np.ndarray
    information: np.ndarray
    rank: np.ndarray
    beyond: np.ndarray
    top: np.ndarray
    top_probs: np.ndarray
    end_prob: np.ndarray
    end: np.ndarray
    seen_prob: np.ndarray
    seen: np.ndarray

    def __len__(self) -> int:
        return len(self.token)


@dataclass(frozen=True, eq=False)
class Other:
    """The same N tokens under another policy.

    Attributes:
        log_prob: float64 (N,), at the sampling temperature; -inf if the token is impossible or unknown.
        factors: float64 (N, 2, E), of `redraft.certify.reuse`; NaN unless both policies' whole vocabularies are known.
    """

    log_prob: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True, eq=False)
class Response:
    """A response up to its first end token, with its indices."""

    call: int
    prompt: int
    sample: int
    sampled: Sampled


def positions(
    prompts: list[list[int]],
    responses: Sequence[Response],
    policy: Policy,
    others: Sequence[Policy] = (),
    temperature: float = 1.0,
    reported_temperature: float | None = None,
    seed: int = 0,
) -> tuple[Positions, list[Other]]:
    """Score responses with the policy, and with other policies.

    Args:
        prompts: token ids.
        responses: at least one token in all; empty ones are left out.
        policy: the reference.
        others: policies that the sampler might sample from by mistake.
        temperature: of the distribution that the sampler should have.
        reported_temperature: of the reported log-probabilities; `temperature` if None.
        seed: of the random numbers v.

    Raises:
        UserError: if a policy does not give what the protocol requires.
    """
    # More words than a sampler's own seed has, so that the numbers are none that tokens were sampled with.
    rng = np.random.default_rng([seed, *b"certify"])
    reported_temperature = temperature if reported_temperature is None else reported_temperature
    ends = np.array(sorted(policy.end_tokens), dtype=np.int64)
    blocks, compared = [], []
    for block, known, *rest in _blocks(prompts, responses, [policy, *others]):
        blocks.append(_block(prompts, block, known, ends, temperature, reported_temperature, rng))
        compared.append([_other(_tokens(block), known, each, temperature) for each in rest])
    joined = [
        Other(np.concatenate([o.log_prob for o in each]), np.concatenate([o.factors for o in each]))
        for each in zip(*compared, strict=True)
    ]
    return Positions(*(np.concatenate([getattr(b, f.name) for b in blocks]) for f in fields(Positions))), joined


def _other(token: np.ndarray, known: Known, other: Known, temperature: float) -> Other:
    log_probs, own = _classes(other, token, temperature)
    assert other.sampled is not None
    log_prob = other.sampled if other.tokens is not None else log_probs[np.arange(len(token)), own]
    if known.tokens is None and other.tokens is None and known.log_probs.shape == other.log_probs.shape:
        return Other(log_prob, factors(np.exp(_tempered(known.log_probs, temperature)), np.exp(log_probs), token))
    return Other(log_prob, np.full((len(token), 2, len(ERRORS)), np.nan))


def _tokens(responses: Sequence[Response]) -> np.ndarray:
    return np.concatenate([np.asarray(each.sampled.tokens, dtype=np.int64) for each in responses])


def _blocks(
    prompts: list[list[int]], responses: Sequence[Response], policies: Sequence[Policy]
) -> Iterator[tuple[Any, ...]]:
    """Responses, and their log-probabilities by each policy, of one width, joined until they fill `BLOCK`."""
    kept = [each for each in responses if each.sampled.tokens]
    block: list[Response] = []
    joined: list[list[Known]] = []
    size = 0
    scores = [scored(policy, prompts, kept) for policy in policies]
    for each, *known in zip(kept, *scores, strict=True):
        layouts = [(one.log_probs.shape[1], one.tokens is None) for one in known]
        other = joined and layouts != [(one.log_probs.shape[1], one.tokens is None) for one in joined[-1]]
        if block and (other or size + known[0].log_probs.size > BLOCK):
            yield block, *map(_join, zip(*joined, strict=True))
            block, joined, size = [], [], 0
        block.append(each)
        joined.append(known)
        size += known[0].log_probs.size
    yield block, *map(_join, zip(*joined, strict=True))


def scored(policy: Policy, prompts: list[list[int]], responses: Sequence[Response]) -> Iterator[Known]:
    """The policy's checked log-probabilities of responses.

    Raises:
        UserError: if it does not give what the protocol requires, or fails.
    """
    with blamed("the policy"):
        contexts = [list(prompts[each.prompt]) for each in responses]
        found = iter(policy.log_probs(contexts, [list(each.sampled.tokens) for each in responses]))
    for count, each in enumerate(responses):
        with blamed("the policy"):
            given = next(found, None)
        if given is None:
            raise UserError("the policy scored fewer responses than it got", value=count, allowed=str(len(responses)))
        yield checked_known(given, each.sampled.tokens)
    with blamed("the policy"):
        if next(found, None) is not None:
            raise UserError("the policy scored more responses than it got", allowed=str(len(responses)))


def _join(joined: Sequence[Known]) -> Known:
    tokens = [each.tokens for each in joined if each.tokens is not None]
    return Known(
        np.concatenate([each.log_probs for each in joined]),
        np.concatenate(tokens) if tokens else None,
        np.concatenate([each.sampled for each in joined if each.sampled is not None]),
    )


def _tempered(log_probs_NV: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 1:
        return log_probs_NV
    scaled = log_probs_NV / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def _classes(known: Known, token: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the classes, float64 (N, C), and the class of each token.

    With top-k log-probs the last class is all other tokens.
    """
    if known.tokens is None:
        return _tempered(known.log_probs, temperature), token
    if temperature != 1:
        raise UserError(
            "top-k log-probs do not determine the distribution at another temperature",
            key="temperature",
            value=temperature,
            allowed="1, or a policy with log-probabilities of the whole vocabulary",
        )
    assert known.sampled is not None
    same = known.tokens == token[:, None]
    listed = same.any(axis=1)
    rest = np.maximum(1 - np.exp(known.log_probs).sum(axis=1), 0)
    # Rounding may leave nothing for a token that was sampled.
    rest = np.where(listed, rest, np.maximum(rest, np.exp(known.sampled)))
    with np.errstate(divide="ignore"):
        classes = np.column_stack([known.log_probs, np.log(rest)])
    return classes, np.where(listed, same.argmax(axis=1), known.tokens.shape[1])


def _block(
    prompts: list[list[int]],
    responses: list[Response],
    known: Known,
    ends: np.ndarray,
    temperature: float,
    reported_temperature: float,
    rng: np.random.Generator,
) -> Positions:
    lengths = [len(each.sampled.tokens) for each in responses]
    token = _tokens(responses)
    log_probs, own = _classes(known, token, temperature)
    rows, listed = np.arange(len(token)), log_probs.shape[1] - (known.tokens is not None)
    probs, own_prob = np.exp(log_probs), np.exp(log_probs[rows, own])
    above = _above(probs, own, own_prob, listed)
    finite = np.where(probs > 0, log_probs, 0)
    mean = (probs * finite).sum(axis=1)
    ratio = [tilt * log_probs[rows, own] - np.log(np.exp((1 + tilt) * log_probs).sum(axis=1)) for tilt in TILTS]
    top, top_probs, beyond = _top(probs[:, :listed], known.tokens)
    is_end, end_prob = _end(token, probs[:, :listed], known.tokens, ends)
    assert known.sampled is not None
    log_prob = raw = np.where(np.isneginf(known.sampled), np.nan, known.sampled)
    if known.tokens is None:
        log_prob, raw = log_probs[rows, own], _tempered(known.log_probs, reported_temperature)[rows, own]
    contexts = [[*prompts[each.prompt], *each.sampled.tokens] for each in responses]
    tops = np.split(top, np.cumsum(lengths)[:-1])
    was = np.concatenate([_seen_before(context, each) for context, each in zip(contexts, tops, strict=True)])
    return Positions(
        call=np.repeat([each.call for each in responses], lengths),
        prompt=np.repeat([each.prompt for each in responses], lengths),
        sample=np.repeat([each.sample for each in responses], lengths),
        index=np.concatenate([np.arange(n) for n in lengths]),
        token=token,
        previous=np.concatenate([c[-n - 1 : -1] for c, n in zip(contexts, lengths, strict=True)]).astype(np.int64),
        log_prob=log_prob,
        raw=raw,
        reported=np.concatenate([_reported(each.sampled) for each in responses]),
        u=np.clip((probs * above).sum(axis=1) + rng.random(len(token)) * own_prob, 0, 1),
        ratio=np.column_stack(ratio),
        information=np.maximum((probs * finite**2).sum(axis=1) - mean**2, 0),
        rank=above.sum(axis=1),
        beyond=beyond,
        top=top,
        top_probs=top_probs,
        end_prob=end_prob,
        end=is_end,
        seen_prob=(top_probs * was).sum(axis=1),
        seen=(was & (top == token[:, None])).any(axis=1),
    )


def _reported(sampled: Sampled) -> np.ndarray:
    if sampled.log_probs is None:
        return np.full(len(sampled.tokens), np.nan)
    return np.asarray(sampled.log_probs, dtype=np.float64)


def _seen_before(context: list[int], top_TK: np.ndarray) -> np.ndarray:
    """Whether each token occurs in the prompt or in the response before its position, bool (T, K)."""
    tokens, first = np.unique(np.asarray(context, dtype=np.int64), return_index=True)
    at = np.minimum(np.searchsorted(tokens, top_TK), len(tokens) - 1)
    position_T = np.arange(len(context) - len(top_TK), len(context))
    return (tokens[at] == top_TK) & (first[at] < position_T[:, None])


def _above(probs: np.ndarray, own: np.ndarray, own_prob: np.ndarray, listed: int) -> np.ndarray:
    """Classes that are more probable than a token's own one, bool (N, C); those that are not listed are the last."""
    above = (probs > own_prob[:, None]) | ((probs == own_prob[:, None]) & (np.arange(probs.shape[1]) < own[:, None]))
    above[:, listed:] = False
    above[own >= listed, :listed] = True
    return above


def _top(probs: np.ndarray, tokens: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Most probable tokens, their probabilities, and the mass beyond each of `RANKS`."""
    width = min(probs.shape[1], max(*RANKS, KEPT))
    part = np.argpartition(-probs, width - 1, axis=1)[:, :width]
    order = np.take_along_axis(
        part, np.argsort(-np.take_along_axis(probs, part, axis=1), axis=1, kind="stable"), axis=1
    )
    sorted_probs = np.take_along_axis(probs, order, axis=1)
    ids = order if tokens is None else np.take_along_axis(tokens, order, axis=1)
    inside = sorted_probs.cumsum(axis=1)
    beyond = np.column_stack([1 - inside[:, k - 1] if k <= width else np.full(len(probs), np.nan) for k in RANKS])
    padding = ((0, 0), (0, max(KEPT - width, 0)))
    top = np.pad(ids[:, :KEPT], padding, constant_values=-1)
    return top, np.pad(sorted_probs[:, :KEPT], padding), np.clip(beyond, 0, 1)


def _end(
    token: np.ndarray, probs: np.ndarray, tokens: np.ndarray | None, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each token is a known end token, and the probability of those."""
    if tokens is None:
        inside = ends[ends < probs.shape[1]]
        return np.isin(token, inside), probs[:, inside].sum(axis=1)
    among = np.isin(tokens, ends)
    # An end token that is not listed is of the class of all others, not counted here.
    return (among & (tokens == token[:, None])).any(axis=1), (probs * among).sum(axis=1)
