"""Memory: what it keeps under each retention, what it finds by visit, its parts, and its file."""

import gc
import itertools
import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redraft.config.retention import Retention
from redraft.errors import UserError
from redraft.methods.delayed import DelayedReuse
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.rollout.memory import Memory
from redraft.rollout.storage import load_groups, save_groups
from redraft.rollout.types import Finish, Group, Rollout, Sample, TopLogProbs
from tests.processes import mappings, until
from tests.random_groups import arrays, group, groups, make, peak, same, same_all


def memory_of(*groups, **retention):
    memory = Memory(Retention(**retention))
    for one in groups:
        memory.put(one)
    return memory


def same_drafts(found, expected):
    """Whether drafts are these samples' rollouts."""
    assert list(found) == [s.rollout.sample for s in expected.samples]
    return same_all(list(found.values()), expected.rollouts)


def same_content(one, other, visits=4):
    """Whether two memories keep and find the same."""
    assert one.prompts() == other.prompts()
    assert len(one) == len(other)
    for prompt in one.prompts():
        for ago in range(1, visits + 1):
            assert one.drafts(prompt, ago).keys() == other.drafts(prompt, ago).keys()
            assert same_all(list(one.drafts(prompt, ago).values()), list(other.drafts(prompt, ago).values()))
        assert same_all(one.correct(prompt), other.correct(prompt))
    return True


# Drafts.


@pytest.mark.parametrize("visits", [0, 1, 2, 3])
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("ago", [1, 2, 3])
def test_drafts_are_of_so_many_visits_ago_or_the_oldest_kept(visits, done, ago):
    put = [group(visit=visit, seed=visit) for visit in range(done)]
    found = memory_of(*put, visits=visits).drafts(0, ago)
    kept = put[max(0, done - visits) :] if visits else []
    if kept:
        assert same_drafts(found, kept[-ago] if ago <= len(kept) else kept[0])
    else:
        assert found == {}


def test_the_papers_drafts():
    put = [group(visit=visit, seed=visit) for visit in range(4)]
    speculative, delayed = (Memory(method.retention) for method in (Speculative(), DelayedReuse()))
    assert speculative.drafts(0) == delayed.drafts(0, 2) == {}
    for visit, expected in enumerate([0, 0, 1, 2]):
        speculative.put(put[visit])
        delayed.put(put[visit])
        assert same_drafts(speculative.drafts(0), put[visit])
        assert same_drafts(delayed.drafts(0, visits_ago=2), put[expected])


def test_a_prompt_that_is_skipped_keeps_its_drafts():
    often, seldom = ([group(prompt, visit, seed=10 * prompt + visit) for visit in range(4)] for prompt in (0, 1))
    memory = memory_of(seldom[0], *often, visits=1)
    assert same_drafts(memory.drafts(1), seldom[0])
    memory.put(seldom[1])
    assert same_drafts(memory.drafts(1), seldom[1])
    assert same_drafts(memory.drafts(0), often[3])


def test_visits_are_counted_by_groups_and_not_by_their_numbers():
    put = [group(visit=visit, seed=visit) for visit in (3, 7)]
    memory = memory_of(*put, visits=2)
    assert same_drafts(memory.drafts(0, 1), put[1])
    assert same_drafts(memory.drafts(0, 2), put[0])


def test_drafts_of_the_visit_itself_are_not_to_be_had():
    with pytest.raises(ValueError, match="not of 0 visits ago"):
        memory_of(group(), visits=1).drafts(0, 0)


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_the_newest_visits_stay_whatever_the_order_of_putting(order):
    put = [group(visit=visit, seed=visit) for visit in range(3)]
    memory = memory_of(*(put[visit] for visit in order), visits=2)
    assert same_drafts(memory.drafts(0, 1), put[2])
    assert same_drafts(memory.drafts(0, 2), put[1])
    assert len(memory) == 4


