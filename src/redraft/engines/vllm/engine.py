"""Sessions on vLLM, through a client of its servers such as verl's: one request scores a draft, another decodes.

*Residual first tokens* take a third request in between. The residual, p times the share of each token that is left, is
the softmax of the logits plus the logarithm of that share, which is vLLM's `logit_bias`. vLLM adds the bias before it
divides by the temperature, so the logarithm is multiplied by the temperature. A bias applies to all tokens of a
request, so the first token has a separate one.

*Scores.* The servers run this project's worker (`redraft.engines.vllm.worker`): it scores only the draft's positions,
and all its log-probabilities are at the temperature of the request, where vLLM's are at 1. Positions that come from the
prefix cache cannot be scored. For the prompt that is fine; if another draft in the cache has the same beginning, a
second request that ignores the cache scores that beginning. Together the two compute as much as one request that
ignores the cache.

*Chunks.* A further chunk of a draft is another request, which finds the prompt and earlier chunks in the cache. The
cache holds whole blocks, and the token before the chunk, which yields the distribution of the chunk's first token, must
not be in one. So chunks end one token after a multiple of `BLOCK`, counted from the prompt's beginning.

*Tops.* The top of the distribution comes with the scores of a prompt. Clients do not return it for sampled tokens, so
these are scored afterwards, which counts as verification.

All requests of a session carry the same id: a load balancer then sends them to the same server, whose prefix cache has
the results of the earlier ones.

There is no top-p: a truncated distribution has no ratio to another.

*Random numbers* are vLLM's, from a seed for each request that is derived from the session's first uniform. Tokens
differ from those of the in-process engine, but are the same whenever a step is repeated. On a CPU vLLM cannot prefill a
request with a seed in chunks; its servers there need `enable_chunked_prefill=False`.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from redraft.config.capability import Capability
from redraft.engines.requests import Usage, check_capabilities, checked, chunk_end
from redraft.errors import UserError
from redraft.rollout.engine import Continuation, Gumbel, Inversion, Noise, Residual, Scores
from redraft.rollout.types import Finish, TopLogProbs

SAMPLING = {"top_p": 1.0, "top_k": -1, "detokenize": False}
"""Sampling from the full distribution, without text."""
SCORING = {**SAMPLING, "max_tokens": 1, "logprobs": False, "flat_logprobs": True}
"""Log-probabilities of the prompt; vLLM must sample one token, which is dropped."""
WORKER = "redraft.engines.vllm.worker.ScoringWorker"
"""`worker_cls` of vLLM's servers."""
BLOCK = 16
"""Divides vLLM's block sizes on every platform."""
TEMPERATURES = (0.01, 2.0)
"""Lowest and highest temperature; vLLM raises a lower one without an error."""
LEAST_BIAS = -1000.0
"""Bias, at temperature 1, of a token without residual probability. It is finite, so that a residual without any mass
is replaced by p itself."""


class Output(Protocol):
    """A server's answer, as verl's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]
    """`num_cached_tokens`; `prompt_logprobs`, whose row j has the log-probability of the token after position
    `scored_from` + j, or those of the k most probable tokens if these were requested; `prompt_ids`, their tokens. The
    last row is a dummy."""


class Client(Protocol):
    """Client of the servers, as verl's `LLMServerClient`."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Output:
        """Serve one request; it may modify both containers."""
        ...


