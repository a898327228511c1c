"""The cost preview against sums worked out here from the reported files, and its rules one by one."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from redraft.analysis.cost import campaign_cost as cost
from redraft.analysis.cost import cost_text
from redraft.analysis.cost.hour_estimates import Estimates
from redraft.cli.app import main
from redraft.config import Experiments, InProcessEngine, run_fingerprint
from redraft.errors import UserError
from redraft.files import write_json
from redraft.layout import Layout
from redraft.ops.sizing.run_size import RunSizes
from tests.columns import same

ROOT = Path(__file__).parents[1]
SEEDS, GPUS = 3, 8
PARAMETERS = Experiments(ROOT).reported("spec_rl").cost.parameters


def reported(number, column, **key):
    """One value of a reported file, read without the code under test; that of the last step."""
    with (ROOT / f"experiments/spec_rl/reported/table{number:02d}.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["column"] == column and all(r[k] == v for k, v in key.items())]
    return float(max(rows, key=lambda row: int(row["step"] or 0))["value"])


def table4(column, model="qwen3-1.7b-base", algorithm="grpo", method="vanilla"):
    return reported(4, column, model=model, algorithm=algorithm, method=method)


@pytest.fixture(scope="module")
def experiments():
    return Experiments(ROOT)


def cell_costs(experiments, preset, layout, extras):
    """Costs of what the paper reports, with `extras` of what goes beyond it too."""
    grids = None if extras else experiments.grids("spec_rl", beyond_paper=False)
    return cost.costs_of(experiments.cells("spec_rl", grids), experiments, preset, layout)


@pytest.fixture(scope="module")
def costs(experiments, tmp_path_factory):
    layout = Layout("paper", tmp_path_factory.mktemp("nothing"))
    found = cell_costs(experiments, experiments.preset("paper"), layout, extras=True)
    return {line.cell: line for line in found}


def text_of(costs, lines, preset, available, hardware=None):
    """What a terminal shows."""
    return f"{cost_text.tables(costs, lines, preset)}\n\n{cost_text.ending(costs, preset, available, hardware)}"


def test_all_settings_of_table_4_have_its_printed_hours(costs):
    prefixes = {"": "qwen3-1.7b-base", "8b-": "qwen3-8b-base", "llama-": "llama-3.2-1b-instruct"}
    lenience = {"grpo": "spec-l0.5", "ppo": "spec-l0.3", "dapo": "spec-l0.15"}
    for prefix, model in prefixes.items():
        for algorithm, label in lenience.items():
            for method, name in (("vanilla", "vanilla"), ("spec-rl", label)):
                line = costs[f"{prefix}{algorithm}-{name}"]
                assert line.hours == table4("end_to_end_h", model, algorithm, method)
                assert line.device_hours == pytest.approx(line.hours * GPUS * SEEDS)
                assert line.source == "Table 4"


def test_a_cell_with_a_printed_speedup_is_the_vanilla_step_with_another_rollout(costs):
    rest, rollout = table4("total_s") - table4("rollout_s"), table4("rollout_s")
    verification, assembly = (table4(f"{name}_s", method="spec-rl") for name in ("verification", "assembly"))
    full_reuse = rest + rollout / reported(3, "speedup", lenience="inf") + verification + assembly
    assert costs["grpo-spec-linf"].hours == pytest.approx(full_reuse * 90 / 3600)
    assert costs["grpo-spec-linf"].source == "Table 4 × Table 3 speedup × 90 steps"
    delayed = rest + rollout / reported(2, "speedup", method="delayed-reuse") + verification + assembly
    assert costs["grpo-delayed-l0.5"].hours == pytest.approx(delayed * 90 / 3600)


def test_random_reuse_verifies_nothing(costs):
    seconds = table4("total_s") - table4("rollout_s") + table4("assembly_s", method="spec-rl")
    seconds += table4("rollout_s") / reported(2, "speedup", method="random-reuse")
    assert costs["grpo-random"].hours == pytest.approx(seconds * 90 / 3600)


def test_another_data_set_takes_its_own_steps_and_speedup(costs):
    assert costs["simplerl-grpo-vanilla"].hours == pytest.approx(table4("total_s") * 100 / 3600)
    speedup = reported(6, "speedup", dataset="simplerl-8k", method="spec-rl")
    seconds = table4("total_s") - table4("rollout_s") + table4("rollout_s") / speedup
    seconds += table4("verification_s", method="spec-rl") + table4("assembly_s", method="spec-rl")
    assert costs["simplerl-grpo-spec-l0.5"].hours == pytest.approx(seconds * 100 / 3600)
    assert costs["2k-grpo-spec-l0.5"].hours == pytest.approx(table4("total_s", method="spec-rl") * 90 / 3600)


def test_a_larger_model_is_scaled_from_the_largest_and_says_so(costs):
    factor = PARAMETERS["Qwen/Qwen3-14B-Base"] / PARAMETERS["Qwen/Qwen3-8B-Base"]
    line = costs["14b-ppo-spec-l0.3"]
    assert line.hours == pytest.approx(table4("end_to_end_h", "qwen3-8b-base", "ppo", "spec-rl") * factor)
    assert "scaled from qwen3-8b-base" in line.source
    assert factor == pytest.approx(1.80, abs=0.01)


def test_what_the_paper_does_not_run_never_takes_a_speedup_of_the_paper(costs):
    for name in ("grpo-spec-l0.5-u16", "grpo-spec-l0.5-lr4", "grpo-release-l0.5"):
        assert "speedup" not in costs[name].source
        assert costs[name].source != "Table 4"
    assert "rloo as grpo" in costs["rloo-vanilla"].source


def test_storage_follows_from_parameters_and_the_paper_s_token_counts(costs):
    length = reported(1, "tokens_m", model="qwen3-8b-base", algorithm="grpo", method="vanilla") * 1e6 / (90 * 8192)
    line = costs["8b-grpo-spec-l0.5"]
    assert line.policies == pytest.approx(9 * 4 * PARAMETERS["Qwen/Qwen3-8B-Base"] * SEEDS)
    assert line.rollouts == pytest.approx(90 * 8192 * length * 8 * SEEDS)
    assert line.drafts == pytest.approx(6144 * 8 * length * 12), "the last visit's"
    assert costs["8b-grpo-vanilla"].drafts == 0


def test_a_kept_policy_of_the_in_process_trainer_has_the_precision_of_its_rollouts(experiments):
    cell, rules = (
        experiments.cell("spec_rl/grpo-vanilla"),
        Estimates.of(experiments, "spec_rl", experiments.preset("paper")),
    )
    run = experiments.run(cell.id, 0, "paper")
    engines = (InProcessEngine(), InProcessEngine(dtype="bfloat16"))
    whole, half = (rules.storage(cell, run.model_copy(update={"engine": engine}), 1)[0] for engine in engines)
    assert whole == 2 * half > 0


def test_a_draft_is_as_large_as_the_top_distribution_that_is_kept_with_it(experiments, costs, tmp_path):
    cell = experiments.cell("spec_rl/8b-grpo-spec-l0.5")
    changed = type(cell).model_validate(cell.model_dump() | {"name": "block", "reuse": {"kind": "block", "top": 32}})
    resolved = Experiments(ROOT)
    resolved.cell = lambda _: changed
    (found,) = cost.costs_of([changed], resolved, experiments.preset("paper"), Layout("paper", tmp_path))
    assert found.drafts == pytest.approx(costs["8b-grpo-spec-l0.5"].drafts * (12 + 32 * 8) / 12)


def test_hours_that_the_paper_leaves_out_follow_from_its_seconds_and_are_not_0(costs, tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    folder = tmp_path / "experiments/spec_rl"
    table, declared = folder / "reported/table04.csv", folder / "reported.yaml"
    start = "qwen3-1.7b-base,deepmath-6k,grpo,vanilla,,,,end_to_end_h"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith(start)))
    declared.write_text(re.sub(rf"\b4: {len(lines) - 1}\b", f"4: {len(lines) - 2}", declared.read_text()))
    experiments = Experiments(tmp_path)
    found = cell_costs(experiments, experiments.preset("paper"), Layout("paper", tmp_path), extras=False)
    (line,) = [c for c in found if c.cell == "grpo-vanilla"]
    assert line.hours == pytest.approx(table4("total_s") * 90 / 3600)
    assert line.source == "Table 4 s/step × 90 steps"


FACTORS = {
    "epochs": (2, 2, 2),
    "group_size": (2, 2, 2),
    "max_response_tokens": ("1/2", 0.5, 0.5),
    # Half the prompts a step are twice the steps: the same rollouts.
    "prompts_per_step": ("1/2", 1, 1),
    "prompts_per_update": ("1/2", 1, 1),
    "learning_rate": (2, 1, 1),
    "evaluate_every": (2, 1, 1),
}
"""Field of a trainer to a factor, and what it makes of the hours and of the rollouts' bytes."""


