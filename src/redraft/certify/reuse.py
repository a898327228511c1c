"""Likelihood ratios of responses under known errors in the reuse of drafts, when the drafts' policy is known.

A draft is a response that an earlier policy q sampled. A sampler accepts its tokens with min(1, p/q), samples the first
rejected one from the residual distribution, proportional to max(p - q, 0), and the tokens after it from p (Leviathan et
al. 2023, arXiv 2211.17192). A response does not show where its draft was cut, so the likelihood is a sum over all cuts:
with a = likelihood of the tokens so far, all of them from the draft, and b = likelihood, cut before,

    b <- b p(token) + a r(token),    a <- a k(token),

where k(token) is the probability that the draft proposes the token and that it is accepted, and r(token) the
probability that the draft is rejected and the token sampled instead. Divided by p, a + b is the likelihood ratio of a
response. An error in k or r changes few tokens a little, so tests that do not know where it acts hardly find it.
N is the number of tokens, V the vocabulary, E the number of errors.
"""

import numpy as np

LENIENT = float(np.exp(0.5))
"""Lenience of the alternative with a lenience."""
ERRORS = (
    "no residual",
    "half of the residual",
    "the rejected token kept",
    f"lenience {LENIENT:.2g}",
    "no residual after a one-hot rule",
)
"""Known errors, in the order of the factors. A one-hot rule accepts a draft's token with probability p."""


def factors(p_NV: np.ndarray, q_NV: np.ndarray, token: np.ndarray) -> np.ndarray:
    """k(token) / p(token) and r(token) / p(token) for each error, float64 (N, 2, E).

    Args:
        p_NV: distribution of the policy.
        q_NV: distribution of the drafts' policy.
        token: int (N,), the sampled tokens.
    """
    rows = np.arange(len(token))
    p, q = p_NV[rows, token], q_NV[rows, token]
    # A token that the policy gives no probability fails by itself.
    ratio = q / np.maximum(p, 1e-100)
    rejected = np.maximum(p_NV - q_NV, 0).sum(axis=1)
    accepted = np.minimum(1, ratio)
    leniently_rejected = np.maximum(q_NV - LENIENT * p_NV, 0).sum(axis=1)
    half = np.maximum(p - q / 2, 0) / np.maximum(p, 1e-100) / np.maximum(p_NV - q_NV / 2, 0).sum(axis=1)
    residual = np.maximum(1 - ratio, 0) / np.maximum(rejected, 1e-100)
    kept_NE = [accepted, accepted, accepted, np.minimum(LENIENT, ratio), q]
    sampled_NE = [
        rejected,
        rejected * half,
        np.maximum(ratio - 1, 0),
        leniently_rejected * residual,
        1 - (p_NV * q_NV).sum(axis=1),
    ]
    return np.stack([np.column_stack(kept_NE), np.column_stack(sampled_NE)], axis=1)


def ratios(factors_N2E: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Likelihood ratio of each of R responses under each error, float64 (R, E).

    Args:
        factors_N2E: of the tokens of all responses, in their order.
        index: int (N,), position of each token in its response, from 0.
    """
    starts = np.flatnonzero(index == 0)
    lengths = np.diff(starts, append=len(index))
    kept = np.ones((len(starts), factors_N2E.shape[2]))
    cut = np.zeros_like(kept)
    for t in range(int(lengths.max())):
        going = lengths > t
        k, r = factors_N2E[starts[going] + t].swapaxes(0, 1)
        cut[going] += kept[going] * r
        kept[going] *= k
    return kept + cut