def test_a_visit_of_fewer_samples_leaves_the_drafts_of_the_others():
    whole, part = group(visit=0, seed=0), group(visit=1, seed=1, rewards=(0.0,))
    memory = memory_of(whole, part, visits=1)
    assert same_all(list(memory.drafts(0).values()), [part.rollouts[0], *whole.rollouts[1:]])
    assert len(memory) == len(whole.samples)


def test_a_prompt_that_is_continued_finds_the_drafts_of_its_last_visit():
    """A screened prompt is put with its first samples, and continued in the same visit."""
    before, screened = group(visit=0, seed=0), group(visit=1, seed=1, rewards=(0.0,))
    memory = memory_of(before, screened, visits=1)
    assert same_all(list(memory.drafts(0, before=1).values()), before.rollouts[1:])
    whole = group(visit=1, seed=2)
    memory.put(whole)
    assert same_drafts(memory.drafts(0), whole)
    assert memory.drafts(0, before=1) == {}


def test_a_visit_done_again_replaces_itself():
    first, second, again = group(seed=0), group(visit=1, seed=1), group(visit=1, seed=2, rewards=(1.0, 1.0))
    memory = memory_of(first, second, again, visits=2, correct=4)
    assert same_drafts(memory.drafts(0, 1), again)
    assert same_drafts(memory.drafts(0, 2), first)
    assert same_all(memory.correct(0), [first.rollouts[0], *again.rollouts])
    assert len(memory) == 4


def test_prompts_and_samples_are_kept_apart():
    put = {prompt: group(prompt, seed=prompt) for prompt in (5, 0, 3)}
    memory = memory_of(*put.values(), visits=1)
    assert memory.prompts() == [0, 3, 5]
    assert all(same_drafts(memory.drafts(prompt), put[prompt]) for prompt in put)
    assert memory.drafts(1) == {}
    assert memory.correct(1) == []


def test_drafts_go_by_sample_and_not_by_position():
    samples = tuple(Sample(make(sample=sample, seed=sample), 0.0) for sample in (4, 0, 2))
    found = memory_of(Group(0, 0, samples), visits=1).drafts(0)
    assert all(found[s.rollout.sample].sample == s.rollout.sample for s in samples)
    assert same(found[0], samples[1].rollout)


def test_a_group_with_a_sample_twice_is_refused():
    twice = Group(3, 1, (Sample(make(3, 0), 0.0), Sample(make(3, 0, seed=1), 1.0)))
    with pytest.raises(ValueError, match="a sample occurs twice in visit 1 of prompt 3"):
        memory_of(twice, visits=1)


# Correct responses.


@pytest.mark.parametrize(
    ("reward", "correct"), [(1.0, True), (0.51, True), (0.5, False), (0.0, False), (-1.0, False), (float("nan"), False)]
)
def test_a_response_is_correct_above_half_a_reward(reward, correct):
    assert len(memory_of(group(rewards=[reward]), correct=1).correct(0)) == correct


def test_the_latest_correct_responses_are_kept_the_oldest_first():
    put = [
        group(visit=visit, seed=visit, rewards=rewards)
        for visit, rewards in enumerate([(1, 0, 1), (0, 0, 0), (1, 1, 0)])
    ]
    expected = [put[0].rollouts[0], put[0].rollouts[2], put[2].rollouts[0], put[2].rollouts[1]]
    for bound in range(6):
        memory = memory_of(*put, correct=bound)
        assert same_all(memory.correct(0), expected[-bound:] if bound else [])
        assert len(memory) == min(bound, 4)
        assert memory.drafts(0) == {}


def test_correct_responses_outlive_the_visit_that_made_them():
    put = [group(visit=0, rewards=(1, 0, 0), seed=1), group(visit=1, rewards=(0, 0, 0), seed=2)]
    memory = memory_of(*put, visits=1, correct=2)
    assert same_drafts(memory.drafts(0, 2), put[1])
    assert same_all(memory.correct(0), put[0].rollouts[:1])
    assert len(memory) == 4