@pytest.mark.parametrize("name", FACTORS)
def test_what_a_cell_changes_changes_its_cost(name, experiments, costs, tmp_path):
    """Beside a cell whose hours are those of the reference, not printed."""
    factor, hours, rollouts = FACTORS[name]
    cell, preset = experiments.cell("spec_rl/grpo-release-l0.5"), experiments.preset("paper")
    factors = {name: factor} if name != "prompts_per_step" else dict.fromkeys((name, "prompts_per_update"), factor)
    changed = type(cell).model_validate(cell.model_dump() | {"name": "changed", "trainer_factors": factors})
    resolved = Experiments(ROOT)
    resolved.cell = lambda _: changed
    (found,) = cost.costs_of([changed], resolved, preset, Layout("paper", tmp_path))
    plain = costs["grpo-release-l0.5"]
    assert found.hours == pytest.approx(plain.hours * hours)
    assert found.rollouts == pytest.approx(plain.rollouts * rollouts)
    assert found.policies == pytest.approx(
        plain.policies * {"epochs": 2, "evaluate_every": 5 / 9, "prompts_per_step": 2}.get(name, 1)
    )
    per_visit = rollouts / (2 if name == "epochs" else 1)
    assert found.drafts == pytest.approx(plain.drafts * per_visit)


