"""The enumerated parts of the bias laboratory's page, from the file of the stage `distributions`."""

from typing import Any

import pandas as pd

from redraft.analysis.pages.laboratory_parts import (
    NEGLIGIBLE,
    LaboratoryPart,
    LaboratoryQuestion,
    lines,
    listed,
    percent,
    rounding,
    short,
)
from redraft.analysis.pages.multiples import Diagram, rule_label

NOT_RUN = "`snakemake laboratory` enumerates it in half a minute."
PUBLISHED, LENIENT, RENEWED = "published, l = 1", "published, l = e^0.5", "published, l = 1, renewed"
FRESH = "fresh"
NUMBERS_LABELS = {
    FRESH: "new numbers in each epoch pass",
    "accepts in all visits": "one acceptance number for all passes",
    "accepts and draws": "one number accepts and samples",
    "accepts and draws in all visits": "one number accepts and samples in all passes",
}
"""Way to share random numbers, as in the data, to its label."""
DRIFT = LaboratoryQuestion(
    "drift",
    "How far are responses of a rule from the current policy?",
    "A response starts with the kept part of a draft, which an earlier policy sampled. Its exact distribution is the "
    "sum over all drafts and kept lengths. The distance to the current policy is measured by total variation (TV). "
    "Nothing is sampled.",
)
NUMBERS = LaboratoryQuestion(
    "numbers",
    "What if epoch passes share their random numbers?",
    "An exact rule needs new random numbers in each epoch pass. The published release seeds its generator at each "
    "call, so the same token position of the same sample gets the same number in every epoch.",
)
BANDIT = LaboratoryQuestion(
    "bandit",
    "What if the policy was trained on the draft?",
    "A two-armed bandit is trained by policy gradient on groups of samples. Each sample is the draft of the next epoch "
    "pass. All groups of all epoch passes are enumerated. The distribution of a rule's samples, given the current "
    "policy, is compared with that policy.",
)

BANDIT_COLUMNS = {
    "given": "TV given the policy",
    "overall": "TV of the mean distribution",
    "reward_gap": "reward − fresh",
    "gradient_share": "gradient / fresh",
    "variance_share": "variance / fresh",
    "kept": "kept drafts",
}
"""Column of the bandit's data to its heading."""


def enumerated_parts(enumerated: dict[str, Any] | None) -> list[LaboratoryPart]:
    """The three enumerated parts; without data if nothing was enumerated."""
    if enumerated is None:
        return [LaboratoryPart(question, missing=NOT_RUN) for question in (DRIFT, NUMBERS, BANDIT)]
    return [drift(enumerated), numbers(enumerated), bandit(enumerated)]


def drift(enumerated: dict[str, Any]) -> LaboratoryPart:
    """Distance to the current policy and kept share, by drift of the policies."""
    data, last = pd.DataFrame(enumerated["drifts"]), enumerated["visits"]
    at = data[data["drift"] == enumerated["drift"]].set_index("rule")
    worst = data.assign(worst=data[["first", "last"]].max(axis=1)).groupby("rule", sort=False)["worst"].max()
    exact = [rule for rule in worst.index if worst[rule] <= NEGLIGIBLE]
    # Rules that promise to be exact and are further away than rounding explains.
    wrong = [rule for rule in at.index[at["exact"]] if rule not in exact]
    kept = ", ".join(f"{percent(at['kept'][rule])} ({rule_label(rule)})" for rule in exact)
    answers = [
        f"If two policies are {short(at['policies'].iloc[0])} apart in TV, the published rule's distance to the "
        f"current policy is {short(at['first'][PUBLISHED])} after one epoch pass at ℓ = 1 and "
        f"{short(at['first'][LENIENT])} at ℓ = e^0.5. After {last} epoch passes it is {short(at['last'][PUBLISHED])} "
        f"and {short(at['last'][LENIENT])}.",
        f"At every drift {listed(exact)} have the current policy's distribution: the largest distance is "
        f"{rounding(worst[exact].max())}.",
        *[f"{rule_label(rule)} should be exact, but is up to {short(worst[rule])} away." for rule in wrong],
        f"At that distance of policies they keep {kept} of a draft. The published rule keeps "
        f"{percent(at['kept'][PUBLISHED])} at ℓ = 1 and {percent(at['kept'][LENIENT])} at ℓ = e^0.5.",
    ]
    away = "TV of two policies"
    diagrams = [
        Diagram("TV to the current policy, epoch pass 1", away, lines(data, "policies", "first")),
        Diagram(f"TV to the current policy, epoch pass {last}", away, lines(data, "policies", "last")),
        Diagram("kept share of a draft, epoch pass 1", away, lines(data, "policies", "kept")),
        Diagram(f"TV in epoch pass {last} against kept share", "kept share", lines(at.reset_index(), "kept", "last")),
    ]
    drifts = sorted(data["drift"].unique())
    wide = data.pivot(index="rule", columns="drift", values="last").loc[at.index]
    heads = {each: f"TV at {short(data.loc[data['drift'] == each, 'policies'].iloc[0])}" for each in drifts}
    table = wide.map(short).rename(columns=heads).assign(**{"kept": at["kept"].map(percent)})
    note = (
        f"Means over {enumerated['directions']} sets of policies. Responses have at most {enumerated['longest']} "
        f"tokens from a vocabulary of {enumerated['vocabulary']}. The policies of two epoch passes are equally far "
        "from a common one. Under the published rule a token keeps its log-probability over epoch passes. The "
        f"table shows the TV to the current policy after {last} epoch passes, a column for each TV between two "
        f"policies, and the kept share at {short(at['policies'].iloc[0])}. The last diagram is at that TV: points "
        "further left save fewer tokens, points further up have more bias. Gumbel coupling samples from the policy by "
        "construction; `redraft audit samplers` tests it."
    )
    return LaboratoryPart(DRIFT, answers=answers, diagrams=diagrams, table=_named(table), data=data, note=note)


