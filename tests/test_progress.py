"""Progress lines of a campaign and its time left, on a simulated clock."""

import itertools
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from snakemake_interface_logger_plugins.common import LogEvent

import snakemake_logger_plugin_redraft as plugin
from redraft.config import Experiments
from redraft.ops.sizing.run_size import RunSizes
from redraft.ops.slurm.capacity import shared_amounts, used_amounts
from redraft.ops.slurm.partitions import JobRequest, parse_partitions
from redraft.ops.workflow import job_times, pace
from redraft.ops.workflow.job_times import SECONDS, call_text, job_graph, priors, recorded_seconds
from redraft.ops.workflow.time_left import (
    NOTICE_SECONDS,
    OVERHEAD_SECONDS,
    Durations,
    Job,
    JobGraph,
    TimeLeft,
    Work,
    estimate_time_left,
    makespan,
)

ROOT = Path(__file__).parents[1]
CORE = (("cores", 1),)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(plugin.time, "monotonic", lambda: now[0])
    return now


def job(rule, *needs, uses=CORE):
    return Job(rule, frozenset(needs), uses)


def seconds(one):
    return {"a": 10, "b": 7}[one.rule] * one.work.size


# Jobs played through.


@pytest.mark.parametrize(
    ("jobs", "cores", "expected"),
    [
        ({1: job("a"), 2: job("a"), 3: job("a")}, 1, 30),
        ({1: job("a"), 2: job("a"), 3: job("a")}, 2, 20),
        ({1: job("a"), 2: job("a", 1), 3: job("b", 2)}, 8, 27),  # a chain does not end sooner on more cores
        ({1: job("a"), 2: job("b"), 3: job("a", 2)}, 2, 17),
        ({1: job("a", 99), 2: job("b", 1)}, 1, 17),  # what job 1 needs is there already
        ({1: job("a", uses=(("cores", 2),)), 2: job("b"), 3: job("b")}, 2, 17),
        ({}, 2, 0),
    ],
)
def test_a_job_starts_once_what_it_needs_has_ended_and_there_is_room(jobs, cores, expected):
    assert makespan(JobGraph(jobs, {"cores": cores}), {}, seconds) == expected


def test_gpus_and_a_cluster_s_places_are_shared_as_cores_are():
    jobs = {i: job("a", uses=(("cores", 1), ("gpus", 2))) for i in range(4)}
    assert makespan(JobGraph(jobs, {"cores": 64, "gpus": 4}), {}, seconds) == 20
    remote = {i: job("a", uses=(("jobs", 1),)) for i in range(6)} | {9: job("b")}
    assert makespan(JobGraph(remote, {"cores": 1, "jobs": 3}), {}, seconds) == 20 + NOTICE_SECONDS
    assert makespan(JobGraph(remote, {"cores": 1, "jobs": 3}), {}, seconds, 5) == 30 + NOTICE_SECONDS


def test_what_runs_holds_its_room_for_the_rest_of_its_time():
    jobs = {1: job("a"), 2: job("a"), 3: job("b", 1)}
    assert makespan(JobGraph(jobs, {"cores": 1}), {1: 4.0}, seconds) == 21
    durations = Durations({"a": 10.0, "b": 7.0})
    assert estimate_time_left(JobGraph(jobs, {"cores": 2}), [], {1: 6.0, 2: 1.0}, durations).seconds == 11
    overdue = estimate_time_left(JobGraph({1: job("a")}, {"cores": 1}), [], {1: 500.0}, durations)
    assert overdue.seconds == 1, "a tenth of the mean, and never nothing"


# Jobs on Slurm.


def on_slurm(*needs, rule="grade", processors=1, gpus=0):
    uses = {"jobs": 1, "cpu: processors": processors} | ({"cpu: GPUs": gpus} if gpus else {})
    return Job(rule, frozenset(needs), tuple(uses.items()))


def slurm(jobs, processors, at_once=64, **amounts):
    return JobGraph(jobs, {"jobs": at_once, "cpu: processors": processors, **amounts})


MINUTE = Durations({"grade": 60 - OVERHEAD_SECONDS})
"""A job takes a minute on Slurm."""


