"""Quantities in words: what a person reads in place of `mean@2-101:generation_seconds`, with its unit and theme."""

import re
from dataclasses import dataclass, replace

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
        return f"{self.name} ({self.unit})" if self.unit else self.name


def _named(theme: str, unit: str, **names: str) -> dict[str, Words]:
    return {quantity: Words(name, unit, theme) for quantity, name in names.items()}


THIRDS = {"early": "first", "middle": "second", "late": "last"}
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
        rollouts_per_batch="responses an update batch",
        rollouts_per_prompt="responses a prompt",
        responses="responses",
    ),
    **_named(
        TIME,
        "s",
        rollout_seconds="rollout time",
        generation_seconds="generation time",
        step_seconds="training time",
        quantisation_seconds="time of quantisation",
        rollout_seconds_first_epoch="rollout time a step in epoch 1",
        rollout_seconds_last_epoch="rollout time a step in the last epoch",
        rollout_seconds_reuse_epochs="rollout time a step from epoch 2 on",
    ),
    **_named(TIME, "h", hours="training time"),
    **_named(TIME, "", tail_share="share of decoding time in the tail"),
    **_named(
        TIME, "%", generation_change_percent="change of generation time", step_change_percent="change of a step's time"
    ),
    **_named(
        REUSE,
        "",
        reuse_share="share of tokens from drafts",
        prefix_share="share of a draft kept",
        **{f"prefix_share_{part}": f"share of a draft kept, {which} third" for part, which in THIRDS.items()},
        full_reuse_ratio="share of drafts kept whole",
        first_reuse_step="first step with drafts",
        block_efficiency="tokens of a block (τ)",
        token_acceptance="acceptance of a token (α)",
        acceptance="share of proposals kept",
        speculated_passes="share of passes that speculate",
        plain_positions="share of the longest response before speculation",
        draft_length="proposals of a block (γ)",
        **{f"kept_at.{place}": f"share of proposals kept at place {place}" for place in range(1, 17)},
    ),
    **_named(
        REUSE,
        "tokens",
        prefix_length="verified prefixes",
        **{f"prefix_length_{part}": f"verified prefixes, {which} third" for part, which in THIRDS.items()},
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
    **_named(TRAINING, "nats a token", drift="drift"),
    **_named(
        TRAINING, "nats", entropy="entropy", kl="logged KL", kl_max="largest logged KL", fresh_kl="KL on new samples"
    ),
    **_named(
        DIVERSITY,
        "",
        distinct_1="distinct unigrams",
        self_bleu="Self-BLEU",
        self_bleu_within="Self-BLEU in groups",
        rouge_1_second_epoch="ROUGE-1 with the epoch before, epoch 2",
        rouge_1_last_epoch="ROUGE-1 with the epoch before, last epoch",
        rouge_1="ROUGE-1 with the epoch before",
    ),
}
"""Words of the quantities of a step or run by their names without a reduction."""

REDUCED = {
    "first_epoch": "{}, epoch 1",
    "last_epoch": "{}, last epoch",
    "reuse_epochs": "{}, from epoch 2 on",
    "max": "largest {}",
    "sum": "{}",
    "mean": "{}",
}
"""Words of a reduction over steps around those of the quantity."""


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
    return Words("mean accuracy" if names == "all" else f"accuracy, {names.replace('+', ' and ')}", "%", ACCURATE)


def _reached(quantity: str) -> Words | None:
    if not quantity.startswith(tuple(FIRST_REACHED)):
        return None
    clock, value, measured = quantity.split(":", 2)
    target = words(measured)
    return Words(f"{clock.partition('_')[0]} to {value} {target.unit} {target.name}", "", TIME)


def _at_equal(quantity: str) -> Words | None:
    if not quantity.startswith(AT_EQUAL):
        return None
    spent, _, bought = quantity.removeprefix(AT_EQUAL).split(":", 2)
    budget = "training time" if spent == "seconds.total" else words(spent).name
    return replace(words(bought), name=f"{words(bought).name}, at equal {budget}")


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
    if quantity.startswith((SECONDS, "seconds.")):
        stage = re.split("[:.]", quantity, maxsplit=1)[1].replace("_", " ")
        return Words("time of a step" if stage == "total" else f"time of {stage} a step", "s", TIME)
    name, colon, inner = quantity.partition(":")
    if not colon:
        return None
    found = words(inner)
    if window := WINDOW.fullmatch(name):
        return replace(found, name=f"{REDUCED[window[1]].format(found.name)}, steps {window[2]} to {window[3]}")
    return replace(found, name=REDUCED[name].format(found.name)) if name in REDUCED else None


def in_words(text: str, quantities: list[str]) -> str:
    """A text in which quantities are named, with their words in place of the names and a true minus before numbers."""
    for quantity in sorted(set(quantities), key=len, reverse=True):
        text = text.replace(quantity, words(quantity).text)
    return re.sub(r"(?<=[ \[])-(?=\d)", "\N{MINUS SIGN}", text)
