"""Records and files of a step count what the step made, and nothing that a group carries from an earlier one."""

from dataclasses import replace

import pandas as pd

from redraft.train.records import describe, save_groups_of_step
from tests.groups import a_draft, group_of


def group():
    """A group of two rollouts made in step 7, and one of step 3 that it carries, which alone is right."""
    drafts = [a_draft([1, 2, 0], sampled_at=3), a_draft([1, 0], sampled_at=7, sample=1), a_draft([2, 0], sampled_at=7)]
    whole = group_of([drafts[0], drafts[1], replace(drafts[2], sample=2)], rewards=[1.0, 0.0, 0.0])
    return replace(whole, samples=(replace(whole.samples[0], carried=True), *whole.samples[1:]))


def test_a_carried_sample_makes_a_group_informative_and_counts_in_nothing_else():
    record = describe([group()], 7, steps_per_epoch=2)
    assert (record["rollouts"], record["tokens_decoded"], record["response_length"]) == (2, 4, 2.0)
    assert (record["reward"], record["token_age_epochs"], record["informative"]) == (0.0, 0.0, 1.0)


def test_the_file_of_a_step_has_the_rollouts_that_it_made(tmp_path):
    save_groups_of_step(tmp_path / "step.parquet", 3, [group()])
    frame = pd.read_parquet(tmp_path / "step.parquet")
    assert frame["sample"].tolist() == [1, 2]
    assert set(frame["sampled_at"].map(tuple)) == {(7, 7)}
