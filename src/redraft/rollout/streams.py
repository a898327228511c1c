"""Named random streams: what is drawn depends on what it is for, never on what was drawn before it.

So a resumed run continues as the uninterrupted one would have, and no two purposes share numbers by accident.
"""

import hashlib

import numpy as np


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
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniforms(seed: int, purpose: str, *position: int, count: int) -> np.ndarray:
    """`count` float64 uniforms on (0, 1]; zero is left out so that an event of probability zero cannot happen."""
    return 1.0 - stream(seed, purpose, *position).random(count)
