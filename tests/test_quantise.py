"""Round-to-nearest quantisation and the drafter made by it."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from redraft.engines.torch.drafter import QuantisedDrafter, round_to_nearest
from tests.test_torch_engine import make_model

WEIGHTS = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=st.floats(-8, 8, width=32))


@given(WEIGHTS, st.sampled_from((2, 4, 8)), st.sampled_from((1, 4, 16, 128)))
def test_a_weight_is_off_by_half_a_step_at_most_and_0_stays_0(weight, bits, group):
    quantised = round_to_nearest(torch.from_numpy(weight), bits, group)
    found = quantised.dequantised().numpy()
    size = min(group, weight.shape[1])
    steps = np.repeat(quantised.scales[..., 0].numpy(), size, axis=1)[:, : weight.shape[1]]
    # The zero point is rounded too, so that a range's end may be cut by half a step.
    assert (np.abs(found - weight) <= steps * 1.001 + 1e-6).all()
    assert (found[weight == 0] == 0).all()
    assert int(quantised.codes.max()) < 2**bits


def test_a_group_by_hand():
    weight = torch.tensor([[-1.0, 0.0, 2.0, 0.9, 3.0, 3.0, 3.0, 0.0]])
    quantised = round_to_nearest(weight, 2, 4)
    assert quantised.scales.flatten().tolist() == [1.0, 1.0], "(2 - -1) / 3 and (3 - 0) / 3"
    assert quantised.zeros.flatten().tolist() == [1.0, 0.0]
    assert quantised.codes.flatten(1).tolist() == [[0, 1, 3, 2, 3, 3, 3, 0]]
    assert quantised.dequantised().tolist() == [[-1.0, 0.0, 2.0, 1.0, 3.0, 3.0, 3.0, 0.0]]


def test_groups_lie_along_the_input_and_the_last_may_be_short():
    weight = torch.tensor([[1.0, 0.0, 100.0], [0.0, 0.0, 0.0]])
    assert round_to_nearest(weight, 4, 2).dequantised().tolist() == weight.tolist(), "100 shares no scale with 1"
    assert round_to_nearest(weight, 4, 128).dequantised()[0, 0] != 1.0
    outputs = torch.tensor([[100.0, 0.0], [1.0, 0.0]])
    assert round_to_nearest(outputs, 4, 2).dequantised().tolist() == outputs.tolist(), "nor do two outputs"


def test_bytes_are_codes_with_a_scale_and_a_zero_point_a_group():
    weight = torch.randn(64, 256)
    assert round_to_nearest(weight, 4, 128).bytes == 64 * 256 / 2 + 64 * 2 * (2 + 0.5)
    assert round_to_nearest(weight, 8, 128).bytes == 64 * 256 + 64 * 2 * (2 + 1)


def test_a_drafter_quantises_the_projections_alone_and_more_bits_err_less():
    model = make_model("llama", 4, 1)
    drafters = {bits: QuantisedDrafter(model, bits, 16) for bits in (2, 4, 8)}
    errors = [drafter.error for drafter in drafters.values()]
    assert errors[0] > 4 * errors[1] > 16 * errors[2] > 0
    assert drafters[8].bytes > drafters[4].bytes
    before = dict(model.named_parameters())
    with drafters[4].drafting():
        during = dict(model.named_parameters())
    changed = {name.split(".")[-2] for name in before if during[name] is not before[name]}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all(after is before[name] for name, after in model.named_parameters())


def test_refreshing_twice_changes_nothing_and_keeps_the_tensors():
    drafter = QuantisedDrafter(make_model("qwen3", 2, 2), 4, 16)
    places = [own.data_ptr() for _, own in drafter._layers]
    values, error = [own.clone() for _, own in drafter._layers], drafter.error
    drafter.refresh()
    assert [own.data_ptr() for _, own in drafter._layers] == places
    assert all(torch.equal(own, value) for (_, own), value in zip(drafter._layers, values, strict=True))
    assert drafter.error == error
    assert drafter.seconds > 0


def test_half_precision_weights_are_quantised_in_single():
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = round_to_nearest(weight, 8, 32).dequantised()
    assert found.dtype == torch.float32
    assert float((found - weight.float()).abs().max()) < 0.03