def test_329_jobs_on_one_processor_take_as_many_minutes():
    """The number of jobs at once (64) is no number of processors, and each job starts Snakemake twice."""
    left = estimate_time_left(slurm({i: on_slurm() for i in range(329)}, 1), [], {}, MINUTE)
    assert left.seconds == 329 * 60 + NOTICE_SECONDS


def test_ten_processors_or_ten_jobs_at_once_take_a_tenth():
    jobs = {i: on_slurm() for i in range(330)}
    for graph in (slurm(jobs, 10), slurm(jobs, 1000, at_once=10)):
        assert estimate_time_left(graph, [], {}, MINUTE).seconds == 33 * 60 + NOTICE_SECONDS


def test_a_chain_takes_the_sum_of_its_jobs_and_the_time_until_their_ends_are_noticed():
    jobs = {i: on_slurm(*([i - 1] if i else [])) for i in range(3)} | {3: job("tables", 2)}
    jobs |= {i: on_slurm() for i in range(4, 20)}
    graph = slurm(jobs, 100, cores=1)
    known = Durations({"grade": 60 - OVERHEAD_SECONDS, "tables": 20})
    assert estimate_time_left(graph, [], {}, known).seconds == 3 * (60 + NOTICE_SECONDS) + 20


def test_while_jobs_wait_in_the_queue_the_cluster_has_what_the_running_ones_use():
    """A thousand processors, of which other users leave two."""
    jobs = {i: on_slurm() for i in range(100)}
    graph, running = slurm(jobs, 1000, at_once=100), {0: 0.0, 1: 0.0}
    assert estimate_time_left(graph, [], running, MINUTE).seconds == 2 * 60 + NOTICE_SECONDS - 60
    waiting = range(2, 100)
    assert estimate_time_left(graph, [], running, MINUTE, waiting).seconds == 50 * 60 + NOTICE_SECONDS
    assert estimate_time_left(graph, [], {}, MINUTE, waiting).seconds == 60 + NOTICE_SECONDS, "nothing is known yet"


def test_small_jobs_are_more_at_once_than_the_large_ones_that_wait():
    large = {i: on_slurm(rule="train", processors=8, gpus=4) for i in range(4)}
    jobs = large | {10 + i: on_slurm(0, processors=1, gpus=1) for i in range(8)}
    graph = slurm(jobs, 64, **{"cpu: GPUs": 64})
    known = Durations({"train": 100 - OVERHEAD_SECONDS, "grade": 60 - OVERHEAD_SECONDS})
    left = estimate_time_left(graph, [], {0: 0.0, 1: 0.0}, known, waiting=[2, 3])
    assert left.seconds == 260 + NOTICE_SECONDS, "after two times two trainings all eight at once, or next to them"


def test_a_partition_has_the_resources_of_its_nodes_and_a_job_fits_in_any_case():
    cluster = parse_partitions("PartitionName=one Default=YES\nPartitionName=two\nPartitionName=down", ONE_AND_TWO)
    train = JobRequest(60, cpus=8, memory_mb=4096, gpus=2, nodes=2, partitions=("two",))
    grade = JobRequest(60, cpus=1, memory_mb=2048)
    unknown = JobRequest(60, cpus=1, memory_mb=2048, partitions=("down",))
    assert used_amounts(train, cluster) == {"two: processors": 16, "two: MiB": 8192, "two: GPUs": 4}
    assert used_amounts(unknown, cluster) == {}
    assert shared_amounts([train, grade, grade, unknown], cluster) == {
        **{"two: processors": 48, "two: MiB": 30000, "two: GPUs": 4},
        **{"one: processors": 1, "one: MiB": 2048},
    }


ONE_AND_TWO = "one|1|1|1000|(null)\ntwo|3|16|10000|gpu:h100:1"


def test_a_target_takes_no_time_and_is_no_job():
    jobs = JobGraph({1: job("a"), 2: job("", 1, uses=())}, {"cores": 1})
    assert estimate_time_left(jobs, [], {}, Durations({"a": 10.0})) == TimeLeft(10.0, 1, {})
    assert estimate_time_left(jobs, [1], {}, Durations({"a": 10.0})) == TimeLeft(0.0, 0, {})


# What a kind of job takes.


