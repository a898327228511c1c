"""Shares of a decoding pass by hand; Table 3 is in test_efficient_rollout.py."""

import pytest

from benchmarks.self_speculation import MODELS
from redraft.analysis.tables.without_runs import PARTS
from redraft.lab.selfspec.token_time import decode_shares
from redraft.selfspec.constants import ModelConstants

SMALL = ModelConstants(hidden=4, layers=2, heads=3, kv_heads=1, head_dim=2, intermediate=5, vocabulary=10, tied=True)


def test_bytes_of_a_small_model_by_hand():
    """Bandwidth 1 and endless throughput: a part's time is its bytes."""
    batch, length = 3, 7
    parts = {
        "ffn": 2 * 2 * 3 * 4 * 5,
        "qkvo": 2 * 2 * (4 * 6 + 4 * 2 + 4 * 2 + 6 * 4),
        "attention": 2 * 2 * 1 * 2 * 2 * batch * length,
        "head": 2 * 4 * 10,
        "nonlinear": 2 * (batch * (5 * 2 * 4 + 2 * 2 * 3 * 4 + 2 * 3 * 5 + 2 * 2 * 4 * 2) + 2 * 3 * batch * length),
    }
    shares = decode_shares(SMALL, batch, length, bandwidth=1, flops=1e30)
    assert list(shares) == list(PARTS)
    assert shares == pytest.approx({name: part / sum(parts.values()) for name, part in parts.items()})


def test_operations_of_a_small_model_by_hand():
    """Throughput 1 and endless bandwidth: a part's time is its operations."""
    batch, length = 3, 7
    parts = {
        "ffn": 2 * batch * 2 * 3 * 4 * 5,
        "qkvo": 2 * batch * 2 * (4 * 6 + 4 * 2 + 4 * 2 + 6 * 4),
        "attention": 2 * 2 * 2 * 3 * 2 * batch * length,
        "head": 2 * batch * 4 * 10,
        "nonlinear": 0,
    }
    shares = decode_shares(SMALL, batch, length, bandwidth=1e30, flops=1)
    assert shares == pytest.approx({name: part / sum(parts.values()) for name, part in parts.items()}, abs=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_projections_are_most_of_the_tail_and_attention_grows_with_length(name):
    for length, batch in ((2048, 8), (2048, 4), (4096, 2), (8192, 1)):
        shares = decode_shares(MODELS[name], batch, length)
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["ffn"] + shares["qkvo"] > 0.8
    long, short = (decode_shares(MODELS[name], 1, length)["attention"] for length in (65536, 8192))
    assert long > 3 * short
