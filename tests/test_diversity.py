"""Diversity and overlap, against numbers worked out by hand, plain definitions, and the packages that define them."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from redraft.errors import UserError
from redraft.evaluate import diversity
from redraft.evaluate.diversity import (
    SELF_BLEU_SAMPLE,
    TrajectoryCounts,
    distinct_1,
    distinct_2,
    distinct_within,
    measure,
    rouge_1,
    self_bleu,
    self_bleu_within,
)
from redraft.evaluate.saved_rollouts import Ragged
from redraft.files import atomic
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Rollout
from redraft.train.records import describe, save_groups_of_step
from tests.groups import group_of

COLUMNS = [
    "step",
    "epoch",
    "distinct_1",
    "distinct_2",
    "self_bleu",
    "self_bleu_within",
    "distinct_within",
    "rouge_1",
    "rouge_1_precision",
    "rouge_1_recall",
    "distinct_trajectories",
    "trajectories_share",
    "token_age_steps",
    "token_age_steps_max",
]

row = st.lists(st.integers(0, 5) | st.integers(0, 2**31 - 2), max_size=12)
rows = st.lists(row, max_size=8)


class Words:
    """Tokenizer that makes rouge-score count words between spaces."""

    def tokenize(self, text):
        return text.split()


def words(tokens):
    return " ".join(map(str, tokens))


@given(rows)
def test_rows_come_back(responses):
    ragged = Ragged.of(responses)
    assert [r.tolist() for r in ragged.rows()] == responses
    assert len(ragged) == len(responses)


@given(rows)
def test_distinct_n_is_its_definition(responses):
    for n, measured in ((1, distinct_1), (2, distinct_2)):
        grams = [tuple(r[i : i + n]) for r in responses for i in range(len(r) - n + 1)]
        assert measured(Ragged.of(responses)) == pytest.approx(len(set(grams)) / len(grams) if grams else 0.0)


def test_bigrams_do_not_cross_responses():
    assert distinct_2(Ragged.of([[1, 2], [], [1, 2], [3]])) == pytest.approx(1 / 2)
    assert distinct_2(Ragged.of([[1], [2], [3]])) == 0.0


@given(st.lists(st.tuples(row, row), min_size=1, max_size=6))
def test_rouge_1_is_that_of_rouge_score(pairs):
    scored = rouge_1(*(Ragged.of(side) for side in zip(*pairs, strict=True)))
    package = RougeScorer(["rouge1"], tokenizer=Words())
    for i, (response, earlier) in enumerate(pairs):
        expected = package.score(words(earlier), words(response))["rouge1"]
        if not response and not earlier:  # the one difference
            expected = (1.0, 1.0, 1.0)
        assert (scored.precision[i], scored.recall[i], scored.f[i]) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
    ("response", "earlier", "expected"),
    [
        ([1, 2, 3], [3, 1, 2], (1.0, 1.0, 1.0)),
        ([1, 2], [3, 4], (0.0, 0.0, 0.0)),
        # Two of the three 5s are shared.
        ([5, 5, 5], [5, 5], (0.8, 2 / 3, 1.0)),
        ([12], [1, 2], (0.0, 0.0, 0.0)),
        ([], [], (1.0, 1.0, 1.0)),
        ([1], [], (0.0, 0.0, 0.0)),
    ],
)
def test_rouge_1_counts_tokens(response, earlier, expected):
    scored = rouge_1(Ragged.of([response]), Ragged.of([earlier]))
    assert [float(values[0]) for values in scored] == pytest.approx(expected)


def test_rouge_1_leaves_the_tokens_as_they_are():
    responses = Ragged.of([[9, 1, 9], [3]])
    rouge_1(responses, responses)
    assert responses.values.tolist() == [9, 1, 9, 3]


def test_self_bleu_is_one_for_copies_and_zero_for_strangers():
    copies = [[1, 2, 3, 4, 5, 6]] * 3
    strangers = [[i * 10 + j for j in range(6)] for i in range(3)]
    values = [
        self_bleu(Ragged.of(responses), stream(0, "test"))
        for responses in (strangers, [[1, 2, 3, 4, 5, 9], *copies[:2]], copies)
    ]
    assert values[0] < 0.05
    assert values[0] < values[1] < values[2] == 1.0
    assert self_bleu(Ragged.of(copies[:1]), stream(0, "test")) == 0.0
    assert self_bleu(Ragged.of([]), stream(0, "test")) == 0.0


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=2, max_size=5))
def test_self_bleu_is_that_of_sacrebleu(responses):
    bleu, texts = BLEU(tokenize="none", effective_order=True), list(map(words, responses))
    scores = [bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score for i, text in enumerate(texts)]
    assert self_bleu(Ragged.of(responses), stream(0, "test")) == pytest.approx(np.mean(scores) / 100)


def test_self_bleu_is_of_a_seeded_sample():
    rng = np.random.default_rng(0)
    responses = [rng.integers(0, 9, 20) for _ in range(2 * SELF_BLEU_SAMPLE)]
    first, again, other = (self_bleu(Ragged.of(responses), stream(seed, "test")) for seed in (1, 1, 2))
    chosen = stream(1, "test").permutation(len(responses))[:SELF_BLEU_SAMPLE]
    assert first == again == pytest.approx(self_bleu(Ragged.of([responses[i] for i in chosen]), stream(0, "test")))
    assert first != other


def collapsed(prompts, size):
    """Responses of which those to one prompt are the same, beside as many that all differ."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(prompts), size)
    different = rng.integers(0, 1000, (prompts * size, 20))
    return ids, Ragged.of(different[ids * size]), Ragged.of(different)