def test_a_prior_counts_as_one_job_and_all_priors_go_at_the_pace_seen_here():
    durations = Durations({"train": 10.0, "grade": 2.0})
    assert (durations.mean("train"), durations.mean("grade"), durations.mean("other")) == (10.0, 2.0, None)
    durations.add("train", 30.0)
    durations.add("train", 50.0)
    assert durations.mean("grade") == pytest.approx(8.0), "80 s where the prior said 20"
    assert durations.mean("train") == pytest.approx((40 + 30 + 50) / 3)
    durations.add("other", 3.0)
    durations.add("other", 5.0)
    assert (durations.mean("other"), durations.mean("grade")) == (4.0, pytest.approx(8.0))


def test_a_run_takes_so_many_times_the_mean_as_its_size_says_until_one_like_it_has_ended():
    durations = Durations({"train": 10.0})
    large, other = (Job("train", uses=CORE, work=Work(cell, 16.0)) for cell in ("p/large", "p/other"))
    assert durations.of_job(large) == 160
    assert estimate_time_left(JobGraph({1: large, 2: job("train")}, {"cores": 1}), [], {}, durations).seconds == 170
    durations.add("train", 400.0, Work("p/large", 16.0))
    assert durations.of_job(large) == 400
    assert durations.of_job(job("train")) == durations.mean("train") == pytest.approx(25), "the pace is 2.5"
    assert durations.of_job(other) == pytest.approx(16 * 25)
    assert durations.of_job(job("other")) is None
    assert durations.of_job(job("")) == 0


def test_the_end_of_a_large_run_is_one_of_its_size(clock):
    campaign, known = plugin.Progress(), Durations({"train": 10.0})
    jobs = {i: Job("train", uses=CORE, work=Work("p/large", 16.0)) for i in (1, 2)} | {3: job("train")}
    campaign.expect(JobGraph(jobs, {"cores": 1}), known)
    assert campaign.rest() == "about 6 min left", "twice 160 s, and 10 s"
    campaign.start(1, "train")
    clock[0] = 320.0
    campaign.finish(1)
    assert (known.of_job(jobs[2]), known.mean("train")) == (320, 20)
    assert campaign.rest() == "about 6 min left", "320 s and 20 s"


def test_the_size_of_a_run_is_that_of_its_updates_and_its_model():
    experiments = Experiments(ROOT)
    sizes = RunSizes(experiments, experiments.preset("tiny"))
    expected = {"x1": 1, "x4": 4, "x16": 16, "x32": 32, "lr2": 1, "h64": 1, "h192": 4}
    assert {scale: sizes(f"loss_by_scale/{scale}-vanilla") for scale in expected} == expected
    # SPEED samples few responses to each of four times as many prompts.
    assert sizes("speed_rl/dapo17k-rloo") == sizes("speed_rl/dapo17k-rloo-speed4") == 2
    assert sizes("spec_rl/grpo-spec-l0.5") == 1


def test_the_shipped_priors_name_every_rule_of_the_presets_that_they_are_of():
    rules = {
        name
        for file in (ROOT / "workflows/rules").glob("*.smk")
        for name in re.findall(r"^rule (\w+):", file.read_text(), re.M)
    }
    of_hub_or_verl = {"prepare_data", "prepare_benchmarks", "lighteval", "lighteval_environment"}
    for preset in ("smoke", "tiny"):
        found = priors(Experiments(ROOT).preset(preset))
        assert rules | {"generate_initial"} == found.keys() | of_hub_or_verl
        shipped = yaml.safe_load((ROOT / SECONDS).read_text())["presets"][preset]
        assert all(0 < seconds < 600 for seconds in shipped.values())
    assert priors(Experiments(ROOT).preset("paper")) == {}


def test_priors_are_scaled_to_the_pace_of_this_machine(monkeypatch):
    monkeypatch.setattr(pace, "seconds_of_work", lambda: 0.12)
    assert pace.scaled({"train": 30.0, "grade": 2.0}, 0.04) == pytest.approx({"train": 90.0, "grade": 6.0})
    tiny = Experiments(ROOT).preset("tiny")
    slow = priors(tiny)
    monkeypatch.setattr(pace, "seconds_of_work", lambda: 0.06)
    fast = priors(tiny)
    assert slow == pytest.approx({rule: 2 * seconds for rule, seconds in fast.items()})
    monkeypatch.setattr(pace, "times_float32", lambda dtype: {"auto": 1.0, "bfloat16": 8.0}[dtype])
    rounded = tiny.model_copy(update={"engine": tiny.engine.model_copy(update={"dtype": "bfloat16"})})
    assert priors(tiny) == fast
    slower = (8 + pace.OTHER_WORK) / (1 + pace.OTHER_WORK)
    assert 6 < slower < 8
    assert priors(rounded) == pytest.approx({rule: slower * seconds for rule, seconds in fast.items()})