def test_a_cell_of_larger_groups_is_not_costed_as_the_paper_s(experiments, costs, tmp_path):
    cell = experiments.cell("spec_rl/grpo-vanilla")
    changed = type(cell).model_validate(cell.model_dump() | {"trainer_factors": {"group_size": 4}})
    resolved = Experiments(ROOT)
    resolved.cell = lambda _: changed
    (found,) = cost.costs_of([changed], resolved, experiments.preset("paper"), Layout("paper", tmp_path))
    assert found.hours == pytest.approx(4 * table4("total_s") * 90 / 3600)
    assert found.source == "Table 4 s/step × 90 steps of 4 times the tokens"


def test_extras_are_left_out_unless_asked_for(experiments, costs, tmp_path):
    few = cell_costs(experiments, experiments.preset("paper"), Layout("paper", tmp_path), extras=False)
    beyond = set(costs) - {line.cell for line in few}
    assert {"rloo-vanilla", "grpo-vanilla-u16", "grpo-release-l0.5"} <= beyond
    assert not beyond & {"grpo-vanilla", "grpo-random", "simplerl-grpo-vanilla", "2k-grpo-spec-l0.5"}
    parts = cost.parts(experiments, "spec_rl", extras=False)
    assert {"Table 1", "Table 4", "Figure 4"} <= set(parts)
    assert not any(int(part.split()[1]) > 100 for part in parts)


def line(cell, hours, devices=8):
    total = None if hours is None else hours * 2 * devices
    return cost.CellCost(cell, 2, devices, hours, total, None, None, None, "")


def test_a_shared_cell_is_added_once_and_cells_of_no_table_come_last():
    lines = cost.part_costs(
        [line("a", 1.0), line("b", 2.0), line("c", 3.0), line("d", None)],
        {"Table 1": ["a", "b", "a"], "Table 2": ["b", "d", "elsewhere"]},
    )
    assert [(p.part, p.cells, p.device_hours, p.added, p.cumulative, p.unknown) for p in lines] == [
        ("Table 1", 2, 48.0, 48.0, 48.0, 0),
        ("Table 2", 2, 32.0, None, 48.0, 1),
        ("other cells", 1, 48.0, 48.0, 96.0, 0),
    ]


def test_what_nobody_knows_is_unknown_and_no_nought(experiments):
    (table, other) = cost.part_costs([line("a", None), line("b", None), line("c", 2.0)], {"Table 1": ["a", "b"]})
    assert (table.device_hours, table.added, table.cumulative, table.unknown) == (None, None, None, 2)
    assert (other.device_hours, other.cumulative) == (32.0, 32.0)
    assert cost.total([]) == 0, "nothing costs nothing"
    preset = experiments.preset("tiny")
    text = text_of([line("a", None)], cost.part_costs([line("a", None)], {"Table 1": ["a"]}), preset, 1)
    assert "0.0" not in text
    assert re.search(r"Table 1 +1 +unknown +unknown +unknown +1 cell unknown", text)
    assert "no hours are known: 1 cell, none" in text
    rows = cost_text.rows_of([line("a", None)], cost.part_costs([line("a", None)], {"Table 1": ["a"]}), preset)
    assert {row[name] for row in rows for name in ("hours", "added", "cumulative")} == {None}