def test_collapse_within_prompts_is_seen_within_them_and_hardly_in_a_sample_of_all():
    ids, same, different = collapsed(256, 8)
    seen = [self_bleu(responses, stream(0, "test")) for responses in (same, different)]
    assert max(seen) < 0.2, "two of a prompt are rarely in the sample"
    assert self_bleu_within(ids, same, stream(0, "test")) == 1.0
    assert self_bleu_within(ids, different, stream(0, "test")) < 0.05
    assert distinct_within(ids, same) == 1 / 8
    assert distinct_within(ids, different) == 1.0


def test_self_bleu_within_is_the_mean_over_a_sample_of_the_prompts_with_two_responses(monkeypatch):
    rng = np.random.default_rng(0)
    ids = [0, 1, 0, 2, 1, 1]
    rows = [rng.integers(0, 3, 9) for _ in ids]
    groups = {prompt: Ragged.of([row for i, row in zip(ids, rows, strict=True) if i == prompt]) for prompt in (0, 1)}
    own = {prompt: self_bleu(group, stream(0, "any")) for prompt, group in groups.items()}
    assert own[0] != own[1]
    assert self_bleu_within(ids, Ragged.of(rows), stream(0, "test")) == pytest.approx((own[0] + own[1]) / 2)
    monkeypatch.setattr(diversity, "SELF_BLEU_PROMPTS", 1)
    sampled = [self_bleu_within(ids, Ragged.of(rows), stream(seed, "test")) for seed in range(9)]
    assert {round(value, 12) for value in sampled} == {round(value, 12) for value in own.values()}


def test_within_prompts_by_hand():
    ids, rows = [0, 1, 1, 0, 1, 2], Ragged.of([[1], [2, 3], [2], [1], [2, 3], [9]])
    assert distinct_within(ids, rows) == pytest.approx((1 / 2 + 2 / 3) / 2), "a prompt with one response has no share"
    assert math.isnan(distinct_within([0, 1], Ragged.of([[1], [1]])))
    assert math.isnan(self_bleu_within([0, 1], Ragged.of([[1], [1]]), stream(0, "test")))


