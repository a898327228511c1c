"""What a site sets for Slurm, and what rules get of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redraft.config import Experiments
from redraft.config.requests import Request, request_of
from redraft.config.site import FILE, Site, load_site, minutes, site_file
from redraft.errors import UserError
from redraft.ops.slurm.feasibility import request_of as requested
from redraft.ops.slurm.jobs import plugin_state

ROOT = Path(__file__).parents[1]
PAPER = Experiments(ROOT).preset("paper").of_models("qwen3-14b-base")


@pytest.fixture
def site_file_named(tmp_path, monkeypatch):
    file = tmp_path / "site.yaml"
    monkeypatch.setenv("REDRAFT_SLURM_SITE", str(file))
    return file


def test_a_stage_goes_before_all_and_all_before_what_the_preset_needs():
    site = Site(runtime="2d", partition="gpu", stages={"train": Request(runtime="3d")})
    assert site.request("train", PAPER).runtime == "3d"
    assert site.request("evaluate", PAPER).runtime == "2d"
    assert site.request("grade", PAPER).partition == "gpu"
    assert site.request("train", PAPER).memory_gb == request_of("train", PAPER).memory_gb


def test_a_training_job_asks_for_the_gpus_of_one_node_by_their_model():
    resources = Site(gpu_model="h100", account="me", options=["--exclusive", "--nice=5"]).resources("train", PAPER)
    assert resources == {
        "slurm_account": "me",
        "slurm_extra": "--exclusive --nice=5",
        "nodes": 1,
        "runtime": 4 * 24 * 60,
        "mem_mb": 800 * 1024,
        "cpus_per_task": 64,
        "gres": "gpu:h100:8",
    }


class Resources(dict):
    """Resources of a job, also as attributes."""

    __getattr__ = dict.__getitem__


PARAMS = dict.fromkeys(("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir"), "x")


@pytest.mark.parametrize(
    ("named", "argument"),
    [
        (None, "--gres=gpu:8"),
        (3090, "--gres=gpu:3090:8"),
        ("rtx_2080_ti", "--gres=gpu:rtx_2080_ti:8"),
        ("1g.10gb", "--gres=gpu:1g.10gb:8"),
        ("a100-sxm4-80gb", "--gpus-per-node=a100-sxm4-80gb:8"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_type_of_gpus_may_be_a_number_or_have_hyphens(named, argument, nodes):
    """The plugin builds the call of sbatch, and the check before submission reads the same request."""
    preset = PAPER.model_copy(update={"engine": PAPER.engine.model_copy(update={"nodes": nodes})})
    site = Site.model_validate(yaml.safe_load(yaml.safe_dump({"gpu_model": named, "options": ["--exclusive"]})))
    job = SimpleNamespace(resources=Resources(site.resources("train", preset)), threads=8)
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    plugin.validation.validate_slurm_extra(job)
    call = plugin.submit_string.get_submit_command(job, PARAMS) + plugin.utils.set_gres_string(job)
    call = call.split()
    assert argument in call
    assert {"--nodes=1", "--nodes=2"} & {*call} == {f"--nodes={nodes}"}
    assert sum(part.startswith(("--gres", "--gpus")) for part in call) == 1
    found = requested(job.resources)
    assert (found.gpu_model, found.gpus, found.nodes) == ("" if named is None else str(named), 8, nodes)


@pytest.mark.parametrize("named", [True, 4090.0, "-p", "a100 80gb", "h100;id", ["h100"]])
def test_what_is_no_type_of_gpus_is_rejected(named):
    with pytest.raises(ValidationError):
        Request.model_validate({"gpu_model": named})


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("RUNNING", "RUNNING"),
        ("PENDING", "PENDING"),
        ("COMPLETED", "COMPLETED"),
        ("PREEMPTED", "FAILED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("", ""),
    ],
)
def test_every_end_of_a_job_has_a_word_that_the_plugin_knows(state, word):
    assert plugin_state(state) == word


def test_several_nodes_are_one_task_each():
    two = PAPER.model_copy(update={"engine": PAPER.engine.model_copy(update={"nodes": 2})})
    resources = Site().resources("train", two)
    assert resources | {"nodes": 2, "tasks": 2, "tasks_per_gpu": 0, "mpi": "srun", "gres": "gpu:8"} == resources
    assert Site().resources("evaluate", two) | {"nodes": 1, "gres": "gpu:1"} == Site().resources("evaluate", two)


def test_a_stage_without_gpus_asks_for_none():
    assert not {"gres", "gpu", "gpus"} & set(Site(gpu_model="h100").resources("grade", PAPER))


def test_the_file_that_is_shipped_sets_nothing_and_its_example_is_valid():
    text = (ROOT / "profiles/slurm/site.yaml").read_text()
    assert yaml.safe_load(text) is None
    example = "\n".join(line.removeprefix("# ") for line in text.splitlines()[3:] if line != "#")
    assert Site.model_validate(yaml.safe_load(example)).request("train", PAPER).gpu_model == "h100"


def test_an_unknown_key_is_named_with_those_that_are_known(site_file_named):
    site_file_named.write_text("stages: {train: {partitions: gpu}}")
    with pytest.raises(UserError) as error:
        load_site()
    assert error.value.key == "stages.train.partitions"
    assert "partition" in error.value.allowed
    assert error.value.file == site_file_named


def test_the_site_file_is_the_one_that_is_named(site_file_named, monkeypatch):
    assert site_file() == site_file_named
    monkeypatch.delenv("REDRAFT_SLURM_SITE")
    assert site_file() == FILE


def test_a_file_that_is_named_and_missing_is_an_error(site_file_named):
    with pytest.raises(UserError, match="no such file"):
        load_site()


@pytest.mark.parametrize("value", ["gpu; rm -rf /", "$(id)", "a b", "`id`", "-p x", "a\nb", ""])
@pytest.mark.parametrize("key", ["partition", "account", "qos", "constraint", "gpu_model", "runtime"])
def test_nothing_that_a_shell_reads_otherwise_is_taken(key, value):
    with pytest.raises(ValidationError):
        Request.model_validate({key: value})


@pytest.mark.parametrize("option", ["--a=$(id)", "--a;rm", "--a b", "--a=`id`", "--a=b|c", "--a\nb", "-p", "a", ""])
def test_an_option_that_a_shell_reads_otherwise_is_not_taken(option):
    with pytest.raises(ValidationError):
        Request(options=[option])
    assert Request(options=["--exclude=node-1,node2.x"]).options == ["--exclude=node-1,node2.x"]


@given(st.text("-=abz09 ;&|<>$`\\\"'(){}*?!~#\t\n", max_size=30).map("--a".__add__))
def test_an_option_is_one_word_of_harmless_characters(text):
    try:
        (option,) = Request(options=[text]).options
    except ValidationError:
        return
    assert option.startswith("--")
    assert not set(option) & set(" \t\n;&|<>$`\\\"'(){}*?!~#")


@given(st.integers(1, 999), st.sampled_from("mhd"))
def test_minutes(number, unit):
    assert minutes(f"{number}{unit}") == number * {"m": 1, "h": 60, "d": 1440}[unit]