def test_runs_of_another_machine_stand_in_where_nothing_else_is_known(experiments, tmp_path):
    preset, layout = experiments.preset("tiny"), Layout("tiny", tmp_path)
    write_json(
        layout.run("spec_rl/grpo-vanilla", 0) / "manifest.json",
        {
            "fingerprint": run_fingerprint(experiments.run("spec_rl/grpo-vanilla", 0, "tiny")),
            "seconds": 7200,
        },
    )
    names = ("spec_rl/grpo-vanilla", "spec_rl/grpo-spec-l0.5", "loss_by_scale/x16-vanilla")
    cells = [experiments.cell(name) for name in names]
    measured, elsewhere, large = cost.costs_of(cells, experiments, preset, layout, timed=36.0)
    assert large.hours == pytest.approx(0.16), "sixteen times as many responses"
    assert (measured.hours, measured.source) == (2.0, "measured (1 of 3 runs)")
    assert (elsewhere.hours, elsewhere.device_hours) == (0.01, pytest.approx(0.03))
    assert "another machine, at this one's pace (workflows/seconds.yaml)" in elsewhere.source
    text = text_of([elsewhere], [], preset, 1)
    assert "3 runs, 0.03 core-hours" in text
    assert "at least 0.03 wall hours on 1 core, 1 a run" in text
    paper = experiments.preset("paper")
    (printed,) = cost.costs_of(cells[:1], experiments, paper, Layout("paper", tmp_path), timed=36.0)
    assert printed.source == "Table 4", "the paper's hours go first"


def test_a_cell_is_costed_for_all_seeds_that_it_is_run_with(experiments, tmp_path):
    cells, layout = experiments.cells("spec_rl", ["pretrained"]), Layout("smol", tmp_path)
    found = {c.cell: c.runs for c in cost.costs_of(cells, experiments, experiments.preset("smol"), layout, timed=36.0)}
    pair = {cell.name for cell in experiments.cells("spec_rl", ["pair"])}
    assert found == {cell.name: 3 if cell.name in pair else 1 for cell in cells}


def test_wall_hours_follow_from_how_many_runs_fit_but_not_below_the_longest():
    lines = [line("a", 1.0), line("b", 5.0), line("c", None)]
    assert cost.wall_hours(lines, 8) == 12.0
    assert cost.wall_hours(lines, 23) == 6.0
    assert cost.wall_hours(lines, 800) == 5.0
    assert cost.wall_hours(lines, 7) is None
    assert cost.wall_hours([line("c", None)], 8) == cost.wall_hours([], 0) == 0.0


@pytest.mark.parametrize(
    ("available", "hours"),
    [
        (8, None),  # the large runs do not fit
        (16, 12.0),  # 2 runs of 16 GPUs, 5 hours each, and 2 of 8, side by side, 2 hours each
        (24, 10.0),  # only one of the large runs at once; the small ones on the remaining 8 GPUs
        (40, 5.0),
    ],
)
def test_wall_hours_are_of_each_cell_s_own_devices(experiments, available, hours):
    lines = [line("small", 2.0), line("large", 5.0, devices=16)]
    assert cost.wall_hours(lines, available) == hours
    text = text_of(lines, [], experiments.preset("paper"), available)
    if hours is None:
        assert "on 8 GPUs 2 of 4 runs cannot start: a run takes 8 to 16" in text
    else:
        assert f"at least {hours:.1f} wall hours on {available} GPUs, 8 to 16 a run" in text


def test_a_run_on_several_nodes_costs_the_gpus_of_all(experiments, tmp_path):
    cell, preset, layout = experiments.cell("ar3po/32b-dapo"), experiments.preset("paper"), Layout("paper", tmp_path)
    usual = 36_000.0 / RunSizes(experiments, preset)(cell.id)
    (estimated,) = cost.costs_of([cell], experiments, preset, layout, timed=usual)
    assert (estimated.devices, estimated.hours, estimated.runs) == (16, 10.0, SEEDS)
    assert estimated.device_hours == 10.0 * 16 * SEEDS
    assert cost.wall_hours([estimated], 8) is None
    assert cost.wall_hours([estimated] * 4, 16) == 10.0 * 4 * SEEDS
    finished(experiments, layout, "ar3po/32b-dapo", 0, hours=10.0, stored=10_000)
    (measured,) = cost.costs_of([cell], experiments, preset, layout)
    assert measured.device_hours == estimated.device_hours, "measured hours cost as many GPU-hours"


