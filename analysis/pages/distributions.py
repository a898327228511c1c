"""The enumerated parts of the bias laboratory's page, from the file of the stage `distributions`."""

from typing import Any

import pandas as pd

from redraft.analysis.pages.multiples import Panel, said
from redraft.analysis.pages.part import NEGLIGIBLE, Part, Question, lines, listed, percent, rounding, short

NOT_RUN = "`snakemake laboratory` enumerates it in half a minute."
PUBLISHED, LENIENT, RENEWED = "published, l = 1", "published, l = e^0.5", "published, l = 1, renewed"
FRESH = "fresh"
DRIFT = Question(
    "drift",
    "How far is what a rule makes from the current policy?",
    "A response is made from a draft of an earlier policy. Its distribution is summed over all drafts and kept "
    "lengths, and compared with that of the current policy by total variation (TV). Nothing is sampled.",
)
NUMBERS = Question(
    "numbers",
    "What if visits share their random numbers?",
    "A rule is exact if its random numbers are new at each visit. The published release seeds them at each call, so "
    "that the same place of the same sample meets the same number in every epoch.",
)
BANDIT = Question(
    "bandit",
    "What if the policy was trained on the draft?",
    "A bandit of two arms is trained by policy gradient on groups of samples, and each sample is the draft of the "
    "next visit. All groups of all visits are enumerated. What a rule draws is compared with the policy at which "
    "its gradient is taken, given that policy.",
)


def parts(enumerated: dict[str, Any] | None) -> list[Part]:
    """The three parts; without data if nothing was enumerated."""
    if enumerated is None:
        return [Part(question, missing=NOT_RUN) for question in (DRIFT, NUMBERS, BANDIT)]
    return [drift(enumerated), numbers(enumerated), bandit(enumerated)]


def drift(enumerated: dict[str, Any]) -> Part:
    """Distance over drift, and what is kept for it."""
    data, last = pd.DataFrame(enumerated["drifts"]), enumerated["visits"]
    at = data[data["drift"] == enumerated["drift"]].set_index("rule")
    worst = data.assign(worst=data[["first", "last"]].max(axis=1)).groupby("rule", sort=False)["worst"].max()
    exact = [rule for rule in worst.index if worst[rule] <= NEGLIGIBLE]
    wrong = [rule for rule in at.index[at["exact"]] if rule not in exact]
    kept = ", ".join(f"{percent(at['kept'][rule])} ({said(rule)})" for rule in exact)
    answers = [
        f"Where two policies are {short(at['policies'].iloc[0])} apart in total variation, responses of the "
        f"published rule are {short(at['first'][PUBLISHED])} from the current policy after one visit at ℓ = 1 and "
        f"{short(at['first'][LENIENT])} at ℓ = e^0.5; after {last} visits they are {short(at['last'][PUBLISHED])} "
        f"and {short(at['last'][LENIENT])} from it.",
        f"At every drift {listed(exact)} have the current policy's distribution: the largest distance is "
        f"{rounding(worst[exact].max())}.",
        *[f"{said(rule)} should be exact, and is up to {short(worst[rule])} away." for rule in wrong],
        f"There they keep {kept} of a draft; the published rule keeps "
        f"{percent(at['kept'][PUBLISHED])} at ℓ = 1 and {percent(at['kept'][LENIENT])} at ℓ = e^0.5.",
    ]
    away = "TV of two policies"
    panels = [
        Panel("TV to the current policy, visit 1", away, lines(data, "policies", "first")),
        Panel(f"TV to the current policy, visit {last}", away, lines(data, "policies", "last")),
        Panel("share of a draft that is kept, visit 1", away, lines(data, "policies", "kept")),
        Panel(f"TV, visit {last}, against kept share", "kept share", lines(at.reset_index(), "kept", "last")),
    ]
    drifts = sorted(data["drift"].unique())
    wide = data.pivot(index="rule", columns="drift", values="last").loc[at.index]
    heads = {each: f"TV at {short(data.loc[data['drift'] == each, 'policies'].iloc[0])}" for each in drifts}
    table = wide.map(short).rename(columns=heads).assign(**{"kept": at["kept"].map(percent)})
    note = (
        f"Means over {enumerated['directions']} policy sets; responses have at most {enumerated['longest']} tokens "
        f"of "
        f"{enumerated['vocabulary']}. Policies of two visits are equally far from a common one. A token of the "
        f"published "
        f"rule keeps its log-probability from visit to visit. The table has distances after {last} visits, headed by "
        f"the TV of two policies, and the share of a draft that is kept at {short(at['policies'].iloc[0])}. The last "
        "diagram is at that TV: further left means fewer tokens saved, further up more bias. Gumbel coupling draws "
        "from the policy alone, so that its distribution is not in question here; `redraft audit samplers` tests it."
    )
    return Part(DRIFT, answers=answers, panels=panels, table=_named(table), data=data, note=note)


