"""Sessions on vLLM, through a client of its servers such as verl's: one request scores a draft, another goes on.

A third one between them samples the first token where its distribution is a residual: p times what is left of each
token is the softmax of logits with the logarithm of that added, which is vLLM's `logit_bias`. vLLM adds a bias before
it divides by the temperature, so that the logarithm is multiplied by that. A bias is for all tokens of a request, so
that the first one has a request of its own.

The servers' worker is ours (`redraft.engines.vllm.worker`): it scores the draft's positions alone, and all its
log-probabilities are at the temperature of the request, where vLLM's own are at 1. What comes from the prefix cache it
cannot score. The prompt may; a draft's beginning that another draft in the cache has too is scored by a second request,
which ends with it and does not read the cache. Together they compute as much as one request that reads nothing.

A further chunk of a draft is another request, which finds prompt and earlier chunks in the cache. The cache holds whole
blocks, and the token before the chunk, whose distribution is that of the chunk's first token, must not be in one. So
chunks end one token behind a multiple of `BLOCK`, counted from the prompt's beginning.

The top of the distribution comes with the scores of a prompt. A client does not hand over that of sampled tokens, so it
is asked for by scoring them behind what is known, which counts as verification.

All requests of a session carry the same id, so that a load balancer sends them to the same server, where the second
finds what the first computed in the prefix cache.

There is no top-p to set: a truncated distribution has no ratio to another.

vLLM draws its own random numbers, from a seed for each request. The seed is made of the first of a session's uniforms:
tokens differ from those of the engine in this process, but are the same whenever a step is done again. On a CPU vLLM
cannot cut the prefill of a request with a seed in chunks; its servers there need `enable_chunked_prefill=False`.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from redraft.config.capability import Capability
from redraft.engines.requests import Usage, check_capabilities, checked, chunk_end
from redraft.errors import UserError
from redraft.rollout.engine import Continuation, Draws, Gumbel, Inversion, Residual, Scores
from redraft.rollout.types import Finish, TopLogProbs

SAMPLING = {"top_p": 1.0, "top_k": -1, "detokenize": False}
"""The whole distribution, as tokens."""
SCORING = {**SAMPLING, "max_tokens": 1, "logprobs": False, "flat_logprobs": True}
"""Log-probabilities of the prompt; one token must be sampled, and is thrown away."""
WORKER = "redraft.engines.vllm.worker.ScoringWorker"
"""`worker_cls` of vLLM's servers."""
BLOCK = 16
"""Divides vLLM's block sizes on every platform."""
TEMPERATURES = (0.01, 2.0)
"""Lowest and highest temperature; a lower one would be raised by vLLM without an error."""
LEAST_BIAS = -1000.0
"""Bias of a token of which nothing is left, at temperature 1. Not -inf, so that p itself is drawn from where nothing of
any token is."""


class Output(Protocol):
    """A server's answer, as verl's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]
    """`num_cached_tokens`; and `prompt_logprobs`, of which row j has the log-probability of the token behind position
    `scored_from` + j, or if k most probable tokens were asked for those of these, whose ids are in `prompt_ids`. The
    last row is a dummy."""


class Client(Protocol):
    """Source of tokens, as verl's `LLMServerClient`."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Output:
        """Serve one request; both containers may be changed."""
        ...


