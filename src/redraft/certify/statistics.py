"""Tests whether tokens were sampled from the policy's distribution, one family of tests for each kind of error.

Each family has one p-value: the smallest one of its tests, times their number. Counts and likelihood ratios have
bounds that hold for any number of tokens: Freedman's inequality (1975, Annals of Probability 3:100) and Ville's. The
others are asymptotic, in the number of all tokens. `Positions` says what N and A are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from redraft.certify import reuse
from redraft.certify.positions import RANKS, TILTS, Other, Positions
from redraft.lab.audit.goodness import g_test

TAILS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Shares of the least probable mass."""
BINS, FEW_BINS = 20, 10
"""Equal bins of u, over all tokens and in a group of positions."""
LEAST_VARIANCE = 10.0
"""Smallest variance of a count that is tested: smaller counts are neither normal nor informative."""
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of another policy in the mixtures that are alternatives."""
DRAFTED = (0.1, 0.2, 0.5, 1.0)
"""Shares of responses that reuse a draft, in the alternatives."""
CONTEXTS, LEAST_CONTEXT = 64, 200
"""Most frequent preceding tokens whose next tokens are tested separately, and how often each has to occur."""


@dataclass(frozen=True)
class Test:
    """Result of a family of tests.

    Attributes:
        name: what is tested.
        p_value: of the family; of one that compares with a tolerance, 0 or 1.
        finding: the most surprising of its tests: where, observed and expected.
        meaning: errors of samplers that it would find.
    """

    name: str
    p_value: float
    finding: str
    meaning: str


Decode = Callable[[int], str]
"""Text of a token, for findings."""


def count_p_values(observed: np.ndarray, expected: np.ndarray, variance: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Upper bounds of two-sided p-values of counts.

    A count is a sum of indicators over `trials` tokens. Given all earlier tokens each has a known probability: their
    sum is `expected`, and the sum of p (1 - p) is `variance`. The bound is the smaller one of Freedman's and of
    Chernoff's for Poisson variables, which is the better one if nothing was observed; so there are two for each side.
    """
    observed, expected, trials = (np.asarray(x, dtype=float) for x in (observed, expected, trials))
    variance = np.maximum(variance, 1e-300)
    ratio = np.abs(observed - expected) / variance
    freedman = -variance * ((1 + ratio) * np.log1p(ratio) - ratio)
    low = observed < expected
    # The complement of a count that is too high is a count that is too low.
    x = np.where(low, observed, trials - observed)
    mean = np.where(low, expected, trials - expected)
    poisson = -(mean - x + special.xlogy(x, x) - special.xlogy(x, np.maximum(mean, 1e-300)))
    return np.minimum(1, 4 * np.exp(np.minimum(freedman, np.minimum(poisson, 0))))


def families(tested: Positions, others: Mapping[str, Other], decode: Decode) -> list[Test]:
    """All tests of sampled tokens; those that need several prompts, samples or calls only where there are.

    Args:
        tested: the sampled tokens.
        others: the tokens under other policies, by the policy's name.
        decode: text of a token.
    """
    found = [
        _impossible(tested, decode),
        _temperature(tested),
        _uniform(tested),
        _truncation(tested),
        _end_token(tested),
        _repetition(tested),
        *_tokens(tested, decode),
        _positions(tested),
        _prompts(tested),
        *_independence(tested),
        _equal(tested),
        *(_other(tested, name, other) for name, other in others.items()),
    ]
    return [test for test in found if test is not None]


def _impossible(tested: Positions, decode: Decode) -> Test:
    where = np.flatnonzero(np.isneginf(tested.log_prob))
    if len(where):
        first = where[0]
        token = decode(int(tested.token[first]))
        at = f"{token} at position {tested.index[first]}, prompt {tested.prompt[first]}"
        text = f"{len(where)} of {len(tested)} tokens have probability 0; first: {at}"
    else:
        text = "no token has probability 0"
    return Test("impossible tokens", 0.0 if len(where) else 1.0, text, "another model, rows of a batch mixed up")