@pytest.mark.parametrize(("name", "devices"), [("paper", 8), ("tiny", 1)])
def test_finished_runs_count_with_their_own_hours_unless_configured_otherwise(experiments, tmp_path, name, devices):
    preset, layout = experiments.preset(name), Layout(name, tmp_path)
    for seed, hours in ((0, 2.0), (1, 4.0)):
        fingerprint = run_fingerprint(experiments.run("spec_rl/grpo-vanilla", seed, name))
        manifest = {"fingerprint": fingerprint, "seconds": hours * 3600}
        write_json(layout.run("spec_rl/grpo-vanilla", seed) / "manifest.json", manifest)
    stale = layout.run("spec_rl/grpo-spec-l0.5", 0) / "manifest.json"
    write_json(stale, {"fingerprint": "of another configuration", "seconds": 1.0})
    found = {c.cell: c for c in cell_costs(experiments, preset, layout, extras=False)}
    assert found["grpo-vanilla"].hours == 3.0
    assert found["grpo-vanilla"].device_hours == 3.0 * devices * 3
    assert found["grpo-vanilla"].source == "measured (2 of 3 runs)"
    assert "measured" not in found["grpo-spec-l0.5"].source
    assert (found["grpo-spec-l0.5"].hours is None) == (name == "tiny")


def test_the_paper_s_hours_never_stand_for_another_scale(experiments, tmp_path):
    lines = cell_costs(experiments, experiments.preset("tiny"), Layout("tiny", tmp_path), extras=True)
    assert {(c.hours, c.device_hours, c.policies, c.rollouts) for c in lines} == {(None, None, None, None)}
    text = text_of(lines, [], experiments.preset("tiny"), 1)
    assert "unknown until one run is finished" in text
    assert "core-hours" in text


def test_the_command_prints_the_sum_and_writes_every_line(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["cost", "spec_rl", "--preset", "paper", "--gpus", "64", "--csv", "cost.csv"])
    assert not stopped.value.code
    written = pd.read_csv("cost.csv")
    assert same("costs", written)
    cells, parts = written[written["kind"] == "cell"], written[written["kind"] == "part"]
    total = cells["hours"].sum()
    assert parts["cumulative"].iloc[-1] == pytest.approx(total) == pytest.approx(parts["added"].sum())
    text = capsys.readouterr().out
    assert f"{len(cells) * SEEDS} runs, {total:,.0f} GPU-hours" in text
    assert "64 GPUs" in text
    assert "evaluation, whose hours the paper does not report" in " ".join(text.split())
    assert "Policies: 4 bytes a parameter" in " ".join(text.split()), "as they are counted"
    assert text.startswith("costs at the preset paper\n")
    assert max(map(len, text.splitlines())) <= 80