class VLLMEngine:
    """Engine whose policy is served by vLLM.

    Args:
        client: reaches the servers; they must hold the current policy before sessions are opened.
        stops: tokens that end a response.
        max_length: the servers' `max_model_len`, tokens. A response at its limit is scored as a draft with one token
            to spare: at least prompt + response + 1. Their `max_logprobs` must cover what is asked of tops.
        clock: seconds, for the usage; wall seconds, unless vLLM computes in this process.
        chunk: draft tokens scored by a request for who asks for chunks, up to `BLOCK` fewer; None for whole drafts.
        temperature: of samples and of all log-probabilities, in `TEMPERATURES`.
    """

    capabilities = frozenset({Capability.TOP_LOG_PROBS, Capability.RESIDUAL})

    def __init__(
        self,
        client: Client,
        stops: Collection[int],
        max_length: int,
        clock: Callable[[], float] = time.perf_counter,
        chunk: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.client, self.stops, self.max_length = client, frozenset(stops), max_length
        self.temperature = temperature
        self.verification, self.decoding = _Stopwatch(clock), _Stopwatch(clock)
        self.scored_tokens, self.chunk = 0, chunk

    @property
    def usage(self) -> Usage:
        """Seconds in which at least one request of a kind was waited for; the kinds may overlap."""
        return Usage(self.verification.seconds, self.decoding.seconds, self.scored_tokens)

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["VLLMSession"]:
        """Open a session; nothing has to be freed at its end."""
        if not len(prompt):
            raise ValueError("a prompt has at least one token")
        yield VLLMSession(self, [int(token) for token in prompt])


class VLLMSession:
    """One response in the making on vLLM's servers."""

    def __init__(self, engine: VLLMEngine, prompt: list[int]) -> None:
        self._engine, self._prompt, self._request_id = engine, prompt, uuid4().hex

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        draws: Gumbel | None = None,
        behind: int | None = None,
    ) -> Scores:
        """Score a draft's own tokens or those of its next chunk, or find those of them that are in the top of the
        distribution.

        Raises:
            UserError: for other tokens and Gumbel noise, if the servers take no prompt and draft of that length, or a
                log-probability is NaN.
            RuntimeError: if the request was aborted.
        """
        check_capabilities(self._engine.capabilities, others=at is not None, noise=draws is not None, top=top)
        first, end = behind or 0, chunk_end(len(draft), behind, self._engine.chunk)
        if end < len(draft):
            shift = (len(self._prompt) + end - 1) % BLOCK
            end = end - shift if end - shift > first else end
        self._engine.scored_tokens += end - first
        with self._engine.verification.running():
            # Of a prompt of one token nothing is cached, and another worker's answer would look like ours.
            rows = await self._rows(draft[:end], first, top, cached=len(self._prompt) + first > 1)
            hidden = int(np.isnan(rows.log_probs[:, 0]).cumprod().sum())
            if hidden:  # another draft in the cache begins alike
                rows = joined(await self._rows(draft[: first + hidden], first, top, cached=False), rows)
        return scores_of(rows, draft[first:end], top)

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample behind prompt and prefix until a stop token or `max_new_tokens`.

        The first uniform decides all, and behind a first token that is drawn from a residual the second one.

        Raises:
            UserError: for Gumbel noise, if the servers take no response of that length, or a log-probability is NaN.
            RuntimeError: if a request was aborted, or ended early for another reason.
        """
        check_capabilities(
            self._engine.capabilities, residual=first is not None, noise=isinstance(draws, Gumbel), top=top
        )
        assert isinstance(draws, Inversion)
        if max_new_tokens < 1 or len(draws.uniforms) < min(max_new_tokens, 1 if first is None else 2):
            raise ValueError(f"decoding needs at least one token and one uniform, got {max_new_tokens}")
        with self._engine.decoding.running():
            if first is None:
                made = await self._sample(prefix, max_new_tokens, draws.uniforms[0])
            else:
                made = await self._sample_residual(prefix, max_new_tokens, draws, first)
        if not top:
            return made
        # All of it is in the prefix cache, where nothing can be scored.
        with self._engine.verification.running():
            rows = await self._rows(np.concatenate([prefix, made.tokens]), len(prefix), top, cached=False)
        return replace(made, top=scores_of(rows, made.tokens, top).top)

    async def _rows(self, response: np.ndarray, first: int, top: int, cached: bool) -> TopLogProbs:
        """Rows of the answer to a request that scores a response from its token `first` on."""
        asked = {
            "prompt_logprobs": top,
            "extra_args": {"scored_from": len(self._prompt) - 1 + first},
            "skip_reading_prefix_cache": not cached,
        }
        return rows_of(await self._ask(response, 1, SCORING | asked), len(response) - first, top)

    async def _sample_residual(self, prefix: np.ndarray, room: int, draws: Inversion, first: Residual) -> Continuation:
        """Sample a first token from a residual, and the others by the policy behind it."""
        bias = bias_of(first, self._engine.temperature)
        one = await self._sample(prefix, 1, draws.uniforms[0], logit_bias=bias)
        if room == 1 or one.finish is Finish.EOS:
            return one
        rest = await self._sample(np.concatenate([prefix, one.tokens]), room - 1, draws.uniforms[1])
        tokens, log_probs = (
            np.concatenate([getattr(c, name) for c in (one, rest)]) for name in ("tokens", "log_probs")
        )
        return Continuation(tokens, log_probs, rest.finish, one.cached)

    async def _sample(self, prefix: np.ndarray, room: int, uniform: float, **further: Any) -> Continuation:
        """Sample up to `room` tokens behind a prefix, by these further settings."""
        settings = {
            **SAMPLING,
            "max_tokens": room,
            "logprobs": True,
            "seed": seed_of(uniform),
            # The model's own end of sequence does not count unless it is a stop; vLLM adds more of them than we know.
            "ignore_eos": True,
            "stop_token_ids": sorted(self._engine.stops),
            **further,
        }
        output = await self._ask(prefix, room, settings)
        return continuation_of(output, self._engine.stops, room)

    async def _ask(self, response: np.ndarray, room: int, settings: dict[str, Any]) -> Output:
        """Serve a request for what comes behind the prompt and a response so far."""
        tokens = [*self._prompt, *response.tolist()]
        if len(tokens) + room > self._engine.max_length:
            # A server would answer by a shorter response, without saying so.
            raise UserError(
                "prompt and response are too long for vLLM's servers",
                key="max_model_len",
                value=self._engine.max_length,
                allowed=f"at least {len(tokens) + room}, or shorter responses",
            )
        params = settings | {"temperature": self._engine.temperature}
        output = await self._engine.client.generate(self._request_id, prompt_ids=tokens, sampling_params=params)
        if output.stop_reason == "aborted" or not output.token_ids:
            raise RuntimeError(f"vLLM aborted a request behind {len(tokens)} tokens; its answer is not whole")
        return output


def rows_of(output: Output, count: int, top: int) -> TopLogProbs:
    """Rows of an answer; a UserError if it has others than `count`, as a worker gives that is not ours."""
    log_probs, ids = (output.extra_fields.get(name) or [] for name in ("prompt_logprobs", "prompt_ids"))
    if len(log_probs) != count + 1 or len(ids) != count + 1:
        raise UserError(
            "vLLM's servers answer without the log-probabilities of a draft alone",
            key="worker_cls",
            value=f"{len(log_probs)} rows for {count} tokens",
            allowed=WORKER,
        )
    return TopLogProbs(np.array(ids[:-1], dtype=np.int32), np.array(log_probs[:-1], dtype=np.float32))


def joined(beginning: TopLogProbs, rows: TopLogProbs) -> TopLogProbs:
    """Rows of a response whose beginning is better known."""
    known = len(beginning.tokens)
    pairs = ((beginning.tokens, rows.tokens), (beginning.log_probs, rows.log_probs))
    return TopLogProbs(*(np.concatenate([first, second[known:]]) for first, second in pairs))


def scores_of(rows: TopLogProbs, response: np.ndarray, top: int) -> Scores:
    """Scores of a response; with `top` those of its tokens that are in the top."""
    distribution = TopLogProbs(rows.tokens, checked(rows.log_probs))
    return Scores(distribution.of(response[:, None])[:, 0], top=distribution if top else None)


def continuation_of(output: Output, stops: Collection[int], limit: int) -> Continuation:
    """Sampled tokens, which end with a stop or are `limit` many."""
    tokens, log_probs = output.token_ids, output.log_probs
    if log_probs is None or len(log_probs) != len(tokens):
        raise RuntimeError("vLLM answered without the log-probabilities of what it sampled")
    finish = Finish.EOS if tokens[-1] in stops else Finish.LENGTH
    if finish is Finish.LENGTH and len(tokens) != limit:
        raise RuntimeError(f"vLLM ended a response after {len(tokens)} of {limit} tokens")
    return Continuation(
        np.array(tokens, dtype=np.int32),
        checked(np.array(log_probs, dtype=np.float32)),
        finish,
        cached=output.extra_fields.get("num_cached_tokens") or 0,
    )


def bias_of(first: Residual, temperature: float = 1.0) -> dict[int, float]:
    """What is added to the logits of tokens, by which p at a temperature becomes what is left of it."""
    with np.errstate(divide="ignore"):
        biases = temperature * np.maximum(np.log(first.left), LEAST_BIAS)
    return {token: bias for token, bias in zip(first.tokens.tolist(), biases.tolist(), strict=True) if bias < 0}


def seed_of(uniform: float) -> int:
    """A seed, 1 to 2^53, of a uniform on (0, 1] with 53 random bits."""
    return int(uniform * 2**53)


class _Stopwatch:
    """Seconds in which at least one of several concurrent things runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds, self._clock, self._running, self._began = 0.0, clock, 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Something runs within the block."""
        if not self._running:
            self._began = self._clock()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self.seconds += self._clock() - self._began
