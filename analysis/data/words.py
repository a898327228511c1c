"""Quantities in words: what a person reads in place of `mean@2-101:generation_seconds`, with its unit and theme."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from redraft.config.quantities import ACCURACY, AT_EQUAL, BIN, CORRELATION, FIRST_REACHED, SECONDS, WINDOW

COST, TIME, ACCURATE, REUSE, TRAINING, DIVERSITY = (
    "Tokens and responses",
    "Time",
    "Accuracy",
    "Reuse and acceptance",
    "Training",
    "Diversity",
)
THEMES = (COST, TIME, ACCURATE, REUSE, TRAINING, DIVERSITY)
"""Themes of claims, in the report's order."""


@dataclass(frozen=True)
class Words:
    """A quantity's name, its unit (empty for a pure number), and the theme that it belongs to."""

    name: str
    unit: str
    theme: str

    @property
    def text(self) -> str:
        """Name and unit."""
        return self._with(self.unit)

    @property
    def of_differences(self) -> str:
        """The same of a difference: that of two percentages is in points."""
        return self._with("points" if self.unit == "%" else self.unit)

    def _with(self, unit: str) -> str:
        if not unit:
            return self.name
        # `(steps 2 to 101, s)` instead of two brackets in a row.
        return f"{self.name[:-1]}, {unit})" if self.name.endswith(")") else f"{self.name} ({unit})"


def _named(theme: str, unit: str, **names: str) -> dict[str, Words]:
    return {quantity: Words(name, unit, theme) for quantity, name in names.items()}


THIRDS = {"early": "first", "middle": "middle", "late": "last"}
"""Parts of the epochs with drafts."""

NAMES = {
    **_named(COST, "tokens", response_length="length of responses"),
    **_named(
        COST,
        "",
        tokens_decoded="decoded tokens",
        tokens_verified="verified tokens",
        tokens_reused="reused tokens",
        rollouts="responses",
        rollouts_per_batch="responses per update batch",
        rollouts_per_prompt="responses per prompt",
        responses="responses",
    ),
    **_named(
        TIME,
        "s",
        rollout_seconds="rollout time",
        generation_seconds="generation time",
        step_seconds="training time",
        quantisation_seconds="quantisation time",
        rollout_seconds_first_epoch="rollout time per step (epoch 1)",
        rollout_seconds_last_epoch="rollout time per step (last epoch)",
        rollout_seconds_reuse_epochs="rollout time per step (from epoch 2)",
    ),
    **_named(TIME, "h", hours="training time"),
    **_named(TIME, "", tail_share="share of decoding time in the tail"),
    **_named(
        TIME, "%", generation_change_percent="change of generation time", step_change_percent="change of step time"
    ),
    **_named(
        REUSE,
        "",
        reuse_share="share of tokens from drafts",
        prefix_share="share of a draft kept",
        **{
            f"prefix_share_{part}": f"share of a draft kept, {which} third of epochs with drafts"
            for part, which in THIRDS.items()
        },
        full_reuse_ratio="share of drafts kept whole",
        first_reuse_step="first step with drafts",
        decoding_passes="decoding passes",
        tokens_per_pass="tokens per decoding pass",
        block_efficiency="tokens per block (τ)",
        token_acceptance="acceptance per token (α)",
        acceptance="share of proposals kept",
        speculated_passes="share of passes that speculate",
        plain_positions="share of the longest response before speculation",
        draft_length="proposals per block (γ)",
        **{f"kept_at.{place}": f"share of proposals kept at position {place}" for place in range(1, 17)},
    ),
    **_named(
        REUSE,
        "tokens",
        prefix_length="length of verified prefixes",
        **{
            f"prefix_length_{part}": f"length of verified prefixes, {which} third of epochs with drafts"
            for part, which in THIRDS.items()
        },
    ),
    **_named(
        TRAINING,
        "",
        reward="reward",
        fresh_reward="reward of new samples",
        trained_reward="training accuracy",
        clip_fraction="share of clipped tokens",
        clip_fraction_max="largest share of clipped tokens",
        lenience="lenience",
        mean_weight="mean importance weight",
        effective_samples="effective share of samples",
        gradient_norm="gradient norm",
        informative="share of informative prompts",
        without_correct="share of prompts without a correct response",
        without_correct_after_reuse="share of prompts without a correct response, after reuse",
        all_correct="share of prompts with all responses correct",
        from_half="distance of training accuracy from one half",
        pass_rate_so_far="pass rate so far",
        pass_rate_before="pass rate before",
        initial_pass_rate="pass rate under the initial policy",
        correct="correct responses",
        updated="update batches",
        training_steps="update batches",
        generation_steps="generation steps",
    ),
    **_named(TRAINING, "nats per token", drift="drift"),
    **_named(
        TRAINING, "nats", entropy="entropy", kl="logged KL", kl_max="largest logged KL", fresh_kl="KL on new samples"
    ),
    **_named(
        DIVERSITY,
        "",
        distinct_1="distinct unigrams",
        self_bleu="Self-BLEU",
        self_bleu_within="Self-BLEU in groups",
        rouge_1_second_epoch="ROUGE-1 of epoch 2's responses against those of epoch 1",
        rouge_1_last_epoch="ROUGE-1 of the last epoch's responses against those of the epoch before",
        rouge_1="ROUGE-1 against the responses of the epoch before",
    ),
}
"""Words of the quantities of a step or run by their names without a reduction."""

