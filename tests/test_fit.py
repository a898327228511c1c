"""Cells that do not fit: the campaign is rejected with their names, or goes on without them if that is requested."""

import json
from pathlib import Path

import pandas as pd
import pytest

from redraft.analysis.data.collect import Runs
from redraft.analysis.pages.finished_report import summary_text
from redraft.analysis.pages.paper import Paper
from redraft.config import Experiments
from redraft.config.requests import Request
from redraft.config.site import Site
from redraft.layout import Layout
from redraft.ops.slurm.partitions import Nodes, Partition
from redraft.ops.workflow.fit import Fit, record_left_out, submits
from redraft.ops.workflow.plan import Call, CampaignPlan
from redraft.ops.workflow.status import left_out_cells, run_statuses, status_text, target
from redraft.result_files import read_left_out

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
GIB = 1024
ON_HOST = {"verl": {"actor_rollout_ref.actor.fsdp_config.offload_policy": True}, "tensor_parallel": 2, "nodes": 1}
"""One node for 32B: it fits into the GPUs, since the trained state is in host memory, of which it needs 1,600 GiB."""
LARGE = {"ar3po/32b-dapo", "ar3po/32b-ar3po-option1"}
PAPERS = {"preset": "paper", "papers": "ar3po"}


def cluster(gib, count=8, gpus=8, minutes=10**5):
    nodes = (Nodes(count, 64, gib * GIB, {"": gpus}),)
    return {"gpu": Partition("gpu", True, minutes, float("inf"), nodes)}


def run_of(cell, **engine):
    run = EXPERIMENTS.run(cell, 0, "paper")
    return run.model_copy(update={"engine": run.engine.model_copy(update=engine)})


def fault(run, partitions, **settings):
    return Fit(EXPERIMENTS.preset("paper"), Site(**settings), partitions).fault(run)


def planned(reason, *targets, main=True, **config):
    return CampaignPlan(
        Call.of(PAPERS | config),
        EXPERIMENTS,
        lambda: targets or ("reproduction",),
        {},
        main,
        fault=lambda run: reason if f"{run.paper}/{run.cell}" in LARGE else "",
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_host_memory_beyond_every_node_is_a_fault_that_names_what_would_fit():
    reason = fault(run_of("ar3po/32b-dapo", **ON_HOST), cluster(1000))
    assert "its job to train requests 64 processors, 1600 GiB, 8 GPUs for 4 days" in reason
    assert "8 nodes of 64 processors, 1000 GiB, 8 GPUs" in reason
    assert "this would fit: {nodes: 4" in reason
    assert "nothing that was tried" in fault(run_of("ar3po/32b-dapo", **ON_HOST), cluster(500))
    assert fault(run_of("ar3po/32b-dapo", **ON_HOST), cluster(1600)) == ""
    assert fault(run_of("ar3po/32b-dapo", **ON_HOST), {}) == "", "without Slurm"


def test_what_would_fit_into_gpus_must_also_fit_onto_nodes():
    run = run_of("ar3po/32b-dapo", nodes=1)
    assert "{nodes: 2}" in fault(run, cluster(1000))
    alone = fault(run, cluster(2000, count=1))
    assert "an update needs" in alone
    assert "nodes: 2" not in alone


def test_the_largest_engines_of_the_preset_fit_onto_two_nodes_and_not_onto_one():
    run = EXPERIMENTS.run("ar3po/32b-dapo", 0, "paper")
    assert fault(run, cluster(1000)) == ""
    assert "on each of 2 nodes" in fault(run, cluster(1000, count=1))


def test_what_a_site_sets_for_all_runs_alike_leaves_no_cell_out():
    run = EXPERIMENTS.run("ar3po/dapo", 0, "paper")
    assert fault(run, cluster(1000, minutes=60)) == "", "the check of all requests rejects such a time limit"
    assert fault(run, cluster(1000), stages={"train": Request(memory_gb=1001)}) == ""
    run = EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "smoke")
    small = cluster(4, gpus=0)
    for stages in ({"train": Request(cpus=65)}, {"train": Request(memory_gb=5)}, {"evaluate": Request(cpus=65)}):
        assert not Fit(EXPERIMENTS.preset("smoke"), Site(stages=stages), small).fault(run), "the site's key is at fault"
    assert not Fit(EXPERIMENTS.preset("smoke"), Site(cpus=65), small).fault(run)
    assert Fit(EXPERIMENTS.preset("smoke"), Site(stages={"grade": Request(cpus=65)}), cluster(1, gpus=0)).fault(run)


