"""Two epochs of a finished run without reuse, as samples of prompts.

What a rule keeps of a draft needs the draft's log-probabilities under a later policy. Where the run has saved policies
an epoch apart, they are computed (`redraft predict`), for the prompts of the steps that these policies sampled. Else
they are estimated from the tokens that drafts and later responses share (`agreement`), for all prompts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from redraft.errors import UserError
from redraft.lab.advise.agreement import SharedRatios, distribution_of_kept
from redraft.lab.advise.sample import PromptSample
from redraft.lab.predict.draft_positions import read_positions
from redraft.lab.predict.inputs import PredictionInput, load_policies
from redraft.lab.predict.prediction import candidates, log_prob_error
from redraft.lab.predict.saved_rollouts import Draft, SavedRollouts, drafts_of
from redraft.lab.predict.saved_run import SavedRun
from redraft.methods.reuse import Candidate

RESIDUAL, BLOCK = "residual", "block"
MOST_OFF = 0.5
"""Largest distance of two policies from one epoch, in epochs."""
NOTHING_SHARED = "no draft begins with the token of a later response, and no two policies an epoch apart are saved"

Kept = dict[int, dict[str, list[np.ndarray]]]
"""By prompt and rule, for each draft the probabilities of 0 to all of its tokens."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """Samples of a run, and how they were made.

    Attributes:
        rules: the rules, those without a prediction too.
        pairs: policies that give acceptance; none if it is estimated from shared tokens.
        unknown: why there is no prediction, by name of the rule.
        text: epochs, policies and numbers, for people.
    """

    samples: list[PromptSample]
    rules: list[Candidate]
    pairs: list[tuple[int, int]]
    unknown: Mapping[str, str]
    text: str


def read_recorded(
    run: SavedRun, epoch: int | None, lenience: float, device: str, *, with_policies: bool = True
) -> Recorded:
    """Samples of a run from an epoch and the one before.

    Args:
        epoch: counts from 0; the last one if None.
        lenience: of the published rule.
        device: of the policies.
        with_policies: use saved policies that are an epoch apart, if there are any.

    Raises:
        UserError: if no rollouts are saved, there is no epoch before, or the run reuses rollouts.
    """
    epoch = _checked(run, epoch)
    before = run.epoch(epoch - 1)
    drafts, responses = (_by_prompt(run, frame) for frame in (before, run.epoch(epoch)))
    drafts = {prompt: of for prompt, of in drafts.items() if prompt in responses}
    if not drafts:
        raise UserError("no prompt was rolled out in both epochs", file=run.path, key="--epoch", value=epoch)
    rules = [rule for rule in candidates([lenience]) if rule.kind == "speculative" or rule.name in (RESIDUAL, BLOCK)]
    prompts = run.prompts(draft for of in drafts.values() for draft in of)
    kept: Kept = {}
    pairs = _pairs(run, epoch - 1) if with_policies else []
    for start, stop in pairs:
        of_step = set(before.loc[before["step"] == start, "prompt"])
        chosen = {prompt: of for prompt, of in drafts.items() if prompt in of_step}
        kept |= _by_policies(run, (start, stop), chosen, prompts, rules, device) if chosen else {}
    if not kept:
        pairs = []
        leniences = {rule.name: lenience if rule.kind == "speculative" else 1.0 for rule in rules if rule.name != BLOCK}
        kept = by_agreement(drafts, responses, leniences)
    unknown = {} if any(kept.values()) else {rule.name: NOTHING_SHARED for rule in rules}
    samples = [
        PromptSample(prompts[p], [one.tokens for one in drafts[p]], [one.tokens for one in responses[p]], of)
        for p, of in kept.items()
    ]
    return Recorded(samples, rules, pairs, unknown, _text(samples, epoch, pairs))


def _checked(run: SavedRun, epoch: int | None) -> int:
    """The epoch, which has another before it, of a run without reuse whose rollouts are saved."""
    reuse = run.configuration.reuse.kind
    if reuse != "vanilla":
        raise UserError(
            "this run reuses rollouts, so its responses are no independent samples",
            file=run.path / "manifest.json",
            key="configuration.reuse.kind",
            value=reuse,
            allowed="vanilla",
            hint="take the run of the cell without reuse",
        )
    epochs = sorted({step // run.steps_per_epoch for step in run.rollout_steps})
    if not epochs:
        raise UserError("no rollouts of this run are saved", file=run.path, key="rollouts", hint="take another run")
    second = [each for each in epochs if each - 1 in epochs]
    if not second:
        raise UserError(
            "advice needs the rollouts of two successive epochs: those of the earlier one are the drafts",
            file=run.path,
            key="epochs",
            value=epochs,
        )
    if epoch is not None and epoch not in second:
        raise UserError(
            "this epoch has no rollouts, or none before it",
            file=run.path,
            key="--epoch",
            value=epoch,
            allowed=map(str, second),
        )
    return second[-1] if epoch is None else epoch


def _by_prompt(run: SavedRun, frame: pd.DataFrame) -> dict[int, list[Draft]]:
    by_prompt: dict[int, list[Draft]] = defaultdict(list)
    for draft in drafts_of(frame, run.path):
        by_prompt[draft.prompt].append(draft)
    return dict(by_prompt)


def _pairs(run: SavedRun, epoch: int) -> list[tuple[int, int]]:
    """Steps of saved policies that sampled rollouts of an epoch, each with the policy nearest to one epoch later."""
    size, pairs = run.steps_per_epoch, []
    for start in run.policies:
        if start // size == epoch and start in run.rollout_steps:
            stop = min(run.policies, key=lambda step: abs(step - start - size))
            if start < stop and abs(stop - start - size) <= MOST_OFF * size:
                pairs.append((start, stop))
    return pairs


def _by_policies(
    run: SavedRun,
    pair: tuple[int, int],
    drafts: Mapping[int, list[Draft]],
    prompts: Mapping[int, list[int]],
    rules: Sequence[Candidate],
    device: str,
) -> Kept:
    """Distributions over kept lengths from the policy that sampled the drafts and a later one."""
    start, stop = pair
    every = [draft for of in drafts.values() for draft in of]
    saved = SavedRollouts(every, {prompt: prompts[prompt] for prompt in drafts}, [])
    temperature = run.configuration.trainer.temperature
    inputs = PredictionInput(saved, run.policy(stop), run.policy(start), "", temperature)
    positions = read_positions(every, saved.prompts, *load_policies(inputs, device, run.path), temperature=temperature)
    log_prob_error(positions, inputs.drafter)  # raises if the drafts are not the drafter's
    kept: Kept = {prompt: {rule.name: [] for rule in rules} for prompt in drafts}
    for draft, at in zip(every, positions, strict=True):
        for rule in rules:
            kept[draft.prompt][rule.name].append(rule.distribution_of_kept(at))
    return kept


def by_agreement(
    drafts: Mapping[int, Sequence[Draft]], responses: Mapping[int, Sequence[Draft]], leniences: Mapping[str, float]
) -> Kept:
    """Distributions over kept lengths from the tokens that drafts and responses of a prompt share.

    Args:
        drafts: by prompt, as `responses`.
        leniences: of rules that accept from the left with probability min(1, l p / q), by name; block is added.

    Returns:
        No rule for any prompt if no token is shared.
    """
    shared = SharedRatios.of((of, responses[prompt]) for prompt, of in drafts.items())
    if shared is None:
        return {prompt: {} for prompt in drafts}
    longest = max(len(draft.tokens) for of in drafts.values() for draft in of)
    reached = {rule: shared.from_the_left(lenience, longest) for rule, lenience in leniences.items()}
    reached[BLOCK] = shared.by_block(longest)
    return {
        prompt: {
            rule: [distribution_of_kept(tail, len(draft.tokens)) for draft in of] for rule, tail in reached.items()
        }
        for prompt, of in drafts.items()
    }


def _text(samples: Sequence[PromptSample], epoch: int, pairs: Sequence[tuple[int, int]]) -> str:
    """What the advice knows."""
    lengths = [len(tokens) for sample in samples for tokens in sample.responses]
    source = (
        "from policies before and after: " + ", ".join(f"{start} and {stop}" for start, stop in pairs)
        if pairs
        else "estimated from tokens that drafts and responses share"
    )
    return (
        f"{len(lengths)} responses of {len(samples)} prompts in epoch {epoch} (from 0), "
        f"{sum(lengths) / len(lengths):.1f} tokens each; drafts of epoch {epoch - 1}. Acceptance {source}."
    )
