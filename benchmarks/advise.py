"""Back-test of `redraft advise`: is the method it picks within 5 % of the fastest one in later epochs?

`python -m benchmarks advise`. A regime is a source of responses, a device with a model, and a batch. In simulated
regimes a random policy over a table of contexts drifts from epoch to epoch; methods then really run, through the
acceptance rules and the matching of the package. Recorded regimes are finished runs without reuse: the folders that
REDRAFT_RUNS names (a pattern; `results/*/runs/*/*/seed*` if it is not set). docs/advise.md has the results.
"""

import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.reuse_simulation import MODELS
from redraft.cli.terminal import table
from redraft.errors import UserError
from redraft.lab.advise.advice import fastest
from redraft.lab.advise.ranking import MethodSeconds, ranked
from redraft.lab.advise.recorded import by_agreement, read_recorded
from redraft.lab.advise.replayed import Drafters
from redraft.lab.advise.sample import ONE_HOT, PLAIN, PromptSample, work_of
from redraft.lab.advise.work import Device, RowWork, Work
from redraft.lab.predict.saved_rollouts import Draft
from redraft.lab.predict.saved_run import open_run
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import Costs
from redraft.selfspec.devices import DEVICES

PATTERN = "results/*/runs/*/*/seed*"
LOOKUP_SECONDS = 10e-6
TINY_ON_CPU = Calibration(
    "tiny", Costs(497088, 137664, 768, 487680, 768), 2.5776e8, 9.5442e10, 32.04, 3.4605, 6.438, 7.032, 98.41
)
"""Fit of `redraft calibrate` for a tiny model on one thread of an AMD EPYC."""
ROOFLINES = {
    "A100, 7B": DEVICES["a100"],
    "H100, 1.7B": DEVICES["h100"].of_model(MODELS["qwen3-1.7b-base"]),
    "CPU, tiny": TINY_ON_CPU,
}
BATCHES = (1, 8, 64)
"""Prompts that decode at once."""
REPLICATES = 50
NEAR = 1.05
"""Largest ratio of the picked method's seconds to the fastest one's that counts as right."""

EOS = 0
CONTEXTS = 4096
"""Rows of a policy's table."""
PROMPTS, GROUP, PROMPT_TOKENS = 24, 8, 32
EPOCHS = 4
"""The first two are what the advice knows; methods run in the other two."""


@dataclass(frozen=True)
class Source:
    """A simulated run.

    Attributes:
        vocabulary: tokens.
        length: mean tokens of a response, about.
        drift: standard deviation by which an epoch changes each logit.
        spread: standard deviation of the logits; larger ones make the policy more certain.
    """

    vocabulary: int
    length: int
    drift: float
    spread: float

    @property
    def limit(self) -> int:
        """Longest response, tokens."""
        return 2 * self.length