def test_a_campaign_with_cells_that_do_not_fit_is_rejected_with_their_names(capsys):
    with pytest.raises(SystemExit) as end:
        planned("too large").check_runs()
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert "these cells do not fit" in text
    assert ": too large" in text
    assert all(cell in text for cell in LARGE)
    assert "ar3po/dapo" not in text
    assert "--config without_unfitting=true" in text


def test_it_goes_on_without_them_if_that_is_requested(capsys, monkeypatch):
    monkeypatch.setattr(
        "subprocess.run", lambda command, check: checked.append(command) or type("R", (), {"returncode": 0})
    )
    checked = []
    plan = planned("too large", without_unfitting=True)
    plan.check_runs()
    text = capsys.readouterr().err
    assert all(f"left out: {cell}: does not fit: too large" in text for cell in LARGE)
    assert plan.unfitting == dict.fromkeys(plan.unfitting, "too large")
    assert set(plan.unfitting) == LARGE
    wanted = {cell.id for cell in plan.wanted_cells("ar3po")}
    assert wanted
    assert not wanted & LARGE
    assert not set(checked[0]) & LARGE
    assert not {cell.id for cell, _ in plan.runs("ar3po")} & LARGE
    assert planned("too large", "extras", without_unfitting=True).left_out().keys() & LARGE == set()


def test_a_job_leaves_out_what_the_call_left_out():
    record_left_out(Layout("paper"), dict.fromkeys(LARGE, "too large"))
    job = planned("", main=False, without_unfitting=True)
    assert set(job.unfitting) == LARGE
    assert planned("", main=False).unfitting == {}
    record_left_out(Layout("paper"), {})
    assert not Layout("paper").left_out.exists()


def test_a_finished_cell_is_not_left_out():
    plan = planned("too large", without_unfitting=True)
    cell = min(LARGE)
    for seed in plan.preset.seeds:
        file = plan.layout.run(cell, seed) / "scores.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    assert set(plan.unfitting) == LARGE - {cell}


def test_a_paper_of_which_no_cell_fits_is_an_error(capsys):
    plan = CampaignPlan(
        Call.of(PAPERS | {"without_unfitting": True}), EXPERIMENTS, lambda: (), {}, True, fault=lambda _: "too large"
    )
    with pytest.raises(SystemExit):
        plan.check_runs()
    assert "no cell of this paper fits" in capsys.readouterr().err


def test_status_lists_them_as_left_out_and_not_as_waiting():
    layout = Layout("paper")
    names = [grid.name for grid in EXPERIMENTS.cell_file("ar3po").grids]
    grids = target(layout, EXPERIMENTS, ["ar3po"], names)
    before = {run.cell for run in run_statuses(layout, EXPERIMENTS, grids)}
    assert before & LARGE
    record_left_out(layout, dict.fromkeys(LARGE, "too large"))
    runs, left_out = run_statuses(layout, EXPERIMENTS, grids), left_out_cells(layout, EXPERIMENTS, grids)
    assert not {run.cell for run in runs} & LARGE
    assert set(left_out) == before & LARGE
    text = " ".join(status_text(runs, left_out=left_out).split())
    assert all(f"left out: {cell}: does not fit: too large" in text for cell in left_out)


def test_the_report_lists_them_as_left_out_and_does_not_count_them_as_missing():
    def paper():
        shown = Paper(Layout("paper"), "ar3po", EXPERIMENTS)
        runs = pd.DataFrame({"cell": ["dapo"], "seed": [0], "seconds": [60.0]})
        shown.__dict__["runs"] = Runs(runs, pd.DataFrame(), pd.DataFrame())
        return shown

    missing, seeds = paper().missing.runs, len(EXPERIMENTS.preset("paper").seeds)
    record_left_out(Layout("paper"), dict.fromkeys([*LARGE, "spec_rl/other", "ar3po/dapo"], "too large"))
    assert paper().left_out == dict.fromkeys(paper().left_out, "too large")
    assert set(paper().left_out) == LARGE
    assert paper().missing.runs == missing - seeds * len(LARGE)
    summary = {"papers": {}, "missing": {"runs": 0}, "left_out": paper().left_out}
    assert "does not fit: too large" in summary_text(summary, Layout("paper"))


@pytest.mark.parametrize(
    ("arguments", "slurm"),
    [(["--profile", "slurm", "-n"], True), (["-n"], False), (["--executor", "slurm", "-j", "3"], True)],
)
def test_a_dry_run_knows_whether_its_call_would_submit(arguments, slurm, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert submits(arguments) == slurm


def test_a_record_is_read_as_it_was_written():
    assert read_left_out(Layout("paper").left_out) == {}
    record_left_out(Layout("paper"), {"a/b": "c"})
    assert json.loads(Layout("paper").left_out.read_text()) == {"a/b": "c"}
