"""Sessions on vLLM, through a client of its servers such as verl's: one request scores a draft, another goes on.

Both requests of a session carry the same id, so that a load balancer sends them to the same server, where the second
finds what the first computed in the prefix cache.

Only the policy itself is sampled and scored: there is no temperature and no top-p to set, because vLLM's
log-probabilities of a prompt ignore both, and a ratio to anything else would be wrong without an error.

vLLM draws its own random numbers, from a seed for each request. The seed is made of the first of a session's uniforms:
tokens differ from those of the engine in this process, but are the same whenever a step is done again. On a CPU vLLM
cannot cut the prefill of a request with a seed in chunks; its servers there need `enable_chunked_prefill=False`.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from redraft.config.capability import Capability
from redraft.engines.checks import checked, refuse_draws, refuse_scores
from redraft.engines.usage import Usage
from redraft.errors import UserError
from redraft.rollout.engine import Continuation, Draws, Gumbel, Inversion, Residual, Scores
from redraft.rollout.types import Finish

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "detokenize": False}
"""The policy itself, as tokens."""
SCORING = {**SAMPLING, "max_tokens": 1, "logprobs": False, "prompt_logprobs": 0, "flat_logprobs": True}
"""Log-probabilities of the prompt's tokens and of no others; one token must be sampled, and is thrown away."""


class Output(Protocol):
    """A server's answer, as verl's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]
    """`num_cached_tokens`, and `prompt_logprobs`: row j has the log-probability of token j + 1; the last is a dummy."""


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
            to spare: at least prompt + response + 1.
        clock: seconds, for the usage; wall seconds, unless vLLM computes in this process.
    """

    capabilities: frozenset[Capability] = frozenset()

    def __init__(
        self, client: Client, stops: Collection[int], max_length: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.client, self.stops, self.max_length = client, frozenset(stops), max_length
        self.verification, self.decoding = _Stopwatch(clock), _Stopwatch(clock)
        self.scored_tokens = 0

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
        self, draft: np.ndarray, at: np.ndarray | None = None, top: int = 0, draws: Gumbel | None = None
    ) -> Scores:
        """Score a draft's own tokens.

        Raises:
            UserError: for more than these, if the servers take no prompt and draft of that length, or a log-probability
                is NaN.
            RuntimeError: if the request was aborted.
        """
        refuse_scores(self._engine.capabilities, at, top, draws)
        with self._engine.verification.running():
            output = await self._ask(draft, 1, SCORING)
        self._engine.scored_tokens += len(draft)
        return Scores(scores_of(output, len(self._prompt), len(draft)))

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample behind prompt and prefix until a stop token or `max_new_tokens`; the first uniform decides all.

        Raises:
            UserError: for Gumbel noise, `first` and `top`, if the servers take no response of that length, or a
                log-probability is NaN.
            RuntimeError: if the request was aborted, or ended early for another reason.
        """
        refuse_draws(self._engine.capabilities, draws, first, top)
        assert isinstance(draws, Inversion)
        if max_new_tokens < 1 or len(draws.uniforms) < 1:
            raise ValueError(f"decoding needs at least one token and one uniform, got {max_new_tokens}")
        settings = {
            **SAMPLING, "max_tokens": max_new_tokens, "logprobs": True, "seed": seed_of(draws.uniforms[0]),
            # The model's own end of sequence does not count unless it is a stop; vLLM adds more of them than we know.
            "ignore_eos": True, "stop_token_ids": sorted(self._engine.stops),
        }  # fmt: skip
        with self._engine.decoding.running():
            output = await self._ask(prefix, max_new_tokens, settings)
        return continuation_of(output, self._engine.stops, max_new_tokens)

    async def _ask(self, response: np.ndarray, room: int, settings: dict[str, Any]) -> Output:
        """Serve a request for what comes behind the prompt and a response so far."""
        tokens = [*self._prompt, *response.tolist()]
        if len(tokens) + room > self._engine.max_length:
            # A server would answer by a shorter response, without saying so.
            raise UserError(
                "prompt and response are too long for vLLM's servers", key="max_model_len",
                value=self._engine.max_length, allowed=f"at least {len(tokens) + room}, or shorter responses",
            )  # fmt: skip
        output = await self._engine.client.generate(self._request_id, prompt_ids=tokens, sampling_params=dict(settings))
        if output.stop_reason == "aborted" or not output.token_ids:
            raise RuntimeError(f"vLLM aborted a request behind {len(tokens)} tokens; its answer is not whole")
        return output


def scores_of(output: Output, prompt: int, draft: int) -> np.ndarray:
    """Log-probabilities, float32 (draft,), behind so many tokens of the prompt."""
    rows = output.extra_fields.get("prompt_logprobs")
    if rows is None or len(rows) != prompt + draft:
        raise RuntimeError("vLLM answered without the log-probabilities of prompt and draft")
    return checked(np.array([row[0] for row in rows[prompt - 1 : -1]], dtype=np.float32))


def continuation_of(output: Output, stops: Collection[int], limit: int) -> Continuation:
    """Sampled tokens, which end with a stop or are `limit` many."""
    tokens, log_probs = output.token_ids, output.log_probs
    if log_probs is None or len(log_probs) != len(tokens):
        raise RuntimeError("vLLM answered without the log-probabilities of what it sampled")
    finish = Finish.EOS if tokens[-1] in stops else Finish.LENGTH
    if finish is Finish.LENGTH and len(tokens) != limit:
        raise RuntimeError(f"vLLM ended a response after {len(tokens)} of {limit} tokens")
    return Continuation(
        np.array(tokens, dtype=np.int32), checked(np.array(log_probs, dtype=np.float32)), finish,
        cached=output.extra_fields.get("num_cached_tokens") or 0,
    )  # fmt: skip


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