class TablePolicy:
    """Next-token distributions by a hash of prompt and last two tokens, which drift as a random walk.

    No response ends in the first half of the mean length. After it, the probability to end depends on the context.
    """

    def __init__(self, logits: np.ndarray, ends: np.ndarray, half: int) -> None:
        self.logits, self.ends, self.half = logits, ends, half
        p = np.exp(logits - logits.max(1, keepdims=True))
        p[:, EOS] = 0
        early = p / p.sum(1, keepdims=True)
        ending = np.clip(np.exp(ends), 1e-6, 0.9)[:, None]
        late = early * (1 - ending)
        late[:, [EOS]] = ending
        # (2 CONTEXTS, V): contexts before half of the length, and after it.
        table = np.concatenate([early, late])
        self.cumulative = table.cumsum(1)
        with np.errstate(divide="ignore"):
            self.log_table = np.log(table)

    @classmethod
    def first(cls, source: Source, rng: np.random.Generator) -> "TablePolicy":
        """The initial policy."""
        half = source.length // 2
        logits = source.spread * rng.standard_normal((CONTEXTS, source.vocabulary))
        return cls(logits, -np.log(half) + rng.standard_normal(CONTEXTS) - 0.5, half)

    def drifted(self, drift: float, rng: np.random.Generator) -> "TablePolicy":
        """The policy of the next epoch."""
        moved = [each + drift * rng.standard_normal(each.shape) for each in (self.logits, self.ends)]
        return TablePolicy(*moved, self.half)

    def sampled(
        self, prompts: np.ndarray, prefixes: Sequence[np.ndarray], limit: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Responses that continue prefixes, integer arrays; a prefix that has ended or is full stays as it is."""
        tokens, done = np.full((len(prompts), limit), -1), np.array([len(prefix) for prefix in prefixes])
        for row, prefix in zip(tokens, prefixes, strict=True):
            row[: len(prefix)] = prefix
        going = np.array([not len(p) or (p[-1] != EOS and len(p) < limit) for p in prefixes])
        while going.any():
            rows = np.flatnonzero(going)
            before = [np.where(done[rows] >= k, tokens[rows, done[rows] - k], 0) for k in (2, 1)]
            cumulative = self.cumulative[self._row(prompts[rows], done[rows], *before)]
            # The last entry may be below 1 by rounding.
            chosen = np.minimum((cumulative < rng.random((len(rows), 1))).sum(1), cumulative.shape[1] - 1)
            tokens[rows, done[rows]] = chosen
            done[rows] += 1
            going[rows] = (chosen != EOS) & (done[rows] < limit)
        return [row[:count] for row, count in zip(tokens, done, strict=True)]

    def at(self, prompt: int, tokens: np.ndarray) -> np.ndarray:
        """Log-probabilities at each position of a response, float64 (n, V)."""
        before = np.concatenate([[0, 0], tokens])
        rows = self._row(np.full(len(tokens), prompt), np.arange(len(tokens)), before[:-2], before[1:-1])
        return self.log_table[rows]

    def _row(self, prompts: np.ndarray, positions: np.ndarray, second_last: np.ndarray, last: np.ndarray) -> np.ndarray:
        mixed = (prompts * 7_368_787 + second_last * 2_750_159 + last * 1_299_709 + 12_345) * 2_654_435_761
        return (mixed >> 7) % CONTEXTS + CONTEXTS * (positions >= self.half)


RULES: dict[str, Rule] = {
    "published, l = e^0.5": SpecRLRule(math.exp(0.5)),
    "residual": ResidualRule(),
    "block": BlockRule(),
    ONE_HOT: ResidualRule(),
}
"""Rules that really run; the one-hot rule judges drafts as certain."""
PUBLISHED = next(iter(RULES))
EXACT = {PUBLISHED: False}
LENIENCES = {PUBLISHED: math.exp(0.5), "residual": 1.0}
"""Rules whose acceptance tokens alone tell, by their lenience."""
POLICIES, TOKENS = "policies", "tokens"
"""What the advice knows: both policies, or tokens and log-probabilities alone."""


def distributions(
    rule: str, draft: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, own_q: np.ndarray
) -> Distributions:
    """What a rule compares.

    Args:
        draft: integer (n,).
        log_p: float64 (n, V), the current policy's.
        log_q: the same of the policy that verified the draft last.
        own_q: float64 (n,), log-probability of each token under the policy that sampled it.
    """
    of_token = np.arange(len(draft)), draft
    if rule == ONE_HOT:
        return Distributions.one_hot(draft, log_p[of_token])
    if isinstance(RULES[rule], SpecRLRule):
        return Distributions.of_tokens(draft, log_p[of_token], own_q)
    support = np.broadcast_to(np.arange(log_p.shape[1]), log_p.shape)
    return Distributions(draft, log_p[of_token], log_q[of_token], support, log_p, log_q)


@dataclass
class Drafts:
    """Drafts of all rows: tokens, log-probabilities under the policies that sampled them, and the last policy."""

    tokens: list[np.ndarray]
    own_q: list[np.ndarray]
    policy: TablePolicy

    @classmethod
    def of(cls, prompts: np.ndarray, responses: list[np.ndarray], policy: TablePolicy) -> "Drafts":
        """Responses of one policy."""
        own = [policy.at(p, r)[np.arange(len(r)), r] for p, r in zip(prompts, responses, strict=True)]
        return cls(responses, own, policy)


def reused(
    rule: str, prompts: np.ndarray, drafts: Drafts, policy: TablePolicy, limit: int, rng: np.random.Generator
) -> tuple[Drafts, list[RowWork]]:
    """One epoch of a rule: verified drafts, continued; the next drafts, and the work of each row."""
    prefixes, counts = [], []
    for prompt, draft, own_q in zip(prompts, drafts.tokens, drafts.own_q, strict=True):
        log_p, log_q = policy.at(prompt, draft), drafts.policy.at(prompt, draft)
        compared = distributions(rule, draft, log_p, log_q, own_q)
        kept = RULES[rule].kept(RULES[rule].accepts(compared, 1.0 - rng.random(len(draft))))
        counts.append(kept)
        prefix = draft[:kept]
        if (residual := RULES[rule].residual(compared, kept)) is not None:
            p = np.exp(log_p[kept])
            p[residual.tokens] *= residual.left
            prefix = np.append(prefix, rng.choice(len(p), p=p / p.sum()))
        prefixes.append(prefix)
    responses = policy.sampled(prompts, prefixes, limit, rng)
    after = Drafts.of(prompts, responses, policy)
    for own, earlier, kept in zip(after.own_q, drafts.own_q, counts, strict=True):
        own[:kept] = earlier[:kept]
    rows = [
        RowWork.of_prefix(PROMPT_TOKENS, len(draft), kept, len(response) - kept)
        for draft, kept, response in zip(drafts.tokens, counts, responses, strict=True)
    ]
    return after, rows


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the advice knows of a source, with policies or without, and the work that methods had later, by epoch."""

    samples: Mapping[str, list[PromptSample]]
    later: list[dict[str, Work]]


def simulated(source: Source, drafters: Drafters, seed: int) -> Evidence:
    """Run a source: two epochs without reuse, and every method in the epochs after them."""
    rng = np.random.default_rng([seed, source.vocabulary, source.length, int(1000 * source.drift), int(source.spread)])
    policies = [TablePolicy.first(source, rng)]
    for _ in range(1, EPOCHS):
        policies.append(policies[-1].drifted(source.drift, rng))
    rows = np.repeat(np.arange(PROMPTS), GROUP)
    contexts = [list(source.vocabulary + np.arange(PROMPT_TOKENS) + PROMPT_TOKENS * p) for p in range(PROMPTS)]
    plain = [policy.sampled(rows, [np.zeros(0, int)] * len(rows), source.limit, rng) for policy in policies]
    grouped = [[each[p * GROUP : (p + 1) * GROUP] for p in range(PROMPTS)] for each in plain]
    samples = []
    for p in range(PROMPTS):
        kept = {
            rule: [_kept(rule, p, draft, policies[:2]) for draft in grouped[0][p]] for rule in RULES if rule != ONE_HOT
        }
        samples.append(PromptSample(contexts[p], grouped[0][p], grouped[1][p], kept))
    known = [{p: _with_log_probs(p, grouped[epoch][p], policies[epoch]) for p in range(PROMPTS)} for epoch in (0, 1)]
    kept_by_tokens = by_agreement(*known, LENIENCES)
    from_tokens = [replace(sample, kept=kept_by_tokens[p]) for p, sample in enumerate(samples)]
    drafts, later = {rule: Drafts.of(rows, plain[1], policies[1]) for rule in RULES}, []
    for epoch in range(2, EPOCHS):
        # Drafters and plain decoding sample what they sample whatever was there before.
        now = [PromptSample(contexts[p], grouped[epoch - 1][p], grouped[epoch][p]) for p in range(PROMPTS)]
        work = {name: of for name, of in work_of(now, drafters).items() if name != ONE_HOT}
        for rule in RULES:
            drafts[rule], of_rows = reused(rule, rows, drafts[rule], policies[epoch], source.limit, rng)
            work[rule] = Work.of_groups([[of_rows[p * GROUP : (p + 1) * GROUP]] for p in range(PROMPTS)])
        later.append(work)
    return Evidence({POLICIES: samples, TOKENS: from_tokens}, later)


def _kept(rule: str, prompt: int, draft: np.ndarray, policies: Sequence[TablePolicy]) -> np.ndarray:
    earlier, current = policies
    log_q = earlier.at(prompt, draft)
    compared = distributions(rule, draft, current.at(prompt, draft), log_q, log_q[np.arange(len(draft)), draft])
    return RULES[rule].distribution_of_kept(RULES[rule].acceptance(compared))


def _with_log_probs(prompt: int, responses: Sequence[np.ndarray], policy: TablePolicy) -> list[Draft]:
    return [Draft(prompt, r, policy.at(prompt, r)[np.arange(len(r)), r]) for r in responses]


SOURCES = [Source(*each) for each in product((32, 256), (40, 120), (0.05, 0.2, 0.6), (4.0, 8.0))]


def recorded(drafters: Drafters) -> Iterator[tuple[str, Evidence]]:
    """Runs that know acceptance by policies in two epochs or more: the first one is known, the others come later."""
    for folder in sorted(map(Path, glob.glob(os.environ.get("REDRAFT_RUNS", PATTERN)))):
        try:
            run = open_run(folder)
            first = read_recorded(run, 1, LENIENCES[PUBLISHED], "cpu")
            tokens = read_recorded(run, 1, LENIENCES[PUBLISHED], "cpu", with_policies=False)
            epochs = range(2, max(run.rollout_steps) // run.steps_per_epoch + 1)
            known = [read_recorded(run, epoch, LENIENCES[PUBLISHED], "cpu") for epoch in epochs]
        except UserError:  # unfinished, with reuse, or with too few epochs or policies
            continue
        later = [work_of(each.samples, drafters) for each in known if each.pairs]
        if later and first.pairs:
            name = "/".join(folder.parts[-3:])
            yield name, Evidence({POLICIES: first.samples, TOKENS: tokens.samples}, later)


def outcomes(name: str, kind: str, evidence: Evidence, drafters: Drafters) -> Iterator[dict[str, object]]:
    """A row for each regime of a source, each kind of knowledge, and the methods that may be picked."""
    work = {known: work_of(samples, drafters) for known, samples in evidence.samples.items()}
    for (roofline, of_model), batch in product(ROOFLINES.items(), BATCHES):
        device = Device(of_model, LOOKUP_SECONDS)
        later = [
            {one.method: one.seconds.value for one in ranked(of, device, batch, replicates=0)} for of in evidence.later
        ]
        truth = {method: float(np.mean([of[method] for of in later])) for method in later[0]}
        for known, of in work.items():
            times = ranked(of, device, batch, replicates=REPLICATES)
            for allowed in ("exact", "all"):
                yield {"kind": kind, "source": name, "roofline": roofline, "prompts": batch, "known": known} | _outcome(
                    times, truth, allowed
                )


def _outcome(times: Sequence[MethodSeconds], truth: Mapping[str, float], allowed: str) -> dict[str, object]:
    may = {method: seconds for method, seconds in truth.items() if allowed == "all" or EXACT.get(method, True)}
    best = min(may, key=lambda method: may[method])
    pick = fastest(times, EXACT) if allowed == "exact" else times[0]
    saved = {method: 1 - seconds / truth[PLAIN] for method, seconds in truth.items()}
    errors = [abs(one.saved.value - saved[one.method]) for one in times if one.method in may]
    return {
        "allowed": allowed,
        "pick": pick.method,
        "best": best,
        "excess": may[pick.method] / may[best] - 1,
        "plain": may[PLAIN] / may[best] - 1,
        "error": float(np.mean(errors)),
        "tied": best in {one.method for one in times if one.tied(pick)},
    }


def summary(rows: pd.DataFrame, by: Sequence[str]) -> str:
    """Shares of regimes in which the pick is near the fastest method, in percent."""
    cells = []
    for key, of in rows.groupby(list(by), sort=False):
        near = of["excess"] <= NEAR - 1
        cells.append(
            [
                *map(str, key),
                str(len(of)),
                f"{100 * near.mean():.0f}",
                f"{100 * (of['plain'] <= NEAR - 1).mean():.0f}",
                f"{100 * of['excess'].mean():.1f}",
                f"{100 * of['excess'].max():.0f}",
                f"{100 * of['error'].mean():.1f}",
                f"{100 * of['tied'].mean():.0f}",
            ]
        )
    header = [*by, "regimes", "within 5 %", "plain is", "excess, %", "largest", "error, points", "best is tied"]
    return table(header, cells, left=by)


def regimes() -> Iterator[dict[str, object]]:
    """Outcomes of all regimes, simulated ones first."""
    drafters = Drafters()
    for source in SOURCES:
        limited = replace(drafters, limit=source.limit)
        yield from outcomes(str(source), "simulated", simulated(source, limited, seed=0), limited)
    for name, evidence in recorded(drafters):
        yield from outcomes(name, "recorded", evidence, drafters)


def main() -> None:
    """Print shares of all regimes, and by what they differ in."""
    rows = pd.DataFrame(regimes())
    print(summary(rows, ["kind", "known", "allowed"]))
    main_rows = rows[(rows["known"] == POLICIES) & (rows["allowed"] == "exact")]
    for by in (["kind", "roofline"], ["kind", "prompts"], ["kind", "best"]):
        print("\n" + summary(main_rows, by))
