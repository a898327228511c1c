"""Random numbers of a run: named streams of a generator, and Gumbel noise from a hash.

A stream's numbers depend on its purpose and position, never on what was sampled before. So a resumed run continues as
the uninterrupted one would have, and no two purposes share numbers by accident.

Gumbel noise depends on a response's key, the position and the token alone. The argmax of log-probabilities plus this
noise is a sample of the policy (Gumbel-max). With the key the noise is computed again at any position and under any
policy, so a draft is verified against the token that the current policy samples by the same noise. Nothing is stored.

The noise comes from a hash instead of a generator with a state, because sampling needs one row of a position at a time,
on the engine's device, and verification all rows at once. Each of key, position and token goes through the finaliser of
SplitMix64 (Steele, Lea and Flood, 2014), a bijection of 64 bits; so for a given key and position the tokens' hashes are
distinct, and repeat after 2^64 tokens or positions.
"""

import hashlib
from typing import Any

import numpy as np

BITS = 52
"""Random bits of a uniform; half a unit is added, so that neither 0 nor 1 occurs and the sum is still exact."""

Integers = Any
"""An int64 array of NumPy or tensor of PyTorch; arithmetic of both wraps around at 64 bits."""


def stream(seed: int, purpose: str, *position: int) -> np.random.Generator:
    """The random generator of one purpose at one position of a run.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for, such as `acceptance`.
        position: where in the run, such as (step, prompt, sample).

    Raises:
        ValueError: for a purpose that ends in a number, which could be taken for a position.
    """
    if purpose.rpartition("/")[2].lstrip("-").isdigit():
        raise ValueError(f"the purpose of a random stream must not end in a number, got {purpose!r}")
    name = "/".join((str(seed), purpose, *map(str, position)))
    # Philox has a key of 128 bits; each key is an independent sequence.
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniforms(seed: int, purpose: str, *position: int, count: int) -> np.ndarray:
    """`count` float64 uniforms on (0, 1]; zero is left out so that an event of probability zero cannot happen."""
    return 1.0 - stream(seed, purpose, *position).random(count)


def hashed(key: Integers, position: Integers, token: Integers) -> Integers:
    """Hash, in [0, 2^52), of each combination.

    Args:
        key: int64, at least one dimension, as are the others; all three broadcast against each other.
        position: int64, position in the response, from 0.
        token: int64, token id.
    """
    # Mixed before each combination: otherwise pairs such as (1, 2) and (2, 1) would have the same hash.
    return _right(_mixed(_mixed(_mixed(key) ^ position) ^ _mixed(token)), 64 - BITS)


def signed(key: int) -> int:
    """A key of 64 bits as an int64."""
    return (int(key) + 2**63) % 2**64 - 2**63


def gumbel(key: int, positions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, float64, of tokens at positions of the response with that key.

    Engines on PyTorch have the same uniforms bit by bit; the logarithms of two libraries may differ in the last bit.

    Args:
        key: 64 bits.
        positions: integer, position in the response, from 0; broadcasts against `tokens`.
        tokens: integer, token ids, such as (n, k) with positions (n, 1).
    """
    keys = np.array([signed(key)], dtype=np.int64)
    numbers = hashed(keys, np.atleast_1d(positions).astype(np.int64), np.atleast_1d(tokens).astype(np.int64))
    return -np.log(-np.log((numbers + 0.5) * 2.0**-BITS))


def _mixed(x: Integers) -> Integers:
    """A step of SplitMix64: add the golden ratio, then its finaliser."""
    x = x + signed(0x9E3779B97F4A7C15)
    x = (x ^ _right(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ _right(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ _right(x, 31)


def _right(x: Integers, bits: int) -> Integers:
    """Logical shift to the right; that of int64 would repeat the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
