"""SPEC-RL's acceptance rule: the distribution of its rollouts by enumeration, its limits, and what it refuses."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.methods.acceptance.random_cut import RandomCut
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Distributions

LENIENCES = [0.0, 0.3, 1.0, math.exp(0.5), 4.0, math.inf]


def first_rejection(new, old, uniforms, lengths, lenience):
    """Index of the first rejected token of each draft, (drafts,), from tables (drafts, tokens)."""
    new, old, uniforms = map(np.asarray, (new, old, uniforms))
    valid = np.arange(new.shape[1]) < np.asarray(lengths)[:, None]
    rule, accepted = SpecRLRule(lenience), np.ones(valid.shape, dtype=bool)
    drafts = Distributions.of_tokens(np.zeros(valid.sum(), int), new[valid], old[valid])
    accepted[valid] = rule.accepts(drafts, uniforms[valid])
    return np.array([rule.kept(row[:length]) for row, length in zip(accepted, lengths, strict=True)], dtype=np.int64)


def random_policy(rng, vocabulary, length, zeros=0.0):
    """Next-token distributions of every context shorter than `length`, as a mapping from context to probabilities."""
    contexts = (c for n in range(length) for c in itertools.product(range(vocabulary), repeat=n))
    policy = {}
    for context in contexts:
        distribution = rng.dirichlet(np.ones(vocabulary)) * (rng.random(vocabulary) >= zeros)
        policy[context] = distribution / distribution.sum() if distribution.sum() else np.eye(vocabulary)[0]
    return policy


def token_probabilities(policy, sequence):
    return np.array([policy[sequence[:i]][token] for i, token in enumerate(sequence)])


def log(probabilities):
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def acceptance_probabilities(p, q, lenience):
    """Where `first_rejection` switches from accepting to rejecting each token, (drafts, tokens), by bisection on u."""
    drafts, length = p.shape
    row = np.repeat(np.arange(drafts), length)
    column = np.tile(np.arange(length), drafts)
    low, high = np.zeros(len(row)), np.ones(len(row))

    def accepts(u):
        uniforms = np.full((len(row), length), 1e-300)
        uniforms[np.arange(len(row)), column] = u
        reached = (
            np.arange(length) >= column[:, None]
        )  # the distribution of later tokens is conditional on earlier ones
        new, old = np.where(reached, log(p)[row], 0.0), np.where(reached, log(q)[row], 0.0)
        return first_rejection(new, old, uniforms, np.full(len(row), length), lenience) > column

    at_one = accepts(np.ones(len(row)))
    for _ in range(60):
        middle = (low + high) / 2
        accepted = accepts(middle)
        low, high = np.where(accepted, middle, low), np.where(accepted, high, middle)
    return np.where(at_one, 1.0, low).reshape(drafts, length)


def distribution_of_rollouts(p, q, sequences, lenience):
    """Distribution of: draw a draft from q, cut it where `first_rejection` does, continue under p."""
    p_of = np.array([token_probabilities(p, s) for s in sequences])
    q_of = np.array([token_probabilities(q, s) for s in sequences])
    accept = acceptance_probabilities(p_of, np.where(q_of > 0, q_of, 1.0), lenience)
    distribution = np.zeros(len(sequences))
    for draft, mass, a in zip(sequences, q_of.prod(1), accept, strict=True):
        for cut in range(len(draft)):
            same = np.array([s[:cut] == draft[:cut] for s in sequences])
            distribution += mass * a[:cut].prod() * (1 - a[cut]) * same * p_of[:, cut:].prod(1)
        distribution[sequences.index(draft)] += mass * a.prod()
    return distribution


def formula(p, q, sequence, lenience):
    """P(o) = sum_k prod_{i<k} m_i (1 - beta_k) prod_{i>=k} p_i + prod m_i, with m = min(q, l p), beta = sum m."""
    m_of = {context: np.minimum(q[context], lenience * p[context]) for context in p}
    m = token_probabilities(m_of, sequence)
    later = token_probabilities(p, sequence)
    beta = [m_of[sequence[:k]].sum() for k in range(len(sequence))]
    terms = (m[:k].prod() * (1 - beta[k]) * later[k:].prod() for k in range(len(sequence)))
    return sum(terms) + m.prod()


@pytest.mark.parametrize("lenience", [0.3, 1.0, math.exp(0.5), 4.0])
@pytest.mark.parametrize(("vocabulary", "length", "zeros"), [(3, 4, 0.0), (4, 3, 0.0), (3, 3, 0.3)])
def test_distribution_of_rollouts_is_the_published_rules(vocabulary, length, zeros, lenience):
    rng = np.random.default_rng(vocabulary * 10 + length)
    p, q = random_policy(rng, vocabulary, length, zeros), random_policy(rng, vocabulary, length, zeros)
    sequences = list(itertools.product(range(vocabulary), repeat=length))
    distribution = distribution_of_rollouts(p, q, sequences, lenience)
    np.testing.assert_allclose(distribution, [formula(p, q, s, lenience) for s in sequences], atol=1e-12, rtol=0)
    assert distribution.sum() == pytest.approx(1, abs=1e-12)


def test_no_reuse_is_the_current_policy_full_reuse_the_old_one_and_lenience_lies_between():
    rng = np.random.default_rng(0)
    p, q = random_policy(rng, 3, 3), random_policy(rng, 3, 3)
    sequences = list(itertools.product(range(3), repeat=3))
    exact = np.array([token_probabilities(p, s).prod() for s in sequences])
    stale = np.array([token_probabilities(q, s).prod() for s in sequences])
    distributions = [distribution_of_rollouts(p, q, sequences, lenience) for lenience in LENIENCES]
    distances = [np.abs(distribution - exact).sum() / 2 for distribution in distributions]
    np.testing.assert_allclose(distributions[0], exact, atol=1e-12)
    np.testing.assert_allclose(distributions[-1], stale, atol=1e-12)
    assert distances == sorted(distances)
    assert distances[LENIENCES.index(1.0)] > 0.01, "without a residual even l = 1 is not on-policy"


@st.composite
def batches(draw):
    """Log-probs, old log-probs, uniforms and lengths of a few drafts."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    new, old = -rng.exponential(1.0, (2, rows, width))
    new[rng.random(new.shape) < 0.1] = -math.inf
    return new, old, 1.0 - rng.random((rows, width)), rng.integers(0, width + 1, rows)


