"""Shares of a decoding pass: Table 3, and parts by hand."""

import pytest

from benchmarks.self_speculation import MODELS, PARTS, SETTINGS, TABLE_3, table_3
from redraft.selfspec.constants import ModelConstants
from redraft.selfspec.decomposition import decode_shares

CELLS = [
    (name, batch, length, part, printed)
    for name, rows in TABLE_3.items()
    for (length, batch), row in zip(SETTINGS, rows, strict=True)
    for part, printed in zip(PARTS, row, strict=True)
]
SMALL = ModelConstants(
    hidden=4, layers=2, heads=3, kv_heads=1, head_dim=2, intermediate=5, vocabulary=10, tied=True
)  # fmt: skip


def test_table_3_within_a_tenth_of_a_point():
    shares = {(name, batch, length): decode_shares(MODELS[name], batch, length) for name, batch, length, *_ in CELLS}
    differences = [100 * shares[name, batch, length][part] - printed for name, batch, length, part, printed in CELLS]
    assert len(CELLS) == 60
    assert max(map(abs, differences)) < 0.09
    as_printed = sum(
        f"{100 * shares[name, batch, length][part]:.1f}" == f"{printed:.1f}"
        for name, batch, length, part, printed in CELLS
    )
    assert as_printed == 53


def test_the_table_has_printed_percentages_and_differences():
    rows = table_3()
    assert [row[:2] for row in rows][:2] == [["Qwen2.5-7B", "2048, 8"], ["Qwen2.5-7B", "2048, 4"]]
    assert rows[0][2] == "75.2 +0.08"


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
    for length, batch in SETTINGS:
        shares = decode_shares(MODELS[name], batch, length)
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["ffn"] + shares["qkvo"] > 0.8
    long, short = (decode_shares(MODELS[name], 1, length)["attention"] for length in (65536, 8192))
    assert long > 3 * short