class VLLMEngine:
    """Engine over a policy that vLLM serves.

    Args:
        client: of the servers, which must have the current policy before sessions are opened.
        stops: tokens that end a response.
        max_length: the servers' `max_model_len`, tokens. A response at its limit is scored as a draft with one token
            to spare: at least prompt + response + 1. Their `max_logprobs` must cover the largest requested top.
        clock: seconds, for the usage; wall time, unless vLLM computes in this process.
        chunk: draft tokens per scoring request for sessions that score by chunks, up to `BLOCK` fewer; None for whole
            drafts.
        temperature: of samples and of all log-probabilities, in `TEMPERATURES`.
        seeded: whether each request has a seed; else vLLM's random numbers are those of its worker.
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
        seeded: bool = True,
    ) -> None:
        self.seeded = seeded
        self.client, self.stops, self.max_length = client, frozenset(stops), max_length
        self.temperature = temperature
        self.verification, self.decoding = _Stopwatch(clock), _Stopwatch(clock)
        self.scored_tokens, self.chunk = 0, chunk

    @property
    def usage(self) -> Usage:
        """Time with at least one pending request of a kind; the kinds may overlap."""
        return Usage(self.verification.seconds, self.decoding.seconds, self.scored_tokens)

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["VLLMSession"]:
        """Open a session; closing it frees nothing."""
        if not len(prompt):
            raise ValueError("a prompt has at least one token")
        yield VLLMSession(self, [int(token) for token in prompt])


class VLLMSession:
    """One response in progress on vLLM's servers."""

    def __init__(self, engine: VLLMEngine, prompt: list[int]) -> None:
        self._engine, self._prompt, self._request_id = engine, prompt, uuid4().hex

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        noise: Gumbel | None = None,
        scored: int | None = None,
    ) -> Scores:
        """Score the tokens of a draft or of its next chunk; with `top`, only those within the top of the distribution.

        Raises:
            UserError: for other tokens and Gumbel noise, if prompt and draft are too long for the servers, or if a
                log-probability is NaN.
            RuntimeError: if the request was aborted.
        """
        check_capabilities(self._engine.capabilities, others=at is not None, noise=noise is not None, top=top)
        first, end = scored or 0, chunk_end(len(draft), scored, self._engine.chunk)
        if end < len(draft):
            shift = (len(self._prompt) + end - 1) % BLOCK
            # One token after a whole block (see Chunks above), unless nothing is left of the chunk then.
            end = end - shift if end - shift > first else end
        self._engine.scored_tokens += end - first
        with self._engine.verification.running():
            # A prompt of one token is never cached, and the answer of vLLM's own worker would look like ours.
            rows = await self._rows(draft[:end], first, top, cached=len(self._prompt) + first > 1)
            # NaN before the first number marks cached positions (`vllm.worker`); any later one is an error, which
            # `checked` reports.
            unscored = int(np.isnan(rows.log_probs[:, 0]).cumprod().sum())
            if unscored:  # another draft in the cache has the same beginning
                rows = joined(await self._rows(draft[: first + unscored], first, top, cached=False), rows)
        return scores_of(rows, draft[first:end], top)

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample after prompt and prefix until a stop token or `max_new_tokens`.

        The first uniform seeds all tokens; after a first token from a residual, the second one seeds the rest.

        Raises:
            UserError: for Gumbel noise, if the response is too long for the servers, or if a log-probability is NaN.
            RuntimeError: if a request was aborted, or ended early for another reason.
        """
        check_capabilities(
            self._engine.capabilities, residual=first is not None, noise=isinstance(noise, Gumbel), top=top
        )
        assert isinstance(noise, Inversion)
        if max_new_tokens < 1 or len(noise.uniforms) < min(max_new_tokens, 1 if first is None else 2):
            raise ValueError(f"decoding needs at least one token and one uniform, got {max_new_tokens}")
        with self._engine.decoding.running():
            if first is None:
                continuation = await self._sample(prefix, max_new_tokens, noise.uniforms[0])
            else:
                bias = bias_of(first, self._engine.temperature)
                continuation = await sample_after_bias(self._sample, prefix, max_new_tokens, noise, bias)
        if not top:
            return continuation
        # Everything is in the prefix cache, whose positions cannot be scored, so the request ignores it.
        with self._engine.verification.running():
            rows = await self._rows(np.concatenate([prefix, continuation.tokens]), len(prefix), top, cached=False)
        return replace(continuation, top=scores_of(rows, continuation.tokens, top).top)

    async def _rows(self, response: np.ndarray, first: int, top: int, cached: bool) -> TopLogProbs:
        """Rows of the answer to a request that scores a response from its token `first` on."""
        settings = {
            "prompt_logprobs": top,
            "extra_args": {"scored_from": len(self._prompt) - 1 + first},
            "skip_reading_prefix_cache": not cached,
        }
        return rows_of(await self._request(response, 1, SCORING | settings), len(response) - first, top)

    async def _sample(self, prefix: np.ndarray, max_tokens: int, uniform: float, **further: Any) -> Continuation:
        """Sample up to `max_tokens` tokens after a prefix, with further settings of vLLM."""
        settings = {
            **SAMPLING,
            "max_tokens": max_tokens,
            "logprobs": True,
            "seed": seed_of(uniform) if self._engine.seeded else None,
            # The model's own end-of-sequence tokens do not count unless they are stops; vLLM has a longer list of them.
            "ignore_eos": True,
            "stop_token_ids": sorted(self._engine.stops),
            **further,
        }
        output = await self._request(prefix, max_tokens, settings)
        return continuation_of(output, self._engine.stops, max_tokens)

    async def _request(self, response: np.ndarray, max_tokens: int, settings: dict[str, Any]) -> Output:
        """Serve a request whose prompt is ours and a response so far."""
        tokens = [*self._prompt, *response.tolist()]
        if len(tokens) + max_tokens > self._engine.max_length:
            # A server would return a shorter response without an error.
            raise UserError(
                "prompt and response are too long for vLLM's servers",
                key="max_model_len",
                value=self._engine.max_length,
                allowed=f"at least {len(tokens) + max_tokens}, or shorter responses",
            )
        params = settings | {"temperature": self._engine.temperature}
        output = await self._engine.client.generate(self._request_id, prompt_ids=tokens, sampling_params=params)
        if output.stop_reason == "aborted" or not output.token_ids:
            raise RuntimeError(f"vLLM aborted a request after {len(tokens)} tokens; its answer is incomplete")
        return output


async def sample_after_bias(
    sample: Callable[..., Awaitable[Continuation]],
    prefix: np.ndarray,
    max_tokens: int,
    noise: Inversion,
    bias: dict[int, float],
) -> Continuation:
    """Sample a first token with biases of the logits, such as those of a residual, and the others without.

    Args:
        sample: a session's `_sample`.
    """
    one = await sample(prefix, 1, noise.uniforms[0], logit_bias=bias)
    if max_tokens == 1 or one.finish is Finish.EOS:
        return one
    rest = await sample(np.concatenate([prefix, one.tokens]), max_tokens - 1, noise.uniforms[1])
    tokens, log_probs = (np.concatenate([getattr(c, name) for c in (one, rest)]) for name in ("tokens", "log_probs"))
    return Continuation(tokens, log_probs, rest.finish, one.cached)


def rows_of(output: Output, count: int, top: int) -> TopLogProbs:
    """Rows of an answer; a UserError if their number is not `count`, as from vLLM's own worker."""
    log_probs, ids = (output.extra_fields.get(name) or [] for name in ("prompt_logprobs", "prompt_ids"))
    if len(log_probs) != count + 1 or len(ids) != count + 1:
        raise UserError(
            "vLLM's servers do not answer with the log-probabilities of the draft alone",
            key="worker_cls",
            value=f"{len(log_probs)} rows for {count} tokens",
            allowed=WORKER,
        )
    return TopLogProbs(np.array(ids[:-1], dtype=np.int32), np.array(log_probs[:-1], dtype=np.float32))


