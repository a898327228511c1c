"""One request that scores a draft, is cut and goes on: vLLM's scheduler and worker, extended by subclasses.

A prototype. vLLM's settings `scheduler_cls` and `worker_cls` install it; requests of other kinds are served as before.

The request is prompt and draft, with log-probabilities of the draft asked for. Beside `scored_from` its `extra_args`
have `least`: for each token of the draft the least log-probability at which it is kept, as bytes of float64, since vLLM
copies each number of a list apart. So the rule stays with the client: equation (3) of SPEC-RL keeps a token from
log u - log l + log p_old on. `max_tokens` is for the whole response. With `draft_chunk` the draft is scored in chunks
of so many tokens, up to the one that holds the cut.

When the worker's scores arrive, the scheduler hides the token that was sampled behind the draft and shortens the
request, in the way in which vLLM makes that of a streaming session longer. The worker takes it as such a session's next
part, so that vLLM's own code replaces tokens and blocks there. Keys and values of what is kept stay: the request finds
its own blocks as if by the prefix cache. A cut within a block copies the block, as for every hit that ends in one,
since a block that was cached by its hash must not change. A further chunk is an update of the session as well.

An answer has the scores of all that was scored, from which the client knows the cut too. A draft that is kept whole and
is a whole response, or of which the prefix cache hid a score, ends as a request that only scores.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request, StreamingUpdate
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from redraft.engines.requests import chunk_end
from redraft.engines.vllm.worker import ScoringRunner, ScoringWorker


def kept_of(log_probs: np.ndarray, least: np.ndarray) -> int:
    """Leading tokens whose log-probabilities, float (n,), are at least what is asked of them; NaN is not."""
    return int((log_probs >= least).cumprod().sum())


@dataclass
class Draft:
    """What is known of a request's draft.

    Attributes:
        tokens: of prompt and draft.
        first: tokens of the prompt.
        least: float64 (draft,).
        chunk: tokens of a chunk, None for the whole draft.
        params: as the request came.
        parts: scores so far.
        held: blocks whose keys and values the request finds again.
        computed: tokens that are in these.
    """

    tokens: list[int]
    first: int
    least: np.ndarray
    chunk: int | None
    params: SamplingParams
    parts: list[LogprobsTensors] = field(default_factory=list)
    held: list[KVCacheBlock] = field(default_factory=list)
    computed: int = 0

    @classmethod
    def of(cls, request: Request) -> "Draft | None":
        """The draft that a request goes on from, if there is one."""
        params = request.sampling_params
        extra = (params.extra_args or {}) if params else {}
        if params is None or request.prompt_token_ids is None or "least" not in extra:
            return None
        least, tokens = np.frombuffer(extra["least"]), request.prompt_token_ids
        return cls(tokens, len(tokens) - len(least), least, extra.get("draft_chunk"), params)

    @property
    def known(self) -> int:
        """Tokens of it that were scored."""
        return sum(len(part.logprobs) for part in self.parts)

    def end(self, block: int) -> int:
        """End of the next chunk in prompt and draft, one token behind a block, so that the next copies none."""
        end = self.first + chunk_end(len(self.least), self.known, self.chunk)
        aligned = (end - 1) // block * block + 1
        return aligned if end < len(self.tokens) and aligned > self.first + self.known else end

    def is_whole(self, kept: int) -> bool:
        """Whether so many tokens of it are a whole response."""
        ended = kept == len(self.least) and self.tokens[-1] in (self.params.stop_token_ids or ())
        return ended or kept >= self.params.max_tokens

    def next_params(self, scored_from: int | None) -> SamplingParams:
        """Parameters of the request's next part, which scores from a position on or not at all."""
        params = copy(self.params)
        params.extra_args = None if scored_from is None else {"scored_from": scored_from}
        params.prompt_logprobs = None if scored_from is None else params.prompt_logprobs
        return params

    @property
    def scores(self) -> LogprobsTensors:
        """Scores so far."""
        columns = zip(*((p.logprob_token_ids, p.logprobs, p.selected_token_ranks) for p in self.parts), strict=True)
        return LogprobsTensors(*(torch.cat(column) for column in columns))


