"""Records and files of a step count what the step made, and nothing that a group carries from an earlier one."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from redraft.train.records import describe, save_groups_of_step
from tests.groups import a_draft, group_of


def group():
    """A group of two rollouts made in step 7, and one of step 3 that it carries, which alone is right."""
    drafts = [a_draft([1, 2, 0], sampled_at=3), a_draft([1, 0], sampled_at=7, sample=1), a_draft([2, 0], sampled_at=7)]
    whole = group_of([drafts[0], drafts[1], replace(drafts[2], sample=2)], rewards=[1.0, 0.0, 0.0])
    return replace(whole, samples=(replace(whole.samples[0], carried=True), *whole.samples[1:]))


def test_a_carried_sample_counts_in_no_later_step():
    record = describe([group()], 7, steps_per_epoch=2)
    assert (record["rollouts"], record["tokens_decoded"], record["response_length"]) == (2, 4, 2.0)
    assert (record["reward"], record["token_age_epochs"]) == (0.0, 0.0)


def test_a_mean_reward_is_no_more_rounded_than_a_number_of_python():
    drafts = [a_draft([1, 0], sample=i) for i in range(10)]
    assert describe([group_of(drafts, rewards=[1.0] * 3 + [0.0] * 7)], 7, 2)["reward"] == 0.3


def test_shares_of_prompts_leave_out_those_that_are_continued():
    """A continued prompt was chosen by its rewards: it is informative, and has a correct response, by construction."""
    names = ("informative", "without_correct", "replayed")
    assert [describe([group()], 7, 2)[name] for name in names] == [None, None, None]
    new = group_of([a_draft([1, 0]), a_draft([2, 0], sample=1)], rewards=[0.0, 0.0])
    assert [describe([group(), new], 7, 2)[name] for name in names] == [0.0, 1.0, 0.0]
    assert group().informative


def test_only_what_had_a_draft_can_have_been_reused_whole():
    draft = a_draft([1, 2, 0])
    lengths = {(0, 0): False, (3, 3): True, (2, 3): False}
    for (kept, drafted), whole in lengths.items():
        assert replace(draft, prefix_length=kept, draft_length=drafted).fully_reused is whole


def test_means_about_drafts_are_over_rollouts_with_one_and_ages_over_tokens():
    """Of three rollouts of step 9 two had drafts: 4 of 4 tokens were kept, of which 2 are of step 3, and 1 of 3."""
    rollouts = [a_draft([1, 2, 3, 0]), a_draft([1, 2, 3], sample=1), a_draft([0], sampled_at=9, sample=2)]
    whole = replace(rollouts[0], prefix_length=4, draft_length=4, verified=4, sampled_at=np.array([3, 3, 5, 7]))
    part = replace(rollouts[1], prefix_length=1, draft_length=3, verified=3, sampled_at=np.array([5, 9, 9]))
    record = describe([group_of([whole, part, rollouts[2]], rewards=[1.0, 0.0, 0.5])], 9, steps_per_epoch=2)
    expected = {
        "rollouts": 3,
        "tokens_decoded": 3,
        "tokens_verified": 7,
        "tokens_reused": 5,
        "response_length": 8 / 3,
        "truncated": 1 / 3,
        "prefix_length": 2.5,
        "prefix_share": (1 + 1 / 3) / 2,
        "full_reuse_ratio": 0.5,
        "reward": 0.5,
        "informative": 1.0,
        "token_age_epochs": (6 + 6 + 4 + 2 + 4 + 0 + 0 + 0) / 8 / 2,
        "rollouts_per_prompt": 3.0,
        "without_correct": 0.0,
        "replayed": 0.0,
    }
    assert record == pytest.approx(expected)


def test_without_drafts_there_is_nothing_to_say_about_them():
    record = describe([group_of([a_draft([1, 0])])], 0, steps_per_epoch=2)
    assert (record["prefix_length"], record["full_reuse_ratio"]) == (None, None)


def test_the_file_of_a_step_has_the_rollouts_that_it_made(tmp_path):
    save_groups_of_step(tmp_path / "step.parquet", 3, [group()])
    frame = pd.read_parquet(tmp_path / "step.parquet")
    assert frame["sample"].tolist() == [1, 2]
    assert set(frame["sampled_at"].map(tuple)) == {(7, 7)}
