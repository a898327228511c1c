"""Planning of campaigns with very many jobs."""

import inspect
from types import SimpleNamespace

import pytest
from snakemake import common, jobs, rules

from redraft.config import Experiments
from redraft.ops.workflow import scale
from redraft.ops.workflow.plan import Call, CampaignPlan


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Snakemake's functions are those of before after each test."""
    for module in (common, jobs, rules):
        monkeypatch.setattr(module, "get_function_params", common.get_function_params)
    monkeypatch.setattr(jobs.Job, "log_info", jobs.Job.log_info)


class Resource:
    def evaluate(self, wildcards, attempt=1):
        """A method, of which Snakemake makes one object for each job."""


def test_a_function_is_inspected_once_whatever_object_it_is_bound_to(monkeypatch):
    seen = []
    original = common.get_function_params
    monkeypatch.setattr(common, "get_function_params", lambda function: [seen.append(function), original(function)][1])
    scale.inspect_functions_once()
    for function in (Resource().evaluate, Resource().evaluate, Resource.evaluate, Resource.evaluate, inspect.isclass):
        assert list(rules.get_function_params(function)) == list(original(function))
    assert len(seen) == 3, "the method, its function and another one"


class Unhashable(list):
    def __call__(self, wildcards):
        return self


def test_a_callable_without_a_hash_is_inspected_each_time():
    scale.inspect_functions_once()
    assert list(rules.get_function_params(Unhashable())) == ["wildcards"]


@pytest.mark.parametrize(
    ("count", "options", "listed"),
    [
        (scale.LISTED_IN_FULL, {}, scale.LISTED_IN_FULL),
        (scale.LISTED_IN_FULL + 1, {}, scale.EXAMPLES),
        (scale.LISTED_IN_FULL + 1, {"printshellcmds": True}, scale.LISTED_IN_FULL + 1),
        (scale.LISTED_IN_FULL + 1, {"dryrun": False}, scale.LISTED_IN_FULL + 1),
    ],
)
def test_a_large_dry_run_lists_examples_of_each_rule(monkeypatch, count, options, listed):
    shown = []
    monkeypatch.setattr(jobs.Job, "log_info", shown.append)
    settings = SimpleNamespace(printshellcmds=options.get("printshellcmds", False))
    workflow = SimpleNamespace(dryrun=options.get("dryrun", True), output_settings=settings)
    scale.list_examples(workflow)
    for _ in range(count):
        jobs.Job.log_info(SimpleNamespace(rule=SimpleNamespace(name="train"), dag=range(count)))
    assert len(shown) == listed


def test_the_reason_to_leave_out_a_cell_does_not_list_all_cells(monkeypatch):
    """Else a plan takes quadratic time."""
    experiments = Experiments()
    call = Call.of({"preset": "smoke", "papers": "spec_rl"})
    plan = CampaignPlan(call, experiments, targets=list, environment={}, main=False)
    cells = experiments.cells("spec_rl")
    monkeypatch.setattr(experiments, "cells", lambda *_: pytest.fail("all cells are listed"))
    assert {plan.reason_to_leave_out(cell.id) for cell in cells[:3]} == {""}
