"""One request that scores a draft, is cut and goes on: vLLM's scheduler and worker, extended by subclasses.

A prototype. vLLM's settings `scheduler_cls` and `worker_cls` install it; requests of other kinds are served as before.

The request is prompt and draft, with log-probabilities of the draft asked for. Beside `scored_from` its `extra_args`
have `least`: for each token of the draft the least log-probability at which it is kept, as bytes of float64, since vLLM
copies each number of a list apart. So the rule stays with the client: equation (3) of SPEC-RL keeps a token from log u - log l + log p_old on. `max_tokens` is for the whole response.

When the worker's scores arrive, the scheduler hides the token that was sampled behind the whole draft and makes the
request shorter in the way in which vLLM makes that of a streaming session longer. The worker takes it as such a
session's next part, so that vLLM's own code replaces tokens and blocks there. Keys and values of what is kept stay: the
request finds its own blocks as if by the prefix cache. A cut within a block copies the block, as for every hit that ends
in one, since a block that was cached by its hash must not change.

An answer has the scores of the whole draft, from which the client knows the cut too. A draft that is kept whole and is
a whole response, or of which the prefix cache hid a score, ends as a request that only scores.
"""

from copy import copy
from typing import Any

import numpy as np
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request, StreamingUpdate
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from redraft.engines.vllm_worker import ScoringRunner, ScoringWorker


def kept_of(log_probs: np.ndarray, least: np.ndarray) -> int:
    """Leading tokens whose log-probabilities, float (n,), are at least what is asked of them; NaN is not."""
    return int((log_probs >= least).cumprod().sum())


class CuttingScheduler(Scheduler):
    """vLLM's scheduler, which cuts a draft where its scores fall below what the request asks of them.

    For models of full attention in one group of layers, without speculation, pipelines or connectors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: dict[str, list[KVCacheBlock]] = {}
        self._scores: dict[str, LogprobsTensors] = {}

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step; blocks that a cut request has found again are its own from then on."""
        output = super().schedule(*args, **kwargs)
        for name in self._held.keys() & output.num_scheduled_tokens.keys():
            self._release(name)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take a step's tokens and scores, and cut the requests whose drafts were scored."""
        cuts = self._cuts(model_runner_output)
        for name in self._scores.keys() & scheduler_output.num_scheduled_tokens.keys() - cuts.keys():
            model_runner_output.prompt_logprobs_dict[name] = self._scores.pop(name)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for name, kept in reversed(cuts.items()):
            self._cut(self.requests[name], kept)
        return outputs

    def _cuts(self, output: ModelRunnerOutput) -> dict[str, int]:
        """Draft tokens that are kept of the requests that go on; their scores and sampled tokens are taken away."""
        cuts = {}
        for name, scores in list(output.prompt_logprobs_dict.items()):
            request = self.requests.get(name)
            least = least_of(request) if request else None
            if request is None or least is None or scores is None:
                continue
            log_probs = scores.logprobs[:, 0].numpy()
            kept = kept_of(log_probs, least)
            if np.isnan(log_probs).any() or is_whole(request, kept, len(least)):
                request.max_tokens = 1
                continue
            cuts[name], self._scores[name] = kept, output.prompt_logprobs_dict.pop(name)
            output.sampled_token_ids[output.req_id_to_index[name]] = []
        return cuts

    def _cut(self, request: Request, kept: int) -> None:
        """Make a request that runs one that waits, of prompt and kept tokens, and hold the blocks of these."""
        least = least_of(request)
        assert least is not None and request.sampling_params is not None and request.prompt_token_ids is not None
        length = request.num_prompt_tokens - len(least) + kept
        self.running.remove(request)
        blocks = self.kv_cache_manager.pop_blocks_for_free(request)
        count = cdiv(length - 1, self.block_size)
        self._held[request.request_id] = blocks[:count]
        self.kv_cache_manager.block_pool.free_blocks(reversed(blocks[count:]))
        # The last token is an update to a session of what is before it: its law is that of the first new token.
        last = request.prompt_token_ids[length - 1]
        request.prompt_token_ids = request.prompt_token_ids[: length - 1]
        request.num_computed_tokens = length - 1
        del request.block_hashes[(length - 1) // self.hash_block_size :]
        params = copy(request.sampling_params)
        params.extra_args = None
        update = StreamingUpdate(None, [last], request.max_tokens - kept, request.arrival_time, params)
        self._update_request_as_session(request, update)
        request.num_computed_tokens = 0  # they are found again when the request is planned
        self.waiting.prepend_request(request)

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        """What is computed of a request; of one that was cut all but its last token."""
        held = self._held.get(request.request_id)
        if held is None:
            return super()._get_local_prefix_cache_hit(request)
        return self.kv_cache_manager.create_kv_cache_blocks((held,)), request.num_tokens - 1, 0, False

    def _free_request_blocks(self, request: Request) -> None:
        if request.request_id in self._held:
            self._release(request.request_id)
        self._scores.pop(request.request_id, None)
        super()._free_request_blocks(request)

    def _release(self, name: str) -> None:
        self.kv_cache_manager.block_pool.free_blocks(reversed(self._held.pop(name)))


def least_of(request: Request) -> np.ndarray | None:
    """What a request asks of its draft's tokens; None if it goes on from none."""
    params = request.sampling_params
    least = (params.extra_args or {}).get("least") if params else None
    return None if least is None else np.frombuffer(least)


def is_whole(request: Request, kept: int, draft: int) -> bool:
    """Whether what is kept is a whole response."""
    assert request.sampling_params is not None and request.prompt_token_ids is not None
    ended = kept == draft and request.prompt_token_ids[-1] in (request.sampling_params.stop_token_ids or ())
    return ended or kept >= request.max_tokens


class CuttingRunner(ScoringRunner):
    """The scoring runner, whose requests draw as new ones do behind a cut."""

    def _update_streaming_request(self, req_id: str, new_req_data: NewRequestData) -> CachedRequestState:
        state = super()._update_streaming_request(req_id, new_req_data)
        if state.generator is not None:
            # One number was drawn for the token behind the whole draft.
            state.generator.manual_seed(new_req_data.sampling_params.seed)
        return state


class CuttingWorker(ScoringWorker):
    """vLLM's worker with `CuttingRunner`."""

    def init_device(self) -> None:
        """Prepare the device and make the runner."""
        super().init_device()
        self.model_runner = CuttingRunner(self.vllm_config, self.device)