def numbers(enumerated: dict[str, Any]) -> LaboratoryPart:
    """Distance by epoch pass, for several ways to share random numbers."""
    data = pd.DataFrame(enumerated["numbers"])
    kinds, last = list(data["numbers"].unique()), int(data["visit"].max())
    by = data.set_index(["numbers", "rule", "visit"])["distance"]
    fresh = by[FRESH].groupby("rule", sort=False).max()
    exact = [rule for rule in fresh.index if fresh[rule] <= NEGLIGIBLE]
    accepting, drawing, both = kinds[1:]
    answers = [
        f"With new numbers in each epoch pass {listed(exact)} are exact: the largest distance in {last} passes is "
        f"{rounding(fresh[exact].max())}.",
        f"If each position has one acceptance number for all epoch passes, the distances to the policy in pass {last} "
        f"are: {_distances(by, accepting, exact, last)}. In pass 1, in which each number is used for the first time, "
        f"the largest distance is {rounding(by[accepting][exact].xs(1, level='visit').max())}.",
        "The published rule with the log-probabilities of the last pass, as released, is then "
        f"{short(by[accepting, RENEWED, last])} away instead of {short(by[FRESH, RENEWED, last])}.",
        "If one number both accepts and samples a token, the distances after one pass are: "
        f"{_distances(by, drawing, exact, 1)}. If all passes share that number, the distances after {last} passes are: "
        f"{_distances(by, both, exact, last)}.",
    ]
    diagrams = [
        Diagram(f"TV, {_numbers(kind)}", "epoch pass", lines(data[data["numbers"] == kind], "visit", "distance"))
        for kind in kinds
    ]
    wide = data[data["visit"] == last].pivot(index="rule", columns="numbers", values="distance")
    table = wide.loc[list(fresh.index), kinds].map(short).rename(columns=_numbers)
    note = (
        f"TV after {last} epoch passes; “one” means one number per position. Means over {enumerated['directions']} "
        f"sets of policies; responses have at most {enumerated['longest_shared']} tokens. The unit interval is split "
        "at every acceptance probability and every cumulative probability that occurs, so the sums are exact."
    )
    return LaboratoryPart(NUMBERS, answers=answers, diagrams=diagrams, table=_named(table), data=data, note=note)


