"""Bursts and steps with static shapes: the same responses as token by token, and nothing that a CUDA graph forbids.

A graph repeats the kernels that were captured, on the same memory. `Tape` does so on a processor with PyTorch's
operators: what a step took from the host is as wrong in its repetitions as it would be in a graph's.
"""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from redraft.engines.torch import graphs
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.graphs import WARM_UP, Graphs, Shape, capturable
from redraft.engines.torch.speculation import Fixed, SpeculativeEngine
from redraft.rollout.engine import Gumbel, Inversion, Residual
from redraft.rollout.streams import stream, uniforms
from redraft.selfspec.controller import Stretch
from tests.test_torch_engine import (
    EOS,
    LIMIT,
    NOTHING,
    TINY,
    check_against_plain_forward,
    make_jobs,
    make_model,
    plain_log_probs,
    run,
)

aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.isin,
    aten._unique2,
    aten.bincount,
    aten.repeat_interleave,
    aten.lift_fresh,
}
"""Operators that make the host wait, or may, for a number or for a size; the last one brings numbers of the host."""
INDEXING = {aten.index, aten.index_put, aten.index_put_}


class Tape(TorchDispatchMode):
    """Operators in their order, with the tensors that they were called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.overloadpacket, kwargs or {}
        assert name not in WAITING, f"{function} makes the host wait"
        if name in INDEXING:
            assert all(i is None or i.dtype != torch.bool for i in args[1]), f"{function} by a mask makes the host wait"
        out = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, out))
        return out

    def replay(self):
        """Do all of it again; what an operator makes goes to where it went at first."""
        for function, args, kwargs, out in self.calls:
            again = function(*args, **kwargs)
            for first, now in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if torch.is_tensor(first) and first.data_ptr() != now.data_ptr():
                    first.copy_(now)


class Taping:
    """Captures for an engine; what the work changed is set back, since a graph's work is not done while captured."""

    def __init__(self, engine):
        self.engine = engine

    def warm_up(self, work):
        work()

    def capture(self, work):
        rows, cache = self.engine.rows, self.engine.cache
        outputs = (rows.out_tokens, rows.out_log_probs, rows.top_tokens, rows.top_log_probs)
        states = [(state, state.clone()) for state in (rows.numbers, *outputs, cache._all)]
        with Tape() as tape:
            work()
        for state, before in states:
            state.copy_(before)
        return tape.replay


@pytest.fixture(scope="module")
def qwen3():
    return make_model("qwen3", 4, 2)


@pytest.fixture
def small_shapes(monkeypatch):
    """Shapes that differ within the few rows and tokens of a test."""
    monkeypatch.setattr(graphs, "ROWS", 4)
    monkeypatch.setattr(graphs, "SPAN", 8)


STOPS = {EOS, 5, 6}


def make_engine(model, burst=1, static=False, tape=False, **settings):
    options = {"stops": STOPS, "max_length": 32, "max_rows": 16} | settings
    engine = TorchEngine(model, burst=burst, static=static, **options)
    if tape:
        engine._graphs = Graphs(model, lambda: Taping(engine))
    return engine


async def ask(engine, job):
    """Decode by inversion or Gumbel noise, maybe out of a residual first, to one of many limits."""
    room = LIMIT - job.keep
    limit = room if job.name % 3 else 1 + int(stream(1, "limits", job.name).integers(room))
    first = Residual(np.array([3, 5]), np.array([0.9, 0.0])) if job.name % 5 == 0 else None
    draws = Gumbel(2**63 + job.name) if job.name % 4 == 1 else Inversion(uniforms(0, "bursts", job.name, count=limit))
    async with engine.session(job.prompt) as session:
        if job.scores:
            await session.score(job.draft)
        return await session.decode(job.prefix, limit, draws, first, top=job.name % 4)


def ask_all(engine, jobs):
    return engine.run(*(ask(engine, job) for job in jobs))


def counted(engine, monkeypatch):
    """Number of looks at who has ended, in a list."""
    looks, answer = [0], engine._answer_ended

    def look():
        looks[0] += 1
        return answer()

    monkeypatch.setattr(engine, "_answer_ended", look)
    return looks


def check_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert (one.finish, one.cached) == (other.finish, other.cached)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
        assert (one.top is None) == (other.top is None)
        if one.top is not None:
            np.testing.assert_allclose(one.top.log_probs, other.top.log_probs, atol=1e-5)
            assert one.top.tokens.shape == other.top.tokens.shape