ADDED = (
    *("tokens_decoded", "tokens_verified", "tokens_reused", "rollouts", "updated"),
    *("rollout_seconds", "generation_seconds"),
)
"""Quantities of a step that add up: their words mean the sum over a run, and those of other reductions say per step."""

REDUCED = {
    "first_epoch": "{} (epoch 1)",
    "last_epoch": "{} (last epoch)",
    "reuse_epochs": "{} (from epoch 2)",
    "max": "largest {}",
    "sum": "{}",
    "mean": "{}",
}
"""Words of a reduction over steps around those of the quantity."""

STAGES = {
    "total": "step time",
    "update_actor": "policy-update time per step",
    "update_critic": "critic-update time per step",
    "old_log_probs": "time for old log-probabilities per step",
    "ref": "time for reference log-probabilities per step",
    "values": "time for critic values per step",
    "adv": "time for advantages per step",
}
"""Words of the seconds of a stage, where they are not its name and `time per step`."""
ROLES = ("in-distribution", "out-of-distribution")
"""Roles of benchmarks, by which accuracies are averaged."""


def words(quantity: str) -> Words:
    """Words of a quantity of a run; the name itself without underscores where there are no others."""
    for read in (_accuracy, _reached, _at_equal, _binned, _correlated, _reduced):
        if found := read(quantity):
            return found
    return NAMES.get(quantity, Words(quantity.replace("_", " "), "", TRAINING))


def _accuracy(quantity: str) -> Words | None:
    if not quantity.startswith(ACCURACY):
        return None
    names = quantity.removeprefix(ACCURACY)
    if names in ROLES:
        return Words(f"{names} accuracy", "%", ACCURATE)
    return Words("mean accuracy" if names == "all" else f"accuracy on {names.replace('+', ' and ')}", "%", ACCURATE)


def _reached(quantity: str) -> Words | None:
    if not quantity.startswith(tuple(FIRST_REACHED)):
        return None
    clock, value, measured = quantity.split(":", 2)
    target = words(measured)
    return Words(" ".join(filter(None, (clock.partition("_")[0], "to", value, target.unit, target.name))), "", TIME)


def _at_equal(quantity: str) -> Words | None:
    if not quantity.startswith(AT_EQUAL):
        return None
    spent, _, bought = quantity.removeprefix(AT_EQUAL).split(":", 2)
    budget = "training time" if spent == "seconds.total" else words(spent).name
    return replace(words(bought), name=f"{words(bought).name} at equal {budget}")


def _binned(quantity: str) -> Words | None:
    if not (found := BIN.fullmatch(quantity)):
        return None
    low, high, by, what = found.groups()
    inner = Words("share of prompts", "", TRAINING) if what == "share" else words(what)
    return replace(inner, name=f"{inner.name} where {words(by).name} is {low} to {high}")


def _correlated(quantity: str) -> Words | None:
    if not quantity.startswith(CORRELATION):
        return None
    one, other = (words(name) for name in quantity.removeprefix(CORRELATION).split(":"))
    return Words(f"correlation of {one.name} with {other.name}", "", one.theme)


def _reduced(quantity: str) -> Words | None:
    if stage := stage_of(quantity):
        return Words(STAGES.get(stage, f"{stage.replace('_', ' ')} time per step"), "s", TIME)
    name, colon, inner = quantity.partition(":")
    if not colon:
        return None
    window = WINDOW.fullmatch(name)
    reduction = window[1] if window else name
    if reduction not in REDUCED:
        return None
    found = words(inner)
    if reduction == "sum":
        named = "training time" if inner == "seconds.total" else found.name.removesuffix(" per step")
    else:
        named = f"{found.name} per step" if inner in ADDED else found.name
    named = REDUCED[reduction].format(named)
    return replace(found, name=f"{named} (steps {window[2]} to {window[3]})" if window else named)


def stage_of(quantity: str) -> str:
    """The stage of a step whose seconds a quantity is; empty if it is another one."""
    return re.split("[:.]", quantity, maxsplit=1)[1] if quantity.startswith((SECONDS, "seconds.")) else ""


def difference_of(earlier: str, later: str) -> str:
    """Words of one quantity minus another, with their unit."""
    return replace(words(later), name=joined(later, "minus", earlier)).of_differences


def joined(one: str, sign: str, other: str) -> str:
    """Names of two quantities with a sign between them; the part before a comma that both have is there once."""
    first, second = words(one).name, words(other).name
    head, comma, tail = second.partition(", ")
    return f"{first} {sign} {tail if comma and first.startswith(head + comma) else second}"


def number(value: float) -> str:
    """Four significant digits, or all digits before the decimal point; millions in words."""
    if 1e6 <= abs(value) < math.inf:
        return f"{value / 1e6:.4g} million"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


def with_minus(text: str) -> str:
    """The text with a true minus before numbers."""
    # After a space or bracket only: names such as grpo-spec-l0.5 keep their hyphens.
    return re.sub(r"(?<=[ \[])-(?=\d)", "\N{MINUS SIGN}", text)


def machine_text(recorded: Mapping[str, Any]) -> str:
    """Processor, cores and GPUs of a recorded machine in words."""
    gpus = [f"{count} × {name}" for name, count in Counter(recorded.get("gpus", [])).items()]
    return ", ".join([recorded["processor"], f"{recorded['cores']} cores", *gpus])
