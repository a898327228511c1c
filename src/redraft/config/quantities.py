"""Names of quantities, checked when tables, claims and figures are read (docs/metrics.md).

`redraft.analysis.data.quantities` measures them. A name is checked here, and not against the records of finished runs,
so that a misspelled one is reported before anything is trained.
"""

import math
import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from redraft.config.base import STEP_STAGES, Quantity, invalid, near
from redraft.config.decoding import BLOCK_STARTS, LONGEST_DRAFT

ACCURACY = "accuracy:"
"""Prefix of the accuracies, percent: of a benchmark, of several joined by `+` or a role (their mean), or `all`."""
EACH = f"{ACCURACY}*"
"""Quantity of a table's column that is expanded to one absolute column per benchmark."""
SECONDS = "seconds:"
"""Prefix of the mean seconds a step of a stage, or `total`."""
SPEEDUP = "speedup:"
"""Prefix of a table column's quantity that compares the times of a cell and its baseline."""
CORRELATION = "correlation:"
"""Prefix of Pearson's coefficient of two quantities of a step: `correlation:entropy:block_efficiency`."""
AT_EQUAL = "at_equal:"
"""Prefix of an accuracy at the budget that the runs of several cells all reach in a seed."""
FIRST_REACHED = {"hours_to:": "hours_to:<value>:<quantity>", "steps_to:": "steps_to:<value>:<quantity>"}
"""Prefix of the first hour, or number of steps, at which a quantity is not below a value, to its form. With a `+`
before it, the value counts from the accuracy of the initial policy."""
REDUCTIONS = ("sum", "mean", "max", "first_epoch", "last_epoch", "reuse_epochs")
"""Prefixes that turn a quantity of a step into one of the run."""
WINDOW = re.compile(r"(sum|mean|max)@(\d{1,9})-(\d{1,9})")
"""Prefix of a sum, mean or maximum over some steps, which count from 1."""
BIN = re.compile(r"bin@(\d+\.?\d*|\.\d+)-(\d+\.?\d*|\.\d+):(\w+):(\w+)")
"""A quantity of prompts in a bin: lower and upper edge, quantity of a prompt that selects the bin, and quantity."""
SHARE = "share"
"""Quantity of a bin: the share of prompts in it."""
INITIAL_PASS_RATE = "initial_pass_rate"
"""Quantity that selects a bin of the training prompts that the preset's `probe` sampled with the initial policy."""

PREDICTED = "predicted_seconds."
"""Prefix of the seconds that a step's rollout would take on a device with a known roofline."""

