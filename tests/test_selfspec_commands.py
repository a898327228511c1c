"""`redraft calibrate` and `redraft simulate`: what they print and write, and mistakes, each one message."""

import json

import numpy as np
import pytest

from benchmarks.self_speculation import CONFIGURATIONS
from redraft.cli.app import main
from redraft.errors import UserError
from redraft.files import own_hash_file
from redraft.lab.selfspec.command_results import SimulationOptions, completed, simulation
from redraft.lab.selfspec.simulate import (
    Acceptance,
    SimulatedEngine,
    Speculation,
    measured_acceptance,
    parse_quantiles,
    simulate_rollout,
)
from redraft.lab.selfspec.sweep import write_sweep
from redraft.result_files import write_own_hash
from redraft.selfspec.calibration import read_calibration, write_calibration
from redraft.selfspec.roofline import block_efficiency
from tests.selfspec import QWEN, measurements

LENGTHS = "0:100,50:600,99:2500,100:6000"


@pytest.fixture
def folder(tmp_path):
    """A sweep, a model, a calibration and lengths."""
    write_sweep(tmp_path / "sweep.csv", measurements(QWEN))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATIONS["Qwen2.5-7B"]))
    write_calibration(tmp_path / "calibration.json", QWEN, {})
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, range(100, 1600, 10))))
    return tmp_path


