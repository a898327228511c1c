"""What is read of a Slurm's partitions, and which jobs are refused or said to wait in vain (tests/data/slurm)."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from redraft.errors import UserError
from redraft.ops.slurm import waiting as slurm_waiting
from redraft.ops.slurm.feasibility import check_requests, check_startable, largest_requests, request_of
from redraft.ops.slurm.partitions import (
    SETTING_KEYS,
    JobRequest,
    Nodes,
    Partition,
    duration_text,
    parse_gpus,
    parse_partitions,
)
from redraft.ops.slurm.waiting import KEY_BY_REASON, NEVER_STARTS, Queue
from redraft.ops.workflow.supply import LOCAL, lift_rate_limit, limit_local_jobs

DATA = Path(__file__).parent / "data/slurm"
SITE = Path("profiles/slurm/site.yaml")
SMALL = JobRequest(minutes=60, cpus=1, memory_mb=3072)


def output_of_file(name):
    return (DATA / f"{name}.txt").read_text()


def of_cluster(name):
    return parse_partitions(output_of_file(f"{name}-partitions"), output_of_file(f"{name}-nodes"))


TEST, LARGE = of_cluster("test"), of_cluster("site")


def test_partitions_are_read_with_their_limits_and_their_nodes():
    assert list(TEST) == ["urgent", "gpu", "wide"]
    assert TEST["gpu"] == Partition("gpu", True, 60, math.inf, (Nodes(1, 8, 20000, {"pretended": 2}),))
    assert TEST["wide"].nodes[0].count == 2
    assert LARGE["cpu"] == Partition("cpu", True, 3600, 1, (Nodes(100, 32, 128000, {}),)), "limits of a node count"
    assert math.isinf(LARGE["gpu"].minutes)
    assert [nodes.gpus for nodes in LARGE["gpu"].nodes] == [{"a100": 4}, {"h100": 8}]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu:2", {"": 2}),
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("nvme:1,gpu:a100:4(S:0,2),gpu:v100:1", {"a100": 4, "v100": 1}),
        ("gpu:1g.10gb:7(S:0)", {"1g.10gb": 7}),
        ("gpu:3090:2(S:0-1)", {"3090": 2}),
        ("gpu:3090:2,gpu:4090:1,mps:400", {"3090": 2, "4090": 1}),
        ("gpu:a100-sxm4-80gb:4(S:0,1),tmpdisk:900", {"a100-sxm4-80gb": 4}),
        ("gpu:3090", {"": 3090}),
        ("gpu:h100", {"h100": 1}),
        ("gpu", {"": 1}),
        ("gpu:no_consume:2", {"": 2}),
        ("", {}),
        ("shard:16", {}),
    ],
)
def test_gpus_are_read_by_their_type(gres, gpus):
    assert parse_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("change", "short"),
    [
        ({}, []),
        ({"minutes": 61}, ["minutes"]),
        ({"cpus": 8, "memory_mb": 20000, "gpus": 2}, []),
        ({"cpus": 9}, ["cpus"]),
        ({"memory_mb": 20001}, ["memory_mb"]),
        ({"gpus": 3}, ["gpus"]),
        ({"gpus": 1, "gpu_model": "pretended"}, []),
        ({"gpus": 1, "gpu_model": "h100"}, ["gpu_model"]),
        ({"gpus": 3, "gpu_model": "h100"}, ["gpus"]),
        ({"nodes": 2}, ["nodes"]),
        ({"minutes": 5760, "cpus": 64, "memory_mb": 819200}, ["minutes", "cpus", "memory_mb"]),
        ({"minutes": 61, "qos": "long"}, []),
        ({"cpus": 9, "qos": "long"}, ["cpus"]),
    ],
)
def test_a_request_beyond_a_node_or_a_limit_falls_short(change, short):
    assert TEST["gpu"].shortfalls(replace(SMALL, **change)) == short


def test_the_same_nodes_must_have_all_that_a_job_asks_for():
    gpu = LARGE["gpu"]
    assert gpu.shortfalls(replace(SMALL, gpus=8, cpus=96)) == []
    assert gpu.shortfalls(replace(SMALL, gpus=8, cpus=128)) == ["cpus", "gpus"], "128 processors have four GPUs only"
    assert gpu.shortfalls(replace(SMALL, gpus=8, nodes=8)) == []
    assert gpu.shortfalls(replace(SMALL, gpus=8, nodes=9)) == ["gpus"]
    assert gpu.shortfalls(replace(SMALL, nodes=13)) == ["nodes"]
    assert LARGE["cpu"].shortfalls(replace(SMALL, nodes=2)) == ["nodes"], "the partition's MaxNodes"
    assert LARGE["cpu"].shortfalls(replace(SMALL, cpus=33)) == ["cpus"], "the partition's MaxCPUsPerNode"
    assert Partition("hidden", False, 60, math.inf, ()).shortfalls(replace(SMALL, cpus=9999)) == [], (
        "unknown nodes pass"
    )


def test_of_requests_that_differ_in_memory_alone_the_largest_is_rejected():
    large, wide = replace(SMALL, memory_mb=30000), replace(SMALL, cpus=9)
    requests = [
        ("train", SMALL, "p/a"),
        ("train", large, "p/c"),
        ("train", replace(SMALL, memory_mb=9000), "p/b"),
        ("train", wide, "p/d"),
        ("grade", SMALL, ""),
    ]
    found = {(stage, request): names for stage, request, names in largest_requests(requests)}
    assert found == {("train", large): ["p/a", "p/b", "p/c"], ("train", wide): ["p/d"], ("grade", SMALL): []}


def test_what_could_never_start_is_rejected_once_with_all_that_must_be_set():
    paper = JobRequest(minutes=5760, cpus=64, memory_mb=819200, gpus=8)
    with pytest.raises(UserError) as error:
        check_startable(
            [
                ("train", paper, "ar3po/32b-dapo"),
                ("train", replace(paper, memory_mb=409600), "ar3po/dapo"),
                ("grade", SMALL, "ar3po/dapo"),
                ("evaluate", replace(SMALL, partitions=("gpu", "none")), ""),
            ],
            TEST,
            SITE,
        )
    assert str(error.value) == (
        "profiles/slurm/site.yaml: these jobs could never start, so none was submitted\n"
        "  evaluate uses partition none, which does not exist; set partition to one of gpu, urgent, wide\n"
        "  train requests 64 processors, 800 GiB, 8 GPUs for 4 days\n"
        "    partition gpu (the default): 1 hour at most; 1 node of 8 processors, 19.53 GiB, 2 GPUs (pretended)\n"
        "    set stages.train.runtime and stages.train.cpus and stages.train.memory_gb and engine.gpus of the preset,"
        " or else stages.train.partition, in profiles/slurm/site.yaml\n"
        "    (a run resumes from its last checkpoint in the next attempt, so its limit may be shorter: add --retries)\n"
        "    these are jobs of ar3po/dapo, ar3po/32b-dapo"
    )


def test_nothing_is_rejected_that_one_of_its_partitions_takes_or_of_which_nothing_is_known():
    wide = replace(SMALL, nodes=2)
    check_startable([("train", replace(wide, partitions=("gpu", "wide")), "")], TEST, SITE)
    check_startable([("train", replace(wide, partitions=("gpu",)), "")], {}, SITE)
    with pytest.raises(UserError, match="engine.nodes"):
        check_startable([("train", replace(wide, partitions=("gpu", "urgent")), "")], TEST, SITE)
    no_default = {name: replace(partition, default=False) for name, partition in TEST.items()}
    check_startable([("train", wide, "")], no_default, SITE)


@pytest.mark.parametrize(
    ("minutes", "text"), [(5760, "4 days"), (60, "1 hour"), (90, "90 minutes"), (3600, "60 hours"), (0.5, "0 minutes")]
)
def test_times_in_words(minutes, text):
    assert duration_text(minutes) == text


def a_job(rule, jobid=0, local=False, **resources):
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule),
        wildcards_dict={},
        is_group=lambda: False,
        jobid=jobid,
        is_local=local,
        threads=1,
        resources=resources,
        scheduler_resources={},
    )


def a_workflow(*jobs, cores=2, local_cores=None, **executor):
    scheduler = SimpleNamespace(_executor=SimpleNamespace(**executor), global_resources={}, resources={})
    return SimpleNamespace(
        scheduler=scheduler,
        dag=SimpleNamespace(needrun_jobs=lambda: iter(jobs), get_job_group=lambda job: None),
        local_exec=not executor,
        resource_settings=SimpleNamespace(cores=cores, local_cores=local_cores),
    )


def test_the_request_of_a_job_follows_from_its_resources():
    resources = {"runtime": 90, "cpus_per_task": 4, "mem_mb": 2048, "nodes": 2, "slurm_partition": "a,b", "qos": "q"}
    assert request_of(resources | {"gres": "gpu:h100:8"}) == JobRequest(90, 4, 2048, 8, "h100", 2, ("a", "b"), "q")
    assert request_of({"gres": "gpu:8"}).gpus == 8
    numbered = request_of({"gres": "gpu:3090:2"})
    assert (numbered.gpu_model, numbered.gpus) == ("3090", 2)
    hyphenated = request_of({"slurm_extra": "--exclusive --gpus-per-node=a100-sxm4-80gb:4"})
    assert (hyphenated.gpu_model, hyphenated.gpus) == ("a100-sxm4-80gb", 4)
    assert request_of({}).gpus == 0


def test_only_jobs_that_are_submitted_to_slurm_are_checked(monkeypatch):
    asked = []
    monkeypatch.setattr("redraft.ops.slurm.feasibility.partitions", lambda: asked.append(1) or TEST)
    wide = a_job("train", runtime=90)
    check_requests(a_workflow(wide), {"train": "train"}, SITE)
    assert not asked, "no Slurm"
    check_requests(a_workflow(a_job("tables", local=True, runtime=90), run_uuid="u"), {}, SITE)
    with pytest.raises(UserError, match=r"stages\.train\.runtime"):
        check_requests(a_workflow(wide, run_uuid="u"), {"train": "train"}, SITE)


@pytest.mark.parametrize(("local_cores", "limit"), [(None, 2), (1, 1)])
def test_beside_a_cluster_local_jobs_share_the_cores_here(local_cores, limit):
    local, far = a_job("tables", local=True), a_job("train")
    workflow = a_workflow(local, far, local_cores=local_cores, run_uuid="u")
    limit_local_jobs(workflow)
    assert workflow.scheduler.global_resources == workflow.scheduler.resources == {LOCAL: limit}
    assert (local.scheduler_resources, far.scheduler_resources) == ({LOCAL: 1}, {})
    alone = a_workflow(a_job("tables", local=True))
    limit_local_jobs(alone)
    assert alone.scheduler.resources == {}, "without a cluster Snakemake counts cores itself"


def test_only_a_cluster_s_jobs_have_a_limit_of_their_rate():
    for workflow, limit in ((a_workflow(a_job("train"), run_uuid="u"), "100/1s"), (a_workflow(a_job("train")), None)):
        workflow.scheduler.job_rate_limiter = "100/1s"
        lift_rate_limit(workflow)
        assert workflow.scheduler.job_rate_limiter == limit
    from snakemake.scheduling.job_scheduler import JobScheduler

    assert "job_rate_limiter" in JobScheduler.__init__.__code__.co_names, "Snakemake's own name"
    assert "job_rate_limiter" in JobScheduler.schedule.__code__.co_names


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("PartitionConfig", True),
        ("PartitionTimeLimit", True),
        ("BadConstraints", True),
        ("InvalidAccount", True),
        ("QOSMaxCpuPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMaxMemoryPerJob", True),
        ("QOSMinGRES", True),
        ("InvalidQOS", True),
        ("Resources", False),
        ("Priority", False),
        ("None", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("QOSMaxCpuPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("ReqNodeNotAvail, UnavailableNodes:one", False),
        ("JobHeldUser", False),
        ("PartitionDown", False),
        ("Reservation", False),
    ],
)
def test_reasons_that_no_waiting_cures(reason, never):
    assert bool(NEVER_STARTS.fullmatch(reason)) == never


def test_every_key_that_is_named_is_one_of_the_site_file_or_of_an_engine():
    from redraft.config import VerlEngine
    from redraft.config.requests import Request

    known = {*Request.model_fields, *(f"engine.{name}" for name in VerlEngine.model_fields)}
    assert {*SETTING_KEYS.values(), *(key for _, key in KEY_BY_REASON)} <= known


@pytest.fixture
def queue(monkeypatch):
    """A queue of six jobs as the Slurm of the tests told of it, and what was logged."""
    logged = SimpleNamespace(states=[], seconds=[], shown=[], warnings=[])

    def info(text, extra):
        if "always_shown" in extra:
            logged.shown.append(text)
        else:
            logged.states.append(extra["slurm_states"])
            logged.seconds.append(extra["slurm_seconds"])

    logger = SimpleNamespace(info=info, warning=logged.warnings.append)
    reported = []
    executor = SimpleNamespace(
        run_uuid="u", logger=logger, report_job_submission=lambda info, register_job: reported.append(info)
    )
    logged.answers = {"squeue": output_of_file("test-queue"), "sinfo": ""}
    logged.clock = [0.0]
    monkeypatch.setattr(slurm_waiting, "output_of", lambda command, *_: logged.answers[command])
    monkeypatch.setattr(slurm_waiting.time, "monotonic", lambda: logged.clock[0])
    monkeypatch.setattr(slurm_waiting, "partitions", lambda: TEST)
    made = Queue(executor, {"train": "train", "generate": "evaluate"}, SITE)
    for job in (2, 3, 5, 6, 7):
        asked = {"runtime": 90 if job == 3 else 60, "cpus_per_task": 64 if job == 2 else 1, "mem_mb": 1024}
        a = a_job("generate" if job == 3 else "train", jobid=10 + job, **asked)
        executor.report_job_submission(SimpleNamespace(external_jobid=str(job), job=a))
    assert len(reported) == 5
    return made, logged


def test_jobs_that_wait_are_told_apart_and_those_that_wait_in_vain_are_named_once(queue):
    queue_watch, logged = queue
    queue_watch.check()
    assert logged.states == [{12: "waiting", 13: "waiting", 15: "waiting", 16: "running", 17: "waiting"}]
    config, limit = logged.warnings
    assert config.splitlines() == [
        "1 job of train will never start: PartitionConfig (2); Ctrl-C ends all",
        "  train requests 64 processors, 1 GiB for 1 hour",
        "    partition gpu (the default): 1 hour at most; 1 node of 8 processors, 19.53 GiB, 2 GPUs (pretended)",
        "    set stages.train.cpus, or else stages.train.partition, in profiles/slurm/site.yaml",
    ]
    assert "evaluate will never start: PartitionTimeLimit (3)" in limit
    assert "set stages.evaluate.runtime, or else stages.evaluate.partition, in" in limit
    queue_watch.check()
    assert len(logged.states) == 1
    assert len(logged.warnings) == 2


def test_after_a_minute_without_progress_the_reasons_are_named_once_with_nodes_that_get_no_jobs(queue):
    queue_watch, logged = queue
    queue_watch.check()
    logged.clock[0] = 59.0
    queue_watch.check()
    assert logged.shown == []
    for seconds in (61.0, 120.0):
        logged.clock[0] = seconds
        queue_watch.check()
    counts = "1 job PartitionConfig, 1 job PartitionTimeLimit, 1 job PartitionNodeLimit"
    line = f"in Slurm's queue: {counts}, 1 job Resources (no node has enough free)"
    assert logged.shown == [line]
    logged.answers["sinfo"] = "n[1-2]|drain|disk | full\nn7|down*|Not responding\n"
    logged.clock[0] = 180.0
    queue_watch.check()
    assert logged.shown[1:] == [
        f"{line}; nodes without new jobs: n[1-2] drain (disk | full), n7 down* (Not responding)"
    ]
    logged.answers["squeue"] = output_of_file("test-queue").replace("7|PENDING", "7|RUNNING")
    logged.clock[0] = 240.0
    queue_watch.check()
    assert len(logged.shown) == 2, "a job has started"
    logged.answers["squeue"] = output_of_file("test-queue").replace("7|PENDING", "7|COMPLETED")
    logged.clock[0] = 301.0
    queue_watch.check()
    assert len(logged.shown) == 2, "and ended"
    assert logged.seconds[-1] == {17: 3600.0}, "Slurm knows how long it ran"
    logged.clock[0] = 362.0
    queue_watch.check()
    assert len(logged.shown) == 3


def test_a_submission_is_no_progress(queue):
    queue_watch, logged = queue
    logged.answers["squeue"] = "2|PENDING|gpu|N/A|N/A|Priority\n"
    queue_watch.check()
    logged.answers["squeue"] += "7|PENDING|gpu|N/A|N/A|ReqNodeNotAvail, UnavailableNodes:one\n"
    logged.clock[0] = 61.0
    queue_watch.check()
    assert logged.shown == [
        "in Slurm's queue: 1 job Priority (other jobs are ahead), 1 job ReqNodeNotAvail, UnavailableNodes:one"
    ]


def test_the_steps_of_running_trainings_are_one_line_a_minute_at_most(queue):
    queue_watch, logged = queue
    logged.answers["squeue"] = "6|RUNNING|gpu|2026-11-24T10:00:00|N/A|None\n3|RUNNING|gpu|N/A|N/A|None\n"
    done = {16: 3}
    queue_watch.steps = lambda job: (f"p cell{job.jobid} 0", done[job.jobid], 9) if job.jobid in done else None
    queue_watch.check()
    logged.clock[0] = 60.0
    queue_watch.check()
    assert logged.shown == ["  train  p cell16 0 step 3 of 9"]
    done[16] = 4
    logged.clock[0] = 90.0
    queue_watch.check()
    logged.clock[0] = 120.0
    queue_watch.check()
    logged.clock[0] = 180.0
    queue_watch.check()
    assert logged.shown[1:] == ["  train  p cell16 0 step 4 of 9"]
    many = slurm_waiting.steps_text([(f"p c{i} 0", i, 9) for i in range(8)])
    assert many.endswith("p c5 0 step 5 of 9, 2 others")


def test_a_queue_that_does_not_answer_is_no_change(queue):
    queue_watch, logged = queue
    queue_watch.check()
    logged.answers["squeue"] = None
    queue_watch.check()
    assert len(logged.states) == 1