def reused(rollout, sample):
    return Sample(replace(rollout, sample=sample, prefix_length=rollout.length), 1.0, carried=True)


def test_a_correct_response_that_is_used_again_enters_once():
    first = group(rewards=(1.0, 0.0), seed=1)
    new = Sample(make(sample=0, seed=7), 0.0)
    memory = memory_of(first, Group(0, 1, (new, reused(first.rollouts[0], 1))), visits=1, correct=2)
    assert same_all(memory.correct(0), [first.rollouts[0]])
    assert memory.drafts(0).keys() == {0, 1}


def test_a_response_that_is_used_again_does_not_enter_when_the_first_one_is_evicted():
    """It would displace the newer one that evicted it."""
    first, newer = group(rewards=(1.0,), seed=1), Sample(make(sample=1, seed=7), 1.0)
    again = reused(first.rollouts[0], 0)
    memory = memory_of(first, Group(0, 1, (again, newer)), visits=1, correct=1)
    assert same_all(memory.correct(0), [newer.rollout])
    memory.put(Group(0, 2, (again,)))
    assert same_all(memory.correct(0), [newer.rollout])


def test_the_same_tokens_sampled_at_another_step_are_another_response():
    first = group(rewards=(1.0,), seed=1)
    later = replace(first.rollouts[0], sampled_at=first.rollouts[0].sampled_at + 1)
    memory = memory_of(first, Group(0, 1, (Sample(later, 1.0),)), correct=2)
    assert same_all(memory.correct(0), [first.rollouts[0], later])


def test_what_the_same_visit_carries_on_from_an_earlier_step_stays_correct():
    screened = group(rewards=(1.0, 0.0), seed=1)
    whole = Group(0, 0, (*(replace(s, carried=True) for s in screened.samples), Sample(make(sample=2, seed=9), 1.0)))
    memory = memory_of(screened, whole, correct=8)
    assert same_all(memory.correct(0), [whole.rollouts[0], whole.rollouts[2]])


# The bound.


def test_nothing_is_kept_where_nothing_is_declared(tmp_path):
    memory = Memory(Vanilla().retention)
    for visit in range(3):
        memory.put(group(visit=visit, top=2))
    assert (len(memory), memory.prompts(), memory.drafts(0), memory.correct(0)) == (0, [], {}, [])
    memory.save(file := tmp_path / "memory.arrow")
    assert file.stat().st_size < 2**14
    assert len(Memory.load(file, Retention())) == 0


def test_a_negative_retention_is_refused():
    with pytest.raises(ValidationError):
        Retention(visits=-1)


@pytest.mark.parametrize("k", range(5))
def test_as_many_columns_of_the_top_distribution_are_kept_as_declared(k):
    put = group(top=3)
    for rollout, whole in zip(memory_of(put, visits=1, top=k).drafts(0).values(), put.rollouts, strict=True):
        assert (rollout.top is None) == (k == 0)
        if rollout.top:
            assert np.array_equal(rollout.top.tokens, whole.top.tokens[:, :k])
            assert np.array_equal(rollout.top.log_probs, whole.top.log_probs[:, :k])


def test_a_rollout_without_a_top_distribution_stays_one():
    assert memory_of(group(), visits=1, top=2).drafts(0)[0].top is None


def test_what_is_kept_owns_its_arrays():
    tokens, floats = np.arange(100, dtype=np.int32), np.zeros(100, np.float32)
    distribution = TopLogProbs(np.zeros((100, 9), np.int32)[10:15], np.zeros((100, 9), np.float32)[10:15])
    view = Rollout(0, 0, tokens[:5], floats[:5], tokens[5:10], Finish.EOS, top=distribution)
    kept = memory_of(Group(0, 0, (Sample(view, 1.0),)), visits=1, correct=1, top=4).drafts(0)[0]
    assert same(kept, replace(view, top=TopLogProbs(distribution.tokens[:, :4], distribution.log_probs[:, :4])))
    assert all(array.base is None for array in arrays(kept))


