"""Traces of passes: recorded by the engine, and a toggle and a ladder replayed on them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.analysis.data.predicted import with_predicted_seconds
from redraft.cli.app import main
from redraft.config.decoding import LearnedHead, NGram, SelfSpeculation
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.speculation import SpeculativeEngine
from redraft.errors import UserError
from redraft.lab.selfspec.replay import TracedRollout, read_rollouts, replay
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.selfspec.calibration import Calibration, write_calibration
from redraft.selfspec.constants import Costs, ModelConstants
from redraft.selfspec.controller import Control, Ladder, Roofline, Stretch, Threshold, extend, passes_of
from redraft.selfspec.devices import A100
from redraft.selfspec.rollout_time import no_seconds, rollout_seconds, seconds_of_head, seconds_of_quantised
from redraft.selfspec.roofline import block_efficiency
from tests.selfspec import QWEN, ROUND
from tests.test_torch_engine import EOS, NOTHING, make_model

LADDER = Ladder((1, 2, 4), raise_at=0.3, lower_at=0.1, patience=1)
FAST = replace(ROUND, flops=400)
RULES = {
    "threshold": lambda gamma, tau: Threshold(5),
    "roofline": lambda gamma, tau: Roofline(FAST, gamma, gamma + 1, margin=-0.18),
}
"""The second turns on at 4 to 10 responses, at more the longer they and their drafts are."""
RAMP = 7


class Noted(QuantisedDrafter):
    """Notes which of its engine's passes speculated."""

    def begin(self):
        self.noted = []

    def propose(self, engine, block, count):
        self.noted.append((engine.speculated.passes + engine.speculated.plain_passes, count))
        return super().propose(engine, block, count)


def rolled_out(rule, rows=16):
    """Records of rollouts by the engine, as a run writes them, and which passes speculated by its own count."""
    control = Control(LADDER, RULES[rule], RAMP)
    model = make_model("qwen3", 4, 2)
    engine = SpeculativeEngine(model, Noted(model, 3, 16), control, 4, stops={EOS}, max_length=60, max_rows=rows)
    records, noted = [], []

    async def one(step, i):
        async with engine.session([3 + i % 5] * (1 + i % 7)) as session:
            return await session.decode(NOTHING, 5 + 3 * i, Inversion(uniforms(step, "replay", i, count=50)))

    for step in range(5):
        engine.run(*(one(step, i) for i in range(12)))
        done = engine.speculated
        records.append(
            {
                "step": step,
                "draft_length": control.gamma,
                "block_efficiency": done.block_efficiency,
                "passes": [list(stretch) for stretch in engine.activity.trace],
            }
        )
        assert engine.activity.trace == control.trace
        noted.append((done.passes + done.plain_passes, engine.drafter.noted))
        control.adapt(done.block_efficiency)
    return records, noted


def written(folder, records):
    file = folder / "steps.jsonl"
    file.write_text("".join(json.dumps({"quantisation_error": 0.1} | record) + "\n" for record in records))
    return file


def speculating(rollout):
    """Passes, and which of them speculate with how many proposals."""
    proposals = [stretch.proposals for stretch in rollout.trace for _ in range(stretch.passes)]
    return len(proposals), [(i, count) for i, count in enumerate(proposals) if count]


@pytest.mark.parametrize("rows", [16, 9])
@pytest.mark.parametrize("rule", RULES)
def test_a_replay_speculates_on_exactly_the_passes_on_which_the_engine_did(rule, rows, tmp_path):
    records, noted = rolled_out(rule, rows)
    found = replay(Control(LADDER, RULES[rule], RAMP), before := read_rollouts(written(tmp_path, records)))
    assert [speculating(rollout) for rollout in found] == noted
    assert found == before
    assert len({rollout.gamma for rollout in found}) > 1, "the ladder moved, or nothing was tested"
    assert all(rollout.plain > 0 and rollout.speculated > 0 for rollout in found)


