"""Groups with random content, their comparison, and peak memory: for tests of memory and storage."""

import tracemalloc
from dataclasses import fields

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample, TopLogProbs, Use


def make(prompt=0, sample=0, length=3, seed=0, finish=Finish.EOS, prefix=0, top=None):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, length).astype(np.int32)
    log_probs = -rng.exponential(1.0, length).astype(np.float32)
    sampled_at = rng.integers(0, 50, length).astype(np.int32)
    distribution = None
    if top is not None:
        shape = (length, top)
        distribution = TopLogProbs(
            rng.integers(0, 1000, shape).astype(np.int32), -rng.exponential(1.0, shape).astype(np.float32)
        )
    return Rollout(prompt, sample, tokens, log_probs, sampled_at, finish, prefix, prefix + 1, prefix + 2, distribution)


def group(prompt=0, visit=0, rewards=(1.0, 0.0), seed=0, length=3, top=None):
    samples = (Sample(make(prompt, i, length, 100 * seed + i, top=top), reward) for i, reward in enumerate(rewards))
    return Group(prompt, visit, tuple(samples))


def same(one, other):
    """Assert that two rollouts, samples or groups are equal in all fields, array types included."""
    assert type(one) is type(other)
    for name in (field.name for field in fields(one)):
        mine, others = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == others.dtype, name
            assert np.array_equal(mine, others), name
        elif isinstance(mine, tuple):
            same_all(mine, others)
        elif isinstance(mine, Rollout | TopLogProbs):
            same(mine, others)
        else:
            assert mine == others, name
            assert type(mine) is type(others), name
    return True


def same_all(some, others):
    assert len(some) == len(others)
    return all(same(a, b) for a, b in zip(some, others, strict=True))


def arrays(rollout):
    tops = [rollout.top.tokens, rollout.top.log_probs] if rollout.top else []
    return [rollout.tokens, rollout.log_probs, rollout.sampled_at, *tops]


def peak(work):
    """Bytes allocated at most at a time while working, by Python, NumPy and Arrow."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


finishes = st.sampled_from(list(Finish))
contents = st.tuples(
    st.integers(0, 20), st.integers(0, 2**31), finishes, st.integers(0, 5), st.none() | st.integers(0, 3)
)
rewards = st.floats(allow_nan=False)
updates = st.tuples(rewards, st.sampled_from(list(Use)), st.sampled_from(list(OldLogProbs)), st.booleans())


indices = st.integers(0, 2**40)


@st.composite
def groups(draw, prompts=indices, visits=indices):
    """Groups of one to five samples, some without tokens, some with a top distribution."""
    prompt, samples = draw(prompts), draw(st.lists(st.integers(0, 8), min_size=1, max_size=5, unique=True))
    made = (Sample(make(prompt, i, *draw(contents)), *draw(updates)) for i in samples)
    return Group(prompt, draw(visits), tuple(made))