KINDS_OF_SPEEDUP = ("printed", "honest", "step", "end_to_end", "controlled")
"""Kinds of speedup (`redraft.analysis.data.timing`)."""
PROMPT_QUANTITIES = (
    *("pass_rate", "pass_rate_so_far", "pass_rate_before", "responses", "response_length", "prefix_length"),
    "draft_length",
)
"""Quantities of a prompt in an epoch pass."""
SPECULATION_FIELDS = (
    *("draft_length", "block_efficiency", "acceptance", "speculated_passes", "drafting_seconds"),
    *("block_verification_seconds", "quantisation_seconds", "quantisation_error"),
    *("blocks", "proposed", "kept", "history_tokens", "head_loss", "head_training_seconds"),
    *(f"kept_at.{place}" for place in range(1, LONGEST_DRAFT + 1)),
    *(f"{name}.{start}" for name in ("kept_from", "proposed_from") for start in BLOCK_STARTS),
)
"""Fields of the step records of runs that speculate."""
FIELDS = (
    *("epoch", "training_step", "updated"),
    *("rollouts", "rollouts_per_prompt", "tokens_decoded", "tokens_verified", "tokens_reused", "tokens_cached"),
    *("response_length", "truncated", "prefix_length", "prefix_share", "full_reuse_ratio", "token_age_epochs"),
    *("tail_share", "decoding_passes", "reward", "fresh_reward", "grading_seconds"),
    *("informative", "without_correct", "replayed"),
    *("trained_rollouts", "trained_reward", "trained_age", "entropy", "drift", "kl", "fresh_kl", "clip_fraction"),
    *("gradient_norm", "critic_loss", "critic_gradient_norm", "mean_weight", "effective_samples", "lenience"),
    *("log_prob_gap", "log_prob_gap_max"),
    *SPECULATION_FIELDS,
    *(f"{PREDICTED}{device}" for device in ("a100", "h100")),
    *(f"seconds.{stage}" for stage in (*STEP_STAGES, "total")),
    *("distinct_1", "distinct_2", "self_bleu", "self_bleu_within", "distinct_within"),
    *("rouge_1_recall", "rouge_1_precision", "rouge_1", "distinct_trajectories", "trajectories_share"),
    *("token_age_steps", "token_age_steps_max", "repeats_spread"),
)
"""Numbers that a step's record, its diversity and its repeats may have, except the counts of schedules."""
DERIVED = (
    *("rollout_seconds", "generation_seconds", "without_correct_after_reuse", "all_correct", "token_acceptance"),
    *("plain_positions", "tokens_per_pass"),
    *(f"token_acceptance_from.{start}" for start in BLOCK_STARTS),
)
"""Quantities of a step that are computed from several fields."""
REUSE_EPOCHS = (
    *("prefix_length", "prefix_share", "full_reuse_ratio", "entropy", "kl", "fresh_kl", "clip_fraction"),
    *("distinct_1", "self_bleu", "self_bleu_within"),
)
"""Quantities of a step whose name means, for a run, the mean without the first epoch, which has no drafts."""
NAMED = {
    **{name: f"sum:{name}" for name in ("tokens_decoded", "tokens_verified")},
    **{"rollout_seconds": "sum:seconds.rollout", "step_seconds": "sum:seconds.total"},
    **{name: f"reuse_epochs:{name}" for name in REUSE_EPOCHS},
    **{name: f"last_epoch:{name}" for name in ("token_age_epochs", "reward", "fresh_reward")},
    **{name: f"mean:{name}" for name in ("informative", "response_length")},
    **{"kl_max": "max:kl", "clip_fraction_max": "max:clip_fraction", "rouge_1_last_epoch": "last_epoch:rouge_1"},
    **{f"rollout_seconds_{part}": f"{part}:seconds.rollout" for part in ("first_epoch", "last_epoch", "reuse_epochs")},
    **{f"{SECONDS}{stage}": f"mean:seconds.{stage}" for stage in (*STEP_STAGES, "total")},
}
"""Name of a quantity of a run to the reduction and the quantity of a step that it means."""


def of_step(quantity: str) -> str:
    """Quantity of a step that a quantity of a run is made of: `drift` of `reuse_epochs:drift`; else its last part.

    Empty for a correlation, which has no unit.
    """
    return "" if quantity.startswith(CORRELATION) else NAMED.get(quantity, quantity).rpartition(":")[2]


RUN_QUANTITIES = (
    *NAMED,
    *("generation_seconds", "rouge_1_second_epoch", "hours", "generation_steps", "training_steps"),
    *("rollouts_per_batch", "reuse_share", "from_half", "first_reuse_step"),
    *(f"{of}_{part}" for of in ("prefix_length", "prefix_share") for part in ("early", "middle", "late")),
)
"""Quantities of a run with a name of their own."""
SHARES = (
    *("updated", "truncated", "prefix_share", "full_reuse_ratio", "tail_share", "reward", "fresh_reward"),
    *("informative", "without_correct", "replayed", "trained_reward", "clip_fraction", "effective_samples"),
    *("acceptance", "speculated_passes", *(f"kept_at.{place}" for place in range(1, LONGEST_DRAFT + 1))),
    *("distinct_1", "distinct_2", "self_bleu", "self_bleu_within", "distinct_within", "trajectories_share"),
    *("rouge_1_recall", "rouge_1_precision", "rouge_1", "without_correct_after_reuse", "all_correct"),
    *("token_acceptance", "plain_positions", *(f"token_acceptance_from.{start}" for start in BLOCK_STARTS)),
)
"""Quantities of a step between 0 and 1."""
RUN_SHARES = ("rouge_1_second_epoch", "reuse_share", *(f"prefix_share_{part}" for part in ("early", "middle", "late")))
"""Quantities of a run between 0 and 1 that are not in `NAMED`."""
SIGNED = ("drift", "kl", "fresh_kl", "critic_loss", "log_prob_gap", "log_prob_gap_max")
"""Quantities of a step that may be negative, at least as estimates. All others are not."""
RATES = ("pass_rate", "pass_rate_so_far", "pass_rate_before", INITIAL_PASS_RATE, SHARE)
"""Quantities of a prompt, or of a bin, between 0 and 1."""
Bounds = tuple[float, float]
"""Smallest and largest possible value."""
POSITIVE, UNIT, PERCENT = (0.0, math.inf), (0.0, 1.0), (0.0, 100.0)
FORMS = (
    f"{ACCURACY}<benchmark, role or all>",
    *(f"{name}:<quantity of a step>" for name in REDUCTIONS),
    "mean@<first step>-<last step>:<quantity of a step>",
    f"{CORRELATION}<quantity of a step>:<quantity of a step>",
    "bin@<low>-<high>:<quantity of a prompt that selects the bin>:<quantity of a prompt, or share>",
    f"{AT_EQUAL}<quantity of a step>:<cells joined by +>:{ACCURACY}<benchmark, role or all>",
    *FIRST_REACHED.values(),
)
"""Forms of all other quantities of a run."""