def ratio_p_value(log_ratios: np.ndarray) -> float:
    """P-value of the log likelihood ratios of several alternatives.

    Their mean is at least x with probability 1 / x at most, by Ville's inequality.
    """
    evidence = special.logsumexp(log_ratios) - np.log(np.size(log_ratios))
    return float(np.exp(-max(evidence, 0.0)))


def _tilt(ratio_A: np.ndarray) -> tuple[float, float]:
    """P-value of summed log likelihood ratios (A,), and the best alternative's temperature, a multiple."""
    best = int(np.argmax(ratio_A))
    return ratio_p_value(ratio_A), 1 / (1 + TILTS[best]) if ratio_A[best] > 0 else 1.0


def _temperature(tested: Positions) -> Test:
    p_value, multiple = _tilt(tested.ratio.sum(axis=0))
    text = f"closest to {multiple:.2f} times the temperature; mean log-probability {tested.log_prob.mean():.4f}"
    return Test("temperature", p_value, text, "temperature, stale weights, another model, lenience, a wrong residual")


def _g_p_value(counts: np.ndarray, distribution: np.ndarray) -> float:
    """P-value of a G-test; 1 if all classes are so rare that they are one, which has no freedom."""
    test = g_test(counts, distribution)
    return test.p_value if test.classes > 1 or test.p_value == 0 else 1.0


def _bins(u: np.ndarray, bins: int) -> tuple[float, np.ndarray]:
    counts, _ = np.histogram(u, bins, (0, 1))
    return _g_p_value(counts, np.full(bins, 1 / bins)), counts * bins / len(u)


def _uniform(tested: Positions) -> Test:
    p_value, shares = _bins(tested.u, BINS)
    worst = int(np.abs(shares - 1).argmax())
    where = f"{100 * worst / BINS:g} to {100 * (worst + 1) / BINS:g} % of the mass, most probable tokens first"
    text = f"{shares[worst]:.3f} times as many tokens as expected at {where}"
    return Test("quantiles", p_value, text, "greedy tokens, temperature, penalties, a wrong residual")


def _truncation(tested: Positions) -> Test:
    tails, n = np.array(TAILS), len(tested)
    known = ~np.isnan(tested.beyond).any(axis=0)
    beyond, ranks = tested.beyond[:, known], np.array(RANKS)[known]
    observed = np.append((tested.u[:, None] > 1 - tails).sum(axis=0), (tested.rank[:, None] >= ranks).sum(axis=0))
    expected = np.append(n * tails, beyond.sum(axis=0))
    variance = np.append(n * tails * (1 - tails), (beyond * (1 - beyond)).sum(axis=0))
    p_values = count_p_values(observed, expected, variance, np.full(len(observed), n))
    names = [f"in the least probable {100 * tail:g} % of the mass" for tail in TAILS]
    names += [f"beyond the {rank} most probable" for rank in ranks]
    worst = int(p_values.argmin())
    text = f"{observed[worst]} tokens {names[worst]}, expected {expected[worst]:.1f}"
    return Test("truncation", _least(p_values), text, "top-p, top-k or min-p left on, greedy tokens")


def _least(p_values: np.ndarray) -> float:
    return float(min(1.0, len(p_values) * p_values.min()))


def groups(index: np.ndarray) -> np.ndarray:
    """Group of each position, int (N,): 0, 1, 2, 3, 4 to 7, 8 to 15 and so on."""
    return np.where(index < 4, index, 2 + np.floor(np.log2(np.maximum(index, 1))).astype(int))


def span(group: int) -> str:
    """Positions of a group, as text."""
    return f"position {group}" if group < 4 else f"positions {2 ** (group - 2)} to {2 ** (group - 1) - 1}"


def _end_token(tested: Positions) -> Test | None:
    if not tested.end_prob.any() and not tested.end.any():
        return None
    labels = [("all positions", np.ones(len(tested), dtype=bool))]
    group = groups(tested.index)
    labels += [(span(int(g)), group == g) for g in np.unique(group)]
    p = tested.end_prob
    cells = np.array([[tested.end[r].sum(), p[r].sum(), (p[r] * (1 - p[r])).sum(), r.sum()] for _, r in labels])
    p_values = count_p_values(*cells.T)
    worst = int(p_values.argmin())
    text = f"{cells[worst, 0]:.0f} end tokens at {labels[worst][0]}, expected {cells[worst, 1]:.1f}"
    return Test("end token", _least(p_values), text, "a lost, suppressed or ignored end token, chosen lengths")