def test_up_to_the_run_s_own_switch_another_toggle_sees_what_it_would_have_seen(tmp_path):
    """The run switches at 5 responses; others at 3 or 8."""
    records, _ = rolled_out("threshold")
    before = read_rollouts(written(tmp_path, records))
    for largest in (3, 8):
        for one, other in zip(before, replay(control(largest), before), strict=True):
            first = next(i for i, (active, _) in enumerate(passes_of(one.trace)) if active <= largest)
            assert other.plain == first
            assert other.switch.active == next(active for active, _ in passes_of(one.trace) if active <= largest)
            assert (other.plain < one.plain) == (largest == 8)
    assert all(rollout.switch is None for rollout in replay(control(5, ramp=12), before)), "12 responses at most"


def control(largest, ramp=RAMP, ladder=LADDER):
    return Control(ladder, lambda gamma, tau: Threshold(largest), ramp)


def test_a_ladder_receives_the_measured_acceptance_at_its_own_draft_length():
    """α = 0.9, measured at γ = 2: (τ - 1) / γ is 0.855 there, 0.9 at γ = 1 and 0.774 at γ = 4."""
    measured = TracedRollout(
        0, 2, float(block_efficiency(0.9, 2)), (Stretch(9, 0, 3, 1.0, 3.0), Stretch(2, 2, 4, 4.0, 12.0))
    )
    assert measured.tau_at(2) == measured.tau
    assert measured.tau_at(1) == pytest.approx(1.9)
    rises = replay(control(3, ladder=Ladder((1, 4), 0.88, 0.5, 1)), [measured] * 3)
    assert [rollout.gamma for rollout in rises] == [1, 4, 4]
    assert rises[1].tau == pytest.approx(block_efficiency(0.9, 4))
    stays = replay(control(3, ladder=Ladder((1, 4), 0.92, 0.5, 1)), [measured] * 3)
    assert [rollout.gamma for rollout in stays] == [1, 1, 1]
    never = replay(control(1, ladder=Ladder((1, 4), 0.88, 0.5, 1)), [measured] * 3)
    assert [(rollout.gamma, rollout.speculated) for rollout in never] == [(1, 0)] * 3, "without blocks it hears nothing"


def test_stretches_hold_what_passes_one_by_one_were():
    trace = []
    passes = [
        (8, 0, 10.0),
        (8, 0, 11.0),
        (8, 0, 12.0),
        (8, 0, 9.5),
        (7, 0, 10.5),
        (7, 3, 11.5),
        (7, 3, 14.0),
        (7, 3, 13),
    ]
    for one in passes:
        extend(trace, *one)
    assert trace == [
        (8, 0, 3, 10.0, 12.0),
        (8, 0, 1, 9.5, 9.5),
        (7, 0, 1, 10.5, 10.5),
        (7, 3, 2, 11.5, 14.0),
        (7, 3, 1, 13, 13),
    ]
    assert list(passes_of(trace)) == [(active, length) for active, _, length in passes]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(1, 50)), min_size=1, max_size=8))
def test_plain_passes_are_given_back_as_they_were(parts):
    passes = [(active, start + i) for active, count, start in parts for i in range(count)]
    trace = []
    for active, length in passes:
        extend(trace, active, 0, length)
    np.testing.assert_allclose(list(passes_of(trace)), passes, rtol=1e-12)
    assert len(trace) <= len(parts)


PARTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.floats(1, 4000)), min_size=1, max_size=8)
"""Active responses, passes and mean length before the first of them, in any order."""


@given(st.lists(st.tuples(PARTS, st.floats(0, 1)), min_size=1, max_size=6), st.integers(0, 40), st.booleans())
def test_any_rollouts_replayed_under_their_own_control_are_what_they_were(rollouts, ramp, by_roofline):
    def rule(gamma, tau):
        return Roofline(QWEN, gamma, tau) if by_roofline else Threshold(8 * gamma)

    own, recorded = Control(Ladder(patience=1), rule, ramp), []
    for step, (parts, share) in enumerate(rollouts):
        own.begin()
        for active, count, start in parts:
            for i in range(count):
                own.draft_length(active, start + i)
        tau = 1 + share * own.gamma if any(stretch.proposals for stretch in own.trace) else None
        recorded.append(TracedRollout(step, own.gamma, tau, tuple(own.trace)))
        own.adapt(tau)
    again = replay(Control(Ladder(patience=1), rule, ramp), recorded)
    for one, other in zip(again, recorded, strict=True):
        assert (one.gamma, one.tau, one.plain, one.speculated) == (
            other.gamma,
            other.tau,
            other.plain,
            other.speculated,
        )


