"""The experiment files of AR3PO: batches and steps at every scale, what tells its cells apart, and its declarations."""

from pathlib import Path

import pytest

from redraft.analysis.claims.reported_claims import NOT_IN_TABLES, SUPPORTED, ReportedTables, check
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.prompt_frames import PROMPT_QUANTITIES
from redraft.analysis.data.quantities import by_seed
from redraft.config import Experiments
from redraft.config.claims import cells_of
from redraft.config.quantities import ACCURACY, SHARE
from tests.ar3po_runs import records

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
PRESETS = [file.stem for file in (ROOT / "experiments/presets").glob("*.yaml") if not file.stem.endswith("smol")]
"""Those that have the models of all papers."""
CLAIMS = EXPERIMENTS.claims("ar3po").claims
REPORTED = ReportedTables(ROOT / "experiments/ar3po", EXPERIMENTS.reported("ar3po"), EXPERIMENTS)
STEPS = {"paper": 150, "tiny": 42, "smoke": 6, "verl-tiny": 6}


def run(cell, preset="paper"):
    return EXPERIMENTS.run(f"ar3po/{cell}", 0, preset)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_cell_has_as_many_steps_and_dapo_three_times_as_many_prompts(preset):
    for cell in EXPERIMENTS.cells("ar3po"):
        found, trainer = run(cell.name, preset), run(cell.name, preset).trainer
        assert found.steps == STEPS[preset]
        assert trainer.prompts_per_step == trainer.batch_prompts * (3 if cell.algorithm.kind == "dapo" else 1)
        assert trainer.batch_prompts == 4 * trainer.prompts_per_update, "a batch of 512, mini-batches of 128"
        assert found.data.size % trainer.prompts_per_step == 0
        assert found.unsupported == ""


def test_sizes_are_the_paper_s():
    assert (run("ar3po").trainer.prompts_per_step, run("dapo").trainer.prompts_per_step) == (512, 1536)
    lengths = {cell: run(cell).trainer.max_response_tokens for cell in ("ar3po", "llama-ar3po", "32b-dapo")}
    assert lengths == {"ar3po": 3072, "llama-ar3po": 2048, "32b-dapo": 4096}
    groups = {cell: run(cell).trainer.group_size for cell in ("grpo", "dapo", "ar3po", "32b-dapo", "ar3po-n16")}
    assert groups == {"grpo": 8, "dapo": 8, "ar3po": 8, "32b-dapo": 16, "ar3po-n16": 16}
    assert run("llama-grpo").trainer.learning_rate < run("grpo").trainer.learning_rate


@pytest.mark.parametrize("preset", PRESETS)
def test_groups_are_as_large_at_every_scale_since_stages_need_it(preset):
    stages = {
        cell.name: run(cell.name, preset).trainer.group_size // cell.reuse.stage_size
        for cell in EXPERIMENTS.cells("ar3po", ["components", "stages", "core"])
        if cell.reuse.kind == "staged"
    }
    assert stages == {
        "ar3po-adaptive": 2,
        "ar3po-k8": 1,
        "ar3po-k2": 4,
        "ar3po-n16": 4,
        "ar3po-option1": 2,
        "ar3po": 2,
    }


def test_no_cell_has_a_kl_loss_and_only_dapo_clips_higher():
    for cell in EXPERIMENTS.cells("ar3po"):
        assert cell.algorithm.kl_loss_coef == 0
        assert cell.algorithm.loss_agg_mode == "token-mean"
        assert (cell.algorithm.clip_high > cell.algorithm.clip_low) == (cell.algorithm.kind == "dapo")


def test_cells_beyond_the_paper_differ_from_ar3po_in_what_their_name_says():
    base = EXPERIMENTS.cell("ar3po/ar3po")
    for cell in EXPERIMENTS.cells("ar3po", ["components", "stages", "options"]):
        parts = ("algorithm", "reuse", "trainer_factors")
        assert sum(getattr(cell, part) != getattr(base, part) for part in parts) == 1, cell.name
    assert all(EXPERIMENTS.cell(f"ar3po/{name}").reuse == base.reuse for name in ("ar3po-lr4", "llama-ar3po"))


def test_unknown_learning_rates_are_said_to_be_unknown():
    stated = EXPERIMENTS.hyperparameters("ar3po").trainer
    assert "unknown" in stated["learning_rate"].source
    assert stated["learning_rate"].source.startswith("ours")


def test_every_quantity_of_a_table_or_claim_is_one_of_the_runs():
    runs = Runs(*records("ar3po"))
    columns = [column.quantity for table in EXPERIMENTS.tables("ar3po").tables for column in table.columns]
    claimed = [
        value for claim in CLAIMS for key, value in claim.test.model_dump().items() if key in ("quantity", "over")
    ]
    trends = [name for claim in CLAIMS for name in claim.test.model_dump().get("quantities", [])]
    for quantity in {*columns, *claimed, *trends} - {None}:
        if quantity.startswith(ACCURACY):
            assert quantity.removeprefix(ACCURACY) in {"*", "all", *EXPERIMENTS.protocol("ar3po")}
        elif quantity.startswith("bin@"):
            _, by, name = quantity.split(":")
            assert {by, name} <= {SHARE, *PROMPT_QUANTITIES}
        else:
            assert by_seed(runs, quantity, "ar3po").keys() == {0}, quantity


def test_every_quantity_of_a_figure_is_one_of_a_step_or_a_prompt():
    runs = Runs(*records("ar3po"))
    for figure in EXPERIMENTS.figures("ar3po").figures:
        for panel in figure.panels:
            if figure.axis(panel) == "bins":
                assert {panel.by, panel.quantity} <= {SHARE, *PROMPT_QUANTITIES}
            elif not panel.quantity.startswith(ACCURACY):
                assert by_seed(runs, f"mean:{panel.quantity}", "ar3po").keys() == {0}, panel.quantity


def test_every_claim_is_about_cells_there_are_and_no_reported_table_contradicts_one():
    cells = {cell.name for cell in EXPERIMENTS.cells("ar3po")}
    assert {name for claim in CLAIMS for name in cells_of(claim.test)} <= cells
    verdicts = {claim.id: check(claim, REPORTED)["reported_verdict"] for claim in CLAIMS}
    assert set(verdicts.values()) == {SUPPORTED, NOT_IN_TABLES}
    assert sum(verdict == SUPPORTED for verdict in verdicts.values()) == 14


def test_the_printed_costs_follow_from_table_1():
    claim = next(claim for claim in CLAIMS if claim.id == "fewer-responses-than-dapo")
    evidence = check(claim, REPORTED)["reported_evidence"]
    assert "prints 4.2 for the ratio of responses per step, dapo / ar3po, its tables give 4.211" in evidence
    assert "prints 3.6 for the ratio of responses per step, llama-dapo / llama-ar3po, its tables give 3.582" in evidence