def numbers(enumerated: dict[str, Any]) -> Part:
    """Distance over visits by what the random numbers share."""
    data = pd.DataFrame(enumerated["numbers"])
    kinds, last = list(data["numbers"].unique()), int(data["visit"].max())
    by = data.set_index(["numbers", "rule", "visit"])["distance"]
    fresh = by[FRESH].groupby("rule", sort=False).max()
    exact = [rule for rule in fresh.index if fresh[rule] <= NEGLIGIBLE]
    accepting, drawing, both = kinds[1:]
    answers = [
        f"With new numbers at each visit {listed(exact)} are exact: the largest distance in {last} visits is "
        f"{rounding(fresh[exact].max())}.",
        f"With one number a place that accepts in all visits, {_distances(by, accepting, exact, last)} from the policy "
        f"in visit {last}; in visit 1, where nothing has been asked of the number yet, the largest distance is "
        f"{rounding(by[accepting][exact].xs(1, level='visit').max())}.",
        f"The published rule with the log-probabilities of the last visit, as released, is then "
        f"{short(by[accepting, RENEWED, last])} away in place of {short(by[FRESH, RENEWED, last])}.",
        f"If the number that accepts also draws tokens, {_distances(by, drawing, exact, 1)} away after one visit; if "
        f"it does so in all visits, {_distances(by, both, exact, last)} after {last}.",
    ]
    panels = [
        Panel(f"TV, {_numbers(kind)}", "visit", lines(data[data["numbers"] == kind], "visit", "distance"))
        for kind in kinds
    ]
    wide = data[data["visit"] == last].pivot(index="rule", columns="numbers", values="distance")
    table = wide.loc[list(fresh.index), kinds].map(short).rename(columns=_numbers)
    note = (
        f"TV after {last} visits; “one” is one number a place. Means over {enumerated['directions']} sets of policies, "
        f"responses of at most {enumerated['longest_shared']} tokens. Uniforms are split at every chance and every "
        "cumulative distribution that is ever asked for, so that the sums are exact."
    )
    return Part(NUMBERS, answers=answers, panels=panels, table=_named(table), data=data, note=note)


def bandit(enumerated: dict[str, Any]) -> Part:
    """Distance, reward and gradient where the policy was trained on its drafts."""
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
    still = usual[usual["rate"] == 0]["given"].max()
    worst = usual.groupby("rule", sort=False)["given"].max()
    exact = [rule for rule in worst.index if worst[rule] <= NEGLIGIBLE]
    verified = [rule for rule in ("residual", "block", "Gumbel") if rule in at.index]
    sizes = few[few["rule"] == "residual"].set_index("group")["given"].sort_index()
    answers = [
        f"Trained on its drafts at a rate of {rate:g}, a bandit's sample of visit {last} is "
        f"{_range(at['given'][verified])} from the policy, given that policy, with {listed(verified)}. At every rate "
        f"and in every visit {listed(exact)} have the policy's distribution.",
        f"At a rate of 0, where no draft changes the policy, the largest distance of any rule is {rounding(still)}.",
        f"At {rate:g} the mean of the gradient's estimate is {percent(at['gradient_share']['residual'])} of a fresh "
        f"group's with the residual rule, {percent(at['gradient_share'][PUBLISHED])} with the published one at ℓ = 1 "
        f"and {percent(at['gradient_share']['one-hot'])} with one-hot.",
        f"The reward that is trained on is {_signed(at['reward_gap']['residual'])} from that of fresh samples with the "
        f"residual rule, {_signed(at['reward_gap'][PUBLISHED])} with the published one.",
        f"What an update knows of a sample depends on their number: in visit {enumerated['group_visits']} the "
        f""
        f"residual rule's distance is {short(sizes.iloc[0])} with groups of {sizes.index[0]} and "
        f"{short(sizes.iloc[-1])} with groups of {sizes.index[-1]}.",
    ]
    panels = [
        Panel(f"TV given the policy, rate {rate:g}", "visit", lines(course, "visit", "given")),
        Panel(f"reward less fresh reward, rate {rate:g}", "visit", lines(course, "visit", "reward_gap")),
        Panel(f"mean of the gradient / fresh, rate {rate:g}", "visit", lines(course, "visit", "gradient_share")),
        Panel(f"its variance / fresh, rate {rate:g}", "visit", lines(course, "visit", "variance_share")),
        Panel(f"TV given the policy, visit {last}", "rate", lines(end, "rate", "given")),
        Panel(f"mean of the gradient / fresh, visit {last}", "rate", lines(end, "rate", "gradient_share")),
        Panel(
            f"TV given the policy, visit {enumerated['group_visits']}",
            "samples of a group",
            lines(few.sort_values("group"), "group", "given"),
        ),
    ]
    columns = {
        "given": "TV given the policy",
        "overall": "TV of the mean distribution",
        "reward_gap": "reward − fresh",
        "gradient_share": "gradient / fresh",
        "variance_share": "variance / fresh",
        "kept": "kept drafts",
    }
    table = at[list(columns)].map(short).assign(kept=at["kept"].map(percent)).rename(columns=columns)
    note = (
        f"The table is of visit {last} at a rate of {rate:g} with groups of {group}. “Given the policy” is the mean "
        "over all policies that training may have led to; “the mean distribution” compares means over them. With one "
        "prompt, as here, the policy tells most of a draft that it can; a model of many prompts is between this and a "
        "rate "
        "of 0. Block verification of one token is the residual rule."
    )
    return Part(BANDIT, answers=answers, panels=panels, table=_named(table), data=data, note=note)


def _numbers(kind: str) -> str:
    return "new numbers at each visit" if kind == FRESH else f"one {kind}"


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """With the rules as a first column, as pages write them."""
    return table.rename(index=said).rename_axis(index="rule", columns=None).reset_index()


def _distances(by: pd.Series, kind: str, rules: list[str], visit: int) -> str:
    """`residual is 0.07, block 0.09 and one-hot 0.1`."""
    told = [f"{said(rule)} {'is ' * (i == 0)}{short(by[kind, rule, visit])}" for i, rule in enumerate(rules)]
    return listed(told)


def _range(values: pd.Series) -> str:
    low, high = short(values.min()), short(values.max())
    return low if low == high else f"{low} to {high}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + short(value)