def test_what_is_dropped_is_freed():
    memory, gone = Memory(Retention(visits=1, correct=1, top=2)), []
    for visit in range(4):
        memory.put(group(visit=visit, seed=visit, top=2))
        gone += [weakref.ref(array) for rollout in memory.drafts(0).values() for array in arrays(rollout)]
    gc.collect()
    alive = [ref() for ref in gone if ref() is not None]
    held = [array for rollout in memory.drafts(0).values() for array in arrays(rollout)]
    assert {map_id(a) for a in alive} == {map_id(a) for a in held}
    assert len(memory) == 2


def map_id(array):
    return array.__array_interface__["data"][0]


# Against a simple model.

calls = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)),
    max_size=20,
)
retentions = st.builds(
    Retention,
    visits=st.integers(0, 3),
    correct=st.integers(0, 4),
    top=st.integers(0, 2),
    evict=st.sampled_from(["oldest", "newest"]),
)


class Everything:
    """A model: every group that was put, and what a memory would say of them."""

    def __init__(self, retention):
        self.retention, self.groups = retention, {}

    def put(self, one):
        self.groups[one.prompt, one.visit] = one

    def of(self, prompt):
        return [g for (other, _), g in sorted(self.groups.items()) if other == prompt]

    def drafts(self, prompt, ago):
        made = [rollout for g in self.of(prompt) for rollout in g.rollouts]
        of_sample = {i: [r for r in made if r.sample == i][::-1] for i in sorted({r.sample for r in made})}
        return {
            i: rollouts[: self.retention.visits][:ago][-1] for i, rollouts in of_sample.items() if self.retention.visits
        }

    def correct(self, prompt):
        found = [s.rollout for g in self.of(prompt) for s in g.samples if s.reward == 1]
        return (
            found[: self.retention.correct]
            if self.retention.evict == "newest"
            else found[::-1][: self.retention.correct][::-1]
        )


@given(calls, retentions)
def test_a_memory_answers_as_if_it_kept_everything(calls, retention):
    """Visits come in ascending order for each prompt, or one again: what is dropped is never asked for later."""
    memory, model, latest = Memory(retention), Everything(retention), {}
    for seed, (prompt, ahead, rewards) in enumerate(calls):
        latest[prompt] = latest.get(prompt, 0) + ahead if ahead else latest.get(prompt, 0) + 1
        put = group(prompt, latest[prompt], rewards, seed)
        memory.put(put)
        model.put(put)
        for p in range(3):
            for ago in (1, 2, 3):
                found, expected = memory.drafts(p, ago), model.drafts(p, ago)
                assert list(found) == list(expected)
                assert same_all(list(found.values()), list(expected.values()))
            assert same_all(memory.correct(p), model.correct(p))
        bound = sum(len(model.drafts(p, 1)) * retention.visits for p in latest)
        assert len(memory) <= bound + retention.correct * len(latest)


@given(st.lists(groups(st.integers(0, 3), st.integers(0, 4)), max_size=10), retentions)
def test_a_memory_never_keeps_more_than_declared(put, retention):
    memory = memory_of(*put, **retention.model_dump())
    for prompt in range(4):
        part = memory.part(prompt)
        kept = {id(r) for ago in (1, 2, 3) for r in part.drafts(prompt, ago).values()}
        for sample in part.drafts(prompt):
            of_sample = {id(part.drafts(prompt, ago)[sample]) for ago in (1, 2, 3, 4)}
            assert len(of_sample) <= retention.visits
        assert len(part.correct(prompt)) <= retention.correct
        assert len(part) <= len(kept) + retention.correct
        for rollout in part.correct(prompt):
            assert rollout.top is None or rollout.top.tokens.shape[1] <= retention.top
            assert rollout.top is None or retention.top > 0