@given(batches(), st.floats(0, 10), st.floats(0, 10))
def test_cut_never_falls_as_lenience_rises(batch, one, other):
    low, high = sorted((one, other))
    assert (first_rejection(*batch, low) <= first_rejection(*batch, high)).all()


@given(batches(), st.floats(0, 10), st.floats(0.01, 1))
def test_cut_never_falls_as_uniforms_fall(batch, lenience, factor):
    new, old, u, lengths = batch
    assert (
        first_rejection(new, old, u, lengths, lenience) <= first_rejection(new, old, u * factor, lengths, lenience)
    ).all()


@given(batches(), st.sampled_from(LENIENCES))
def test_a_batch_is_cut_as_its_rows_are(batch, lenience):
    together = first_rejection(*batch, lenience)
    alone = [first_rejection(*(x[i : i + 1] for x in batch), lenience)[0] for i in range(len(together))]
    assert together.tolist() == alone
    assert together.dtype == np.int64
    assert ((together >= 0) & (together <= batch[3])).all()


@given(batches(), st.sampled_from(LENIENCES))
def test_what_lies_beyond_a_drafts_length_is_ignored_even_nan(batch, lenience):
    new, old, u, lengths = batch
    beyond = np.arange(new.shape[1]) >= lengths[:, None]
    spoilt = [np.where(beyond, np.nan, x) for x in (new, old, u)]
    assert first_rejection(*spoilt, lengths, lenience).tolist() == first_rejection(*batch, lenience).tolist()


@given(batches())
def test_lenience_zero_keeps_nothing_and_infinity_everything(batch):
    assert not first_rejection(*batch, 0.0).any()
    assert first_rejection(*batch, math.inf).tolist() == batch[3].tolist()


@given(batches())
def test_an_unchanged_policy_accepts_everything_at_lenience_one(batch):
    _, old, u, lengths = batch
    assert first_rejection(old, old, u, lengths, 1.0).tolist() == lengths.tolist()
    assert first_rejection(old, old, np.ones_like(u), lengths, 1.0).tolist() == lengths.tolist()


@given(batches(), st.floats(0.1, 10))
def test_float32_is_cut_as_float64_away_from_the_threshold(batch, lenience):
    new, old, u, lengths = batch
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.log(u) - (math.log(lenience) + new - old))
    u = np.where(distance < 1e-5, np.minimum(u * 0.9, 1.0), u)
    single = (new.astype(np.float32), old.astype(np.float32))
    assert (
        first_rejection(*single, u, lengths, lenience).tolist()
        == first_rejection(new, old, u, lengths, lenience).tolist()
    )


@pytest.mark.parametrize(
    ("new", "old", "lenience", "kept"),
    [
        (-math.inf, -1.0, 1e9, 0),  # impossible now: rejected at any finite lenience
        (-math.inf, -1.0, math.inf, 1),  # but kept by full reuse
        (-1.0, -math.inf, 1e-9, 1),  # impossible before: the ratio is infinite
        (-math.inf, -math.inf, 1e9, 0),
        (-1000.0, -1.0, 1.0, 0),  # ratios that would underflow or overflow
        (-1.0, -1000.0, 1.0, 1),
    ],
)
def test_impossible_tokens(new, old, lenience, kept):
    assert first_rejection([[new]], [[old]], [[0.5]], [1], lenience).tolist() == [kept]