def _repetition(tested: Positions) -> Test:
    p, observed = tested.seen_prob, tested.seen.sum()
    p_value = float(count_p_values(observed, p.sum(), (p * (1 - p)).sum(), np.asarray(len(p))))
    text = f"{observed} tokens that occurred before, expected {p.sum():.1f}"
    return Test("repetition", p_value, text, "a repetition, presence or frequency penalty left on")


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counts of M frequent tokens at some positions: float64 (M,) each, with their covariance (M, M)."""

    where: str
    tokens: np.ndarray
    observed: np.ndarray
    expected: np.ndarray
    variance: np.ndarray
    trials: np.ndarray
    covariance: np.ndarray

    @property
    def quadratic(self) -> tuple[float, int]:
        """Squared distance of all counts from their means, and its degrees of freedom, which may be 0."""
        values, vectors = np.linalg.eigh(self.covariance)
        # A direction is a count too. If these tokens hold nearly all probability, their sum has hardly any variance,
        # and a single other token would be far from it: such a count is no more normal than that of a rare token.
        kept = values >= LEAST_VARIANCE
        projected = (self.observed - self.expected) @ vectors[:, kept]
        return float((projected**2 / values[kept]).sum()), int(kept.sum())


def _counts(tested: Positions, rows: np.ndarray, where: str) -> _Counts | None:
    """Counts of tokens at some positions, each where it is among the most probable ones."""
    # The id -1 of absent tokens gets index 0.
    top, probs = tested.top[rows] + 1, tested.top_probs[rows]
    flat, size = top.ravel(), int(top.max()) + 1
    variance = np.bincount(flat, (probs * (1 - probs)).ravel(), size)
    variance[0] = 0
    tokens = np.flatnonzero(variance >= LEAST_VARIANCE)
    if not len(tokens):
        return None
    column = np.full(size, -1)
    column[tokens] = np.arange(len(tokens))
    row, at = np.nonzero(column[top] >= 0)
    dense = np.zeros((len(rows), len(tokens)))
    dense[row, column[top[row, at]]] = probs[row, at]
    is_token = top == tested.token[rows][:, None] + 1
    observed = np.bincount(top[is_token], minlength=size)[tokens]
    covariance = np.diag(dense.sum(axis=0)) - dense.T @ dense
    trials = np.bincount(flat, minlength=size)[tokens]
    return _Counts(where, tokens - 1, observed, dense.sum(axis=0), variance[tokens], trials, covariance)


def _partitions(tested: Positions, decode: Decode) -> Iterator[list[_Counts]]:
    """Counts over all positions, by group of positions, and by the token before."""
    group = groups(tested.index)
    labels = [[("in all", np.arange(len(tested)))]]
    labels.append([(f"at {span(int(g))}", np.flatnonzero(group == g)) for g in np.unique(group)])
    before, often = np.unique(tested.previous, return_counts=True)
    kept = np.argsort(-often, kind="stable")[:CONTEXTS]
    kept = kept[often[kept] >= LEAST_CONTEXT]
    labels.append([(f"after {decode(int(t))}", np.flatnonzero(tested.previous == t)) for t in before[kept]])
    for partition in labels:
        counts = [_counts(tested, rows, where) for where, rows in partition]
        yield [each for each in counts if each is not None]


def _tokens(tested: Positions, decode: Decode) -> Iterator[Test]:
    """One token whose count is wrong, and many whose counts are slightly wrong."""
    partitions = [part for part in _partitions(tested, decode) if part]
    cells = [each for part in partitions for each in part]
    if not cells:
        return
    singles = [count_p_values(c.observed, c.expected, c.variance, c.trials) for c in cells]
    c, p_values = min(zip(cells, singles, strict=True), key=lambda pair: pair[1].min())
    worst = int(p_values.argmin())
    token = decode(int(c.tokens[worst]))
    text = f"{token} {c.observed[worst]} times {c.where}, expected {c.expected[worst]:.1f}"
    yield Test("single tokens", _least(np.concatenate(singles)), text, "a bias or penalty of a token, rows mixed up")
    sums = [each.quadratic for each in cells]
    names = [each.where for each in cells]
    for part, name in zip(partitions, ("in all", "by position", "by the token before"), strict=False):
        mine = [each.quadratic for each in part]
        sums.append((sum(q for q, _ in mine), sum(f for _, f in mine)))
        names.append(name)
    joint = np.array([stats.chi2.sf(q, f) if f else 1.0 for q, f in sums])
    worst = int(joint.argmin())
    text = f"counts of tokens {names[worst]}: chi-squared {sums[worst][0]:.1f}, expected {sums[worst][1]}"
    yield Test("tokens in context", _least(joint), text, "stale weights, wrong positions or cache, truncated prompts")


def _positions(tested: Positions) -> Test:
    group, results = groups(tested.index), []
    for g in np.unique(group):
        rows = group == g
        p_value, multiple = _tilt(tested.ratio[rows].sum(axis=0))
        results.append((p_value, f"{span(int(g))}: closest to {multiple:.2f} times the temperature"))
        if rows.sum() >= LEAST_CONTEXT:
            p_value, shares = _bins(tested.u[rows], FEW_BINS)
            text = f"{shares[0]:.3f} times as many tokens as expected in the most probable 10 % of the mass"
            results.append((p_value, f"{span(int(g))}: {text}"))
    p_value, text = min(results)
    meaning = "a wrong first token, errors that begin or end at a position"
    return Test("positions", min(1.0, len(results) * p_value), text, meaning)


def _prompts(tested: Positions) -> Test:
    results = []
    for prompt in np.unique(tested.prompt):
        rows = tested.prompt == prompt
        p_value, multiple = _tilt(tested.ratio[rows].sum(axis=0))
        results.append((p_value, f"prompt {prompt}: closest to {multiple:.2f} times the temperature"))
        first = np.flatnonzero(rows & (tested.index == 0))
        # All first tokens have the same context, so their whole distribution is tested; the last class is all others.
        probs = np.append(tested.top_probs[first[0]], max(1 - tested.top_probs[first[0]].sum(), 0))
        same = tested.top[first[0]] == tested.token[first][:, None]
        counts = np.append(same.sum(axis=0), (~same.any(axis=1)).sum())
        probs /= probs.sum()
        distance = np.abs(counts / counts.sum() - probs).sum() / 2
        results.append((_g_p_value(counts, probs), f"prompt {prompt}: first tokens at total variation {distance:.2f}"))
    p_value, text = min(results)
    return Test("prompts", min(1.0, len(results) * p_value), text, "single prompts that are truncated or mixed up")


def _independence(tested: Positions) -> Iterator[Test]:
    """Correlations of normal scores of u, which are independent standard normal."""
    z = stats.norm.ppf(np.clip(tested.u, 1e-12, 1 - 1e-12))
    call, prompt, sample, index = tested.call, tested.prompt, tested.sample, tested.index
    cases = (
        ("samples of a prompt", (call, prompt, index), "copied responses, random numbers shared by a group"),
        ("prompts of a batch", (call, sample, index), "random numbers shared by the rows of a batch"),
        ("calls", (prompt, sample, index), "the same seed in every call, drafts of an earlier call"),
    )
    for name, keys, meaning in cases:
        cell = np.ravel_multi_index(keys, [int(key.max()) + 1 for key in keys])
        n = np.bincount(cell)
        shared = n >= 2
        if not shared.any():
            continue
        # Given all earlier positions the sum of n scores is normal with variance n.
        total = float((np.bincount(cell, z)[shared] ** 2 / n[shared]).sum())
        cells = int(shared.sum())
        p_value = 2 * min(stats.chi2.sf(total, cells), stats.chi2.cdf(total, cells))
        correlation = (total / cells - 1) / max(n[shared].mean() - 1, 1)
        yield Test(f"independence of {name}", min(1.0, p_value), f"correlation {correlation:.4f}", meaning)
    follows = index[1:] > 0
    if follows.any():
        products = (z[1:] * z[:-1])[follows]
        score = products.sum() / np.sqrt(len(products))
        meaning = "the same random numbers in every step"
        p_value = float(2 * stats.norm.sf(abs(score)))
        yield Test("independence of successive tokens", p_value, f"correlation {products.mean():.4f}", meaning)


def _equal(tested: Positions) -> Test | None:
    """Equal responses to a prompt.

    Two independent responses are equal to y with probability p(y) once one of them is y. So, for every pair, the
    indicator of equality over p(y) has mean 1, and by Markov's inequality its mean over pairs is a bound.
    """
    starts = np.flatnonzero(tested.index == 0)
    log_p = np.add.reduceat(tested.log_prob, starts)
    if np.isnan(log_p).any():
        return None
    same: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for i, tokens in enumerate(np.split(tested.token, starts[1:])):
        same[int(tested.prompt[starts[i]]), tokens.tobytes()].append(i)
    _, group = np.unique(tested.prompt[starts], return_counts=True)
    pairs = int((group * (group - 1) // 2).sum())
    equal = [(log_p[each[0]], len(each) * (len(each) - 1) // 2, key[0]) for key, each in same.items() if len(each) > 1]
    if not pairs:
        return None
    text = f"{sum(n for _, n, _ in equal)} of {pairs} pairs of responses to a prompt are equal"
    evidence = 0.0
    if equal:
        evidence = float(special.logsumexp([np.log(n) - log for log, n, _ in equal]) - np.log(pairs))
        least, _, prompt = min(equal)
        text += f"; the least probable one, to prompt {prompt}, has probability e^{least:.1f}"
    return Test(
        "equal responses",
        float(np.exp(-max(evidence, 0.0))),
        text,
        "copied or cached responses, drafts of an earlier call",
    )


def _other(tested: Positions, name: str, other: Other) -> Test:
    """Likelihood ratios of mixtures with another policy, and of responses that reuse its drafts wrongly."""
    with np.errstate(over="ignore", invalid="ignore"):
        # A token that the policy or the other one does not know counts as one of the other's impossible ones.
        ratio = np.exp(np.clip(np.nan_to_num(other.log_prob - tested.log_prob, nan=-700.0), -700, 700))
    logs = np.column_stack([np.log1p(share * (ratio - 1)) for share in SHARES])
    # Over the beginnings of responses, where drafts act.
    lengths = 2 ** np.arange(int(tested.index.max()).bit_length() + 1)
    sums = np.array([logs[tested.index < length].sum(axis=0) for length in lengths])
    length, share = np.unravel_index(int(sums.argmax()), sums.shape)
    what = f"a mixture with a share {SHARES[share]:g} of it in the first {lengths[length]} tokens"
    found = [sums.ravel()]
    if (reused := reuse_ratios(tested, other)) is not None:
        found.append(reused.sum(axis=0).ravel())
        if found[1].max() > found[0].max():
            drafted, error = np.unravel_index(int(found[1].argmax()), reused.shape[1:])
            what = f"drafts from it in a share {DRAFTED[drafted]:g} of the responses, {reuse.ERRORS[error]}"
    evidence = np.concatenate(found)
    text = f"log likelihood ratio {evidence.max():.1f} of {what}"
    meaning = "stale weights, a missing residual, lenience, a wrong cut"
    return Test(f"nearness to {name}", ratio_p_value(evidence), text, meaning)


def reuse_ratios(tested: Positions, other: Other) -> np.ndarray | None:
    """Log likelihood ratio of each of R responses for each of `DRAFTED` and each error of reuse, float64 (R, D, E).

    None unless the whole vocabulary is known.
    """
    if np.isnan(other.factors).any():
        return None
    ratios = reuse.ratios(other.factors, tested.index)
    with np.errstate(divide="ignore"):
        return np.log1p(np.array(DRAFTED)[:, None] * (ratios[:, None] - 1))
