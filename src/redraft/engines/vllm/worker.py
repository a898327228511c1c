"""vLLM's worker, whose model runner scores a draft's positions alone, with a few rows of the distribution in memory at
a time.

vLLM's own runner normalises the distribution of every position of prompt and draft at once. This one takes the place of
a single method of it, and is installed by vLLM's setting `worker_cls` (`redraft.engines.vllm.engine.WORKER`).

All log-probabilities are at the temperature of their request, those of prompts and those of sampled tokens. vLLM's own
are at temperature 1 (`raw_logprobs`), or of sampled tokens with biases in them (`processed_logprobs`).

Requests and answers keep their form: `prompt_logprobs` says how many of the most probable tokens are asked for beside
the prompt's own, and `extra_args` from which position on (`scored_from`, 0 if it is left out). An answer has the rows
from there on.

A request may read the prefix cache (`skip_reading_prefix_cache=False`). Positions that were found there are not
computed, so that their rows are NaN.

Ranks are not counted, which would be another pass over the vocabulary: the token's own is `prompt_logprobs + 1`.
"""

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
    """The rows of a request that are asked for, and those of them that a step computes.

    Attributes:
        answer: all rows, filled step by step.
        rows: places in the answer that the step fills.
        hidden: int64, their places among the step's hidden states.
        tokens: int64, the tokens behind them.
        temperature: of the request; 1 for one that takes the most probable token.
        whole: true if the prompt ends in this step.
    """

    answer: LogprobsTensors
    rows: slice
    hidden: torch.Tensor
    tokens: torch.Tensor
    temperature: float
    whole: bool


class PolicySampler(Sampler):
    """vLLM's sampler, whose raw log-probabilities are of the policy at each request's temperature, without biases."""

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
        """Log-probabilities, float32; at temperature 1 for requests that take the most probable token."""
        if self._temperatures is not None:
            logits = self.apply_temperature(logits.to(torch.float32, copy=True), self._temperatures, all_random=False)
        return super().compute_logprobs(logits)


class ScoringRunner(ModelRunner):
    """vLLM's model runner with another source of a prompt's log-probabilities."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sampler = PolicySampler(self.model_config.logprobs_mode, self.model_config.use_fp64_gumbel)
        self._answers: dict[str, LogprobsTensors] = {}

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, LogprobsTensors | None]:
        """Answers of the requests whose prompts end in this step."""
        asked = self.num_prompt_logprobs
        self._answers = {name: answer for name, answer in self._answers.items() if name in asked}
        parts = {name: self._part(name, num_scheduled_tokens[name]) for name in asked if name in num_scheduled_tokens}
        for temperature in {part.temperature for part in parts.values()}:
            self._fill(hidden_states, [p for p in parts.values() if len(p.tokens) and p.temperature == temperature])
        ended = {name: part.answer for name, part in parts.items() if part.whole}
        for name in ended:
            del asked[name], self._answers[name]
        return ended

    def _part(self, name: str, count: int) -> Scored:
        """What a step that computes `count` tokens of a request finds out for it."""
        request = self.requests[name]
        tokens, begin = request.prompt_token_ids, request.num_computed_tokens
        first = (request.sampling_params.extra_args or {}).get("scored_from", 0)
        if name not in self._answers:
            rows, width = len(tokens) - 1 - first, 1 + self.num_prompt_logprobs[name]
            self._answers[name] = LogprobsTensors(  # rows of NaN; verl's servers want distinct tokens in each
                torch.arange(width, dtype=torch.int32).repeat(rows, 1),
                torch.full((rows, width), torch.nan),
                torch.full((rows,), width, dtype=torch.int32),
            )
        low = max(begin, first)
        high = max(low, min(begin + count, len(tokens) - 1))
        shift = self.query_start_loc.np[self.input_batch.req_id_to_index[name]].item() - begin
        return Scored(
            self._answers[name],
            slice(low - first, high - first),
            torch.arange(low + shift, high + shift),
            torch.tensor(tokens[low + 1 : high + 1], dtype=torch.int64),
            request.sampling_params.temperature or 1.0,
            whole=begin + count >= len(tokens),
        )

    def _fill(self, hidden_states: torch.Tensor, parts: list[Scored]) -> None:
        """Compute the rows of requests of the same temperature together."""
        if not parts:
            return
        rows, tokens = (torch.cat([getattr(p, name) for p in parts]).to(self.device) for name in ("hidden", "tokens"))
        top = max(part.answer.logprobs.shape[1] for part in parts) - 1
        found = given_log_probs(
            self.model.compute_logits,
            self.model_config.get_vocab_size(),
            hidden_states[rows],
            tokens,
            top,
            parts[0].temperature,
        )
        ids, log_probs = (tensor.cpu() for tensor in found)
        sizes = [len(part.tokens) for part in parts]
        for part, of_ids, of_log_probs in zip(parts, ids.split(sizes), log_probs.split(sizes), strict=True):
            width = part.answer.logprobs.shape[1]
            part.answer.logprob_token_ids[part.rows] = of_ids[:, :width].int()
            part.answer.logprobs[part.rows] = of_log_probs[:, :width]


class ScoringWorker(Worker):
    """vLLM's worker with `ScoringRunner`."""

    model_runner: Any

    def init_device(self) -> None:
        """Prepare the device and make the runner.

        Raises:
            RuntimeError: if vLLM would use its second model runner, which scores in another way.
        """
        super().init_device()
        if not isinstance(self.model_runner, ModelRunner):
            raise RuntimeError("drafts are scored in vLLM's first model runner: set VLLM_USE_V2_MODEL_RUNNER=0")
        self.model_runner = ScoringRunner(self.vllm_config, self.device)