def test_a_precision_is_timed_beside_float32_where_no_gpu_computes(monkeypatch):
    assert pace.times_float32("auto") == pace.times_float32("float32") == 1
    assert 0.005 < pace.times_float32("bfloat16") < 50
    seconds = {torch.bfloat16: 0.6, torch.float32: 0.2}
    monkeypatch.setattr(pace, "_product_seconds", lambda device, dtype: seconds[dtype])
    assert pace.times_float32.__wrapped__("bfloat16") == pytest.approx(3)
    assert pace.times_float32.__wrapped__("fastest") == 1, "float32 would be taken"
    seconds[torch.bfloat16] = 0.03
    assert pace.times_float32.__wrapped__("fastest") == pytest.approx(0.15)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pace.times_float32.__wrapped__("bfloat16") == 1


def test_the_pace_is_measured_once_and_follows_the_work(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(pace.time, "perf_counter", lambda: float(next(ticks) ** 2))
    measured = pace.seconds_of_work.__wrapped__()
    assert measured == 1.0, "the shortest of 1, 5, 9, …"
    monkeypatch.undo()
    assert 0 < pace.seconds_of_work() == pace.seconds_of_work() < 60


def test_the_tiny_preset_is_expected_to_take_about_nine_minutes_on_two_cores():
    shipped = yaml.safe_load((ROOT / SECONDS).read_text())["presets"]["tiny"]
    seconds = makespan(JobGraph(a_campaign(), {"cores": 2}), {}, lambda one: shipped.get(one.rule, 0.0))
    assert 6 < seconds / 60 < 13


# A whole campaign.


KINDS = {
    "make_model": 60.0,
    "train": 70.0,
    "generate": 12.0,
    "generate_initial": 7.0,
    "grade": 6.0,
    "diversity": 4.0,
    "collect": 2.0,
    "tables": 20.0,
    "figures": 25.0,
    "claims": 3.0,
    "report": 3.0,
    "track": 12.0,
}


def a_campaign(runs=12, initial=3):
    """Jobs of a campaign such as the tiny preset's, by number."""
    numbers = itertools.count(1)
    jobs = {}

    def add(rule, *needs):
        number = next(numbers)
        jobs[number] = job(rule, *needs)
        return number

    model = add("make_model")
    ends = [add("grade", add("generate_initial", model)) for _ in range(initial)]
    for _ in range(runs):
        run = add("train", model)
        ends += [add("grade", add("generate", run)), add("diversity", run)]
    collected = add("collect", *ends)
    parts = [add(rule, collected) for rule in ("tables", "figures", "claims")]
    last = [add("report", *parts), add("track", collected)]
    jobs[next(numbers)] = job("", *last, uses=())
    return jobs


def play(jobs, cores, seconds, clock, campaign, rng):
    """Run the jobs on the clock in an order of chance; what the campaign says at each end, and when it was over."""
    waiting = {number for number, one in jobs.items() if one.rule}
    running, said = {}, []
    while waiting or running:
        ready = [number for number in sorted(waiting) if not jobs[number].needs & (waiting | running.keys())]
        rng.shuffle(ready)
        for number in ready[: cores - len(running)]:
            waiting.remove(number)
            running[number] = clock[0] + seconds[number]
            campaign.start(number, jobs[number].rule)
        ended = min(running, key=running.get)
        clock[0] = running.pop(ended)
        campaign.finish(ended)
        said.append((clock[0], campaign.rest(), left_of(campaign)))
    return said


def left_of(campaign):
    running = {number: plugin.time.monotonic() - began for number, (_, began) in campaign._running.items()}
    return estimate_time_left(campaign._graph, campaign._ended, running, campaign._durations).seconds


def simulated(clock, cores, known, pace=1.0, runs=12, seed=0):
    """A campaign whose jobs take `pace` times the priors, a third more or less; (now, said, estimate, truth)."""
    rng = np.random.default_rng(seed)
    jobs = a_campaign(runs)
    seconds = {number: pace * KINDS.get(one.rule, 0) * rng.lognormal(0, 0.3) for number, one in jobs.items()}
    campaign = plugin.Progress()
    campaign.expect(JobGraph(jobs, {"cores": cores}), Durations({kind: KINDS[kind] for kind in known}))
    said = play(jobs, cores, seconds, clock, campaign, rng)
    assert not campaign._running
    end = said[-1][0]
    return [(now, text, estimate, end - now) for now, text, estimate in said]


@pytest.mark.parametrize(("cores", "factor"), [(1, 1.8), (2, 1.8), (4, 1.8), (16, 3)])
@pytest.mark.parametrize("pace", [0.4, 1.0, 3.0])
def test_with_priors_the_time_left_is_near_the_truth_from_the_first_job_on(clock, cores, factor, pace):
    """With 16 cores all trainings run at once, and those that end first are the short ones."""
    ratios = []
    for seed in range(3):
        clock[0] = 0.0
        points = simulated(clock, cores, KINDS, pace, seed=seed)
        total = points[-1][0]
        ratios += [estimate / truth for _, _, estimate, truth in points if truth > 0.1 * total]
        assert all(text.startswith("about") for _, text, _, _ in points[:-1])
        assert points[-1][1] == "nothing left"
    ratios = np.array(ratios)
    assert 1 / factor < ratios.min() <= ratios.max() < factor
    assert 1 / factor**0.4 < np.median(ratios) < factor**0.4


def test_without_priors_it_is_a_lower_bound_until_all_kinds_have_been_seen_and_never_nothing(clock):
    points = simulated(clock, 2, known=())
    for _, text, estimate, truth in points[:-1]:
        assert not re.search(r"\b0 s left", text)
        if not text.startswith("about"):
            assert estimate <= 1.3 * truth
            assert "without a known time" in text
    said = [text for _, text, _, _ in points]
    assert said[0] == "time left unknown: 60 jobs without a known time"
    assert sum(text.startswith("at least") for text in said) > 30, (
        "the analysis comes last, and nothing was known of it"
    )


def test_when_only_jobs_of_unknown_kinds_remain_no_time_is_named(clock):
    campaign = plugin.Progress()
    jobs = {1: job("train"), **{i: job("grade", 1) for i in range(2, 92)}}
    campaign.expect(JobGraph(jobs, {"cores": 2}), Durations({}))
    campaign.start(1, "train")
    clock[0] = 60.0
    assert campaign.rest() == "time left unknown: 91 jobs without a known time"
    assert campaign.finish(1) == ("train", 60.0)
    assert campaign.rest() == "time left unknown: 90 jobs without a known time"
    campaign.start(2, "grade")
    clock[0] = 62.0
    campaign.finish(2)
    assert campaign.rest() == "about 90 s left", "89 jobs, two at a time"


def test_jobs_whose_start_is_not_reported_have_the_rule_of_the_plan_and_the_time_of_their_command(clock):
    """`--quiet rules` hides the starts; the end of such a job was taken for one of 0 s of a rule without a name."""
    campaign, jobs = plugin.Progress(), {i: job("train") for i in range(4)}
    campaign.plan({"train": 4, "total": 4})
    campaign.expect(JobGraph(jobs, {"cores": 1}), Durations({}), {1: 45.0}.get)
    assert campaign.finish(0) == ("train", None)
    assert campaign.rest() == "time left unknown: 3 jobs without a known time"
    assert campaign.finish(1) == ("train", 45.0)
    assert (campaign.rest(), campaign.left["train"]) == ("about 90 s left", 2)


def test_lines_say_how_many_jobs_ended_and_what_is_not_known_without_a_plan(clock):
    campaign = plugin.Progress()
    campaign.plan({"train": 4, "grade": 4, "all": 1, "total": 9})
    assert (campaign.total, campaign.done, campaign.rest()) == (9, 0, "time left unknown")
    campaign.start(0, "train")
    campaign.finish(0)
    assert (campaign.done, campaign.left["train"]) == (1, 3)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (TimeLeft(0.2, 1, {}), "about 1 s left"),
        (TimeLeft(540.0, 9, {}), "about 9 min left"),
        (
            TimeLeft(540.0, 9, {"track": 2, "report": 1}),
            "at least 9 min left, not counting 3 jobs without a known time",
        ),
        (TimeLeft(0.0, 9, {"track": 9}), "time left unknown: 9 jobs without a known time"),
        (TimeLeft(70.0, 2, {"track": 1}), "at least 70 s left, not counting 1 job without a known time"),
        (TimeLeft(0.0, 0, {}), "nothing left"),
    ],
)
def test_the_time_left_as_text(rest, text):
    assert plugin.time_left_text(rest) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (7500, "2 h 05 min")]
)
def test_durations(seconds, text):
    assert plugin.duration(seconds) == text


