"""verl's client of its servers, with drafts: a response begins with the kept prefix of an earlier one."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from redraft.engines.vllm.engine import Output
from redraft.engines.vllm.stock import OtherEndError, StockEngine
from redraft.integrations.verl.plan import Plan
from redraft.integrations.verl.store import key_of
from redraft.integrations.verl.tally import OTHER_END, Outcome
from redraft.rollout.context import Meter, RolloutContext, Streams, no_reward
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Rollout, Sample, Task

logger = logging.getLogger(__name__)
FORWARDED = ("priority", "mm_processor_kwargs")
"""Arguments of a request without images that verl passes on to its server."""
_said: set[str] = set()


class DraftingClient:
    """Replaces verl's client in an agent loop, for one sample of one step.

    Each request of the loop, that is, each turn of a dialogue, may have a draft: an earlier response to the same
    tokens, including tool answers. The plan's method verifies the draft, and the response becomes the next draft.

    Args:
        client: verl's own client.
        store: handle of the `DraftStore`.
        sample: index within the prompt's group.
        step: verl's step, from 1.
    """

    def __init__(self, client: Any, plan: Plan, store: Any, sample: int, step: int) -> None:
        self.client, self.plan, self.store, self.sample, self.step = client, plan, store, sample, step
        self._strategy = plan.reuse.strategy()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **further: Any
    ) -> Output:
        """Serve a request of the loop; same arguments and answer as verl's `LLMServerClient.generate`.

        The answer's `extra_fields` also have `redraft`, with the counts of this response.
        """

        async def own() -> Output:
            params = dict(sampling_params)
            return await self.client.generate(request_id, prompt_ids=prompt_ids, sampling_params=params, **further)

        if why := self._unfit(sampling_params, further):
            output = await own()
            outcome = Outcome(len(output.token_ids), own=why)
            await self.store.count.remote(outcome)
            return _marked(output, outcome)
        key, rollout = key_of(prompt_ids, self.sample), None
        draft, becomes_draft = await self.store.find.remote(key)
        outcome = Outcome(0, own="failed")
        forwarded = {name: further[name] for name in FORWARDED if further.get(name)}
        engine = StockEngine(
            self.client,
            self.plan.stops | frozenset(sampling_params.get("stop_token_ids") or ()),
            self.plan.max_model_len,
            sampling_params,
            biased=self.plan.biased,
            seeded=self.plan.seeded,
            request_id=request_id,
            further=forwarded,
        )
        try:
            try:
                rollout = await self._response(key, draft, prompt_ids, sampling_params, engine)
                outcome, output = outcome_of(rollout, engine), answer_of(rollout, engine, sampling_params)
            except Exception as error:  # Ray's and the server's own errors have many types
                # verl would go on without this response, and train on a smaller group.
                say(f"a response is sampled without its draft: {type(error).__name__}: {error}")
                rollout = None
                # A response that began without a draft is verl's own. Another one in its place would depend on it, and
                # not have the policy's distribution.
                whole = draft is None and engine.outputs
                output = engine.outputs[0] if whole else await own()
                if whole and not sampling_params.get("logprobs"):
                    output.log_probs = None
                outcome = Outcome(
                    len(output.token_ids), own=OTHER_END if isinstance(error, OtherEndError) else "restarted"
                )
            return _marked(output, outcome)
        finally:
            stored = rollout and rollout.leading(self.plan.room(len(prompt_ids)))
            await self.store.put.remote(key, stored if becomes_draft else None, outcome)

    def _unfit(self, params: Mapping[str, Any], further: Mapping[str, Any]) -> str:
        """Why a request gets no draft; empty if it may have one."""
        if self.plan.reuse.kind == "vanilla":
            return "no_reuse"
        # The tokens of a prompt do not tell one image from another.
        if any(further.get(name) for name in ("image_data", "video_data", "audio_data")):
            return "images"
        # A greedy baseline, for example. To vLLM a top_k of 0 is the same as -1.
        if any((params.get(name, value) or -1) != (value or -1) for name, value in self.plan.sampling.items()):
            return "other_sampling"
        return ""

    async def _response(
        self, key: int, draft: Rollout | None, prompt: list[int], params: Mapping[str, Any], engine: StockEngine
    ) -> Rollout:
        """Response by the plan's method.

        Raises:
            RuntimeError: if a server failed or changed its weights meanwhile.
        """
        memory = Memory(self.plan.reuse.retention)
        limit = self.plan.limit(len(prompt), params.get("max_tokens"))
        if draft is not None:
            memory.put(Group(key, 0, (Sample(draft, 0.0),)))
        streams = Streams(self.plan.seed, self.step)
        context = RolloutContext(engine, no_reward, memory, Meter(), streams, {key: prompt}, limit)
        group = await self._strategy(Task(key, 1, 1), context)
        if len(versions := {output.extra_fields.get("global_steps") for output in engine.outputs}) > 1:
            raise RuntimeError(f"verl's servers changed their weights within a response (steps {versions})")
        return group.rollouts[0]


def outcome_of(rollout: Rollout, engine: StockEngine) -> Outcome:
    """Counts of a response."""
    kept, drift, (session,) = rollout.prefix_length, None, engine.sessions
    if len(session.scored) or not kept:
        # As in the records of training: exp(g) - 1 - g, with g = log p - log q.
        gaps = session.scored[:kept].astype(np.float64) - rollout.log_probs[:kept]
        drift = float((np.expm1(gaps) - gaps).sum())
    return Outcome(rollout.length, rollout.draft_length, kept, rollout.verified, drift)


def answer_of(rollout: Rollout, engine: StockEngine, params: Mapping[str, Any]) -> Any:
    """The response as an answer of verl's server."""
    last = engine.outputs[-1] if engine.outputs else None
    if last is None:
        raise RuntimeError("a draft was kept whole without a request, so no answer says which weights the servers have")
    preempted = [output.num_preempted for output in engine.outputs if output.num_preempted is not None]  # type: ignore[attr-defined]
    fields = {k: v for k, v in last.extra_fields.items() if k not in ("prompt_logprobs", "prompt_ids")}
    return last.model_copy(  # type: ignore[attr-defined]
        update={
            "token_ids": rollout.tokens.tolist(),
            "log_probs": rollout.log_probs.tolist() if params.get("logprobs") else None,
            "stop_reason": "completed",
            "num_preempted": sum(preempted) if preempted else None,
            "extra_fields": fields,
        }
    )


def _marked(output: Any, outcome: Outcome) -> Any:
    output.extra_fields["redraft"] = {"draft": outcome.draft, "kept": outcome.kept, "verified": outcome.verified}
    return output


def say(message: str) -> None:
    """Log a warning once in this process."""
    if message not in _said:
        _said.add(message)
        logger.warning("redraft: %s", message)