@cache
def fields() -> frozenset[str]:
    """Names of all numbers of a step, with the counts of all registered schedules."""
    from redraft.methods.schedule import ScheduleMethod  # here, since it imports `redraft.config`

    return frozenset(FIELDS).union(*(kind.counted for kind in ScheduleMethod.registered()))


def step_quantities() -> frozenset[str]:
    """Names of all quantities of a step."""
    return fields() | set(DERIVED)


def similar(name: str, known: Iterable[str]) -> str:
    """The names closest to `name`; all known names if none is close."""
    names = list(known)
    close = near(name, names)
    return ", ".join(close if len(close) < len(names) else sorted(names))


def bounds_of_step(quantity: str) -> Bounds:
    """Smallest and largest possible value of a quantity of a step."""
    if quantity in SIGNED:
        return -math.inf, math.inf
    return UNIT if quantity in SHARES else POSITIVE


def bounds_of_run(quantity: str) -> Bounds:
    """Smallest and largest possible value of a valid quantity of a run."""
    quantity = NAMED.get(quantity, quantity)
    name, _, rest = quantity.partition(":")
    if quantity in RUN_QUANTITIES:
        # `from_half` is the distance of a share from one half.
        return UNIT if quantity in RUN_SHARES else (0.0, 0.5) if quantity == "from_half" else POSITIVE
    if quantity.startswith((ACCURACY, AT_EQUAL)):
        return PERCENT
    if f"{name}:" == CORRELATION:
        return -1.0, 1.0
    if binned := BIN.fullmatch(quantity):
        return UNIT if binned[4] in RATES else POSITIVE
    if f"{name}:" in FIRST_REACHED:
        return POSITIVE
    low, high = bounds_of_step(rest)
    # A sum of shares may exceed 1.
    return low, math.inf if name.startswith("sum") else high


def canonical(quantity: str) -> str:
    """One of the spellings of a valid quantity of a run that mean the same number."""
    name, _, rest = NAMED.get(quantity, quantity).partition(":")
    if f"{name}:" == ACCURACY:
        # A mean over benchmarks does not depend on their order.
        return ACCURACY + "+".join(sorted(set(rest.split("+"))))
    # Without leading zeros.
    if window := WINDOW.fullmatch(name):
        name = f"{window[1]}@{int(window[2])}-{int(window[3])}"
    return f"{name}:{'seconds.rollout' if rest == 'rollout_seconds' else rest}"


def check_accuracy(quantity: str, benchmarks: Collection[str] = ()) -> None:
    """Raise a ValueError unless all names of `accuracy:<a>+<b>` are benchmarks; without benchmarks any name is one."""
    for name in quantity.removeprefix(ACCURACY).split("+"):
        if not name or (benchmarks and name not in benchmarks):
            raise invalid("no such benchmark or role", similar(name, benchmarks) or FORMS[0])


def check_step(quantity: str) -> None:
    """Raise a ValueError unless this is a quantity of a step."""
    if quantity not in (known := step_quantities()):
        raise invalid("no such quantity of a step", similar(quantity, known))


def check_prompt(quantity: str, share: bool = False) -> None:
    """Raise a ValueError unless this is a quantity of a prompt, or with `share` the share of prompts in a bin."""
    known = [*PROMPT_QUANTITIES, *([SHARE] if share else [])]
    if quantity not in known:
        raise invalid("no such quantity of a prompt", ", ".join(known))