# What Snakemake knows of a campaign.


def snakemake_s(local_exec, records):
    """What this uses of a workflow: a model, two trainings with a GPU, a table and a target; the model is there."""
    rules = {name: SimpleNamespace(name=name, norun=name == "all") for name in ("model", "train", "tables", "all")}
    names = ["model", "train", "train", "tables", "all"]
    jobs = [
        SimpleNamespace(
            rule=rules[name],
            threads=64 if name == "tables" else 1,
            output=[] if name == "all" else [f"made/{i}"],
            resources={"gpus": 1, "cpus_per_task": 2} if name == "train" else {},
            wildcards=SimpleNamespace(paper="p", cell="c", seed=str(i)),
        )
        for i, name in enumerate(names)
    ]
    needs = {0: [], 1: [0], 2: [0], 3: [1, 2], 4: [3]}

    class Dependencies:
        def __getitem__(self, one):
            return [jobs[i] for i in needs[number(one)]]

    def number(one):
        return next(i for i, other in enumerate(jobs) if other is one)

    dag = SimpleNamespace(jobs=jobs, jobid=number, needrun_jobs=lambda: jobs[1:], dependencies=Dependencies())
    return SimpleNamespace(
        dag=dag,
        nodes=None if local_exec else 20,
        is_local=lambda rule: local_exec or rule.name != "train",
        resource_settings=SimpleNamespace(cores=4, local_cores=None),
        scheduler=SimpleNamespace(global_resources={"gpus": 2}),
        persistence=SimpleNamespace(metadata=records.get),
    )