WAYS = [
    {"burst": 2},
    {"burst": 5, "max_rows": 3},
    {"burst": 16},
    {"burst": 1, "static": True},
    {"burst": 16, "static": True, "max_rows": 7},
    {"burst": 7, "static": True, "tape": True, "max_rows": 5},
    {"burst": 16, "static": True, "tape": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_responses_are_those_of_decoding_token_by_token(qwen3, way, small_shapes, monkeypatch):
    """With sessions that end at a stop or their limit within a burst, and sample in all ways."""
    jobs, plain, engine = make_jobs(24), make_engine(qwen3), make_engine(qwen3, **way)
    looks = [counted(one, monkeypatch) for one in (plain, engine)]
    expected = ask_all(plain, jobs)
    assert len({c.finish for c in expected}) == 2
    assert not any(STOPS & set(c.tokens[:-1].tolist()) for c in expected)
    check_same(ask_all(engine, jobs), expected)
    assert engine.usage.scored_tokens == plain.usage.scored_tokens
    if way["burst"] > 2 and "max_rows" not in way:
        assert looks[1][0] < 0.6 * looks[0][0]
    if "tape" in way:
        check_same(ask_all(engine, jobs[::-1]), expected[::-1])
        assert engine._graphs.captured > 1


@pytest.mark.parametrize("distribution", [{"temperature": 0.0}, {"top_p": 0.8}, {"temperature": 0.6}], ids=str)
def test_every_distribution_of_sampling_is_that_of_decoding_token_by_token(qwen3, distribution, small_shapes):
    jobs = [job for job in make_jobs(24) if not job.scores]
    expected = [c for _, c in run(make_engine(qwen3, **distribution), jobs)]
    engine = make_engine(qwen3, burst=16, static=True, tape=True, **distribution)
    check_same([c for _, c in run(engine, jobs)], expected)


@pytest.mark.parametrize(("static", "burst", "filled"), [(False, 16, 30), (True, 16, 30), (False, 4, 15)], ids=str)
def test_a_filled_row_writes_nothing_after_its_end_in_the_rest_of_a_burst(qwen3, static, burst, filled):
    """Two rows end with the last slots that the cache has, or has so far, beside others that start in the first."""
    engine = make_engine(qwen3, burst=burst, static=static, stops=())
    prompts, limits = [[2, 3]] * 3 + [[4] * filled] * 2 + [[3, 2]] * 3, [14, 20, 16, 2, 2, 15, 13, 14]

    async def one(number):
        async with engine.session(prompts[number]) as session:
            u = uniforms(0, "full", number, count=limits[number])
            return await session.decode(NOTHING, limits[number], Inversion(u))

    for prompt, limit, found in zip(prompts, limits, engine.run(*map(one, range(8))), strict=True):
        assert len(found.tokens) == limit
        np.testing.assert_allclose(found.log_probs, plain_log_probs(qwen3, prompt, found.tokens), atol=1e-4)


@pytest.mark.parametrize("tape", [False, True], ids=["eager", "taped"])
def test_rows_that_fill_a_shape_disturb_no_session_that_is_idle(qwen3, tape):
    """Idle sessions wait in the rows after the decoding ones, and go on with their cached tokens."""
    engine = make_engine(qwen3, burst=4, static=True, tape=tape, max_rows=8, stops=())
    jobs = make_jobs(6)

    async def patient(job):
        async with engine.session(job.prompt) as session:
            if job.scores:
                await session.score(job.draft)
            first = await session.decode(job.prefix, 2, Inversion(uniforms(0, "a", job.name, count=2)))
            for _ in range(6):
                async with engine.session([job.name + 2]) as other:
                    await other.decode(NOTHING, 3, Inversion(np.full(3, 0.5)))
            prefix = np.concatenate([job.prefix, first.tokens])
            second = await session.decode(prefix, 5, Inversion(uniforms(0, "b", job.name, count=5)))
            return first, second

    for job, (first, second) in zip(jobs, engine.run(*map(patient, jobs)), strict=True):
        assert second.cached == len(job.prompt) + job.keep + 1, "the session kept its row"
        whole = [*job.prefix, *first.tokens, *second.tokens]
        expected = plain_log_probs(qwen3, job.prompt, whole)[job.keep :]
        np.testing.assert_allclose(np.concatenate([first.log_probs, second.log_probs]), expected, atol=1e-4)


def test_a_cancelled_session_samples_nothing_in_the_row_it_left(qwen3):
    """It leaves a row with tokens to decode, which later passes fill their shapes with."""
    engine = make_engine(qwen3, burst=2, static=True, max_rows=8, stops=(), max_length=26)

    async def impatient():
        async with engine.session([3]) as session:
            task = asyncio.ensure_future(session.decode(NOTHING, 25, Inversion(uniforms(0, "x", count=25))))
            for _ in range(4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    engine.run(*(impatient() for _ in range(4)))
    assert int(engine.rows.limits.sub(engine.rows.counts).max()) > 0, "or nothing is tested"
    jobs = make_jobs(3)
    check_against_plain_forward(qwen3, jobs, run(engine, jobs))
    assert int(engine.rows.positions.max()) < engine.max_length


def test_a_shape_is_captured_once_and_follows_weights_that_change_in_place(small_shapes, monkeypatch):
    model, jobs = make_model("qwen3", 2, 2), [job for job in make_jobs(32) if not job.scores]
    engine = make_engine(model, burst=4, static=True, tape=True, stops={EOS})
    shapes, do = [], engine._graphs.run
    monkeypatch.setattr(engine._graphs, "run", lambda shape, work: [shapes.append(shape), do(shape, work)])
    for _ in range(1 + WARM_UP):  # a shape that a run needs once or twice is captured in a later one
        check_against_plain_forward(model, jobs, run(engine, jobs))
    captured = engine._graphs.captured
    assert captured == len(set(shapes)) > 2, "each once, though they take turns"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    known, new = set(shapes), len(shapes)
    check_against_plain_forward(model, jobs, run(engine, jobs))
    assert known & set(shapes[new:]), "graphs of the old weights computed with the new ones"
    assert engine._graphs.captured <= len(set(shapes))


def test_no_graph_is_replayed_for_sessions_that_request_more(qwen3):
    """The same prompts with and without the top of their distributions, and by inversion and by noise, each until
    captured."""
    plain, engine = make_engine(qwen3), make_engine(qwen3, burst=4, static=True, tape=True)

    async def one(which, number, draws, top):
        async with which.session([number + 2, 3]) as session:
            return await session.decode(NOTHING, 6, draws, top=top)

    for noise, top in ((False, 0), (False, 2), (True, 2), (True, 0), (False, 0)):
        draws = [Gumbel(i) if noise else Inversion(uniforms(0, "kinds", i, count=6)) for i in range(4)]
        expected, *rounds = (
            which.run(*(one(which, i, draws[i], top) for i in range(4))) for which in (plain, engine, engine, engine)
        )
        for found in rounds:
            check_same(found, expected)
    assert engine._graphs.captured >= 4


def test_graphs_of_weights_that_lie_elsewhere_are_dropped(small_shapes):
    model, jobs = make_model("qwen3", 2, 2), [job for job in make_jobs(16) if not job.scores]
    engine = make_engine(model, burst=16, static=True, tape=True)
    run(engine, jobs)
    captured = engine._graphs.captured
    old = [parameter.data for parameter in model.parameters()]  # graphs of the old addresses would compute with these
    for parameter, data in zip(model.parameters(), old, strict=True):
        parameter.data = data * 1.1
    check_against_plain_forward(model, jobs, run(engine, jobs))
    assert engine._graphs.captured > captured


def test_the_tail_of_bursts_is_counted_token_by_token(qwen3, monkeypatch):
    """Of 9 responses 8 end after 3 tokens and one after 10; a pass takes a second."""
    engine, readings = make_engine(qwen3, burst=5, stops=()), [0.0]
    forward = engine._forward
    monkeypatch.setattr("redraft.engines.torch.engine.now", lambda device: readings[0])

    def timed(*arguments):
        readings[0] += 1.0
        return forward(*arguments)

    async def one(tokens):
        async with engine.session([3, 4]) as session:
            await session.decode(NOTHING, tokens, Inversion(np.full(tokens, 0.5)))

    monkeypatch.setattr(engine, "_forward", timed)
    engine.run(*(one(tokens) for tokens in (10, *[3] * 8)))
    assert engine.activity.seconds == {9: 3.0, 1: 7.0}
    # Prompts have two tokens, and each pass adds one.
    assert engine.activity.trace == [
        Stretch(9, 0, passes=3, first=2, last=4),
        Stretch(1, 0, passes=7, first=5, last=11),
    ]


def test_no_burst_goes_on_when_all_have_reached_their_limits(qwen3, monkeypatch):
    engine, passes = make_engine(qwen3, burst=16, stops=()), []
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda shape, first=False: [passes.append(shape), step(shape, first)])

    async def one(tokens):
        async with engine.session([3, 4]) as session:
            await session.decode(NOTHING, tokens, Inversion(np.full(tokens, 0.5)))

    engine.run(one(3), one(5))
    assert len(passes) == 5


def test_speculation_replays_its_plain_passes(qwen3, small_shapes):
    jobs = make_jobs(16)
    expected = [c for _, c in run(make_engine(qwen3), jobs)]
    engine = SpeculativeEngine(
        qwen3,
        QuantisedDrafter(qwen3, bits=3, group=16),
        Fixed(0),
        2,
        stops=STOPS,
        max_length=32,
        max_rows=16,
        static=True,
    )
    engine._graphs = Graphs(qwen3, lambda: Taping(engine))
    check_same([c for _, c in run(engine, jobs)], expected)
    assert engine._graphs.captured > 0
    engine.controller = Fixed(2)
    check_against_plain_forward(qwen3, jobs, run(engine, jobs))
    engine.controller = Fixed(0)
    check_same([c for _, c in run(engine, jobs)], expected)


def test_a_padded_shape_is_at_most_half_again_as_large():
    sizes = [Shape(n, n, False, 0).padded(10_000, 10_000) for n in range(1, 5000)]
    for needed, (rows, span, *_) in enumerate(sizes, 1):
        assert needed <= rows < max(needed * 1.5, needed + graphs.ROWS)
        assert needed <= span < max(needed * 1.5, needed + graphs.SPAN)
    assert all(a.rows <= b.rows for a, b in pairwise(sizes))
    assert len({shape.span for shape in sizes}) < 16
    assert Shape(9, 300, True, 3).padded(10, 310) == Shape(10, 310, True, 3)


def test_models_whose_passes_branch_on_computed_values_are_not_captured():
    config = {key: value for key, value in TINY.items() if key != "pad_token_id"}
    experts = MixtralForCausalLM(MixtralConfig(**config, num_local_experts=2, sliding_window=None))
    assert not capturable(experts)
    assert capturable(make_model("qwen3", 4, 2))
    assert capturable(make_model("llama", 4, 2))
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    assert not capturable(Qwen3ForCausalLM(Qwen3Config(**config, rope_parameters=rope)))


def test_a_step_that_waits_is_found(qwen3):
    """The check of the tests above can fail."""
    with pytest.raises(AssertionError, match="wait"), Tape():
        bool(torch.zeros(3).max() > 0)
    with pytest.raises(AssertionError, match="wait"), Tape():
        _ = torch.zeros(3)[torch.ones(3, dtype=torch.bool)]


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU; a tape replays steps on the processor above"
)
def test_cuda_graphs_decode_what_the_same_steps_do_without_them(monkeypatch):
    """And no step, of those that are not captured either, makes the host wait."""
    model, jobs = make_model("qwen3", 4, 2).cuda(), make_jobs(24)
    plain, engine = make_engine(model, burst=16, static=True), make_engine(model, burst=16, static=True)
    plain._graphs, step = None, plain._step

    def strict(shape, first=False):
        torch.cuda.set_sync_debug_mode("default" if first else "error")
        try:
            step(shape, first)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(plain, "_step", strict)
    for _ in range(2 + WARM_UP):
        expected, found = ask_all(plain, jobs), ask_all(engine, jobs)
        for job, one in zip(jobs, found, strict=True):
            whole = plain_log_probs(model, job.prompt, [*job.prefix, *one.tokens])
            np.testing.assert_allclose(one.log_probs, whole[job.keep :], atol=1e-4)
        same = [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(found, expected, strict=True)]
        assert np.mean(same) > 0.9, "a uniform rarely falls between the two numerics"
    assert engine._graphs.captured > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    captured = engine._graphs.captured
    check_against_plain_forward(model, jobs, run(engine, jobs))
    assert engine._graphs.captured <= captured + 4, "graphs follow weights that change in place"