def check_run(quantity: str, benchmarks: Collection[str] = (), cells: Collection[str] = ()) -> None:
    """Check that this is a quantity of a run.

    Args:
        quantity: name or form (docs/metrics.md).
        benchmarks: names of benchmarks and roles; if empty, every name is one.
        cells: names of cells; if empty, every name is one.

    Raises:
        ValueError: if it is not; what is allowed are the closest names.
    """
    name, colon, rest = quantity.partition(":")
    if quantity in RUN_QUANTITIES:
        return
    if quantity.startswith(ACCURACY):
        check_accuracy(quantity, benchmarks)
    elif f"{name}:" in FIRST_REACHED:
        _check_first_reached(quantity, benchmarks)
    elif f"{name}:" == AT_EQUAL:
        _check_at_equal(rest, benchmarks, cells)
    elif f"{name}:" == CORRELATION:
        one, other = _parts(quantity, rest, 2)
        check_step(one)
        check_step(other)
        if one == other:
            raise invalid(f"{one} is correlated with itself", "another quantity of a step")
    elif name.startswith("bin@"):
        _check_bin(quantity)
    elif "@" in name:
        _check_window(name)
        check_step(rest)
    elif colon and name in REDUCTIONS:
        check_step(rest)
    else:
        # Combinations with a prefix only for a name that has one: there are thousands.
        known = [*RUN_QUANTITIES, *(f"{prefix}:{each}" for prefix in REDUCTIONS for each in step_quantities() if colon)]
        close = near(quantity, known)
        named = close if len(close) < len(known) else [*RUN_QUANTITIES, *FORMS]
        raise invalid("no such quantity of a run", ", ".join(named))


def _parts(quantity: str, rest: str, count: int) -> list[str]:
    """The parts after a prefix, separated by colons."""
    # The last part may contain colons, as `accuracy:…` does.
    parts = rest.split(":", count - 1)
    if len(parts) < count:
        form = next(form for form in FORMS if form.startswith(f"{quantity.partition(':')[0]}:"))
        raise invalid("this quantity of a run is incomplete", form)
    return parts


def _check_first_reached(quantity: str, benchmarks: Collection[str]) -> None:
    name, _, rest = quantity.partition(":")
    value, measured = _parts(quantity, rest, 2)
    # No `inf` and `nan`, which `float` would accept.
    if not re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?(e[+-]?\d{1,2})?", value):
        raise invalid(f"{value} is no value to reach", FIRST_REACHED[f"{name}:"])
    if value.startswith("+") and not measured.startswith(ACCURACY):
        raise invalid(
            f"{value} counts from the initial policy's accuracy, so the quantity must be an accuracy",
            FIRST_REACHED[f"{name}:"],
        )
    if measured.startswith(ACCURACY):
        check_accuracy(measured, benchmarks)
    else:
        check_step(measured)
    check_reachable(float(value), measured)


def check_reachable(value: float, quantity: str, at: tuple[str | int, ...] = ()) -> None:
    """Raise a ValueError unless an accuracy, or a quantity of a step, may be below a value and may reach it."""
    low, high = PERCENT if quantity.startswith(ACCURACY) else bounds_of_step(quantity)
    # A value that is the smallest possible one is reached before the first step.
    if not low < value <= high:
        reached = "is never reached" if value > high else "is reached before the first step"
        raise invalid(f"the value {value:g} of {quantity} {reached}", f"above {low:g}, at most {high:g}", at)


def _check_at_equal(rest: str, benchmarks: Collection[str], cells: Collection[str]) -> None:
    spent, named, accuracy = _parts(AT_EQUAL, rest, 3)
    check_step(spent)
    for cell in named.split("+"):
        if cells and cell not in cells:
            raise invalid(f"no such cell: {cell}", similar(cell, cells))
    if not accuracy.startswith(ACCURACY):
        raise invalid("this is not an accuracy", FORMS[0])
    check_accuracy(accuracy, benchmarks)