def test_a_campaign_s_jobs_share_this_machine_s_cores_and_gpus_and_on_a_cluster_its_nodes(monkeypatch):
    monkeypatch.setattr(job_times, "partitions", dict)
    sizes, work = {"p/c": 4.0}.get, Work("p/c", 4.0)
    here = job_graph(snakemake_s(True, {}), sizes)
    assert (here.capacity["cores"], here.capacity["gpus"]) == (4, 2)
    assert here.jobs == {
        1: Job("train", frozenset({0}), (("cores", 1), ("gpus", 1)), work),
        2: Job("train", frozenset({0}), (("cores", 1), ("gpus", 1)), work),
        3: Job("tables", frozenset({1, 2}), (("cores", 4), ("gpus", 0))),
        4: Job("", frozenset({3})),
    }
    cluster = job_graph(snakemake_s(False, {}), sizes)
    assert cluster.capacity["jobs"] == 20
    assert cluster.jobs[1] == Job("train", frozenset({0}), (("jobs", 1),), work)
    assert cluster.jobs[3] == here.jobs[3], "the analysis stays on this machine"
    monkeypatch.setattr(job_times, "partitions", lambda: parse_partitions("PartitionName=one Default=YES", ONE_AND_TWO))
    known = job_graph(snakemake_s(False, {}), sizes)
    assert known.capacity["one: processors"] == 2, "the node has one"
    assert known.jobs[1] == Job("train", frozenset({0}), (("jobs", 1), ("one: processors", 2)), work)