def test_trajectories_by_hand():
    trajectories = TrajectoryCounts()
    # Prompt 0 has two different responses in two rollouts, prompt 1 one in two.
    assert trajectories.add([0, 0, 1, 1], Ragged.of([[1, 2], [1], [3], [3]])) == pytest.approx((1.5, 0.75))
    # Only prompt 1: [3] again, and [3, 3], so two in four.
    assert trajectories.add([1, 1], Ragged.of([[3], [3, 3]])) == pytest.approx((2.0, 0.5))
    # Prompt 0: two more, four in four; prompt 1: none, two in eight. What is new for prompt 2 is not for prompt 0.
    rollouts = [0, 1, 0, 1, 1, 1, 2], Ragged.of([[2, 1], [3], [], [3], [3], [3], [1]])
    assert trajectories.add(*rollouts) == pytest.approx(((4 + 2 + 1) / 3, (1 + 2 / 8 + 1) / 3))


def rollout(prompt, sample, tokens, sampled_at):
    zeros = np.zeros(len(tokens), dtype=np.float32)
    arrays = np.array(tokens, dtype=np.int32), zeros, np.array(sampled_at, dtype=np.int32)
    return Rollout(prompt, sample, *arrays, Finish.EOS)


def groups_of(rollouts):
    """A group without rewards for each prompt."""
    prompts = dict.fromkeys(r.prompt for r in rollouts)
    return [group_of([r for r in rollouts if r.prompt == prompt]) for prompt in prompts]


def save(folder, step, epoch, rollouts):
    file = folder / "rollouts" / f"step-{step:04d}.parquet"
    save_groups_of_step(file, epoch, groups_of(rollouts))


def measured(folder, seed=0):
    measure(folder, seed, folder / "diversity.parquet")
    return pd.read_parquet(folder / "diversity.parquet")


STEPS = [
    (0, [rollout(0, 0, [1, 2, 3], [0, 0, 0]), rollout(0, 1, [4, 4], [0, 0])]),
    (0, [rollout(1, 0, [5, 6, 7, 8], [1, 1, 1, 1]), rollout(1, 1, [9], [1])]),
    (1, [rollout(0, 0, [1, 2, 4, 4], [0, 0, 2, 2]), rollout(0, 1, [4, 4], [0, 0])]),
]
"""A run with two prompts, two samples and two steps per epoch; step 2 reuses a prefix and a whole rollout."""


@pytest.fixture
def folder(tmp_path):
    for step, (epoch, rollouts) in enumerate(STEPS):
        save(tmp_path, step, epoch, rollouts)
    return tmp_path


def test_a_run_by_hand(folder):
    frame = measured(folder)
    assert frame.columns.tolist() == COLUMNS
    assert frame["epoch"].tolist() == [0, 0, 1]
    assert frame["distinct_1"].tolist() == pytest.approx([4 / 5, 1.0, 3 / 6])
    assert frame["distinct_2"].tolist() == pytest.approx([1.0, 1.0, 3 / 4])
    assert frame.loc[:1, "rouge_1":"rouge_1_recall"].isna().all(axis=None)
    # Two of four tokens, and of three earlier ones: F is 4/7; the other response is the same.
    assert frame.loc[2, "rouge_1":"rouge_1_recall"].tolist() == pytest.approx([11 / 14, 3 / 4, 5 / 6])
    assert frame["distinct_within"].tolist() == [1, 1, 1]
    assert frame["self_bleu_within"].between(0, 0.5).all()
    assert frame["distinct_trajectories"].tolist() == pytest.approx([2, 2, 3])
    assert frame["trajectories_share"].tolist() == pytest.approx([1, 1, 3 / 4])
    assert frame["token_age_steps"].tolist() == pytest.approx([0, 0, 8 / 6])
    assert frame["token_age_steps_max"].tolist() == [0, 0, 2]