@pytest.fixture
def printed(folder, monkeypatch, capsys):
    """What a call prints, which fits 80 columns unless it is for a program."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        assert end.value.code in (0, None)
        text = capsys.readouterr().out
        assert "--json" in arguments or max(map(len, text.splitlines())) <= 80
        return text

    return call


FIT = ("calibrate", "sweep.csv", "--model", "config.json", "--tflops", "233.514", "--out", "fitted.json")


def rows(text):
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}


def test_a_fit_is_printed_and_written(printed, folder):
    text = printed(*FIT)
    found = {line[:42].strip(): line[42:].strip() for line in text.splitlines()[1:8]}
    assert found == {
        "bandwidth BW_eff, TB/s": "1.617",
        "keys and values κ_eff, bytes a position": "26205",
        "share λ of all their bytes": "0.46",
        "drafter's factor η_d": "1.334",
        "overhead of the target c_T, µs a sequence": "39.0",
        "of the drafter c_D": "69.0",
        "of a verification c_V": "152.3",
    }
    assert "180 of 180 points (100.0%)" in text
    assert "all modes at 180 of 180 points" in text, "a sweep without a hash"
    assert "gamma 7 48 48 48 48 48 47" in " ".join(text.split())
    written = read_calibration(folder / "fitted.json")
    assert written.bandwidth == pytest.approx(QWEN.bandwidth, rel=1e-4)
    assert written.costs == QWEN.costs
    metadata = json.loads((folder / "fitted.json").read_text())["metadata"]
    assert (metadata["sweep"], metadata["gammas"], metadata["points"]) == ("sweep.csv", [3, 7, 11, 15], 180)


def test_a_sweep_with_a_hash_must_be_the_measured_one_and_others_show_how_complete_they_are(printed, folder, mistake):
    sweep = folder / "sweep.csv"
    lines = sweep.read_text().splitlines(keepends=True)
    write_own_hash(sweep)
    assert "all modes at 180 of 180 points" in printed(*FIT)
    sweep.write_text("".join(lines[:-9]))
    text = mistake(folder, *FIT)
    assert "sweep.csv" in text
    assert "differs from the hash in sweep.csv.sha256" in text
    own_hash_file(sweep).unlink()
    assert "all modes at 171 of 180 points" in printed(*FIT)


def test_a_data_sheet_and_other_drafters_can_be_given(printed, folder):
    found = json.loads(printed(*FIT, "--bandwidth", "2.039", "--json"))
    fitted = {row["parameter"]: row["value"] for row in found["rows"] if row["table"] == "fitted"}
    assert fitted["keys and values κ_eff, bytes a position"] == 26205
    (boundary,) = (row for row in found["rows"] if row.get("length") == "gamma 7")
    assert (boundary["256"], boundary["8192"]) == (48, 47)
    assert (found["command"], found["asked"]["out"]) == ("calibrate", "fitted.json")
    assert read_calibration(folder / "fitted.json").bandwidth == pytest.approx(QWEN.bandwidth, rel=1e-4)
    printed(*FIT, "--draft-bits", "8")
    found = read_calibration(folder / "fitted.json")
    assert found.costs.draft_bytes > 1.5 * QWEN.costs.draft_bytes
    same = pytest.approx(QWEN.draft_factor * QWEN.costs.draft_bytes, rel=1e-3)
    assert found.draft_factor * found.costs.draft_bytes == same, "the same times are explained otherwise"


def test_a_rollout_is_predicted_in_each_mode(printed):
    call = ("simulate", "calibration.json", "--lengths", LENGTHS, "--engines", "8", "--alpha", "0.98")
    found = rows(printed(*call))
    seconds = {mode: float(found[mode][0]) for mode in ("off", "always", "threshold", "roofline")}
    document = json.loads(printed(*call, "--json"))
    assert {row["mode"]: row["seconds"] for row in document["rows"]} == seconds
    assert document["asked"]["engines"] == 8
    assert seconds["roofline"] < seconds["always"] < seconds["off"]
    against_off = 100 * (seconds["roofline"] / seconds["off"] - 1)
    assert float(found["roofline"][1].removesuffix("%")) == pytest.approx(against_off, abs=0.2), "of rounded seconds"
    assert found["off"][1:3] == ["-", "never"]
    assert found["always"][2:] == ["128", "active", "0.0", "100%", "of", "tokens"]
    assert found["threshold"][2] == "32"


def test_lengths_acceptance_and_another_model_can_be_given(printed, folder):
    plain = ("simulate", "calibration.json", "--lengths", "lengths.txt")
    one = rows(printed(*plain, "--alpha", "0.9"))
    by_position = rows(printed(*plain, "--alpha", "0:0.9,500:0.99"))
    assert by_position["off"] == one["off"]
    assert float(by_position["always"][0]) < float(one["always"][0])
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS["Qwen2.5-14B"]))
    larger = rows(printed(*plain, "--model", "config.json"))
    assert 1.5 < float(larger["off"][0]) / float(one["off"][0]) < 2.5
    fewer = rows(printed(*plain, "--slots", "10", "--threshold", "5", "--prompt", "1000"))
    assert float(fewer["off"][0]) > 1.5 * float(one["off"][0])
    assert fewer["threshold"][2] == "never", "the ramp guard is above these slots"


def test_what_a_run_measured_can_be_simulated(printed, folder):
    """Records of two draft lengths whose blocks kept what α = 0.9 and, from 256 on, 0.5 keep."""
    records = [
        {"step": step, "draft_length": gamma}
        | {
            "proposed_from": {"0": 8000 * gamma, "256": 4000 * gamma},
            "kept_from": {
                "0": 8000 * (block_efficiency(0.9, gamma) - 1),
                "256": 4000 * (block_efficiency(0.5, gamma) - 1),
            },
        }
        for step, gamma in ((1, 5), (2, 7))
    ]
    write_records(folder, [{"step": 0}, *records])
    call = ("simulate", "calibration.json", "--lengths", "lengths.txt", "--alpha")
    assert printed(*call, "steps.jsonl") == printed(*call, "0:0.9,256:0.5") != printed(*call, "0.9")


def test_parts_in_which_nothing_began_take_the_acceptance_of_others(folder):
    """At γ = 1 acceptance is what is kept of what is proposed."""
    parts = {"64": (10, 5), "128": (8, 8), "512": (4, 0)}
    record = {"step": 0, "draft_length": 1} | {
        name: {start: of_part[i] for start, of_part in parts.items()}
        for i, name in enumerate(("proposed_from", "kept_from"))
    }
    found = measured_acceptance(write_records(folder, [record]))
    assert (found.alpha, found.starts) == (pytest.approx((0.5, 1.0, 0.0)), (0.0, 128.0, 512.0))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"draft_length": 10**400}, ["line 1, draft_length", "less than or equal to 64"]),
        (
            {"proposed_from": {"9" * 5000: 40.0}, "kept_from": {"9" * 5000: 30.0}},
            ["line 1, proposed_from.9", "pattern"],
        ),
        (
            {"proposed_from": {"0": 40.0, "00": 20.0}, "kept_from": {"0": 30.0, "00": 1.0}},
            ["proposed_from.00", "pattern"],
        ),
    ],
)
def test_positions_and_draft_lengths_of_records_have_limits_and_one_spelling(folder, change, parts):
    record = {"step": 0, "draft_length": 5, "proposed_from": {"0": 40.0}, "kept_from": {"0": 30.0}}
    with pytest.raises(UserError) as error:
        measured_acceptance(write_records(folder, [record | change]))
    assert all(part in str(error.value) for part in parts), str(error.value)


def write_records(folder, records):
    file = folder / "steps.jsonl"
    file.write_text("".join(json.dumps({"quantisation_error": 0.1} | record) + "\n" for record in records))
    return file


def test_blocks_of_other_drafters_are_rejected(folder):
    """They may have fewer proposals than the draft length: 100 blocks of 2 at γ = 8 are no 25 blocks of 8."""
    record = {"step": 0, "draft_length": 8, "proposed_from": {"0": 200.0}, "kept_from": {"0": 180.0}}
    (folder / "steps.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match="of another drafter than self-speculation"):
        measured_acceptance(folder / "steps.jsonl")


def test_responses_of_quantiles_begin_in_random_order(folder):
    """In ascending order the longest would begin last: 14 % more decoding time than the mean over random orders."""
    options = SimulationOptions(folder / "calibration.json", LENGTHS, "7", "0.9", responses=512, slots=64)
    found = float(simulation(completed(options))[1][0][1])
    engine, off = SimulatedEngine(QWEN, options.prompt, options.slots), Speculation("off", 7, Acceptance((0.9,)))
    ascending = parse_quantiles(LENGTHS).lengths(512)
    orders = [np.random.default_rng(seed).permutation(ascending) for seed in range(1, 9)]
    mean = np.mean([simulate_rollout(order, engine, off).seconds for order in orders])
    assert found == pytest.approx(mean, rel=0.07)
    assert simulate_rollout(ascending, engine, off).seconds > 1.1 * mean


def test_engines_share_lengths_of_quantiles_evenly(printed):
    """With a slot for each response the order in which they begin changes nothing."""
    engine, off = SimulatedEngine(QWEN, 200, 256, 8), Speculation("off", 7, Acceptance((0.9,)))
    ascending = simulate_rollout(parse_quantiles(LENGTHS).lengths(1024), engine, off).seconds
    found = rows(printed("simulate", "calibration.json", "--lengths", LENGTHS, "--engines", "8"))
    assert found["off"][0] == f"{ascending:.1f}"


def test_a_ladder_is_followed_over_rollouts(printed):
    call = ("simulate", "calibration.json", "--lengths", "lengths.txt", "--gamma", "3,5,9", "--rollouts", "8")
    found = rows(printed(*call, "--alpha", "0.96", "--last-alpha", "0.999"))
    assert found["off"] == [found["off"][0], "-", "-", "-"]
    assert found["roofline"][-1] == "9"
    assert 3 < float(found["roofline"][-2]) < 9
    assert rows(printed(*call, "--alpha", "0.8"))["always"][-2:] == ["3.0", "3"]


SIMULATE = ("simulate", "calibration.json", "--lengths", LENGTHS)
MISTAKES = {
    "no sweep": (("calibrate", "nothing.csv", *FIT[2:]), ["nothing.csv", "missing", "a folder"]),
    "no throughput of a sweep that exists": ((*FIT[:4], *FIT[6:]), ["--tflops", "an existing sweep"]),
    "no model": ((*FIT[:2], "--model", "nothing", *FIT[4:]), ["nothing", "missing"]),
    "no throughput": ((*FIT[:4], "--tflops", "0", *FIT[6:]), ["--tflops", "more than 0"]),
    "no bandwidth": ((*FIT, "--bandwidth", "-1"), ["--bandwidth", "more than 0"]),
    "3 bits": ((*FIT, "--draft-bits", "3"), ["no such drafter", "4, 8"]),
    "no calibration": (("simulate", "nothing.json", *SIMULATE[2:]), ["nothing.json", "missing"]),
    "a sweep for a calibration": (("simulate", "sweep.csv", *SIMULATE[2:]), ["sweep.csv", "damaged"]),
    "no lengths": (
        ("simulate", "calibration.json", "--lengths", "nothing.txt"),
        ["nothing.txt", "file of lengths cannot be read"],
    ),
    "no distribution": (("simulate", "calibration.json", "--lengths", "0:1"), ["--lengths", "0:100,50:600"]),
    "acceptance above 1": ((*SIMULATE, "--alpha", "1.5"), ["--alpha", "1.5", "0 to 1"]),
    "acceptance in words": ((*SIMULATE, "--alpha", "high"), ["--alpha", "high"]),
    "records that are not there": ((*SIMULATE, "--alpha", "nothing.jsonl"), ["nothing.jsonl", "missing"]),
    "records without speculation": ((*SIMULATE, "--alpha", "plain.jsonl"), ["plain.jsonl", "no speculated block"]),
    "records without draft lengths": (
        (*SIMULATE, "--alpha", "unknown.jsonl"),
        ["unknown.jsonl", "lacks a field", "line 2, draft_length"],
    ),
    "more kept than proposed": (
        (*SIMULATE, "--alpha", "impossible.jsonl"),
        ["impossible.jsonl", "line 1", "a number in kept_from that is no larger"],
    ),
    "acceptance from nowhere": ((*SIMULATE, "--alpha", "5:0.9"), ["--alpha", "from 0 on"]),
    "prompts without end": ((*SIMULATE, "--prompt", "inf"), ["--prompt", "0 or more"]),
    "no draft": ((*SIMULATE, "--gamma", "0"), ["--gamma", "5,7,9,11"]),
    "a falling ladder": ((*SIMULATE, "--gamma", "7,5"), ["--gamma", "ascending"]),
    "half a draft": ((*SIMULATE, "--gamma", "2.5"), ["--gamma", "2.5"]),
    "a draft without end": ((*SIMULATE, "--gamma", "9" * 5000), ["--gamma", "1 to 64"]),
    "a draft longer than any run has": ((*SIMULATE, "--gamma", "7,65"), ["--gamma", "1 to 64"]),
    "a ladder by position": ((*SIMULATE, "--gamma", "5,7", "--alpha", "0:0.9,9:0.8"), ["one acceptance for all"]),
    "a last acceptance without a ladder": ((*SIMULATE, "--last-alpha", "0.9"), ["--last-alpha", "several", "--gamma"]),
    "rollouts without a ladder": ((*SIMULATE, "--rollouts", "9"), ["--rollouts", "no effect", "--gamma"]),
    "a last acceptance of one rollout": (
        (*SIMULATE, "--gamma", "5,7", "--rollouts", "1", "--last-alpha", "0.9"),
        ["--last-alpha", "no effect", "--rollouts"],
    ),
    "responses beside a file": (
        (*SIMULATE[:3], "lengths.txt", "--responses", "9"),
        ["--responses", "no effect", "quantiles", "--lengths"],
    ),
    "a last acceptance above 1": ((*SIMULATE, "--gamma", "5,7", "--last-alpha", "2"), ["--last-alpha", "0 to 1"]),
    "a model that is not covered": ((*SIMULATE, "--model", "moe.json"), ["mixture of experts", "num_experts"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message(name, mistake, folder):
    arguments, parts = MISTAKES[name]
    (folder / "moe.json").write_text(json.dumps(CONFIGURATIONS["Qwen2.5-7B"] | {"num_experts": 64}))
    (folder / "plain.jsonl").write_text('{"step": 0}\n')
    blocks = {"proposed_from": {"0": 40}, "kept_from": {"0": 41}, "quantisation_error": 0.1}
    (folder / "unknown.jsonl").write_text('{"step": 0}\n' + json.dumps({"step": 1} | blocks) + "\n")
    (folder / "impossible.jsonl").write_text(json.dumps({"step": 0, "draft_length": 5} | blocks) + "\n")
    text = mistake(folder, *arguments)
    assert all(part in text for part in parts), text
    assert not (folder / "fitted.json").exists()