def test_earlier_jobs_count_unless_their_record_is_of_another_rule_of_a_touch_or_of_a_failure(tmp_path, monkeypatch):
    def record(rule, start, end):
        return SimpleNamespace(rule=rule, starttime=start, endtime=end)

    def counted(records):
        workflow = snakemake_s(True, records)
        return {job.output[0]: seconds for job, seconds in recorded_seconds(workflow, workflow.dag.jobs)}

    monkeypatch.chdir(tmp_path)
    Path("made").mkdir()
    for number in range(4):
        Path(f"made/{number}").touch()
    others = {
        "made/0": record("model", 10.0, 70.0),
        "made/1": record("train", 5.0, 5.0),
        "made/2": record("fit", 5.0, 9.0),
        "made/3": record("tables", None, 9.0),
    }
    assert counted(others) == {"made/0": 60.0}
    trained = {f"made/{number}": record("train", 5.0, 9.0) for number in (1, 2)}
    assert counted(trained) == {"made/1": 4.0, "made/2": 4.0}
    Path("made/1").unlink()
    assert counted(trained) == {"made/2": 4.0}, "the other one failed"


# What a call took.

BUSY = "import time\nwhile time.process_time() < {}: pass"
CALL = f"""
import subprocess, sys
from redraft.ops.sizing.run_size import RunSizes
from redraft.ops.workflow.job_times import processor_seconds, wall_seconds
before = processor_seconds()
inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", inner, {BUSY.format(0.6)!r}])
print(processor_seconds() - before, wall_seconds())
"""


def test_processor_seconds_count_what_the_children_of_children_worked():
    result = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, check=True)
    processor, wall = map(float, result.stdout.split())
    assert 0.6 <= processor < 2, "a sleeping parent's wall time is no work"
    assert wall >= 0.5


def test_the_line_at_the_end_names_minutes_and_processor_seconds_and_where():
    record = {"wall_seconds": 552.0, "processor_seconds": 1048.2, "here": True}
    assert call_text(record) == "this call took 9.2 minutes and 1,048 processor seconds for all jobs and Snakemake"
    assert call_text(record | {"here": False}).endswith("on this machine; Slurm accounts for its jobs")


def test_on_a_cluster_jobs_wait_until_the_queue_says_that_they_run(clock):
    campaign = plugin.Progress()
    campaign.plan({"train": 3, "total": 3})
    assert campaign.counts() == ""
    for job in (0, 1, 2):
        campaign.submit(job, "train")
    assert campaign.counts() == "; 0 run, 3 wait"
    clock[0] = 100.0
    assert campaign.queue({0: "running", 1: "waiting", 2: "waiting"}) == [0]
    assert campaign.queue({0: "running", 1: "waiting"}) == [], "it ran already"
    assert campaign.counts() == "; 1 run, 2 wait"
    clock[0] = 160.0
    assert campaign.finish(0) == ("train", 60.0), "the wait is no part of it"
    assert campaign.finish(1) == ("train", 60.0), "it began when it was last seen to wait"
    assert campaign.counts() == "; 0 run, 1 wait"
    campaign.fail(2)
    campaign.submit(2, "train")
    campaign.queue({2: "running"})
    campaign.submit(2, "train")
    assert campaign.counts() == "; 0 run, 1 wait", "a job is once in the counts, whatever its attempts"


def test_the_overhead_of_jobs_is_measured_by_what_slurm_says_of_them(clock):
    campaign, known = plugin.Progress(), Durations({"grade": 20.0})
    campaign.expect(slurm({i: on_slurm() for i in range(31)}, 1), known, {0: 10.0, 1: 30.0}.get)
    for number in (0, 1):
        campaign.submit(number, "grade")
    campaign.queue({0: "running", 1: "waiting"})
    campaign.slurm_seconds({0: 35.0})
    clock[0] = 90.0
    assert campaign.finish(0) == ("grade", 35.0), "it was noticed late"
    assert (known.mean("grade"), known.overhead) == (10.0, (OVERHEAD_SECONDS + 25) / 2)
    assert campaign.rest() == "about 16 min left", "30 of them take half a minute each, and the last has to be noticed"
    assert campaign.finish(1) == ("grade", 90.0), "Slurm has forgotten it, so that it counts from the last report"
    assert (known.mean("grade"), known.overhead) == (20.0, (OVERHEAD_SECONDS + 25) / 2)