def joined(beginning: TopLogProbs, rows: TopLogProbs) -> TopLogProbs:
    """Rows of a response, with its beginning replaced."""
    known = len(beginning.tokens)
    pairs = ((beginning.tokens, rows.tokens), (beginning.log_probs, rows.log_probs))
    return TopLogProbs(*(np.concatenate([first, second[known:]]) for first, second in pairs))


def scores_of(rows: TopLogProbs, response: np.ndarray, top: int) -> Scores:
    """Scores of a response; with `top` those of its tokens within the top."""
    distribution = TopLogProbs(rows.tokens, checked(rows.log_probs))
    return Scores(distribution.of(response[:, None])[:, 0], top=distribution if top else None)


def continuation_of(output: Output, stops: Collection[int], limit: int) -> Continuation:
    """Sampled tokens; a RuntimeError if they end neither with a stop nor at the limit."""
    tokens, log_probs = output.token_ids, output.log_probs
    if log_probs is None or len(log_probs) != len(tokens):
        raise RuntimeError("vLLM answered without the log-probabilities of its sampled tokens")
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
    """Biases of logits by token that turn p, at a temperature, into its residual."""
    with np.errstate(divide="ignore"):
        # vLLM divides logits and biases by the temperature.
        biases = temperature * np.maximum(np.log(first.left), LEAST_BIAS)
    return {token: bias for token, bias in zip(first.tokens.tolist(), biases.tolist(), strict=True) if bias < 0}


def seed_of(uniform: float) -> int:
    """A seed, 1 to 2^53, of a uniform on (0, 1] with 53 random bits."""
    return int(uniform * 2**53)


class _Stopwatch:
    """Time with at least one of several concurrent requests pending, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds, self._clock, self._running, self._began = 0.0, clock, 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the block as a pending request."""
        if not self._running:
            self._began = self._clock()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self.seconds += self._clock() - self._began