def test_age_agrees_with_the_record(folder):
    for step, (_, rollouts) in enumerate(STEPS):
        record = describe(groups_of(rollouts), step, steps_per_epoch=2)
        assert measured(folder).loc[step, "token_age_steps"] == pytest.approx(2 * record["token_age_epochs"])
        assert not set(record) & set(COLUMNS)


def test_the_order_of_rollouts_does_not_matter(folder, tmp_path):
    frame = measured(folder)
    for step, (epoch, rollouts) in enumerate(STEPS):
        save(tmp_path, step, epoch, rollouts[::-1])
    pd.testing.assert_frame_equal(measured(tmp_path), frame)


def test_only_the_epoch_before_is_compared(tmp_path):
    save(tmp_path, 0, 0, [rollout(0, 0, [1], [0]), rollout(1, 0, [1], [0])])
    save(tmp_path, 1, 1, [rollout(1, 0, [1], [1]), rollout(2, 0, [1], [1])])
    save(tmp_path, 2, 2, [rollout(0, 0, [1], [2]), rollout(1, 0, [2], [2]), rollout(2, 1, [1], [2])])
    save(tmp_path, 3, 4, [rollout(0, 0, [1], [3])])
    # Prompt 0 was not visited in epoch 1, nor was the second sample of prompt 2; of epoch 3 there is nothing.
    assert measured(tmp_path)["rouge_1"].tolist() == pytest.approx([np.nan, 1.0, 0.0, np.nan], nan_ok=True)


def test_a_prompt_that_comes_twice(tmp_path):
    save(tmp_path, 0, 0, [rollout(0, 0, [1], [0]), rollout(0, 0, [2], [0])])
    save(tmp_path, 1, 1, [rollout(0, 0, [2], [1]), rollout(0, 0, [3], [1])])
    save(tmp_path, 2, 1, [rollout(0, 0, [2], [2])])
    frame = measured(tmp_path)
    # The last response of an epoch is the one that the next is compared with, at every visit.
    assert frame["rouge_1"].tolist() == pytest.approx([np.nan, 0.5, 1.0], nan_ok=True)
    assert frame["distinct_trajectories"].tolist() == [2, 3, 3]
    assert frame["trajectories_share"].tolist() == pytest.approx([1, 3 / 4, 3 / 5])


def test_a_run_without_tokens_has_no_ages(tmp_path):
    save(tmp_path, 0, 0, [rollout(0, 0, [], [])])
    line = measured(tmp_path).loc[0]
    assert line[["token_age_steps", "token_age_steps_max"]].isna().all()
    assert line[["distinct_1", "distinct_2", "self_bleu"]].tolist() == [0, 0, 0]


def test_the_sample_of_self_bleu_follows_seed_and_step(tmp_path):
    rng = np.random.default_rng(0)
    same = [rollout(p, 0, rng.integers(0, 9, 20), np.zeros(20)) for p in range(2 * SELF_BLEU_SAMPLE)]
    for step in range(2):
        save(tmp_path, step, step, same)
    values, again, other = (measured(tmp_path, seed)["self_bleu"] for seed in (0, 0, 1))
    assert values.tolist() == again.tolist()
    assert len({*values, *other}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "no rollouts in this file"),
        (lambda f: f.drop(columns="sampled_at"), "lacks a column"),
        (lambda f: f.assign(sampled_at=[[1], [1]]), "different numbers of tokens and of sampling steps"),
        (lambda f: f.assign(sampled_at=[[1, 1, 1, 2], [1]]), "a later sampling step than its rollout"),
    ],
)
def test_rollouts_that_cannot_be_are_rejected(folder, change, message):
    file = folder / "rollouts" / "step-0001.parquet"
    changed = change(pd.read_parquet(file))
    with atomic(file) as temporary:
        changed.to_parquet(temporary, index=False)
    with pytest.raises(UserError, match=message) as error:
        measured(folder)
    assert error.value.file == file
    assert not (folder / "diversity.parquet").exists()