# Parts and other processes.

contents = st.lists(groups(st.integers(0, 6), st.integers(0, 3)), max_size=10)


@given(contents, retentions, st.integers(0, 7))
def test_a_part_has_its_prompt_whole_and_no_other(put, retention, prompt):
    memory = memory_of(*put, **retention.model_dump())
    part = memory.part(prompt)
    assert part.retention == memory.retention
    assert part.prompts() == [p for p in memory.prompts() if p == prompt]
    assert same_content(memory.part(prompt).part(prompt), part)
    for ago in (1, 2):
        assert same_all(list(part.drafts(prompt, ago).values()), list(memory.drafts(prompt, ago).values()))
    assert same_all(part.correct(prompt), memory.correct(prompt))


def test_a_part_shares_the_arrays_and_nothing_else():
    memory = memory_of(group(), visits=1)
    part = memory.part(0)
    assert part.drafts(0)[0].tokens is memory.drafts(0)[0].tokens
    part.put(group(visit=1, seed=1))
    assert same_drafts(memory.drafts(0), group())


@given(contents, retentions)
def test_a_memory_comes_back_from_its_bytes(put, retention):
    memory = memory_of(*put, **retention.model_dump())
    content = memory.packed()
    assert type(content) is bytes
    assert same_content(Memory.unpacked(content, retention), memory)


@given(contents, retentions, st.integers(1, 3), st.integers(1, 4))
def test_shards_of_one_number_are_restored_as_another_number(tmp_path_factory, put, retention, before, after):
    folder = tmp_path_factory.mktemp("shards")
    memory = memory_of(*put, **retention.model_dump())
    for number in range(before):
        shard = Memory(retention)
        shard.take(memory, lambda prompt, number=number: prompt % before == number)
        shard.save(folder / f"{number}.arrow")
    whole = Memory(retention)
    for number in range(after):
        shard = Memory(retention)
        for file in sorted(folder.iterdir()):
            shard.take(Memory.load(file, retention), lambda prompt, number=number: prompt % after == number)
        assert shard.prompts() == [prompt for prompt in memory.prompts() if prompt % after == number]
        whole.take(shard, lambda prompt: True)
    assert same_content(whole, memory)


def test_taking_goes_by_visit():
    ours, theirs = [group(visit=visit, seed=visit) for visit in range(2)], [group(visit=v, seed=9 + v) for v in (1, 2)]
    memory = memory_of(*ours, visits=2)
    memory.take(memory_of(*theirs, visits=2), lambda prompt: True)
    assert same_drafts(memory.drafts(0, 1), theirs[1])
    assert same_drafts(memory.drafts(0, 2), theirs[0])
    assert len(memory) == 4


# The file.


@given(contents, retentions)
def test_a_memory_comes_back_from_its_file(tmp_path_factory, put, retention):
    file = tmp_path_factory.mktemp("memory") / "memory.arrow"
    memory = memory_of(*put, **retention.model_dump())
    memory.save(file)
    loaded = Memory.load(file, retention)
    assert loaded.retention == retention
    assert same_content(loaded, memory)
    assert list(file.parent.iterdir()) == [file]


@given(contents, contents, retentions)
def test_a_memory_goes_on_from_its_file_as_if_it_had_not_been_stopped(tmp_path_factory, before, behind, retention):
    file = tmp_path_factory.mktemp("memory") / "memory.arrow"
    memory = memory_of(*before, **retention.model_dump())
    memory.save(file)
    loaded = Memory.load(file, retention)
    for one in behind:
        memory.put(one)
        loaded.put(one)
    assert same_content(loaded, memory)


