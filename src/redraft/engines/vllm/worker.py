"""vLLM's worker with another model runner, which scores only a draft's positions, a few at a time.

vLLM's own runner normalises the distribution of every position of prompt and draft at once. This one overrides a single
method of it and is installed by vLLM's setting `worker_cls` (`redraft.engines.vllm.engine.WORKER`).

All log-probabilities, of prompts and of sampled tokens, are at the temperature of their request. vLLM's own are at
temperature 1 (`raw_logprobs`), or include biases for sampled tokens (`processed_logprobs`).

Requests and answers keep their form: `prompt_logprobs` is the number of most probable tokens to report besides the
prompt's own, and `extra_args` has the first position to score (`scored_from`, default 0). An answer has the rows from
there on.

A request may read the prefix cache (`skip_reading_prefix_cache=False`). Positions found there are not computed, and
their rows are NaN.

Ranks are not counted, which would take another pass over the vocabulary: the token's own is `prompt_logprobs + 1`.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from redraft.engines.torch.head import given_log_probs

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as ModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as ModelRunner
    from vllm.v1.worker.gpu_worker import Worker


@dataclass
class Scored:
    """The rows of a request's answer that one step computes.

    Attributes:
        answer: all rows of the request, filled step by step.
        rows: indices in the answer that the step fills.
        hidden: int64 (rows,), their indices among the step's hidden states.
        tokens: int64 (rows,), the token after each of these positions.
        temperature: of the request; 1 for greedy sampling.
        complete: true if the prompt ends in this step.
    """

    answer: LogprobsTensors
    rows: slice
    hidden: torch.Tensor
    tokens: torch.Tensor
    temperature: float
    complete: bool


class PolicySampler(Sampler):
    """vLLM's sampler with raw log-probabilities of the policy at each request's temperature, without biases."""

    _temperatures: torch.Tensor | None = None

    def forward(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any
    ) -> SamplerOutput:
        """Sample as vLLM does."""
        self._temperatures = sampling_metadata.temperature
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._temperatures = None

    def compute_logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, float32; at temperature 1 for requests with greedy sampling."""
        if self._temperatures is not None:
            # A copy, since vLLM divides in place and samples from these logits afterwards.
            logits = self.apply_temperature(logits.to(torch.float32, copy=True), self._temperatures, all_random=False)
        return super().compute_logprobs(logits)


class ScoringRunner(ModelRunner):
    """vLLM's model runner with another computation of a prompt's log-probabilities."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # As vLLM does: the sampler's parameters, which differ by version, are named like settings of the model.
        names = inspect.signature(Sampler).parameters
        self.sampler = PolicySampler(**{name: getattr(self.model_config, name) for name in names})
        self._answers: dict[str, LogprobsTensors] = {}

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, LogprobsTensors | None]:
        """Answers of the requests whose prompts end in this step."""
        requests = self.num_prompt_logprobs
        # Answers of aborted requests are dropped.
        self._answers = {name: answer for name, answer in self._answers.items() if name in requests}
        parts = {
            name: self._part(name, num_scheduled_tokens[name]) for name in requests if name in num_scheduled_tokens
        }
        for temperature in {part.temperature for part in parts.values()}:
            self._fill(hidden_states, [p for p in parts.values() if len(p.tokens) and p.temperature == temperature])
        ended = {name: part.answer for name, part in parts.items() if part.complete}
        for name in ended:
            del requests[name], self._answers[name]
        return ended

    def _part(self, name: str, count: int) -> Scored:
        """The rows that a step computes for a request, of which it feeds `count` tokens."""
        request = self.requests[name]
        tokens, begin = request.prompt_token_ids, request.num_computed_tokens
        first = (request.sampling_params.extra_args or {}).get("scored_from", 0)
        if name not in self._answers:
            rows, width = len(tokens) - 1 - first, 1 + self.num_prompt_logprobs[name]
            self._answers[name] = LogprobsTensors(  # rows of NaN; verl's servers need distinct tokens in each
                torch.arange(width, dtype=torch.int32).repeat(rows, 1),
                torch.full((rows, width), torch.nan),
                torch.full((rows,), width, dtype=torch.int32),
            )
        # Not the positions before `first`, nor the prompt's last one, which no token of the prompt follows.
        low = max(begin, first)
        high = max(low, min(begin + count, len(tokens) - 1))
        # From positions in the prompt to indices among the step's hidden states.
        shift = self.query_start_loc.np[self.input_batch.req_id_to_index[name]].item() - begin
        return Scored(
            self._answers[name],
            slice(low - first, high - first),
            torch.arange(low + shift, high + shift),
            torch.tensor(tokens[low + 1 : high + 1], dtype=torch.int64),
            request.sampling_params.temperature or 1.0,
            complete=begin + count >= len(tokens),
        )

    def _fill(self, hidden_states: torch.Tensor, parts: list[Scored]) -> None:
        """Compute the rows of requests with the same temperature together."""
        if not parts:
            return
        rows, tokens = (torch.cat([getattr(p, name) for p in parts]).to(self.device) for name in ("hidden", "tokens"))
        # For the request that wants most; each takes its leading columns below.
        top = max(part.answer.logprobs.shape[1] for part in parts) - 1
        both = given_log_probs(
            self.model.compute_logits,
            self.model_config.get_vocab_size(),
            hidden_states[rows],
            tokens,
            top,
            parts[0].temperature,
        )
        ids, log_probs = (tensor.cpu() for tensor in both)
        sizes = [len(part.tokens) for part in parts]
        for part, of_ids, of_log_probs in zip(parts, ids.split(sizes), log_probs.split(sizes), strict=True):
            width = part.answer.logprobs.shape[1]
            part.answer.logprob_token_ids[part.rows] = of_ids[:, :width].int()
            part.answer.logprobs[part.rows] = of_log_probs[:, :width]


class ScoringWorker(Worker):
    """vLLM's worker with `ScoringRunner`."""

    model_runner: Any

    def init_device(self) -> None:
        """Prepare the device and create the runner.

        Raises:
            RuntimeError: if vLLM would use its second model runner, whose scoring differs.
        """
        super().init_device()
        if not isinstance(self.model_runner, ModelRunner):
            raise RuntimeError("scoring drafts needs vLLM's first model runner: set VLLM_USE_V2_MODEL_RUNNER=0")
        self.model_runner = ScoringRunner(self.vllm_config, self.model_runner.device)

    def seed_sampling(self, seed: int) -> None:
        """Seed the random numbers of requests without a seed; all workers of a replica need the same one."""
        torch.manual_seed(seed)