def _check_bin(quantity: str) -> None:
    if not (match := BIN.fullmatch(quantity)):
        raise invalid("no such bin", next(form for form in FORMS if form.startswith("bin@")))
    low, high, by, of = match.groups()
    if float(low) >= float(high):
        raise invalid(f"the lower edge ({low}) must be below the upper edge ({high})", "bin@<low>-<high>:…")
    # A bin beyond the range is empty in every run, which a mean would hide.
    if by in RATES and float(high) > 1:
        raise invalid(f"no prompt has a {by} above 1 ({low} to {high})", "edges from 0 to 1")
    # The probe samples prompts without training, so nothing else is known of them.
    if by == INITIAL_PASS_RATE:
        if of not in (SHARE, by):
            raise invalid("prompts of the initial policy have no such quantity", f"{SHARE}, {by}")
        return
    check_prompt(by)
    check_prompt(of, share=True)


def _check_window(name: str) -> None:
    match = WINDOW.fullmatch(name)
    if not match or not 1 <= int(match[2]) <= int(match[3]):
        raise invalid(
            f"{name} is not a range of steps, which count from 1",
            "sum@, mean@ or max@<first step>-<last step>, the first step not after the last one",
        )


def _known(info: ValidationInfo, names: str) -> Collection[str]:
    return (info.context or {}).get(names, ())


def _of_run(quantity: str, info: ValidationInfo) -> str:
    check_run(quantity, _known(info, "benchmarks"), _known(info, "cells"))
    return quantity


def _of_column(quantity: str, info: ValidationInfo) -> str:
    kinds = [SPEEDUP + kind for kind in KINDS_OF_SPEEDUP]
    if quantity.startswith(SPEEDUP) and quantity not in kinds:
        raise invalid("no such speedup", ", ".join(kinds))
    return quantity if quantity == EACH or quantity in kinds else _of_run(quantity, info)


def _of_print(quantity: str, info: ValidationInfo) -> str:
    return quantity if quantity in _known(info, "reported") else _of_run(quantity, info)


def _of_accuracy(quantity: str, info: ValidationInfo) -> str:
    if not quantity.startswith(ACCURACY):
        raise invalid("this is not an accuracy", FORMS[0])
    check_accuracy(quantity, _known(info, "benchmarks"))
    return quantity


def _of_step(quantity: str) -> str:
    check_step(quantity)
    return quantity


def _of_target(quantity: str, info: ValidationInfo) -> str:
    return _of_accuracy(quantity, info) if quantity.startswith(ACCURACY) else _of_step(quantity)


RunQuantity = Annotated[Quantity, AfterValidator(_of_run)]
"""Quantity of a run."""
ColumnQuantity = Annotated[Quantity, AfterValidator(_of_column)]
"""Quantity of a run, `accuracy:*` or a kind of speedup."""
PrintedQuantity = Annotated[Quantity, AfterValidator(_of_print)]
"""Quantity of a run, or one of the paper's reported tables alone."""
Accuracy = Annotated[Quantity, AfterValidator(_of_accuracy)]
"""An accuracy."""
StepQuantity = Annotated[Quantity, AfterValidator(_of_step)]
"""Quantity of a step."""
TargetQuantity = Annotated[Quantity, AfterValidator(_of_target)]
"""An accuracy, or a quantity of a step."""


def check_panel(quantity: str, by: str, x: str, context: Any, at: tuple[str | int, ...]) -> None:
    """Raise a ValueError unless `quantity`, and for bins `by`, are quantities of a panel's axis `x`.

    Args:
        quantity: of a panel over runs.
        by: quantity that selects the bin.
        x: axis of the panel.
        context: of the validation.
        at: path of the panel.
    """
    known: dict[str, Any] = context or {}
    benchmarks, field = known.get("benchmarks", ()), "quantity"
    try:
        if x == "bins":
            check_prompt(quantity, share=True)
            field = "by"
            check_prompt(by)
        elif x in ("cell", "trend", "surface"):
            check_run(quantity, benchmarks, known.get("cells", ()))
        elif not quantity.startswith(ACCURACY):
            if x == "score":
                raise invalid("x: score needs an accuracy as quantity", FORMS[0])
            check_step(quantity)
        elif x == "epoch":
            raise invalid("an accuracy is measured after steps, not by epoch", "x: step, hours, tokens or updates")
        else:
            check_accuracy(quantity, benchmarks)
    except PydanticCustomError as error:
        details = error.context or {}
        raise invalid(details["message"], details["expected"], (*at, field)) from None