class CuttingScheduler(Scheduler):
    """vLLM's scheduler, which cuts a draft where its scores fall below what the request asks of them.

    For models of full attention in one group of layers, without speculation, pipelines or connectors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._drafts: dict[str, Draft] = {}

    def add_request(self, request: Request) -> None:
        """Take a request; one with a draft in chunks waits with the first of them."""
        draft = Draft.of(request)
        if draft:
            self._drafts[request.request_id] = draft
            self._shorten(request, draft.end(self.block_size))
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step; blocks that a request has found again are its own from then on."""
        output = super().schedule(*args, **kwargs)
        for name in self._drafts.keys() & output.num_scheduled_tokens.keys():
            self._release(self._drafts[name])
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take a step's tokens and scores, and cut the requests whose drafts were scored."""
        names = [name for name in scheduler_output.num_scheduled_tokens if name in self._drafts]
        ends = {name: self._judge(self.requests[name], self._drafts[name], model_runner_output) for name in names}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for name, end in reversed(ends.items()):
            if end is not None:
                self._go_on(self.requests[name], self._drafts[name], end)
        return outputs

    def _judge(self, request: Request, draft: Draft, output: ModelRunnerOutput) -> int | None:
        """Tokens behind which a request goes on in another part; None if it goes on as it is."""
        name, known = request.request_id, draft.known
        part, sampled = output.prompt_logprobs_dict.get(name), output.sampled_token_ids
        if not sampled[output.req_id_to_index[name]]:
            return None
        if part is not None:
            draft.parts.append(part)
            least = draft.least[known : draft.known]
            kept = kept_of(part.logprobs[:, 0].numpy(), least)
            hidden = bool(part.logprobs.isnan().any())
            if not hidden and not draft.is_whole(known + kept):
                del output.prompt_logprobs_dict[name]
                sampled[output.req_id_to_index[name]] = []
                return draft.first + known + kept
            request.max_tokens = 1
        output.prompt_logprobs_dict[name] = draft.scores
        del self._drafts[name]
        return None

    def _go_on(self, request: Request, draft: Draft, length: int) -> None:
        """Make a request that runs one that waits, of kept tokens and of the draft's next chunk if all were kept."""
        self.running.remove(request)
        blocks, draft.computed = self.kv_cache_manager.pop_blocks_for_free(request), length - 1
        count = cdiv(draft.computed, self.block_size)
        draft.held = blocks[:count]
        self.kv_cache_manager.block_pool.free_blocks(reversed(blocks[count:]))
        further = length == draft.first + draft.known < len(draft.tokens)
        end = draft.end(self.block_size) if further else length
        room = request.max_tokens if further else request.max_tokens - (length - draft.first)
        # The last token is an update to a session of what is before it: its law is that of the token behind.
        self._shorten(request, draft.computed)
        request.num_computed_tokens = draft.computed
        update = StreamingUpdate(
            None, draft.tokens[draft.computed : end], room, request.arrival_time,
            draft.next_params(draft.computed if further else None),
        )  # fmt: skip
        self._update_request_as_session(request, update)
        request.num_computed_tokens = 0  # they are found again when the request is planned
        self.waiting.prepend_request(request)

    def _shorten(self, request: Request, length: int) -> None:
        """Forget a request's tokens from a position on."""
        assert request.prompt_token_ids is not None
        request.prompt_token_ids = request.prompt_token_ids[:length]
        request.num_prompt_tokens = length
        del request._all_token_ids[length:]
        del request.block_hashes[length // self.hash_block_size :]

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        """What is computed of a request; of one that goes on what it held."""
        draft = self._drafts.get(request.request_id)
        if draft is None or not draft.computed:
            return super()._get_local_prefix_cache_hit(request)
        return self.kv_cache_manager.create_kv_cache_blocks((draft.held,)), draft.computed, 0, False

    def _free_request_blocks(self, request: Request) -> None:
        if draft := self._drafts.get(request.request_id):
            self._release(draft)
            draft.computed = 0
            if request.is_finished():
                del self._drafts[request.request_id]
        super()._free_request_blocks(request)

    def _release(self, draft: Draft) -> None:
        """Leave held blocks to the request, which has found them, or to nobody."""
        self.kv_cache_manager.block_pool.free_blocks(reversed(draft.held))
        draft.held = []


class CuttingRunner(ScoringRunner):
    """The scoring runner, whose requests draw as new ones do behind a cut, and score further chunks."""

    def _update_streaming_request(self, req_id: str, new_req_data: NewRequestData) -> CachedRequestState:
        state, params = super()._update_streaming_request(req_id, new_req_data), new_req_data.sampling_params
        if state.generator is not None:
            # Numbers were drawn for the tokens behind the draft and its chunks.
            state.generator.manual_seed(params.seed)
        if params.prompt_logprobs is not None:
            self.num_prompt_logprobs[req_id] = params.prompt_logprobs
        return state


class CuttingWorker(ScoringWorker):
    """vLLM's worker with `CuttingRunner`."""

    def init_device(self) -> None:
        """Prepare the device and make the runner."""
        super().init_device()
        self.model_runner = CuttingRunner(self.vllm_config, self.device)
