"""What becomes of drafts by position in the response."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.analysis.data.prompt_frames import PARTS, by_position
from redraft.analysis.pages.run_pages import drafts_of


def rollouts(*pairs):
    return pd.DataFrame(pairs, columns=["prefix_length", "draft_length"])


def test_the_table_of_three_drafts_by_hand():
    """Drafts of 8 tokens: one kept whole, one cut behind 3; one of 4 tokens rejected at once; one response without."""
    found = by_position(rollouts((8, 8), (3, 8), (0, 4), (0, 0))).set_index("first")
    assert list(found["last"]) == list(range(1, 9))
    assert list(found["drafts"]) == [3, 3, 3, 3, 2, 2, 2, 2]
    assert list(found["reached"]) == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2])
    assert list(found["tokens"]) == [3, 2, 2, 2, 1, 1, 1, 1]
    assert list(found["kept"]) == pytest.approx([2 / 3, 1, 1, 1 / 2, 1, 1, 1, 1])


def test_a_part_that_no_draft_was_kept_up_to_has_no_share():
    found = by_position(rollouts((1, 80), (2, 80)))
    assert list(found["tokens"]) == [5] + [0] * 7
    assert list(found["reached"]) == [1] + [0] * 7
    assert found["kept"].isna().tolist() == [False] + [True] * 7


def test_there_is_no_table_without_drafts():
    assert by_position(rollouts((0, 0), (0, 0))).empty
    assert by_position(rollouts()).empty


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda p: (min(p), p[1])), min_size=1))
def test_parts_add_up_to_all_tokens(pairs):
    frame = rollouts(*pairs)
    found = by_position(frame)
    cut = (frame["prefix_length"] < frame["draft_length"]).sum()
    assert found["tokens"].sum() == frame["prefix_length"].sum() + cut
    kept = (found["kept"].fillna(0) * found["tokens"]).sum()
    assert kept == pytest.approx(frame["prefix_length"].sum())
    assert len(found) <= PARTS
    assert (found["first"].iloc[0], found["last"].iloc[-1]) == (1, frame["draft_length"].max())
    assert list(found["first"][1:]) == [last + 1 for last in found["last"][:-1]]


def test_tokens_that_are_kept_with_one_chance_show_it_in_every_part():
    rng = np.random.default_rng(0)
    kept = np.minimum(rng.geometric(0.02, 40_000) - 1, 64)
    found = by_position(rollouts(*((k, 64) for k in kept)))
    assert found["kept"].to_numpy() == pytest.approx(0.98, abs=0.003)
    assert found["reached"].to_numpy() == pytest.approx(0.98 ** (found["first"] - 1), abs=0.01)


def test_a_run_shows_the_drafts_of_all_its_steps_and_none_without_rollouts(tmp_path):
    assert drafts_of(tmp_path) == []
    (tmp_path / "rollouts").mkdir()
    for step, pairs in enumerate([[(0, 0)], [(8, 8), (3, 8)], [(0, 4)]]):
        frame = rollouts(*pairs).assign(epoch=step, prompt=0)
        frame.to_parquet(tmp_path / f"rollouts/step-{step:04d}.parquet")
    assert [(part["drafts"], part["tokens"]) for part in drafts_of(tmp_path)][:3] == [(3, 3), (3, 2), (3, 2)]