def printed(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["replay", *map(str, arguments)])
    assert end.value.code in (0, None)


def test_the_command_prints_a_run_and_its_replay(tmp_path, capsys):
    """One of 128 responses ends with each pass; the run switched at 30, the roofline does where it pays."""
    passes = [[128 - i, 5 if 128 - i <= 30 else 0, 1, 300.0 + i, 300.0 + i] for i in range(128)]
    records = [
        {"step": 0, "draft_length": 5, "block_efficiency": 5.9, "passes": passes},
        {"step": 1, "draft_length": 5, "block_efficiency": None, "passes": passes[:60]},
    ]
    file = written(tmp_path, records)
    printed(file, "--threshold", 20, "--gamma", 7)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["1", "5", "30", "98", "30", "7", "20", "108", "20"]
    assert rows[2] == ["2", "5", "never", "-", "0", "7", "never", "-", "0"]
    printed(file, "--threshold", 20, "--gamma", 7, "--json")
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert list(first.values()) == [1, 5, 30, 98, 30, 7, 20, 108, 20]
    assert (first["recorded: on at"], first["replayed: on at"]) == (30, 20)
    assert (second["replayed: on at"], second["replayed: after"]) == ("never", None)
    write_calibration(tmp_path / "a100.json", QWEN, {})
    printed(file, "--calibration", tmp_path / "a100.json", "--gamma", "5,7")
    out = capsys.readouterr().out
    row = out.splitlines()[1].split()
    assert row[5] == "5"
    with pytest.raises(SystemExit) as end:
        main(["replay", str(file), "--calibration", str(tmp_path / "a100.json"), "--threshold", "20"])
    assert end.value.code == 2
    assert "without --calibration" in capsys.readouterr().err
    assert Roofline(QWEN, 5, None).pays(int(row[6]), 300 + int(row[7]))
    assert not Roofline(QWEN, 5, None).pays(int(row[6]) + 1, 300 + int(row[7]) - 1)
    assert max(map(len, out.splitlines())) <= 80