def test_jobs_that_have_waited_for_a_minute_show_that_the_cluster_is_full(clock):
    campaign = plugin.Progress()
    campaign.expect(slurm({i: on_slurm() for i in range(61)}, 1000), MINUTE)
    for number in range(61):
        campaign.submit(number, "grade")
    states = {number: "running" if number < 2 else "waiting" for number in range(61)}
    campaign.queue(states)
    assert campaign.rest() == "about 90 s left", "they have just been submitted"
    clock[0] = 60.0
    campaign.queue(states)
    assert campaign.rest() == "about 31 min left", "two at a time"
    campaign.queue(dict.fromkeys(range(61), "running"))
    assert campaign.rest() == "about 90 s left"


@pytest.fixture
def handler(capsys):
    """Sends records to the plugin; returns the lines that it writes."""
    made = object.__new__(plugin.LogHandler)
    logging.Handler.__init__(made)
    made.common_settings = SimpleNamespace(dryrun=False)
    made.__post_init__()

    def emit(text="", level=logging.INFO, **fields):
        record = logging.LogRecord("", level, "", 0, text, None, None)
        vars(record).update(fields)
        made.emit(record)
        return capsys.readouterr().err.splitlines()

    emit.stop = made.stop
    emit.progress = made.progress
    return emit


def test_the_lines_of_a_job_on_a_cluster(handler, clock):
    handler(event=LogEvent.RUN_INFO, stats={"train": 1, "tables": 1, "total": 2})
    job = {"event": LogEvent.JOB_INFO, "jobid": 7, "rule_name": "train", "wildcards": {"cell": "a"}}
    assert handler(**job, local=False) == ["  queue  train a"]
    assert handler("the queue", slurm_states={7: "waiting"}) == []
    assert handler("the queue", slurm_states={7: "running", 99: "running"}) == ["  start  train a"]
    assert handler("the queue", slurm_states={}, slurm_seconds={7: 123.0}) == []
    assert handler.progress._slurm_seconds == {7: 123.0}, "also of the last active job"
    clock[0] = 5.0
    assert handler("Error in rule", level=logging.ERROR, event=LogEvent.JOB_ERROR, jobid=7) == ["Error in rule"]
    handler(**(job | {"jobid": 6}), local=False)
    handler("Error in rule", level=logging.ERROR, event=LogEvent.JOB_ERROR, jobid=6)
    handler(**job, local=False)
    (end,) = handler(event=LogEvent.JOB_FINISHED, job_id=7)
    assert end.endswith("; 0 run, 0 wait")
    assert handler(**(job | {"jobid": 8}), local=True) == ["  start  train a"]
    assert handler("2 jobs will never start", level=logging.WARNING) == ["2 jobs will never start"]
    assert handler("Complete log(s): here") == []
    assert handler("Congratulations, your workflow is in a good condition!"), "the answer of --lint"
    assert handler("this call took 2 minutes", always_shown=True) == ["this call took 2 minutes"]


def test_notes_about_the_site_s_accounting_are_shown_once_in_a_checkout(handler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    account = "No account was given, not able to get a SLURM account via sacct: accounting\nstorage is disabled\n"
    lost = "Unable to get the status of all active jobs that should be in slurmdbd, even after 5 attempts."
    shown = [
        handler(text, level=logging.WARNING) for text in (account, lost, account, lost, "Guessed SLURM account: a")
    ]
    assert shown == [account.splitlines(), [lost], [], [lost], ["Guessed SLURM account: a"]]
    assert handler("Guessed SLURM account: b", level=logging.WARNING), "it has changed"


def test_after_a_stop_only_the_project_s_own_lines_are_shown(handler):
    handler.stop()
    assert handler("Error in rule", level=logging.ERROR, event=LogEvent.JOB_ERROR, jobid=7) == []
    assert handler("WorkflowError", level=logging.ERROR) == []
    assert handler("this call took 2 minutes", always_shown=True) == ["this call took 2 minutes"]


def test_a_line_is_written_in_one_call_so_that_no_other_thread_writes_into_it(handler, monkeypatch):
    writes = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=writes.append, flush=lambda: None))
    handler("2 jobs will never start", level=logging.WARNING)
    assert writes == ["2 jobs will never start\n"]


def test_a_very_long_line_of_a_dry_run_is_cut():
    assert plugin.shortened("x" * plugin.LONGEST_LINE) == "x" * plugin.LONGEST_LINE
    longer = "x" * (plugin.LONGEST_LINE + 3000)
    assert plugin.shortened(longer) == "x" * plugin.LONGEST_LINE + " … (3,000 more characters)"
