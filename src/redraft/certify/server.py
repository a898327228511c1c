"""A server with OpenAI's completions protocol, as sampler and as policy.

Token ids are required, which vLLM returns (`return_token_ids`, and log-probabilities of prompts by id with
`prompt_logprobs`). OpenAI's own protocol has texts alone: two tokens may have one text.
"""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from redraft.certify.protocol import Known, Sampled
from redraft.errors import UserError

CONCURRENT = 32
"""Requests at once, so that the server batches them."""
SECONDS = 600.0
"""Longest wait for an answer."""
IMPOSSIBLE = -9999.0
"""vLLM's log-probability of a token of probability 0, since JSON has no infinity."""


class Server:
    """Connection to a server.

    Args:
        url: up to `/v1`.
        model: the model's name at the server; its first one if empty.

    Raises:
        UserError: if there is no server, or no such model.
    """

    def __init__(self, url: str, model: str = "") -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=SECONDS, limits=httpx.Limits(max_connections=CONCURRENT))
        self._fingerprint: str | None = None
        names = [str(each.get("id")) for each in self._answer("GET", "models").get("data") or []]
        if not names or (model and model not in names):
            raise UserError("the server has no such model", file=self.url, value=model or None, allowed=names)
        self.model = model or names[0]

    def complete(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Choices of a completion.

        Raises:
            UserError: if the server fails, changes the prompt, or is another one than before.
        """
        answer = self._answer("POST", "completions", {"model": self.model, "return_token_ids": True} | dict(request))
        self._check_identity(answer)
        choices = answer.get("choices") or []
        if not choices:
            raise UserError("the server answers without a choice", file=self.url, value=str(answer)[:200])
        for choice in choices:
            if choice.get("token_ids") is None or choice.get("prompt_token_ids") is None:
                raise UserError(
                    "the server returns no token ids",
                    file=self.url,
                    key="return_token_ids",
                    hint="vLLM returns them since 0.10.2; texts do not determine tokens",
                )
            if choice["prompt_token_ids"] != request["prompt"]:
                raise UserError(
                    "the server changed the prompt",
                    file=self.url,
                    value=choice["prompt_token_ids"][:8],
                    allowed=f"{request['prompt'][:8]} ...",
                )
        return choices

    def _check_identity(self, answer: Mapping[str, Any]) -> None:
        """Check that model and configuration are still those of the first answer."""
        model, fingerprint = answer.get("model") or self.model, answer.get("system_fingerprint")
        self._fingerprint = self._fingerprint or fingerprint
        for key, now, before in (("model", model, self.model), ("system_fingerprint", fingerprint, self._fingerprint)):
            if now and now != before:
                raise UserError(
                    "the server changed while it was tested", file=self.url, key=key, value=now, allowed=before
                )

    def at_once(self, requests: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Choices of many completions, in order."""
        with ThreadPoolExecutor(CONCURRENT) as pool:
            yield from pool.map(self.complete, requests)

    def _answer(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._client.request(method, f"{self.url}/{path}", json=content)
            body = answer.json() if answer.is_success else None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UserError(f"the server does not answer ({type(error).__name__}: {error})", file=self.url) from None
        if not isinstance(body, dict):
            raise UserError(
                f"the server answers {path} with status {answer.status_code}: {answer.text[:300]}", file=self.url
            )
        return body


class ServerSampler:
    """A server's completions, one request for each prompt.

    Args:
        server: the connection.
        temperature: of sampling.
        parameters: further ones of each request. None is sent otherwise, so that the server's own defaults are tested:
            vLLM applies top-p, top-k and penalties of a model's generation_config.json unless a request has them.
    """

    def __init__(self, server: Server, temperature: float = 1.0, parameters: Mapping[str, Any] | None = None) -> None:
        self.server, self.temperature, self.parameters = server, temperature, dict(parameters or {})
        self.name = f"{server.model} at {server.url}"

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses, with their log-probabilities."""
        common = {"n": samples, "max_tokens": max_tokens, "temperature": self.temperature, "logprobs": 0}
        requests = [{"prompt": prompt} | common | self.parameters for prompt in prompts]
        return [list(map(self._sampled, choices)) for choices in self.server.at_once(requests)]

    def probe(self, prompts: list[list[int]]) -> list[float]:
        """Log-probabilities of prompts, and of a greedy token after each; those that the server gives."""
        found = []
        for prompt in prompts:  # one after another: in float32 a batch of one has the same numbers again
            request = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0}
            try:
                (choice, *_) = self.server.complete(request | {"prompt_logprobs": 0})
            except UserError:
                (choice, *_) = self.server.complete(request)  # not every server knows these
            rows = zip(prompt[1:], (choice.get("prompt_logprobs") or [])[1:], strict=False)
            found += [listed[str(token)]["logprob"] for token, listed in rows if listed]
            found += (choice.get("logprobs") or {}).get("token_logprobs") or []
        return found

    def _sampled(self, choice: dict[str, Any]) -> Sampled:
        values = (choice.get("logprobs") or {}).get("token_logprobs")
        if values is None:
            return Sampled(choice["token_ids"])
        return Sampled(choice["token_ids"], [-np.inf if value <= IMPOSSIBLE else value for value in values])


class ServerPolicy:
    """A server's log-probabilities of prompts that contain the responses.

    Args:
        server: the connection; vLLM gives log-probabilities before temperature, as `raw_logprobs`, its default.
        end_tokens: tokens that end a response.
        top: most probable tokens that are requested at each position; vLLM allows 20 unless it is started with a larger
            `--max-logprobs`.
    """

    def __init__(self, server: Server, end_tokens: Collection[int], top: int = 20) -> None:
        self.server, self.end_tokens, self.top = server, frozenset(end_tokens), top
        self.name = f"log-probabilities of {server.model} at {server.url}"

    def log_probs(self, prompts: list[list[int]], responses: list[list[int]]) -> Iterator[Known]:
        """Top-k log-probs; an empty response needs no request."""
        rows = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        # A completion has one token at least.
        requests = [{"prompt": row, "max_tokens": 1, "prompt_logprobs": self.top} for row in rows]
        answers = self.server.at_once(requests)
        for prompt, response, (choice, *_) in zip(prompts, responses, answers, strict=True):
            yield self._known(response, (choice.get("prompt_logprobs") or [])[len(prompt) :])

    def _known(self, response: list[int], positions: list[dict[str, dict[str, float]]]) -> Known:
        if len(positions) != len(response):
            raise UserError(
                "the server gives no log-probabilities of prompts", file=self.server.url, key="prompt_logprobs"
            )
        tokens = np.full((len(response), self.top), -1)
        log_probs = np.full(tokens.shape, -np.inf)
        sampled = np.empty(len(response))
        for t, (token, listed) in enumerate(zip(response, positions, strict=True)):
            values = {
                int(i): -np.inf if e["logprob"] <= IMPOSSIBLE else e["logprob"] for i, e in (listed or {}).items()
            }
            if token not in values:
                raise UserError(
                    "the server gives no log-probability of a prompt's token", file=self.server.url, value=token
                )
            sampled[t] = values[token]
            # The token itself is listed too: where it is not among the most probable ones, it is one more.
            best = [i for i in values if len(values) <= self.top or i != token][: self.top]
            tokens[t, : len(best)], log_probs[t, : len(best)] = best, [values[i] for i in best]
        return Known(log_probs, tokens, sampled)