def test_too_few_gpus_are_said_and_refuse_nothing(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stopped:
        main(["cost", "--preset", "paper", "--gpus", "4"])
    assert not stopped.value.code
    text = capsys.readouterr().out
    assert "on 4 GPUs none of these runs can start: each takes 8" in text
    assert "GPU-hours" in text


def names(experiments, *targets, paper="spec_rl"):
    """Cells of one of the papers that targets stand for."""
    found = cost.wanted(experiments, experiments.preset("paper"), targets)
    assert set(found) <= set(experiments.preset("paper").default)
    return [cell.name for cell in found[paper]]


def test_the_cost_of_some_runs_is_one_line(experiments, costs, tmp_path):
    preset, layout = experiments.preset("paper"), Layout("paper", tmp_path)
    runs = ["spec_rl/grpo-vanilla"] * 2 + ["spec_rl/grpo-spec-l0.5"]
    hours = (2 * costs["grpo-vanilla"].hours + costs["grpo-spec-l0.5"].hours) * GPUS
    line = cost.training_line(runs, experiments, preset, layout)
    assert line == f"training: {hours:,.0f} GPU-hours by `redraft cost`"
    unknown = cost.training_line([*runs, "speed_rl/dapo17k-grpo"], experiments, preset, layout)
    assert unknown == f"{line}, and 1 runs of unknown hours"
    assert cost.training_line(runs, experiments, experiments.preset("tiny"), Layout("tiny", tmp_path)) == ""


def test_a_target_is_a_campaign_a_grid_or_a_cell(experiments):
    reported = [cell.name for cell in experiments.cells("spec_rl", experiments.grids("spec_rl", beyond_paper=False))]
    core = [cell.name for cell in experiments.cells("spec_rl", ["core"])]
    assert names(experiments) == names(experiments, "reproduction") == names(experiments, "spec_rl") == reported
    assert names(experiments, "core") == names(experiments, "spec_rl/core") == core
    assert names(experiments, "spec_rl/14b-dapo-spec-l0.15") == ["14b-dapo-spec-l0.15"]
    assert {"rloo-vanilla", *core} <= set(names(experiments, "extras"))
    for paper in experiments.preset("paper").default:
        reported = [cell.name for cell in experiments.cells(paper, experiments.grids(paper, beyond_paper=False))]
        assert names(experiments, paper=paper) == reported
    both = names(experiments, "core", f"spec_rl/{core[0]}", "extras", "reproduction")
    assert len(both) == len(set(both)) == len(experiments.cells("spec_rl"))


@pytest.mark.parametrize(
    ("target", "words"),
    [("speck_rl", "nothing is called so"), ("spec_rl/grpo-vanila", "no such cell"), ("none/core", "no such paper")],
)
def test_a_target_that_is_nothing_is_refused_with_what_there_is(experiments, target, words):
    with pytest.raises(UserError, match=words):
        cost.wanted(experiments, experiments.preset("paper"), [target])


def finished(experiments, layout, cell, seed, hours, stored, **engine):
    run = experiments.run(cell, seed, layout.preset)
    configuration = run.model_dump(mode="json")
    configuration["engine"] |= engine
    file = layout.run(cell, seed) / "manifest.json"
    content = {"fingerprint": run_fingerprint(run), "seconds": hours * 3600, "configuration": configuration}
    write_json(file, content)
    (file.parent / "policies/step-0010").mkdir(parents=True)
    (file.parent / "policies/step-0010/model.safetensors").write_bytes(bytes(stored - file.stat().st_size))


def test_storage_and_devices_are_those_of_finished_runs_too(experiments, tmp_path):
    layout = Layout("paper", tmp_path)
    finished(experiments, layout, "spec_rl/grpo-vanilla", 0, hours=2.0, stored=10_000, gpus=4)
    finished(experiments, layout, "spec_rl/grpo-vanilla", 1, hours=4.0, stored=30_000, gpus=8)
    cells = cost.wanted(experiments, experiments.preset("paper"), ["core"])["spec_rl"]
    lines = {c.cell: c for c in cost.costs_of(cells, experiments, experiments.preset("paper"), layout)}
    measured, estimated = lines["grpo-vanilla"], lines["grpo-spec-l0.5"]
    assert (measured.hours, measured.device_hours) == (3.0, 3 * (2.0 * 4 + 4.0 * 8) / 2)
    preset = experiments.preset("paper")
    assert "60 GPU-hours" in cost.training_line(["spec_rl/grpo-vanilla"] * 3, experiments, preset, layout)
    finished(experiments, layout, "ar3po/32b-dapo", 0, hours=2.0, stored=10_000)
    (large,) = cost.costs_of([experiments.cell("ar3po/32b-dapo")], experiments, preset, layout)
    assert large.device_hours == large.runs * 2.0 * 2 * 8, "two nodes of eight GPUs"
    assert measured.stored == 60_000
    assert measured.source == measured.stored_source == "measured (2 of 3 runs)"
    assert estimated.stored == estimated.policies + estimated.rollouts + 3 * 2 * estimated.drafts
    assert estimated.stored_source == "parameters and token counts"
    text = text_of(list(lines.values()), [], experiments.preset("paper"), 8)
    assert "measured (2 of 3 runs)" in text
    assert "Table 4; parameters and token counts" in text


def test_a_model_of_unknown_size_is_unknown_and_not_refused(costs, tmp_path):
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    file = tmp_path / "experiments/spec_rl/reported.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "14B" not in line))
    experiments = Experiments(tmp_path)
    preset = experiments.preset("paper")
    lines = cost.costs_of(experiments.cells("spec_rl"), experiments, preset, Layout("paper", tmp_path))
    unknown = {c.cell for c in lines if c.hours is None}
    assert unknown == {name for name in costs if name.startswith("14b-")}
    assert all(c.stored is None for c in lines if c.cell in unknown)
    text = text_of(lines, [], preset, 8)
    assert "its parameters are not known" in text
    assert f"{len(unknown)} of {len(lines)} cells unknown" in text