def test_a_response_used_again_is_known_as_such_behind_a_file(tmp_path):
    first = group(rewards=(1.0,), seed=1)
    memory = memory_of(
        first, Group(0, 1, (reused(first.rollouts[0], 0), Sample(make(sample=1, seed=8), 1.0))), visits=1, correct=1
    )
    memory.save(tmp_path / "memory.arrow")
    loaded = Memory.load(tmp_path / "memory.arrow", memory.retention)
    assert same_all(loaded.correct(0), [make(sample=1, seed=8)])


def test_the_file_does_not_depend_on_the_order_of_putting(tmp_path):
    put = [group(prompt, visit, seed=3 * prompt + visit) for prompt in range(3) for visit in range(2)]
    memory_of(*put, visits=2).save(tmp_path / "one")
    memory_of(*put[::-1], visits=2).save(tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_smaller_retention_bounds_what_is_loaded(tmp_path):
    memory_of(*(group(visit=visit, seed=visit, top=3) for visit in range(3)), visits=3, top=3).save(tmp_path / "memory")
    loaded = Memory.load(tmp_path / "memory", Retention(visits=1, top=1))
    assert len(loaded) == 2
    assert loaded.drafts(0)[0].top.tokens.shape[1] == 1


def test_a_file_that_cannot_be_written_leaves_the_last_one(tmp_path):
    memory = memory_of(group(), visits=2)
    memory.save(file := tmp_path / "memory.arrow")
    before = file.read_bytes()
    odd = Sample(replace(make(1), log_probs=np.zeros(2, np.float32)), 0.0)
    memory.put(Group(1, 0, (odd,)))
    with pytest.raises(ValueError, match="log_probs of prompt 1, sample 0 do not fit its 3 tokens"):
        memory.save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


DAMAGED = {
    "a visit occurs twice": [group(seed=1), group(seed=2)],
    "a sample occurs twice in visit 0": [Group(0, 0, (Sample(make(), 0.0), Sample(make(seed=1), 0.0)))],
}


@pytest.mark.parametrize(("reason", "content"), DAMAGED.items())
def test_a_file_that_is_no_memory_is_named(tmp_path, reason, content):
    save_groups(file := tmp_path / "memory.arrow", content)
    assert same_all(load_groups(file), content)
    with pytest.raises(UserError, match=reason) as error:
        Memory.load(file, Retention(visits=2))
    assert error.value.file == file
    with pytest.raises(ValueError, match=reason):
        Memory.unpacked(file.read_bytes(), Retention(visits=2))


@pytest.mark.parametrize(("content", "word"), [(None, "missing"), (b"ARROW1\0\0" + b"\0" * 99, "damaged")])
def test_a_missing_or_damaged_file_is_named(tmp_path, content, word):
    file = tmp_path / "memory.arrow"
    if content:
        file.write_bytes(content)
    with pytest.raises(UserError, match=word) as error:
        Memory.load(file, Retention(visits=1))
    assert error.value.file == file


# Memory.

PROMPTS, LENGTH, TOP = 100, 400, 4
BYTES = PROMPTS * 10 * LENGTH * (12 + 8 * TOP)


def large():
    return memory_of(*(group(p, rewards=[0.0] * 10, length=LENGTH, top=TOP) for p in range(PROMPTS)), visits=1, top=TOP)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("redraft.rollout.columns.PIECE", 2**17)


@pytest.mark.usefixtures("small_pieces")
def test_saving_holds_no_second_copy(tmp_path):
    memory = large()
    assert peak(lambda: memory.save(tmp_path / "memory.arrow")) < BYTES / 4


@pytest.mark.usefixtures("small_pieces")
def test_loading_holds_one_copy_and_little_more(tmp_path):
    memory = large()
    memory.save(file := tmp_path / "memory.arrow")
    one = peak(large)
    assert peak(lambda: Memory.load(file, memory.retention)) < 1.25 * one
    assert pa.total_allocated_bytes() < BYTES / 4
    until(lambda: not mappings(file), seconds=10)
