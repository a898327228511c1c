"""What a dry run says about Slurm: submissions, groups of jobs, and CPUs that Ray reserves."""

from types import SimpleNamespace

import pytest

from redraft.config import Experiments, VerlEngine
from redraft.config.requests import request_of
from redraft.ops.workflow.submissions import ray_lines, slurm_lines
from tests.checkout import ROOT


def a_job(rule, group=None, **resources):
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule, group=group, norun=rule == "all"), resources=resources, wildcards=rule
    )


def a_group(*jobs, **resources):
    return SimpleNamespace(jobs=jobs, is_group=lambda: True, resources=resources)


def a_workflow(groups=()):
    by_job = {id(job): group for group in groups for job in group.jobs}
    return SimpleNamespace(
        _localrules={"tables"},
        dag=SimpleNamespace(get_job_group=lambda job: by_job.get(id(job))),
        resource_settings=SimpleNamespace(nodes=64),
    )


def test_local_rules_and_targets_are_no_submissions():
    jobs = [a_job("generate"), a_job("grade"), a_job("tables"), a_job("all")]
    assert slurm_lines(a_workflow(), jobs, lambda _: None) == ["Slurm: 2 submissions of 2 jobs, at most 64 at a time"]


def test_a_group_is_one_submission_with_a_request_of_its_own():
    grades = [a_job("grade", group="grading") for _ in range(5)]
    three = a_group(*grades[:3], runtime=180, cpus_per_task=1, mem_mb=3072)
    two = a_group(*grades[3:], runtime=120, cpus_per_task=1, mem_mb=3072)
    assert slurm_lines(a_workflow([two, three]), [*grades, a_job("generate")], lambda _: None) == [
        "Slurm: 3 submissions of 6 jobs, at most 64 at a time",
        "a submission of the group grading has up to 3 jobs, one after another, and requests 1 processor, 3 GiB for"
        " 3 hours",
    ]


@pytest.mark.parametrize(
    ("engine", "cpus", "reserved"),
    [
        ({"gpus": 8}, 64, 34),
        ({"gpus": 8, "nodes": 2}, 64, 30),
        ({"gpus": 1}, 13, 13),
        ({"gpus": 1, "verl": {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 2}}, 8, 7),
        ({"gpus": 1, "verl": {"transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}}}, 8, 7),
    ],
)
def test_a_run_under_verl_requests_at_least_the_cpus_that_ray_reserves(engine, cpus, reserved):
    preset = Experiments(ROOT).preset("paper").of_models("qwen3-1.7b-base")
    preset = preset.model_copy(update={"engine": VerlEngine(**engine)})
    assert request_of("train", preset).cpus == cpus >= reserved
    (line,) = ray_lines([a_job("train", cpus_per_task=cpus)] * 2, lambda _: preset.engine)
    assert line.startswith(f"in 2 runs under verl Ray's actors reserve {reserved} CPUs on each node (3 for each of ")
    assert line.endswith(f"; their jobs request {cpus}")


def test_a_site_s_smaller_request_is_named():
    (line,) = ray_lines([a_job("train", cpus_per_task=4)], lambda _: VerlEngine(gpus=1))
    assert "reserve 13 CPUs" in line
    assert "request 4, so that processes share cores: raise stages.train.cpus" in line


def test_engines_without_ray_are_not_named():
    paper = Experiments(ROOT).preset("tiny").engine
    assert ray_lines([a_job("train", cpus_per_task=4)], lambda _: paper) == []
    assert ray_lines([a_job("train", cpus_per_task=4)], lambda _: VerlEngine()) == [], "Ray has enough CPUs there"