def bandit(enumerated: dict[str, Any]) -> LaboratoryPart:
    """Distance, reward and gradient if the policy was trained on its drafts."""
    data = pd.DataFrame(enumerated["bandit"]).assign(
        reward_gap=lambda d: d["reward"] - d["fresh_reward"],
        gradient_share=lambda d: d["gradient"] / d["fresh_gradient"],
        variance_share=lambda d: d["variance"] / d["fresh_variance"],
    )
    rate, group, last = enumerated["rate"], enumerated["group"], enumerated["visits"]
    usual = data[data["group"] == group]
    course, end = usual[usual["rate"] == rate], usual[usual["visit"] == last]
    at = end[end["rate"] == rate].set_index("rule")
    few = data[(data["rate"] == rate) & (data["visit"] == enumerated["group_visits"])]
    # Without learning no policy depends on a draft, so that every rule must be exact: a check of the enumeration.
    still = usual[usual["rate"] == 0]["given"].max()
    worst = usual.groupby("rule", sort=False)["given"].max()
    exact = [rule for rule in worst.index if worst[rule] <= NEGLIGIBLE]
    verified = [rule for rule in ("residual", "block", "Gumbel") if rule in at.index]
    sizes = few[few["rule"] == "residual"].set_index("group")["given"].sort_index()
    answers = [
        f"The bandit is trained on its drafts with learning rate {rate:g}. In epoch pass {last} the distance between "
        f"its samples, given the policy, and the policy is {_range(at['given'][verified])} for {listed(verified)}. At "
        f"every rate and in every pass {listed(exact)} have the policy's distribution.",
        f"At learning rate 0, at which no draft changes the policy, the largest distance of any rule is "
        f"{rounding(still)}.",
        f"At rate {rate:g} the mean gradient estimate is {percent(at['gradient_share']['residual'])} of that of a "
        f"fresh group for the residual rule, {percent(at['gradient_share'][PUBLISHED])} for the published rule at "
        f"ℓ = 1 and {percent(at['gradient_share']['one-hot'])} for the one-hot rule.",
        f"The training reward differs from the reward of fresh samples by {_signed(at['reward_gap']['residual'])} for "
        f"the residual rule and by {_signed(at['reward_gap'][PUBLISHED])} for the published rule.",
        f"The effect shrinks in larger groups, in which one sample changes the policy less: in epoch pass "
        f"{enumerated['group_visits']} the residual rule's distance is {short(sizes.iloc[0])} with groups of "
        f"{sizes.index[0]} and {short(sizes.iloc[-1])} with groups of {sizes.index[-1]}.",
    ]
    diagrams = [
        Diagram(f"TV given the policy, rate {rate:g}", "epoch pass", lines(course, "visit", "given")),
        Diagram(f"reward − fresh reward, rate {rate:g}", "epoch pass", lines(course, "visit", "reward_gap")),
        Diagram(f"mean gradient / fresh, rate {rate:g}", "epoch pass", lines(course, "visit", "gradient_share")),
        Diagram(f"gradient variance / fresh, rate {rate:g}", "epoch pass", lines(course, "visit", "variance_share")),
        Diagram(f"TV given the policy, epoch pass {last}", "rate", lines(end, "rate", "given")),
        Diagram(f"mean gradient / fresh, epoch pass {last}", "rate", lines(end, "rate", "gradient_share")),
        Diagram(
            f"TV given the policy, epoch pass {enumerated['group_visits']}",
            "group size",
            lines(few.sort_values("group"), "group", "given"),
        ),
    ]
    table = at[list(BANDIT_COLUMNS)].map(short).assign(kept=at["kept"].map(percent)).rename(columns=BANDIT_COLUMNS)
    note = (
        f"The table shows epoch pass {last} at rate {rate:g} with groups of {group}. “Given the policy” is the mean "
        "over all policies that training can reach; “TV of the mean distribution” compares the means over these "
        "policies. With a single prompt, as here, a policy depends on its drafts as much as possible. A model trained "
        "on many prompts is between this case and a rate of 0. Block verification of one token equals the residual "
        "rule."
    )
    return LaboratoryPart(BANDIT, answers=answers, diagrams=diagrams, table=_named(table), data=data, note=note)


def _numbers(kind: str) -> str:
    """Label of a way to share random numbers."""
    return NUMBERS_LABELS.get(kind, kind)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with labels of rules as its first column."""
    return table.rename(index=rule_label).rename_axis(index="rule", columns=None).reset_index()


def _distances(by: pd.Series, kind: str, rules: list[str], visit: int) -> str:
    """`residual 0.07, block 0.09 and one-hot 0.1`."""
    return listed([f"{rule_label(rule)} {short(by[kind, rule, visit])}" for rule in rules])


def _range(values: pd.Series) -> str:
    low, high = short(values.min()), short(values.max())
    return low if low == high else f"{low} to {high}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + short(value)
