"""Which tokens end a response of a model."""

from types import SimpleNamespace

import pytest

from redraft.train.models import stop_tokens


@pytest.mark.parametrize(
    ("ends", "stops"), [(1, {1, 2}), ([1, 5], {1, 2, 5}), ([2], {2}), (0, {0, 2}), (None, {2})], ids=str
)
def test_all_ends_that_model_and_tokenizer_name_are_stops(ends, stops):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=ends))
    assert stop_tokens(model, SimpleNamespace(eos_token_id=2)) == stops


def test_a_model_without_settings_ends_as_its_tokenizer_says():
    assert stop_tokens(SimpleNamespace(generation_config=None), SimpleNamespace(eos_token_id=3)) == {3}
    assert stop_tokens(SimpleNamespace(), SimpleNamespace(eos_token_id=None)) == set()
