"""Engine over vLLM with its own, unmodified workers, through a client such as verl's.

One request scores a draft: its prompt is prompt and draft (`prompt_logprobs`; one token is sampled and dropped).
vLLM computes such a request without its prefix cache, but fills the cache for the requests that follow. A token of a
residual distribution is sampled with biases of the logits. vLLM's own worker scores at temperature 1 only.

`redraft.engines.vllm.engine` scores less, and at any temperature, with a worker of this project.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np

from redraft.config.capability import Capability
from redraft.engines.requests import check_capabilities
from redraft.engines.vllm.engine import (
    SCORING,
    Client,
    Output,
    bias_of,
    continuation_of,
    sample_after_bias,
    scores_of,
    seed_of,
)
from redraft.rollout.engine import Continuation, Inversion, Noise, Residual, Scores
from redraft.rollout.types import TopLogProbs

MAX_LOGPROBS = 20
"""vLLM's default of `max_logprobs`: most probable tokens of a position that it reports."""
LEAST_MASS = 2.0**-24
"""Smallest mass of a residual distribution: log-probabilities are float32, so a smaller mass is rounding error."""


class OtherEndError(RuntimeError):
    """A response ended neither with a stop token nor at its limit, or went on after a stop token."""


class StockEngine:
    """Engine over a policy that vLLM serves.

    Args:
        client: client of vLLM, which must have the current policy before sessions are opened.
        stops: tokens that end a response.
        max_length: vLLM's `max_model_len`, tokens.
        sampling: sampling parameters of all responses.
        biased: whether vLLM reports log-probabilities of sampled tokens after a request's biases
            (`processed_logprobs`).
        seeded: whether requests need seeds.
        request_id: id of all requests, so that a load balancer sends them to one replica; None for one per session.
        further: extra keyword arguments of the client for each request.
    """

    capabilities = frozenset({Capability.TOP_LOG_PROBS, Capability.RESIDUAL})

    def __init__(
        self,
        client: Client,
        stops: Collection[int],
        max_length: int,
        sampling: Mapping[str, Any],
        *,
        biased: bool,
        seeded: bool = False,
        request_id: str | None = None,
        further: Mapping[str, Any] | None = None,
    ) -> None:
        self.client, self.stops, self.max_length = client, frozenset(stops), max_length
        self.sampling, self.biased, self.seeded = dict(sampling), biased, seeded
        self.request_id, self.further = request_id, dict(further or {})
        self.sessions: list[StockSession] = []

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["StockSession"]:
        """Open a session; closing it frees nothing."""
        self.sessions.append(session := StockSession(self, list(prompt)))
        yield session

    @property
    def outputs(self) -> list[Output]:
        """vLLM's answers, in the order in which they came within each session."""
        return [output for session in self.sessions for output in session.outputs]


