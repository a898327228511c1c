"""A prompt that several sessions have is computed once: each row gets its own prompt, and the results are the same."""

from dataclasses import replace

import numpy as np
import pytest

from redraft.rollout.streams import stream
from tests.test_self_speculation import speculating
from tests.test_torch_engine import (
    NOTHING,
    VOCABULARY,
    Job,
    check_against_plain_forward,
    make_engine,
    make_jobs,
    make_model,
    run,
)


@pytest.fixture(scope="module")
def model():
    return make_model("llama", 4, 2)


def grouped(prompts=4, samples=4, kinds=("none", "whole", "part", "nothing kept", "long")):
    """Groups of sessions with one prompt; drafts of all lengths, 0 included, kept wholly, in part or not at all."""
    jobs = []
    for name in range(prompts * samples):
        rng, kind = stream(0, "grouped", name), kinds[name % len(kinds)]
        prompt = stream(0, "prompt", name // samples).integers(2, VOCABULARY, 3 + name // samples).tolist()
        length = 0 if kind == "none" else 13 if kind == "long" else int(rng.integers(2, 9))
        draft = rng.integers(2, VOCABULARY, length).astype(np.int32) if length else NOTHING
        keep = {"whole": length, "part": length // 2, "long": 5}.get(kind, 0)
        jobs.append(Job(name, prompt, draft, length > 0, keep, patience=3 * name % 4))
    return jobs


def sharing(model, **settings):
    engine = make_engine(model, **settings)
    engine.shares_prompts = True
    return engine


def same(one, other):
    for (scored, continuation), (scored_too, continuation_too) in zip(one, other, strict=True):
        np.testing.assert_array_equal(continuation.tokens, continuation_too.tokens)
        np.testing.assert_allclose(continuation.log_probs, continuation_too.log_probs, atol=1e-5)
        assert (scored is None) == (scored_too is None)
        if scored is not None:
            np.testing.assert_allclose(scored, scored_too, atol=1e-5)


@pytest.mark.parametrize("max_rows", [16, 5, 3, 1])
@pytest.mark.parametrize("chunk", [None, 4, 1])
def test_results_are_those_of_an_engine_that_does_not_share(model, max_rows, chunk):
    """With fewer rows than sessions, rows are refilled, and prompts are copied from rows that still decode."""
    jobs, settings = grouped(), {"max_rows": max_rows, "chunk": chunk}
    results = run(sharing(model, **settings), jobs)
    check_against_plain_forward(model, jobs, results)
    same(results, run(make_engine(model, **settings), jobs))


def counted(engine, monkeypatch):
    """Tokens fed from slot 0 on, by sequence."""
    fed, fill = [], engine._fill
    monkeypatch.setattr(
        engine, "_fill", lambda rows, sequences: [fed.extend(map(tuple, sequences)), fill(rows, sequences)][1]
    )
    return fed


@pytest.mark.parametrize("kind", ["none", "part"])
def test_each_prompt_is_computed_once(model, monkeypatch, kind):
    jobs = [replace(job, patience=0) for job in grouped(kinds=(kind,))]
    engine = sharing(model)
    fed = counted(engine, monkeypatch)
    run(engine, jobs)
    assert sorted(fed) == sorted({tuple(job.prompt[:-1]) for job in jobs})


def test_a_prompt_is_copied_from_a_row_that_decodes(model, monkeypatch):
    """Two rows, five responses to one prompt, of which the first is the longest: later ones copy its prompt."""
    jobs = [replace(job, prompt=[3, 4, 5, 6]) for job in grouped(1, 5, ("none",))]
    engine = sharing(model, max_rows=2, stops=())
    fed = counted(engine, monkeypatch)
    results = run(engine, jobs)
    assert len(fed) < len(jobs)
    same(results, run(make_engine(model, max_rows=2, stops=()), jobs))


def test_unlike_prompts_and_prompts_of_one_token_are_computed_together_with_their_drafts(model, monkeypatch):
    jobs = make_jobs()  # prompts of 1 to 6 tokens, all unlike
    engine = sharing(model)
    fed = counted(engine, monkeypatch)
    same(run(engine, jobs), run(make_engine(model), jobs))
    assert any(len(sequence) > 6 for sequence in fed), "with drafts"


def test_the_widest_draft_need_not_have_the_longest_sequence(model):
    lengths = [(9, 2), (9, 2), (2, 7), (2, 7)]
    jobs = [
        Job(
            name,
            [3 + prompt] * prompt,
            stream(0, "wide", name).integers(2, VOCABULARY, draft).astype(np.int32),
            True,
            1,
        )
        for name, (prompt, draft) in enumerate(lengths)
    ]
    same(run(sharing(model), jobs), run(make_engine(model), jobs))


@pytest.mark.parametrize("kind", ["none", "part"])
def test_a_repeated_prompt_of_one_token_has_nothing_to_share(model, monkeypatch, kind):
    jobs = [replace(job, prompt=[5], patience=0) for job in grouped(1, 4, (kind,))]
    engine = sharing(model)
    fed = counted(engine, monkeypatch)
    same(run(engine, jobs), run(make_engine(model), jobs))
    assert len(fed) == len(jobs)


def test_speculation_shares_prompts_too(model):
    jobs, engine = grouped(), speculating(model, 2)
    engine.shares_prompts = True
    check_against_plain_forward(model, jobs, run(engine, jobs))


def test_small_models_do_not_share_and_keep_their_bits(model):
    assert not make_engine(model).shares_prompts
