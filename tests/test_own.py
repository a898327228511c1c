"""Cells of one's own: variants by `redraft run --set`, grids with a base, and a file that is taken as a paper."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.reported_tables import no_reported
from redraft.analysis.tables.comparison import make_table
from redraft.config import Experiments, id_of, own, run_fingerprint, variants
from redraft.config.cell import CellFile
from redraft.config.schema import _reference
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.ops.workflow import freeze, status
from tests.measured import table_source

ROOT = Path(__file__).parents[1]
BASE = "spec_rl/grpo-spec-l0.5"
DAPO = "spec_rl/dapo-spec-l0.15"
"""A cell with a field of the trainer and a factor of its own."""
SETTINGS = ["trainer.group_size=16", "reuse.lenience=e^0.4"]
NAME = "grpo-spec-l0.5-group_size16-lenience0.4"


@pytest.fixture
def experiments(folder):
    return Experiments(folder)


def cells_file(folder, name="my_cells.yaml", base=BASE, axes=None, **more):
    axes = axes or {"lenience": {"l0.4": {"reuse": {"lenience": "e^0.4"}}}}
    content = {
        "title": "Mine",
        "source": "me",
        "grids": [{"name": "g", "base": base, "axes": axes} | more.pop("grid", {})],
    }
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content | more, sort_keys=False))
    return file


def of_file(folder, **content):
    return Experiments(folder, cells_file(folder, **content))


def keep(folder, *settings, cell=BASE, name="", preset="smoke"):
    return variants.keep(Experiments(folder), cell, settings, name, [(0, preset)])


def message(action, *arguments, **named):
    with pytest.raises(UserError) as error:
        action(*arguments, **named)
    return str(error.value)


# A variant


def test_a_variant_is_its_base_but_for_what_is_set(folder):
    assert keep(folder, *SETTINGS) == f"own/{NAME}"
    experiments = Experiments(folder)
    run, base = (experiments.run(cell, 0, "smoke") for cell in (f"own/{NAME}", BASE))
    assert (run.trainer.group_size, run.reuse.model_dump(mode="json")["lenience"]) == (16, "e^0.4")
    same = base.model_copy(
        update={
            "paper": "own",
            "cell": NAME,
            "trainer": base.trainer.model_copy(update={"group_size": 16}),
            "reuse": run.reuse,
        }
    )
    assert run == same
    assert run_fingerprint(run) != run_fingerprint(base)


def test_its_name_does_not_depend_on_the_order_of_settings(folder):
    assert keep(folder, *SETTINGS) == keep(folder, *reversed(SETTINGS))
    assert len(Experiments(folder).cells("own")) == 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["reuse.lenience=1"], "grpo-spec-l0.5-lenience0"),
        (["reuse.lenience=inf"], "grpo-spec-l0.5-lenienceinf"),
        (["reuse.lenience=0"], "grpo-spec-l0.5-lenience_zero"),
        (["trainer.learning_rate=5e-7"], "grpo-spec-l0.5-learning_rate5e-07"),
        (["trainer_factors.epochs=1/2"], "grpo-spec-l0.5-epochsx1-2"),
        (["reuse.kind=random"], "grpo-spec-l0.5-random"),
        (["model=qwen3-8b-base"], "grpo-spec-l0.5-model_qwen3-8b-base"),
    ],
)
def test_names_follow_from_settings(experiments, settings, name):
    assert variants.variant(experiments, BASE, settings).name == name


def test_a_variant_without_lenience_keeps_the_name_that_an_earlier_version_gave_it(folder):
    assert keep(folder, "reuse.lenience=0") == "own/grpo-spec-l0.5-lenience_zero"
    file = folder / "experiments/own/cells.yaml"
    file.write_text(file.read_text().replace("lenience_zero", "lenience-inf"))
    before = file.read_text()
    assert keep(folder, "reuse.lenience=0") == "own/grpo-spec-l0.5-lenience-inf"
    assert file.read_text() == before, "its finished runs are found by that name"
    assert keep(folder, "reuse.lenience=0", "trainer.group_size=4") == "own/grpo-spec-l0.5-group_size4-lenience_zero"


def test_two_names_with_the_same_settings_are_two_runs(folder):
    keep(folder, *SETTINGS)
    assert keep(folder, *SETTINGS, name="lenient") == "own/lenient"
    experiments = Experiments(folder)
    one, other = (run_fingerprint(experiments.run(cell.id, 0, "smoke")) for cell in experiments.cells("own"))
    assert one != other


def test_a_repeat_changes_nothing_and_what_a_person_wrote_stays(folder):
    keep(folder, *SETTINGS)
    file = folder / "experiments/own/cells.yaml"
    file.write_text(file.read_text().replace("grids:", "# mine\ngrids:"))
    before = file.read_text()
    keep(folder, *SETTINGS)
    assert file.read_text() == before
    keep(folder, "trainer.group_size=8")
    assert file.read_text().startswith(before)
    assert [cell.name for cell in Experiments(folder).cells("own")] == [NAME, "grpo-spec-l0.5-group_size8"]


def test_a_grid_is_added_to_a_file_with_another_indentation(folder):
    file = folder / "experiments/own/cells.yaml"
    file.parent.mkdir()
    text = "title: t\nsource: s\ngrids:\n  - name: g\n    base: spec_rl/grpo-vanilla\n    axes: {a: {mine: {}}}\n"
    file.write_text(text)
    keep(folder, *SETTINGS)
    assert file.read_text().startswith(text)
    assert [cell.name for cell in Experiments(folder).cells("own")] == ["mine", NAME]


def test_a_file_that_does_not_end_with_its_grids_is_not_touched(folder):
    keep(folder, *SETTINGS)
    file = folder / "experiments/own/cells.yaml"
    file.write_text(file.read_text() + "tables: []\n")
    before = file.read_text()
    text = message(keep, folder, "trainer.group_size=8")
    assert "cells.yaml" in text
    assert "grids" in text
    assert file.read_text() == before


def test_a_variant_of_a_variant_has_the_first_ones_base(folder):
    keep(folder, *SETTINGS, name="lenient")
    assert keep(folder, "trainer.group_size=8", cell="own/lenient") == "own/lenient-group_size8"
    experiments = Experiments(folder)
    cell = experiments.cell("own/lenient-group_size8")
    assert (cell.base, cell.trainer["group_size"]) == (BASE, 8)
    assert cell.reuse == experiments.cell("own/lenient").reuse


def test_a_field_that_is_set_is_not_multiplied_by_the_bases_factor(folder):
    keep(folder, "trainer.evaluate_every=4", cell=DAPO, name="a")
    keep(folder, "trainer_factors.evaluate_every=2", cell=DAPO, name="b")
    experiments = Experiments(folder)
    every = {name: experiments.run(name, 0, "smoke").trainer.evaluate_every for name in (DAPO, "own/a", "own/b")}
    assert every == {DAPO: 1, "own/a": 4, "own/b": 4}
    assert {experiments.cell(f"own/{name}").trainer["evaluation_clock"] for name in "ab"} == {"training_steps"}


def test_a_part_of_another_kind_starts_anew(folder):
    keep(folder, "reuse.kind=random", "algorithm.kind=dapo", name="a")
    cell = Experiments(folder).cell("own/a")
    assert cell.reuse.model_dump(exclude_unset=True) == {"kind": "random"}
    assert cell.algorithm.kind == "dapo"


def test_every_cell_can_be_stated_and_made_again(experiments):
    cells = [cell for paper in experiments.papers for cell in experiments.cells(paper)]
    for cell in cells:
        assert own.over({}, own.stated(cell)) == own.stated(cell)
        again = type(cell).model_validate({"paper": cell.paper, "name": cell.name, **own.stated(cell)})
        assert again == cell


def test_a_difference_is_what_makes_one_cell_of_another(experiments):
    one, other = (own.stated(experiments.cell(cell)) for cell in (BASE, "ar3po/ar3po"))
    change = own.difference(one, other)
    assert own.over(one, change) == one | other
    assert "data" in change
    assert own.difference(one, one) == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["trainer.group_siz=16"], ["--set", "trainer.group_siz", "16", "group_size"]),
        (["trainer.group_size=1"], ["--set", "trainer.group_size", "at least 2"]),
        (["trainer.group_size=1e9"], ["--set", "trainer.group_size", "at most 4096"]),
        (["trainer.epochs=1e300"], ["--set", "trainer.epochs", "at most 1e+06"]),
        (["trainer.max_response_tokens=true"], ["--set", "trainer.max_response_tokens", "not true or false"]),
        (["foo=1"], ["--set", "key:     foo", "allowed: algorithm, data, decoding, model, reuse, schedule, trainer, "]),
        (["trainer_factors.reward=2"], ["--set", "trainer_factors.reward", "no number", "allowed: epochs, evaluate"]),
        (["trainer.prompts_per_step=7"], ["--set", "key:     trainer.prompts_per_step", "does not fit", "smoke.yaml"]),
        (["trainer.group_size=many"], ["--set", "trainer.group_size", "many"]),
        (["method.lenience=1"], ["--set", "method", "allowed", "reuse"]),
        (["reuse.lenience=-1"], ["--set", "lenience", "-1", "e^x"]),
        (["reuse.kind=magic"], ["--set", "reuse.kind", "magic", "speculative"]),
        (["schedule.screening=4"], ["--set", "schedule.kind"]),
        (["group_size"], ["--set", "group_size", "key=value", "trainer.group_size=16"]),
        (["trainer..x=1"], ["--set", "trainer..x=1", "key=value"]),
        (["trainer={"], ["--set", "not valid YAML"]),
        (["name=x"], ["--set", "name", "--name", "trainer"]),
        (["base=spec_rl/grpo-vanilla"], ["--set", "base", "cannot be set"]),
        (["trainer.group_size=4", "trainer.group_size=8"], ["twice", "trainer.group_size"]),
        (["reuse={kind: random}", "reuse.kind=random"], ["twice", "reuse.kind"]),
        (["model=gpt-9"], ["--set: the preset has nothing", "key:     model", "gpt-9", "qwen3-1.7b-base"]),
        (["trainer.prompts_per_update=3"], ["--set", "trainer.prompts_per_update", "divide"]),
        (["schedule={kind: speed, screening: 4}"], ["group_size", "screening"]),
    ],
)
def test_a_wrong_setting_is_one_message_and_writes_nothing(folder, settings, words):
    text = message(keep, folder, *settings)
    assert all(word in text for word in words), text
    assert not (folder / "experiments/own").exists()


def test_wrong_names(folder):
    assert "--name" in message(keep, folder, *SETTINGS, name="no/path")
    keep(folder, *SETTINGS, name="mine")
    text = message(keep, folder, "trainer.group_size=8", name="mine")
    assert "other settings" in text
    assert "--name" in text


def test_what_the_engine_cannot_do_is_refused_before_it_is_written(folder):
    assert "engine" in message(keep, folder, "decoding={kind: self_speculation}", preset="verl-tiny")
    assert "n-grams, suffixes or a learned head" in message(keep, folder, "decoding={kind: suffix}", preset="verl-tiny")
    assert not (folder / "experiments/own").exists()


@pytest.mark.parametrize(
    ("texts", "seeds"), [(["0-2"], [0, 1, 2]), (["0,2,5"], [0, 2, 5]), (["3", "0-1"], [3, 0, 1]), (["7"], [7])]
)
def test_seeds(texts, seeds):
    assert variants.seeds_of(texts) == seeds


@pytest.mark.parametrize(
    "texts", [["-1"], ["2-0"], ["a"], [""], ["0,"], ["0-2", "1"], ["1", "1"], ["0-1000000"], ["9" * 99], ["4294967296"]]
)
def test_what_are_no_seeds(texts):
    assert "--seed" in message(variants.seeds_of, texts)


# A file of one's own


def test_a_file_is_a_paper_with_the_hyperparameters_and_the_protocol_of_its_base(folder):
    experiments = of_file(folder, base="ar3po/ar3po", axes={"size": {"g16": {"trainer": {"group_size": 16}}}})
    assert experiments.own_papers == ["my_cells"]
    run, base = (experiments.run(cell, 0, "paper") for cell in ("my_cells/g16", "ar3po/ar3po"))
    assert run.trainer == base.trainer.model_copy(update={"group_size": 16})
    assert experiments.protocol_of("paper", "my_cells/g16") == "ar3po" == experiments.protocol_of("paper", "my_cells")
    assert experiments.protocol_of("paper", BASE) == "spec_rl"
    assert experiments.preset_of("paper", "my_cells").benchmarks == experiments.preset_of("paper", "ar3po").benchmarks


def test_a_protocol_of_a_paper_whose_cells_have_that_of_their_base_is_refused(folder):
    preset = folder / "experiments/presets/paper.yaml"
    preset.write_text(preset.read_text().replace("protocols: {", "protocols: {my_cells: spec_rl, "))
    with pytest.raises(UserError, match="whose protocol they have") as error:
        of_file(folder, base="ar3po/ar3po", axes={"size": {"g16": {}}}).preset_of("paper", "my_cells/g16")
    assert (error.value.key, error.value.allowed) == ("protocols.my_cells", "protocols.ar3po")


def test_axes_and_exclusions_of_a_grid_with_a_base(folder):
    axes = {
        "size": {"g2": {"trainer": {"group_size": 2}}, "g4": {}},
        "reuse": {"none": {"reuse": {"kind": "vanilla"}}, "": {}},
    }
    grid = {"exclude": [{"when": {"size": ["g4"], "reuse": ["none"]}, "reason": "not of interest here"}]}
    experiments = of_file(folder, axes=axes, grid=grid)
    assert [cell.name for cell in experiments.cells("my_cells")] == ["g2-none", "g2", "g4"]
    assert "not of interest" in message(experiments.cell, "my_cells/g4-none")
    assert experiments.cell("my_cells/g4").reuse == experiments.cell(BASE).reuse


def test_a_file_called_cells_yaml_is_called_by_its_folder_and_has_files_beside_it(folder):
    file = cells_file(folder, "mine/cells.yaml")
    (file.parent / "tables.yaml").write_text("tables: []\n")
    experiments = Experiments(folder, file)
    assert experiments.own_papers == ["mine"]
    assert experiments.tables("mine").tables == []
    assert sorted(own.files(file)) == ["experiments/mine/cells.yaml", "experiments/mine/tables.yaml"]
    assert experiments.path("mine", "tables.yaml") == file.parent / "tables.yaml"


def test_what_a_single_file_has_beside_it_is_not_its_own(folder):
    (folder / "tables.yaml").write_text("no table at all")
    experiments = of_file(folder)
    assert [table.title for table in experiments.tables("my_cells").tables] == ["Your runs"]


def test_the_file_of_variants_may_be_named_too(folder):
    keep(folder, *SETTINGS)
    experiments = Experiments(folder, folder / "experiments/own/cells.yaml")
    assert experiments.own_papers == ["own"]


TABLE = {
    "number": 101,
    "kind": "cells",
    "title": "t",
    "baseline": BASE,
    "columns": [{"name": "n", "title": "n", "quantity": "tokens_decoded"}],
    "rows": [{"label": "base", "cell": BASE}, {"label": "mine", "cell": "l0.4"}],
}


def test_tables_and_figures_stand_in_the_file(folder):
    figure = {
        "number": 101,
        "title": "f",
        "x": "step",
        "panels": [{"quantity": "reward", "title": "r", "cells": ["l0.4", BASE]}],
    }
    experiments = of_file(folder, tables=[TABLE], figures=[figure])
    assert experiments.tables("my_cells").tables[0].cells == [BASE, "l0.4", BASE]
    assert experiments.figures("my_cells").figures[0].panels[0].cells == ["l0.4", BASE]
    assert [experiments.declaration("my_cells", part) for part in ("tables", "figures", "claims")] == [
        "cells.yaml",
        "cells.yaml",
        "",
    ]
    assert [experiments.declaration("spec_rl", part) for part in ("tables", "claims")] == ["tables.yaml", "claims.yaml"]


def test_a_table_may_name_bases_and_no_other_cell_of_a_paper(folder):
    rows = [*TABLE["rows"], {"label": "other", "cell": "spec_rl/grpo-vanilla"}]
    text = message(of_file(folder, tables=[TABLE | {"rows": rows}]).tables, "my_cells")
    assert "no such cell" in text
    assert "my_cells.yaml" in text
    assert "tables.0" in text
    assert "rows.2.cell" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"base": "spec_rl/nothing"}, ["my_cells.yaml", "base", "spec_rl/nothing", "no such cell"]),
        ({"base": "spec_rl/grpo-vanilla-l2"}, ["my_cells.yaml", "base", "excluded", "no draft"]),
        ({"base": "nothing/x"}, ["my_cells.yaml", "base", "no such paper", "spec_rl"]),
        ({"base": "grpo-vanilla"}, ["my_cells.yaml", "grids.0.base", "grpo-vanilla"]),
        ({"base": "my_cells/l0.4"}, ["my_cells.yaml", "base", "have no base", "spec_rl"]),
        ({"axes": {"a": {"x": {"base": BASE}}}}, ["my_cells.yaml", "grids.0", "base"]),
        ({"axes": {"a": {"x": {"trainer": {"groups": 2}}}}}, ["my_cells.yaml", "trainer.groups", "group_size"]),
        ({"axes": {"a": {"x": {"trainer": 2}}}}, ["my_cells.yaml", "cell x", "trainer"]),
        ({"nothing": 1}, ["my_cells.yaml", "nothing", "grids"]),
    ],
)
def test_a_mistake_in_the_file_is_one_message(folder, content, words):
    file = cells_file(folder, **content)
    text = message(Experiments(folder, file).cells, "my_cells")
    assert all(word in text for word in words), text


def test_a_base_has_no_base_itself_so_that_none_goes_round_in_a_circle(folder):
    keep(folder, *SETTINGS, name="mine")
    text = message(of_file(folder, base="own/mine").cells, "my_cells")
    assert "own/mine" in text
    assert "own," not in text.partition("allowed")[2]


def test_a_mistake_in_the_bases_file_names_that_file(folder):
    file = folder / "experiments/spec_rl/cells.yaml"
    file.write_text(file.read_text().replace("kind: vanilla", "kind: none", 1))
    text = message(of_file(folder).cells, "my_cells")
    assert "spec_rl/cells.yaml" in text
    assert "'none'" in text


def test_wrong_files(folder, mistake, monkeypatch):
    monkeypatch.setenv(own.VARIABLE, "")
    assert "no such file" in mistake(folder, "list", "--cells", "nothing.yaml")
    cells_file(folder, "spec_rl.yaml")
    assert "another paper has this name" in mistake(folder, "list", "--cells", "spec_rl.yaml")
    cells_file(folder, "My-cells.yaml")
    text = mistake(folder, "show", "My-cells/l0.4", "--cells", "My-cells.yaml")
    assert "a-z, 0-9 and _" in text


def test_tables_stand_in_one_place(folder):
    file = cells_file(folder, "mine/cells.yaml", tables=[TABLE])
    (file.parent / "tables.yaml").write_text("tables: []\n")
    assert "two files" in message(Experiments(folder, file).tables, "mine")


def test_commands_take_a_file(folder, monkeypatch, capsys):
    from redraft.cli.app import main

    cells_file(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(own.VARIABLE, "")
    with pytest.raises(SystemExit) as end:
        main(["show", "l0.4", "--cells", "my_cells.yaml", "--preset", "smoke"])
    assert not end.value.code
    assert yaml.safe_load(capsys.readouterr().out)["cell"] == "l0.4"


# A frozen copy


def test_the_file_is_in_the_copy_that_a_campaign_runs_from(tmp_path, monkeypatch):
    file = cells_file(tmp_path)
    without = freeze.checkout_hash(ROOT)
    monkeypatch.setenv(own.VARIABLE, str(file))
    assert freeze.checkout_hash(ROOT) != without
    copy = freeze.freeze(ROOT, "smoke", tmp_path / "results")
    for name, value in freeze.environment(copy).items():
        monkeypatch.setenv(name, value)
    before = freeze.content_of("experiments/my_cells/cells.yaml")
    file.write_text("edited")
    assert freeze.content_of("experiments/my_cells/cells.yaml") == before
    assert [cell.id for cell in Experiments().cells("my_cells")] == ["my_cells/l0.4"]
    monkeypatch.delenv(own.VARIABLE)
    assert "my_cells" in Experiments().papers, "jobs of a cluster find it among the papers"


def test_the_hash_of_a_file_is_that_of_its_content_before_and_after_it_is_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(own.VARIABLE, str(cells_file(tmp_path)))
    before = freeze.content_of("experiments/my_cells/cells.yaml", "experiments/spec_rl/tables.yaml")
    for name, value in freeze.environment(freeze.freeze(ROOT, "smoke", tmp_path / "results")).items():
        monkeypatch.setenv(name, value)
    assert freeze.content_of("experiments/my_cells/cells.yaml", "experiments/spec_rl/tables.yaml") == before


# The table of one's own runs


def runs_of(cells, tokens):
    runs = [
        {"cell": cell, "seed": seed, "manifest": f"runs/{cell}/seed{seed}", "initial": "", "block": seed}
        for cell in cells
        for seed in (0, 1)
    ]
    steps = [
        {
            "cell": cell,
            "seed": seed,
            "step": 0,
            "epoch": 0,
            "tokens_decoded": n * (seed + 1),
            "tokens_verified": 0,
            "seconds.rollout": n / 100,
            "seconds.verification": 0.0,
            "seconds.assembly": 0.0,
            "seconds.total": 1.0,
        }
        for cell, n in zip(cells, tokens, strict=True)
        for seed in (0, 1)
    ]
    scores = [
        {
            "cell": cell,
            "seed": seed,
            "step": step,
            "benchmark": "b",
            "role": "in-distribution",
            "correct": 10 * i + 10,
            "total": 100,
        }
        for i, cell in enumerate(cells)
        for seed in (0, 1)
        for step in (0, 1)
    ]
    return Runs(pd.DataFrame(runs), pd.DataFrame(steps), pd.DataFrame(scores))


def test_each_cell_stands_beside_its_base(folder):
    keep(folder, *SETTINGS)
    keep(folder, "trainer.group_size=8", cell="ar3po/ar3po", name="mine")
    experiments = Experiments(folder)
    table = experiments.tables("own").tables[0]
    cells = [BASE, NAME, "ar3po/ar3po", "mine"]
    assert [row.cell for row in table.rows] == cells
    runs = runs_of(cells, [100, 50, 1000, 4000])
    made = make_table(table, table_source(runs, no_reported(), experiments, "own", "smoke"))
    made = made.set_index(["column", "cell"])
    found = {
        column: [made.loc[(column, id_of("own", cell)), "reproduced"] for cell in cells]
        for column in ("tokens_relative", "speedup", "accuracy", "accuracy_points")
    }
    assert found == {
        "tokens_relative": [1, 0.5, 1, 4],
        "speedup": [1, 2, 1, 0.25],
        "accuracy": pytest.approx([10, 20, 30, 40]),
        "accuracy_points": pytest.approx([0, 10, 0, 10]),
    }


# What else knows cells


FINGERPRINTS = {
    "spec_rl/grpo-spec-l0.5": "e1ff5baccc0994f1",
    "spec_rl/dapo-spec-l0.15": "d5f0bcfa4f898b85",
    "spec_rl/2k-grpo-spec-l0.5": "6e537bbbc3401b26",
    "ar3po/ar3po": "047a8e00a9178b10",
    "efficient_rollout/threshold": "a64be53d0db0866d",
    "equal_budget/spec": "e364f87c22604e4b",
}
"""Of seed 1 at the tiny preset, from before cells had bases."""


def test_no_fingerprint_changes_by_a_file_of_ones_own(folder):
    keep(folder, *SETTINGS)
    experiments = Experiments(folder)
    assert {cell: run_fingerprint(experiments.run(cell, 1, "tiny")) for cell in FINGERPRINTS} == FINGERPRINTS


def test_status_and_cost_know_it(folder):
    from redraft.analysis.cost.campaign_cost import wanted

    keep(folder, *SETTINGS)
    experiments = Experiments(folder)
    layout = Layout("smoke", folder / "results")
    runs = status.run_statuses(layout, experiments, status.target(layout, experiments, ["own"]))
    found = {(run.cell, run.seed, run.state) for run in runs}
    assert found == {(cell, seed, "waiting") for cell in (f"own/{NAME}", BASE) for seed in (0, 1)}, (
        "its base is trained"
    )
    preset = experiments.preset("smoke")
    for target in ("own", f"own/{NAME}", NAME):
        assert wanted(experiments, preset, [target]) == {"own": experiments.cells("own")}
    assert wanted(experiments, preset, ["grpo-spec-l2"]) == {"spec_rl": [experiments.cell("spec_rl/grpo-spec-l2")]}
    assert "own" not in wanted(experiments, preset, ["reproduction"])


def test_a_variant_that_was_made_for_another_preset_is_no_obstacle(folder):
    preset = folder / "experiments/presets/smoke.yaml"
    other = (
        preset.read_text().replace("name: smoke", "name: other").replace("models:\n", "models:\n  new: {kind: tiny}\n")
    )
    preset.with_name("other.yaml").write_text(other)
    keep(folder, "model=new", name="new", preset="other")
    keep(folder, *SETTINGS, name="mine")
    experiments = Experiments(folder)
    assert "the preset has nothing" in experiments.misfit("own/new", "smoke")
    assert (experiments.misfit("own/new", "other"), experiments.misfit("own/mine", "smoke")) == ("", "")
    layout = Layout("smoke", folder / "results")
    runs = status.run_statuses(layout, experiments, status.target(layout, experiments, ["own"]))
    assert {run.cell for run in runs} == {"own/mine", BASE}
    assert experiments.misfit(BASE, "smoke") == ""
    file = cells_file(folder, axes={"a": {"x": {"model": "new"}}})
    assert Experiments(folder, file).misfit("my_cells/x", "smoke") == "", "a mistake there is an error"


def test_a_cell_without_its_paper(experiments):
    assert experiments.find("grpo-spec-linf") == "spec_rl/grpo-spec-linf"
    assert experiments.find("ar3po/nothing") == "ar3po/nothing"
    text = message(experiments.find, "grpo")
    assert "ar3po/grpo, equal_budget/grpo" in text
    text = message(experiments.find, "grpo-spec-l9")
    assert "spec_rl/grpo-spec-l0.5" in text
    assert experiments.find("grpo-vanilla-l2") == "spec_rl/grpo-vanilla-l2", "excluded; the reason comes with the cell"


def break_paper(folder, paper="ar3po"):
    file = folder / f"experiments/{paper}/cells.yaml"
    file.write_text("titel: a typing error\n" + file.read_text())


def test_one_papers_mistake_leaves_the_others_alone(folder):
    break_paper(folder)
    experiments = Experiments(folder)
    assert experiments.run(BASE, 0, "smoke").cell == "grpo-spec-l0.5"
    assert experiments.find("grpo-spec-linf") == "spec_rl/grpo-spec-linf"
    assert "ar3po/cells.yaml" in message(experiments.find, "nothing-so"), "it may be there"
    cells, mistakes = experiments.readable(experiments.papers)
    assert {cell.paper for cell in cells} == set(experiments.papers) - {"ar3po"}
    assert ["titel" in str(each) for each in mistakes] == [True]


def test_list_names_the_rest_and_ends_with_the_mistake(folder, monkeypatch, capsys):
    from redraft.cli.app import main

    break_paper(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["list"])
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert "grpo-spec-l0.5" in printed.out
    assert "ar3po/cells.yaml" in printed.err
    assert "titel" in printed.err


@pytest.mark.parametrize(
    ("command", "words", "absent"),
    [
        (["list", "foo"], ["no such paper", "foo"], ["0 cells"]),
        (["cost", "foo"], ["nothing is called so", "ladder"], ["pair, pair", "smoke, smoke", "core, core"]),
        (["show", "xx"], ["no paper has a cell of this name", "redraft list"], ["grpo"]),
        (["show", "spec_rl/xx"], ["no such cell", "redraft list"], ["grpo"]),
    ],
)
def test_an_unknown_name_is_one_error_without_unrelated_names(folder, monkeypatch, capsys, command, words, absent):
    from redraft.cli.app import main

    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(command)
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (2, "")
    assert all(word in printed.err for word in words), printed.err
    assert not any(word in printed.err for word in absent), printed.err


def test_a_label_that_an_exclusion_forgot_is_named_with_its_grid_and_file(folder):
    file = folder / "experiments/spec_rl/cells.yaml"
    text = file.read_text()
    file.write_text(
        text.replace(
            "        l2: {reuse: {lenience: e^2}}\n",
            "        l2: {reuse: {lenience: e^2}}\n        l3: {reuse: {lenience: e^3}}\n",
        )
    )
    found = message(Experiments(folder).cells, "spec_rl")
    words = [
        "spec_rl/cells.yaml",
        "cell grpo-vanilla-l3",
        "algorithm: grpo, reuse: vanilla, lenience: l3",
        "grid lenience",
        "`exclude`",
    ]
    assert all(word in found for word in words), found


def test_the_reference_says_what_a_grid_of_ones_own_takes():
    page = _reference()
    for heading, words in {
        "Cell": ["trainer", "base"],
        "Grid": ["`base`", "`exclude`"],
        "Exclusion": ["label"],
    }.items():
        section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert all(word in section for word in words)
    assert "docs/quickstart.md" in (CellFile.__doc__ or "")