class StockSession:
    """One response in progress.

    Attributes:
        outputs: vLLM's answers so far.
        scored: float32 (n,), log-probabilities of the draft's tokens under the policy, once they were requested.
    """

    def __init__(self, engine: StockEngine, prompt: list[int]) -> None:
        self.outputs: list[Output] = []
        self.scored = np.zeros(0, dtype=np.float32)
        self._engine, self._prompt = engine, prompt
        self._request_id = engine.request_id or uuid4().hex
        self._rows_of_draft = TopLogProbs(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        noise: Any = None,
        scored: int | None = None,
    ) -> Scores:
        """Score a whole draft; see `redraft.rollout.engine.Session.score`.

        Raises:
            UserError: for other tokens or Gumbel noise, or if a log-probability is NaN.
            RuntimeError: if the answer is not the draft's scores, or the request was aborted.
        """
        check_capabilities(self._engine.capabilities, others=at is not None, noise=noise is not None, top=top)
        rows = self._rows_of_draft = await self._rows(draft, top)
        if not top and not np.array_equal(rows.tokens[:, 0], draft):
            raise RuntimeError("vLLM scored other tokens than the draft's")
        scores = scores_of(rows, draft, top)
        self.scored = scores.log_probs
        return scores

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample after prompt and prefix; see `redraft.rollout.engine.Session.decode`.

        Raises:
            UserError: for Gumbel noise, or if a log-probability is NaN.
            OtherEndError: if the response ended neither with a stop token nor at its limit, or went on after a stop.
            RuntimeError: if a request was aborted.
        """
        assert isinstance(noise, Inversion)
        check_capabilities(self._engine.capabilities, residual=first is not None, top=top)
        if first is None:
            sampled = await self._sample(prefix, max_new_tokens, noise.uniforms[0])
        else:
            sampled = await sample_after_bias(self._sample, prefix, max_new_tokens, noise, bias_of(first))
            sampled = self._under_policy(sampled, first, len(prefix)) if self._engine.biased else sampled
        if not top:
            return sampled
        rows = await self._rows(np.concatenate([prefix, sampled.tokens]), top)
        return replace(sampled, top=TopLogProbs(rows.tokens[len(prefix) :], rows.log_probs[len(prefix) :]))

    def _under_policy(self, sampled: Continuation, first: Residual, position: int) -> Continuation:
        """A continuation with the policy's log-probability of its first token, not the residual distribution's."""
        shift = np.zeros_like(sampled.log_probs)
        shift[0] = log_mass(first, self._rows_of_draft, position, int(sampled.tokens[0]))
        return replace(sampled, log_probs=np.minimum(sampled.log_probs + shift, np.float32(0)))

    async def _sample(self, prefix: np.ndarray, max_tokens: int, uniform: float, **further: Any) -> Continuation:
        """Sample up to `max_tokens` tokens after a prefix, with further settings of vLLM."""
        seed = {"seed": seed_of(uniform)} if self._engine.seeded else {}
        output = await self._request(
            prefix, self._engine.sampling | {"max_tokens": max_tokens, "logprobs": True} | seed | further
        )
        (*others, last), stops = output.token_ids, self._engine.stops
        if stops.intersection(others) or (last not in stops and len(others) + 1 != max_tokens):
            raise OtherEndError(
                f"vLLM's response of {len(others) + 1} tokens ended neither with one of {sorted(stops)} nor at its "
                f"limit of {max_tokens}, or went on after one of them"
            )
        return continuation_of(output, stops, max_tokens)

    async def _rows(self, response: np.ndarray, top: int) -> TopLogProbs:
        """Scores of a response's tokens, int32 and float32 (n, max(top, 1)).

        Without room for the token that vLLM samples after it, the last token is not scored: it has the tokens -1 with
        log-probability -inf; callers cut it before they store the response as a draft.
        """
        fit = response[: max(0, self._engine.max_length - len(self._prompt) - 1)]
        output = await self._request(fit, SCORING | {"prompt_logprobs": top})
        # Taken out of the answer, whose lists have an object per number, while the session keeps its answers.
        log_probs, ids = (output.extra_fields.pop(name, None) or [] for name in ("prompt_logprobs", "prompt_ids"))
        # Row j scores token j + 1, and the client adds one without a meaning.
        expected, first = len(self._prompt) + len(fit), len(self._prompt) - 1
        if len(log_probs) != expected or len(ids) != expected:
            raise RuntimeError(
                f"vLLM answered with {len(log_probs)} log-probabilities for a prompt of {expected} tokens"
            )
        missing = len(response) - len(fit)
        tokens, scores = np.array(ids[first:-1], dtype=np.int32), np.array(log_probs[first:-1], dtype=np.float32)
        pad = ((0, missing), (0, 0))
        return TopLogProbs(np.pad(tokens, pad, constant_values=-1), np.pad(scores, pad, constant_values=-np.inf))

    async def _request(self, response: np.ndarray, params: dict[str, Any]) -> Output:
        """Serve a request whose prompt is ours and a response so far."""
        output = await self._engine.client.generate(
            self._request_id,
            prompt_ids=[*self._prompt, *response.tolist()],
            sampling_params={**params, "temperature": self._engine.sampling["temperature"]},
            **self._engine.further,
        )
        if output.stop_reason == "aborted" or not output.token_ids:
            raise RuntimeError("vLLM aborted a request")
        self.outputs.append(output)
        return output


def log_mass(first: Residual, rows: TopLogProbs, position: int, token: int) -> float:
    """Log-probability of a token under the policy less that under the residual distribution, nats.

    The residual is p times `left`, divided by its mass Z = 1 - sum p (1 - left).
    """
    at = TopLogProbs(rows.tokens[position : position + 1], rows.log_probs[position : position + 1])
    # Of a token outside the reported top nothing was accepted.
    p = np.exp(at.of(first.tokens[None])[0].astype(np.float64))
    mass = max(1.0 - float((p * (1.0 - first.left)).sum()), LEAST_MASS)
    left = first.left[first.tokens == token]
    return float(np.log(mass) - (np.log(left[0]) if len(left) and left[0] > 0 else 0.0))
