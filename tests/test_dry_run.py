"""The end of a dry run."""

import logging
from types import SimpleNamespace

import pytest

import snakemake_logger_plugin_redraft as plugin
from redraft.ops.workflow.dry_run import announce, real_command, summary
from redraft.ops.workflow.time_left import TimeLeft

JOBS = {"train": 4, "grade": 6, "generate": 4}
RUNS = [("ar3po/ar3po", 0), ("spec_rl/a", 0), ("spec_rl/a", 1), ("spec_rl/b", 0)]


def test_the_summary_counts_jobs_and_runs_and_names_the_next_call(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    call = ["/venv/bin/snakemake", "-n", "--config", "papers=a b"]
    assert summary(JOBS, RUNS, ["time: about 9 min"], call).splitlines() == [
        "dry run: 14 jobs would run: 6 grade, 4 generate, 4 train",
        "4 runs to train, of 3 cells: 1 of ar3po, 2 of spec_rl",
        "time: about 9 min",
        "next: snakemake --config 'papers=a b'",
    ]
    assert summary({"report": 1}, [], [], call).splitlines()[1] == "0 runs to train"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["-n"], []),
        (["reproduction", "--dry-run"], ["reproduction"]),
        (["--dryrun", "--cores", "2"], ["--cores", "2"]),
        (["-np"], ["-p"]),
        (["-pn", "--notemp"], ["-p", "--notemp"]),
        (["-nq"], ["-q"]),
        (["-nj4", "-kFn"], ["-j4", "-kF"]),
        (["-n", "-Rnormalise"], ["-Rnormalise"]),
        (["-j", "2", "-n"], ["-j", "2"]),
        (["--config", "preset=tiny", "-n", "reproduction"], ["reproduction", "--config", "preset=tiny"]),
        (["--config", "a=b", "--dry-run", "x", "y", "-k"], ["x", "y", "--config", "a=b", "-k"]),
    ],
)
def test_the_next_call_is_this_one_without_what_makes_it_dry(arguments, kept):
    assert real_command(["snakemake", *arguments]) == " ".join(["snakemake", *kept])


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (TimeLeft(540.0, 9, {}), "time: about 9 min"),
        (TimeLeft(70.0, 2, {"track": 1}), "time: at least 70 s, not counting 1 job without a known time"),
        (TimeLeft(0.0, 9, {"track": 9}), "time unknown: 9 jobs without a known time"),
    ],
)
def test_the_time_of_a_campaign_that_has_not_begun(rest, text):
    assert plugin.total_time_text(rest) == text


def a_job(rule, **wildcards):
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule, norun=rule == "all"),
        threads=1,
        resources={},
        output=[rule],
        wildcards=SimpleNamespace(**wildcards),
        container_img_url=None,
    )


class Jobs(dict):
    """Jobs to what they wait for: nothing."""

    def __getitem__(self, job):
        return []


def a_dry_run(handler, cost, dtype="auto", gpus=0, image=None):
    """What an announced dry run of two trainings, a table and a target prints behind Snakemake's last line."""
    jobs = [
        a_job("train", paper="p", cell="c", seed="1"),
        a_job("train", paper="p", cell="c", seed="0"),
        a_job("tables"),
        a_job("all"),
    ]
    jobs[0].container_img_url = image
    dag = SimpleNamespace(
        jobs=jobs,
        jobid=jobs.index,
        dependencies=Jobs(),
        needrun_jobs=lambda exclude_finished=True: [] if exclude_finished else jobs,
    )
    workflow = SimpleNamespace(
        dag=dag,
        nodes=None,
        is_local=lambda rule: True,
        persistence=SimpleNamespace(metadata=lambda file: None),
        resource_settings=SimpleNamespace(cores=1, local_cores=None),
        scheduler=SimpleNamespace(global_resources={}),
        logger_manager=SimpleNamespace(get_log_handlers=lambda: [handler, object()]),
    )
    preset = SimpleNamespace(name="none", engine=SimpleNamespace(dtype=dtype, gpus=gpus))
    announce(workflow, preset, lambda cell: 1.0, ["snakemake", "-n"], cost)
    for text in ("Building DAG of jobs...", "This was a dry-run (flag -n). The order of jobs does not"):
        handler.emit(logging.LogRecord("", logging.INFO, "", 0, text, None, None))


@pytest.fixture
def handler():
    made = object.__new__(plugin.LogHandler)
    logging.Handler.__init__(made)
    made.common_settings = SimpleNamespace(dryrun=True)
    made.__post_init__()
    return made


def test_a_dry_run_ends_with_the_summary_and_costs_replace_unknown_times(handler, capsys):
    asked = []
    a_dry_run(handler, lambda runs: asked.append(runs) or "training: 8 GPU-hours")
    assert capsys.readouterr().err.split("\n\n")[1].splitlines() == [
        "dry run: 3 jobs would run: 2 train, 1 tables",
        "2 runs to train, of 1 cell: 1 of p",
        "time unknown: 3 jobs without a known time; 1 core",
        "training: 8 GPU-hours",
        "next: snakemake",
    ]
    assert asked == [[("p/c", 0), ("p/c", 1)]]


def test_known_times_need_no_costs(handler, capsys, monkeypatch):
    monkeypatch.setattr("redraft.ops.workflow.job_times.priors", lambda preset: {"train": 30.0, "tables": 10.0})
    a_dry_run(handler, lambda runs: pytest.fail("the time is known"))
    assert "time: about 70 s; 1 core, from another machine's times, scaled to this one\n" in capsys.readouterr().err


def test_times_of_this_machine_are_not_called_those_of_another(handler, capsys, monkeypatch):
    monkeypatch.setattr("redraft.ops.workflow.job_times.priors", lambda preset: {"train": 30.0, "tables": 10.0})
    monkeypatch.setattr("redraft.ops.workflow.job_times.recorded_seconds", lambda workflow, jobs: [(jobs[0], 60.0)])
    a_dry_run(handler, lambda runs: pytest.fail("the time is known"))
    assert "time: about 2 min; 1 core\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "image", "installed", "warns"),
    [(8, None, False, True), (8, None, True, False), (0, None, False, False), (8, "redraft.sif", False, False)],
)
def test_runs_on_gpus_in_an_environment_for_cpus_are_warned_about(
    handler, capsys, monkeypatch, gpus, image, installed, warns
):
    found = [object()] if installed else []
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: found if name == "vllm" else [])
    a_dry_run(handler, lambda runs: "", gpus=gpus, image=image)
    assert ("this environment is for CPUs: `make ENV=gpu`" in capsys.readouterr().err) is warns


@pytest.mark.parametrize(("times", "said"), [(8.26, True), (1.1, False), (0.4, False)])
def test_the_summary_warns_about_a_precision_that_is_slow_on_this_processor(handler, capsys, monkeypatch, times, said):
    monkeypatch.setattr("redraft.ops.workflow.pace.times_float32", lambda dtype: {"bfloat16": times}[dtype])
    a_dry_run(handler, lambda runs: "", dtype="bfloat16")
    printed = " ".join(capsys.readouterr().err.split())
    assert ("bfloat16 takes 8.3 times as long as float32 on this processor; set engine.dtype" in printed) == said
