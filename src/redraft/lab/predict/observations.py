"""Measurements on a real training run: how far its policies drift, and what each rule would keep of its rollouts.

Own drafts are the run's saved rollouts, on which it trained. Held-out drafts are sampled from the same policy for the
same prompts with other random numbers, and nothing trained on them. A rule's exactness assumes drafts that are
independent of the current policy given q, as held-out drafts are. The difference between the two is the effect of
training on the drafts.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.files import sha256
from redraft.lab.predict.draft_positions import read_positions
from redraft.lab.predict.jackknife import by_prompt, estimate, ratio
from redraft.lab.predict.prediction import TOP, candidates, expected_kept, log_prob_error
from redraft.lab.predict.saved_rollouts import Draft
from redraft.lab.predict.saved_run import SavedRun, open_run
from redraft.methods.acceptance.positions import Positions
from redraft.methods.reuse import Candidate
from redraft.methods.vanilla import vanilla
from redraft.ops.locking.devices import devices
from redraft.result_files import write_with_hash
from redraft.rollout.context import Meter, RolloutContext, Streams, no_reward
from redraft.rollout.memory import Memory
from redraft.rollout.types import Task
from redraft.train import models

QUANTILES = (0.1, 0.5, 0.9)
Tokens = dict[int, list[int]]
"""Tokens of each prompt."""


def observe_run(run_folder: Path, initial: Path, file: Path) -> None:
    """Write `observe` of a finished run without reuse as JSON."""
    with devices(min(open_run(run_folder).configuration.engine.gpus, 1), str(file.parent)):
        write_with_hash(file, observe(run_folder, initial))


def observe(run_folder: Path, initial: Path) -> dict[str, Any]:
    """`measure_pair` for all consecutive pairs of a run's saved policies, and the hash of its manifest.

    Each prompt has one held-out draft for each sample of a group.

    Raises:
        UserError: if the initial policy is not the run's, or all of a policy's rollouts have drafts.
    """
    run = open_run(run_folder, initial)
    torch.set_num_threads(run.configuration.engine.threads)
    steps = list(run.policies)
    size = run.configuration.trainer.group_size
    pairs = [measure_pair(run, start, stop, size) for start, stop in pairwise(steps)]
    return {"pairs": pairs, "made_from": {"manifest.json": sha256(run_folder / "manifest.json")}}


def measure_pair(run: SavedRun, start: int, stop: int, held_out: int) -> dict[str, Any]:
    """Drafts of the policy after `start` steps under that after `stop`, with `held_out` held-out drafts of each prompt.

    Returns:
        total variation of the policies at the positions of own drafts, and one row per rule for own and for held-out
        drafts, ready for JSON. `share` is kept over draft tokens of each draft, averaged over drafts.
    """
    device = models.device_of(run.configuration.engine.device)
    (drafter, _), (policy, _) = (models.load(run.policy(step)) for step in (start, stop))
    for model in (drafter, policy):
        model.to(device)
    own = run.drafts(start)
    prompts = run.prompts(own)
    # A tiny vocabulary may be smaller than the number of stored tokens.
    rules = candidates(top=min(TOP, policy.config.vocab_size))
    read = partial(
        read_positions,
        prompts=prompts,
        policy=policy,
        drafter=drafter,
        temperature=run.configuration.trainer.temperature,
    )
    positions = read(own)
    log_prob_error(positions, run.policy(start))  # raises if the drafts are not this policy's
    stops = models.stop_tokens(drafter)
    fresh = _sample_held_out(run, drafter, stops, prompts, start, held_out) if held_out else []
    held_out_positions = read(fresh) if fresh else []
    overlap = np.concatenate([at.both.overlap for at in positions if at.both])
    # Total variation is 1 less the overlap, the sum of min(p, q).
    quantiles = np.quantile(1 - overlap, QUANTILES)
    return {
        "from": start,
        "to": stop,
        "epochs_between": run.epochs(start, stop),
        "prompts": len(prompts),
        "tv": {
            "mean": float(1 - overlap.mean()),
            "quantiles": {str(at): float(value) for at, value in zip(QUANTILES, quantiles, strict=True)},
        },
        "beta_mean": float(overlap.mean()),
        "own": [_row(rule, own, positions) for rule in rules],
        "held_out": [_row(rule, fresh, held_out_positions) for rule in rules] if fresh else [],
    }


def _row(rule: Candidate, drafts: Sequence[Draft], positions: Sequence[Positions]) -> dict[str, Any]:
    kept, lengths = expected_kept(rule, positions), np.array([len(draft.tokens) for draft in drafts])
    columns = {"drafts": np.ones(len(drafts)), "kept": kept.tokens, "share": kept.tokens / lengths}
    sums = by_prompt([draft.prompt for draft in drafts], columns)
    tokens, share = (estimate(sums, ratio(name, "drafts")) for name in ("kept", "share"))
    return {
        "rule": rule.name,
        "exact": rule.exact,
        "drafts": len(drafts),
        "draft_tokens": float(lengths.mean()),
        "kept_tokens": tokens.value,
        "kept_low": _known(tokens.low),
        "kept_high": _known(tokens.high),
        "share": share.value,
        "share_low": _known(share.low),
        "share_high": _known(share.high),
        "whole": float(kept.whole.mean()),
    }


def _known(end: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(end) else end


def _sample_held_out(
    run: SavedRun, drafter: Any, stops: frozenset[int], prompts: Tokens, step: int, count: int
) -> list[Draft]:
    """`count` new responses to each prompt, with random numbers that no rollout of the run used."""
    limit, engine = run.configuration.trainer.max_response_tokens, run.configuration.engine
    longest = limit + max(map(len, prompts.values()))
    sampler = TorchEngine(
        drafter,
        stops=stops,
        max_length=longest,
        max_rows=engine.max_rows,
        max_batched_tokens=engine.max_batched_tokens,
        temperature=run.configuration.trainer.temperature,
    )
    # A stream of another name: no random number of the run is used again.
    memory, streams = Memory(Retention()), Streams(run.configuration.seed, step, "held-out")
    context = RolloutContext(sampler, no_reward, memory, Meter(), streams, prompts, limit)
    groups = sampler.run(*(vanilla(Task(prompt, 0, count), context) for prompt in prompts))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return [Draft(rollout.prompt, rollout.tokens, rollout.log_probs) for rollout in rollouts]
