"""SPEC-RL's Table 4 beside the simulator: its inputs, its model of reuse, and what the docs say of it."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.reuse_simulation import (
    LONGEST,
    MODELS,
    REPORTED,
    ROLLOUTS,
    VARIANTS,
    Assumed,
    reused_whole,
    scoring_seconds,
    settings,
    shortened,
    simulated,
    speedups,
    table_4,
    variants,
)
from redraft.selfspec.constants import VALUE_BYTES
from redraft.selfspec.roofline import target_seconds
from tests.selfspec import QWEN, ROUND

DOCS = (Path(__file__).parents[1] / "docs/selfspec.md").read_text(encoding="utf-8")
SETTINGS = list(settings())


def test_table_4_s_simulation_is_what_the_docs_say():
    rows = table_4()
    assert len(rows) == 9
    for row in [*rows, *variants()]:
        assert "| " + " | ".join(row) + " |" in DOCS, row


def test_settings_hold_the_printed_numbers():
    """Qwen3-1.7B with GRPO: 554.8 and 182.7 million tokens in 90 steps of 8192 responses; DAPO counts steps itself."""
    by_name = {(one.model, one.algorithm): one for one in SETTINGS}
    first = by_name["qwen3-1.7b-base", "grpo"]
    assert first.printed == {"vanilla": 309.9, "rollout": 135.2, "verification": 22.1}
    assert first.tokens == pytest.approx((752.5, 247.8), abs=0.05)
    assert first.steps == (90, 90)
    assert by_name["qwen3-8b-base", "dapo"].steps == (87, 82)
    assert speedups(first.printed) == pytest.approx((2.292, 1.970), abs=0.001)


def test_models_have_as_many_parameters_as_they_are_said_to_have():
    counted = yaml.safe_load((REPORTED.parent / "reported.yaml").read_text(encoding="utf-8"))["cost"]["parameters"]
    by_name = {name.partition("/")[2].lower(): count for name, count in counted.items()}
    for name, model in MODELS.items():
        assert model.costs.target_bytes / VALUE_BYTES == pytest.approx(by_name[name], rel=0.005)


@pytest.mark.parametrize("assumed", VARIANTS.values(), ids=VARIANTS)
def test_lengths_have_the_printed_mean_and_the_limit(assumed):
    lengths = assumed.lengths(752.5)
    assert len(lengths) == ROLLOUTS / assumed.gpus
    assert np.mean(lengths) == pytest.approx(752.5, abs=0.6)
    assert lengths.max() == (LONGEST if assumed.tail else 752)


def test_equal_lengths_are_taken_in_one_order_on_every_processor():
    """Few lengths and many ties, beside Python's own sorting, which is stable."""
    lengths = np.tile([3.0, 1.0, 2.0], 700)
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    expected = np.zeros(len(lengths))
    for rank, i in enumerate(order):
        expected[i] = lengths[i] * (rank % 2)
    np.testing.assert_array_equal(reused_whole(lengths, 0.5), expected)


@pytest.mark.parametrize("share", [0.2, 0.37])
def test_both_ways_of_reuse_leave_the_same_tokens(share):
    lengths = Assumed().lengths(900)
    for rest in (shortened(lengths, share), reused_whole(lengths, share)):
        assert rest.sum() == pytest.approx(share * lengths.sum(), rel=0.01)
    np.testing.assert_allclose(shortened(lengths, share), share * lengths, atol=0.5)
    whole = reused_whole(lengths, share)
    assert np.all((whole == 0) | (whole == lengths))
    assert np.mean(whole > 0) == pytest.approx(share, abs=0.001)


def test_scoring_is_computing_alone():
    """Sequences of 2 and 4 tokens: 8 operations a token, 1 for each pair of positions, 4 operations a second."""
    assert scoring_seconds(ROUND, np.array([2.0, 4.0])) == (2 * 8 + 4 * 8 + 2**2 / 2 + 4**2 / 2) / 4


def test_devices_differ_by_their_data_sheets():
    a100, h100 = (Assumed(device=device).calibration("qwen3-8b-base") for device in ("A100", "H100"))
    assert (a100.bandwidth, a100.flops, a100.kv_share) == pytest.approx((QWEN.bandwidth, QWEN.flops, QWEN.kv_share))
    assert h100.bandwidth / a100.bandwidth == pytest.approx(3.35 / 2.039)
    assert h100.flops / a100.flops == pytest.approx(989.4 / 312)
    assert h100.target_overhead == a100.target_overhead == QWEN.target_overhead


def test_steps_of_the_first_epoch_decode_everything():
    """With all responses equally long and shortened, all at once, a step is that many passes."""
    setting, assumed = SETTINGS[0], Assumed(tail=False, slots=1024)
    found, of_model = simulated(setting, assumed, shortened), assumed.calibration(setting.model)
    plain = sum(target_seconds(of_model, 1024, 200 + i) for i in range(752))
    rest = round(752 * (90 * setting.tokens[1] - 6 * setting.tokens[0]) / 84 / setting.tokens[0])
    behind = sum(target_seconds(of_model, 1024, 200 + 752 - rest + i) for i in range(rest))
    scored = 84 / 90 * scoring_seconds(of_model, np.full(1024, 952.0))
    expected = {"vanilla": plain, "rollout": (6 * plain + 84 * behind) / 90, "verification": scored}
    assert found == pytest.approx(expected, rel=1e-6)