def test_passes_of_other_drafters_are_rejected(tmp_path):
    record = {"step": 0, "draft_length": 8, "block_efficiency": 2.8, "passes": [[8, 8, 10, 5.0, 14.0]]}
    (tmp_path / "steps.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match="of another drafter than self-speculation"):
        read_rollouts(tmp_path / "steps.jsonl")


def test_records_without_a_trace_raise(tmp_path):
    with pytest.raises(UserError, match="these records have no passes"):
        read_rollouts(written(tmp_path, [{"step": 0}]))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"draft_length": ...}, ["lacks a field", "line 2, draft_length"]),
        ({"block_efficiency": ...}, ["lacks a field", "line 2, block_efficiency"]),
        ({"draft_length": None}, ["wrong type", "line 2, draft_length", "null"]),
        ({"block_efficiency": 6.5}, ["line 2", "from 1 to draft_length + 1"]),
        ({"passes": [[8, 0, 10]]}, ["lacks a field", "line 2, passes.0.3"]),
        ({"passes": [["8", 0, 10, 5.0, 14.0]]}, ["wrong type", "line 2, passes.0.0"]),
        ({"draft_length": 10**400}, ["line 2, draft_length", "less than or equal to 64"]),
        ({"passes": [[8, 0, 10**400, 5.0, 14.0]]}, ["line 2, passes.0.2", "less than or equal to 1048576"]),
        ({"passes": [[8, 65, 10, 5.0, 14.0]]}, ["line 2, passes.0.1", "less than or equal to 64"]),
        ({"passes": [[10**30, 0, 10, 5.0, 14.0]]}, ["line 2, passes.0.0", "less than or equal to 1048576"]),
    ],
)
def test_records_without_what_belongs_to_passes_raise(change, parts, tmp_path):
    record = {"draft_length": 5, "block_efficiency": 3.0, "passes": [[8, 0, 10, 5.0, 14.0]]}
    changed = {name: value for name, value in (record | change).items() if value is not ...}
    file = written(tmp_path, [{"step": 0} | record, {"step": 1} | changed])
    with pytest.raises(UserError) as error:
        read_rollouts(file)
    assert error.value.file == file
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_seconds_of_recorded_passes_are_those_of_the_roofline():
    # A byte and an operation take a second each: weights of 100 bytes, 10 bytes a position, 30 operations a token.
    costs = Costs(target_bytes=100, draft_bytes=40, kv_bytes=10, dense_flops=30, attention_flops=0)
    model = Calibration("", costs, 1.0, 1.0, 10, 1.5, target_overhead=1e6, draft_overhead=2e6, verify_overhead=3e6)
    plain = Stretch(active=1, proposals=0, passes=2, first=4, last=5)
    wide = Stretch(active=6, proposals=0, passes=1, first=1, last=1)
    block = Stretch(active=1, proposals=3, passes=1, first=2, last=2)

    def seconds(passes, scored=0, proposal=no_seconds):
        return rollout_seconds(model, passes, scored, proposal)

    assert seconds([plain]) == pytest.approx((100 + 40 + 1) + (100 + 50 + 1))  # reads weights, then keys and values
    assert seconds([wide]) == pytest.approx(180 + 6)  # computes longer than it reads
    assert seconds([block]) == pytest.approx(4 * 30 + 3)  # reads 120 bytes, as long
    drafting = 1.5 * 40 + 20 + 2
    assert seconds([block], proposal=seconds_of_quantised(model)) == pytest.approx(123 + 3 * drafting)
    sizes = ModelConstants(2, 1, 1, 1, 1, 1, vocabulary=7, tied=False)
    # A head of (2 + 3) · 2² weights, and the output layer of 2 · 7: two bytes each, two operations a response.
    assert seconds([block], proposal=seconds_of_head(model, sizes, 1)) == pytest.approx(123 + 3 * 2 * 34)
    assert seconds([plain, wide]) == pytest.approx(seconds([plain]) + seconds([wide]))
    assert seconds([plain], scored=2) == pytest.approx(seconds([plain]) + 100)
    assert seconds([plain], scored=5) == pytest.approx(seconds([plain]) + 150)
    assert seconds([]) == 0


def test_predicted_seconds_follow_the_decoding_of_the_run(tmp_path):
    steps = [{"step": 0, "tokens_verified": 0, "passes": [[128, 5, 3, 40.0, 60.0]]}, {"step": 1, "tokens_verified": 9}]
    file = written(tmp_path, steps)

    def first(decoding):
        records = with_predicted_seconds(file, decoding)
        assert not any(name.startswith("predicted") for name in records[1])  # another trainer records no passes
        return records[0]["predicted_seconds.a100"], records[0]["predicted_seconds.h100"]

    ngram = first(NGram(kind="ngram"))
    head, narrow = (first(LearnedHead(kind="head", width=width)) for width in (3, 1))
    four, eight = (first(SelfSpeculation(kind="self_speculation", when="always", bits=bits)) for bits in (4, 8))
    assert all(a > h for a, h in (ngram, head, four))
    assert ngram < narrow < head < four < eight
    scored = written(tmp_path, [steps[0] | {"tokens_verified": 50_000}, steps[1]])
    seconds = A100.costs.dense_flops * 50_000 / A100.flops
    assert first(NGram(kind="ngram"))[0] == pytest.approx(ngram[0] + seconds)
    scored.write_text(scored.read_text().replace("128", "0"))
    with pytest.raises(UserError, match="passes"):
        first(NGram(kind="ngram"))
