"""The tail of a rollout: share of decoding time with few active responses, and the order in which sessions get rows."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.loop import Activity
from redraft.rollout.engine import Inversion

NOTHING = np.zeros(0, dtype=np.int32)


def test_a_pass_is_of_the_tail_below_a_tenth_of_the_most_rows():
    activity = Activity()
    for active, seconds in ((20, 3.0), (2, 1.0), (1, 1.5), (20, 2.0), (1, 0.5), (19, 2.0)):
        activity.seconds[active] += seconds
    assert activity.tail_share == pytest.approx(2.0 / 10.0), "two of twenty are a tenth, and not below it"


def test_a_rollout_that_decodes_nothing_has_no_tail_and_one_of_few_rows_an_empty_one():
    assert Activity().tail_share is None
    few = Activity()
    for active in (10, 5, 1):
        few.seconds[active] += 1.0
    assert few.tail_share == 0.0


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=16,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


async def decoding(engine, tokens):
    async with engine.session([3, 4]) as session:
        await session.decode(NOTHING, tokens, Inversion(np.full(tokens, 0.5)))


def clocked(engine, monkeypatch):
    """Let each pass over the model take a second by the engine's clock."""
    readings, forward = [0.0], engine._forward
    monkeypatch.setattr("redraft.engines.torch.engine.now", lambda device: readings[0])

    def timed(*arguments):
        readings[0] += 1.0
        return forward(*arguments)

    monkeypatch.setattr(engine, "_forward", timed)


def test_the_engine_measures_the_last_runs_tail(model, monkeypatch):
    """Of 21 responses 20 end after 3 tokens and one after 10, and the passes that fill the cache do not count."""
    engine = TorchEngine(model, stops=(), max_length=32, max_rows=32)
    clocked(engine, monkeypatch)
    engine.run(*(decoding(engine, tokens) for tokens in (10, *[3] * 20)))
    assert engine.activity.seconds == {21: 3.0, 1: 7.0}
    assert engine.activity.tail_share == pytest.approx(0.7)
    assert engine.activity.passes == 10
    engine.run(*(decoding(engine, 5) for _ in range(4)))
    assert engine.activity.tail_share == 0.0


def started(model, monkeypatch, max_rows, jobs):
    """Names of sessions in the order in which they got rows: (prompt's length, draft's, limit)."""
    engine, order = TorchEngine(model, stops=(), max_length=60, max_rows=max_rows), []
    fill = engine._prefill
    monkeypatch.setattr(
        engine, "_prefill", lambda batch: [order.extend(r.session.prompt[0] for r in batch), fill(batch)][1]
    )

    async def one(name, prompt, draft, room):
        async with engine.session([name] + [5] * (prompt - 1)) as session:
            if draft:
                await session.score(np.full(draft, 5, np.int32))
            await session.decode(NOTHING, room, Inversion(np.full(room, 0.5)))

    engine.run(*(one(name, *job) for name, job in enumerate(jobs, 2)))
    return order


JOBS = [(4, 6, 20), (2, 0, 20), (9, 12, 20), (2, 30, 20), (3, 0, 5)]


def test_rows_that_are_short_go_to_the_longest_expected_continuation_first(model, monkeypatch):
    """Without a draft a response may reach its limit; a draft's length is the expected length of its response."""
    assert started(model, monkeypatch, 1, JOBS) == [5, 3, 4, 2, 6]


def test_with_rows_for_all_a_pass_takes_those_of_like_length(model, monkeypatch):
    assert started(model, monkeypatch, 16, JOBS) == [5, 4, 2, 6, 3]
