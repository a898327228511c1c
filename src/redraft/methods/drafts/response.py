"""Responses from drafts: a group of them, and one, which keeps a prefix of its draft and samples the rest.

A strategy reads from top to bottom here: `reuse_drafts` finds a draft for each sample, `complete` has it verified and
continued, `graded` adds the rewards. The verifiers are in `redraft.methods.drafts.verification`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.methods.acceptance.weighted import Weights
from redraft.methods.strategy import Strategy
from redraft.rollout.context import RolloutContext
from redraft.rollout.engine import Continuation, Inversion, Noise, Residual, Session
from redraft.rollout.types import Finish, Group, Rollout, Sample, Task, TopLogProbs


@dataclass(frozen=True)
class Verification:
    """Result of verifying a draft.

    Attributes:
        prefix: number of leading tokens that are kept.
        log_probs: float32 (prefix,), stored with them.
        verified: number of draft tokens that were scored.
        first: distribution of the token after the prefix, the policy's if None.
        top: top-k log-probs stored with the prefix; the draft's own if None.
        weights: importance weights of the response; all 1 if None.
    """

    prefix: int
    log_probs: np.ndarray
    verified: int = 0
    first: Residual | None = None
    top: TopLogProbs | None = None
    weights: Weights | None = None


class DraftVerifier(Protocol):
    """A coroutine function that decides how much of a non-empty draft is kept."""

    async def __call__(self, draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        """Verify the draft in a session of its prompt."""
        ...


class SamplingNumbers(Protocol):
    """A function that makes the random numbers a response is sampled with."""

    def __call__(self, prompt: int, sample: int, limit: int, task: Task, context: RolloutContext) -> Noise:
        """Numbers for at most `limit` tokens."""
        ...


def inverse_cdf(prompt: int, sample: int, limit: int, task: Task, context: RolloutContext) -> Inversion:
    """Uniforms of this step, for inverse-CDF sampling."""
    return Inversion(context.streams.uniforms("sampling", prompt, sample, limit))


def reuse_drafts(
    verifier: DraftVerifier, visits_ago: int = 1, fresh_every: int = 0, numbers: SamplingNumbers = inverse_cdf
) -> Strategy:
    """Strategy whose drafts are each sample's earlier rollout: keep the verified prefix, sample the rest.

    Args:
        verifier: decides how much of a draft is kept.
        visits_ago: age of the drafts, from 1; the oldest rollout where there are fewer.
        fresh_every: visits after which a sample is sampled without a draft; 0 for never.
        numbers: random numbers for the sampled tokens.
    """

    async def run(task: Task, context: RolloutContext) -> Group:
        # SPEED-RL continues a prompt in the visit that screened it: rollouts of that visit are no drafts.
        drafts = context.memory.drafts(task.prompt, visits_ago, before=task.visit)
        responses = []
        for sample in indices(task):
            # Samples take turns by the visit's number, whatever happened to them: if old tokens alone were resampled,
            # those that verification had kept would have another distribution than the others, and an exact rule would
            # no longer be exact.
            is_fresh = fresh_every > 0 and (task.visit + sample) % fresh_every == 0
            draft = None if is_fresh else drafts.get(sample)
            responses.append(complete(draft or no_draft(task.prompt, sample), task, context, verifier, numbers))
        return await graded(task, await asyncio.gather(*responses), context)

    return run


def indices(task: Task) -> range:
    """Indices of the samples to make, after those that the task carries."""
    return range(len(task.carried), len(task.carried) + task.samples)


def no_draft(prompt: int, sample: int) -> Rollout:
    """A draft without tokens, for a response that is sampled from its first token."""
    empty = np.zeros(0, dtype=np.int32)
    return Rollout(prompt, sample, empty, np.zeros(0, dtype=np.float32), empty, Finish.LENGTH)


async def complete(
    draft: Rollout,
    task: Task,
    context: RolloutContext,
    verifier: DraftVerifier | None = None,
    numbers: SamplingNumbers = inverse_cdf,
) -> Rollout:
    """Verify a draft, if it has tokens, and sample the rest of the response after the kept prefix.

    Of a draft that was sampled with a larger limit or other end tokens only what is a response today is used.
    """
    (ends,) = np.isin(draft.tokens, list(context.engine.stops)).nonzero()
    draft = draft.leading(min([context.limit, *(ends[:1] + 1)]))
    async with context.engine.session(context.prompts[draft.prompt]) as session:
        kept = Verification(0, draft.log_probs)
        if verifier and draft.length:
            kept = await verifier(draft, session, task, context)
        prefix, remaining = draft.tokens[: kept.prefix], context.limit - kept.prefix
        # A kept end-of-sequence token, or a prefix as long as the limit, makes a whole response without decoding. Empty
        # slices have the right dtype.
        if kept.prefix and int(prefix[-1]) in context.engine.stops:
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], Finish.EOS)
        elif remaining <= 0:
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], Finish.LENGTH)
        else:
            noise = numbers(draft.prompt, draft.sample, remaining, task, context)
            continuation = await session.decode(prefix, remaining, noise, kept.first, context.memory.retention.top)
            if kept.prefix:
                context.meter.cached_tokens += continuation.cached
    with context.meter.assembling():
        sampled_now = np.full(len(continuation.tokens), context.streams.step, dtype=np.int32)
        top = kept.top or draft.top
        return Rollout(
            draft.prompt,
            draft.sample,
            tokens=np.concatenate([prefix, continuation.tokens]),
            log_probs=np.concatenate([kept.log_probs, continuation.log_probs]),
            # kept tokens keep the step at which they were sampled, however often they are reused
            sampled_at=np.concatenate([draft.sampled_at[: kept.prefix], sampled_now]),
            finish=continuation.finish,
            prefix_length=kept.prefix,
            draft_length=draft.length,
            verified=kept.verified,
            top=_joined(top, kept.prefix, continuation.top) if top or continuation.top else None,
            log_weights=None if kept.weights is None else kept.weights.of_response(continuation.tokens),
        )


def _joined(draft: TopLogProbs | None, prefix: int, continuation: TopLogProbs | None) -> TopLogProbs | None:
    """Top-k log-probs of prefix and continuation, cut to the smaller k of the two."""
    parts = [draft.leading(prefix)] if draft and prefix else []
    parts += [continuation] if continuation else []
    if not parts:
        return None
    k = min(part.tokens.shape[1] for part in parts)
    return TopLogProbs(*(np.concatenate([getattr(p, name)[:, :k] for p in parts]) for name in ("tokens", "log_probs")))


async def graded(task: Task, rollouts: Sequence[Rollout], context: RolloutContext) -> Group:
    """The task's group: the samples it carries, and these rollouts with their rewards."""
    rewards = await context.reward(task.prompt, rollouts)
    samples = (Sample(rollout, float(reward)) for rollout, reward in zip(rollouts, rewards, strict=True))
    # Carried samples first, in the order of the indices of samples (`indices`).
    return Group(task.prompt, task.visit, (*task.carried, *samples))