def test_the_first_rejection_counts_not_a_later_one():
    new, old = np.log([[0.5, 0.1, 0.5, 0.1]]), np.log([[0.5, 0.9, 0.5, 0.9]])
    assert first_rejection(new, old, np.full((1, 4), 0.5), [4], 1.0).tolist() == [1]


def test_no_drafts_and_empty_drafts():
    assert first_rejection(np.zeros((0, 5)), np.zeros((0, 5)), np.zeros((0, 5)), [], 1.0).tolist() == []
    assert first_rejection(*np.ones((3, 2, 0)), [0, 0], 1.0).tolist() == [0, 0]
    assert first_rejection(*np.ones((3, 2, 3)), [0, 0], 1.0).tolist() == [0, 0]


GOOD = {"policy": [-1.0, -1.0], "drawn_from": [-1.0, -1.0], "uniforms": [0.5, 0.5], "lenience": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lenience": -0.1}, "lenience"),
        ({"lenience": math.nan}, "lenience"),
        ({"policy": [-1.0, math.nan]}, "NaN"),
        ({"drawn_from": [math.nan, -1.0]}, "NaN"),
        ({"uniforms": [0.0, 0.5]}, "uniform"),
        ({"uniforms": [0.5, 1.1]}, "uniform"),
        ({"uniforms": [0.5, math.nan]}, "uniform"),
        ({"uniforms": [0.5]}, "uniform"),
        ({"uniforms": [[0.5, 0.5]]}, "uniform"),
        ({"drawn_from": [-1.0]}, "shapes"),
    ],
)
def test_what_makes_no_sense_is_rejected(change, message):
    def kept(policy, drawn_from, uniforms, lenience):
        rule = SpecRLRule(lenience)
        drafts = Distributions.of_tokens(np.zeros(2, int), np.array(policy), np.array(drawn_from))
        return rule.kept(rule.accepts(drafts, np.array(uniforms)))

    assert kept(**GOOD) == 2
    with pytest.raises(ValueError, match=message):
        kept(**(GOOD | change))


@pytest.mark.parametrize("lenience", LENIENCES)
def test_probabilities_are_those_of_the_decisions(lenience):
    """The function that is summed over accepts a uniform that is just below its value, and none above."""
    rng = np.random.default_rng(3)
    new, old = -rng.exponential(1.0, (2, 200))
    new[:20] = -math.inf
    old[10:40] = -math.inf
    rule, drafts = SpecRLRule(lenience), Distributions.of_tokens(np.zeros(200, int), new, old)
    probability = rule.acceptance(drafts)
    assert rule.accepts(drafts, np.clip(probability * (1 - 1e-12), 1e-300, 1))[probability > 1e-200].all()
    assert not rule.accepts(drafts, np.clip(probability * (1 + 1e-12), 1e-300, 1))[probability < 1 - 1e-9].any()
    assert set(probability[:20]) == {float(lenience == math.inf)}


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_a_random_cut_is_each_of_a_drafts_prefixes_with_the_same_probability(length):
    """By enumeration of u: each prefix but the whole draft has an interval of width 1/length."""
    each = 100
    u = (np.arange(each * length) + 0.5) / (each * length)
    assert np.bincount([RandomCut.cut(one, length) for one in u]).tolist() == [each] * length


@given(st.integers(0, 2**32 - 1), st.integers(1, 5000))
def test_a_random_cut_leaves_at_least_one_token_to_sample(seed, length):
    u = np.append(1.0 - np.random.default_rng(seed).random(20), [1.0, 5e-324])
    cuts = [RandomCut.cut(one, length) for one in u]
    assert all(0 <= cut < length for cut in cuts)
    assert cuts[-2:] == [length - 1, 0]


def test_a_random_cut_of_nothing_is_nothing():
    assert [RandomCut.cut(u, 0) for u in (0.5, 1.0)] == [0, 0]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_random_cut_accepts_the_tokens_before_it(length):
    rule, drafts = RandomCut(), Distributions.one_hot(np.zeros(length, int), np.zeros(length))
    for u in (0.01, 0.3, 0.7, 1.0):
        assert rule.kept(rule.accepts(drafts, np.array([u]))) == RandomCut.cut(u, length)
    with pytest.raises(ValueError, match="one uniform"):
        rule.accepts(drafts, np.full(length + 1, 0.5))


@pytest.mark.parametrize(
    ("uniform", "length", "message"),
    [(0.0, 3, "uniforms"), (1.1, 3, "uniforms"), (math.nan, 3, "uniforms"), (0.5, -1, "negative")],
)
def test_a_random_cut_that_makes_no_sense_is_rejected(uniform, length, message):
    with pytest.raises(ValueError, match=message):
        RandomCut.cut(uniform, length)
