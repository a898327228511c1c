"""`redraft doctor` on faked machines: the right line and hint for each, and the command on this one."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from redraft.cli.app import main
from redraft.cli.doctor import _submitted
from redraft.config import Experiments
from redraft.config.site import Site
from redraft.ops.doctor import checks
from redraft.ops.doctor.node import Node

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
PARTITIONS = "PartitionName=gpu Default=YES MaxTime=7-00:00:00 MaxNodes=UNLIMITED MaxMemPerNode=UNLIMITED"
SMI = "nvidia-smi"


def locked(environment):
    """Versions of a lock, and flash-attn, by package."""
    lines = (ROOT / "envs" / environment / "requirements.lock").read_text().splitlines()
    return dict(line.split()[0].split("==") for line in lines) | {"flash-attn": "2.8.3"}


class FakeNode(Node):
    """A node with eight GPUs where all is well; keywords change it."""

    def __init__(self, **changes):
        self.environ = {}
        self.versions = locked("gpu")
        self.answers = {
            SMI: "\n".join(["580.95.05, NVIDIA H100 80GB HBM3"] * 8),
            "scontrol --all": PARTITIONS,
            "sinfo": "gpu|4|128|2000000|gpu:h100:8",
            "scontrol show": "MinJobAge = 300 sec",
        }
        self.programs = {"git", "gcc"}
        self.missing, self.free, self.libc_version = set(), 1e6, "2.34"
        self.folder_faults, self.hub = [], {}
        for name, value in changes.items():
            setattr(self, name, value)

    def output(self, *command):
        return next((text for start, text in self.answers.items() if " ".join(command).startswith(start)), None)

    def program(self, name):
        return name if name in self.programs else None

    def version(self, distribution):
        return self.versions.get(distribution)

    def libc(self):
        return self.libc_version

    def exists(self, path):
        present = str(path) in ("Python.h", "/dev/shm") or str(path).startswith("/d/")
        return present and not any(str(path).startswith(name) for name in self.missing)

    def python_header(self):
        return Path("Python.h")

    def free_gb(self, path):
        return self.free

    def file_faults(self, folder):
        return self.folder_faults

    def hub_fault(self, kind, name, revision, files):
        return self.hub.get(name, "")


def campaign(preset="paper", storage=13_000.0, **engine):
    settings = EXPERIMENTS.preset(preset)
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update=engine)})
    return checks.Campaign(EXPERIMENTS, settings, Site(), Path("site.yaml"), Path("results/paper"), storage)


def findings(node, **options):
    return checks.diagnose(node, campaign(**options))


def of(node, check, **options):
    return [finding for finding in findings(node, **options) if finding.check == check]


def gpus(driver, count=8):
    return "\n".join([f"{driver}, NVIDIA H100 80GB HBM3"] * count)


def with_answers(**changed):
    return FakeNode().answers | {key.replace("_", " "): value for key, value in changed.items()}


def with_versions(**changed):
    return FakeNode().versions | {name.replace("_", "-"): version for name, version in changed.items()}


def missing(*names):
    return {"answers": {key: value for key, value in FakeNode().answers.items() if key not in names}}


HUB = "Qwen/Qwen3-8B-Base"
CUDA12 = {"versions": locked("gpu-cuda12")}
SLURM = {"git", "gcc", "sbatch"}


def driver(version):
    return {"answers": {SMI: gpus(version)}}


NODES = {
    "driver 470": (driver("470.256.02"), "driver", "error", ["470.256.02", "CUDA 13", "525", "580"]),
    **{
        f"driver {version}": (driver(version), "driver", "error", [version, "CUDA 13", "make ENV=gpu CUDA=12", "580"])
        for version in ("525.60.13", "535.183.01", "550.54.15", "560.35.03", "570.86.15", "575.51.03")
    },
    "driver 580": (driver("580.65.06"), "driver", "ok", ["580.65.06"]),
    "driver 590": (driver("590.10"), "driver", "ok", ["590.10"]),
    "driver 470, CUDA 12": (driver("470.256.02") | CUDA12, "driver", "error", ["CUDA 12", "525"]),
    **{
        f"driver {version}, CUDA 12": (driver(version) | CUDA12, "driver", "ok", ["CUDA 12"])
        for version in ("525.60.13", "535.183.01", "550.54.15", "570.86.15", "580.65.06")
    },
    "a driver without its module": (driver("NVIDIA-SMI has failed"), "GPUs", "error", ["nvidia-smi"]),
    "no driver": (missing(SMI), "GPUs", "error", ["nvidia-smi", "driver"]),
    "a hanging driver": ({"answers": {SMI: ""}}, "GPUs", "error", ["nvidia-smi"]),
    "four GPUs": ({"answers": {SMI: gpus("580.65.06", 4)}}, "GPUs", "error", ["4 x", "uses 8", "engine.gpus"]),
    "one GPU in a Slurm job": (
        {"answers": {SMI: gpus("580.65.06", 1)}, "environ": {"SLURM_JOB_ID": "7"}},
        "GPUs",
        "ok",
        ["1 x"],
    ),
    "a login node": (missing(SMI) | {"programs": SLURM}, "GPUs", "ok", ["--submit"]),
    "no compiler": ({"programs": {"git"}}, "compiler", "error", ["C compiler", "gcc"]),
    "clang alone": ({"programs": {"git", "clang"}}, "compiler", "ok", []),
    "no headers": ({"missing": {"Python.h"}}, "compiler", "error", ["Python.h", "python3-dev"]),
    "no flash-attn": ({"versions": with_versions(flash_attn=None)}, "flash-attn", "warning", ["optional"]),
    "a C library too old for CUDA 12": (
        {"libc_version": "2.28"} | CUDA12,
        "C library",
        "error",
        ["2.28", "2.31", "container"],
    ),
    "a C library too old for CUDA 13": ({"libc_version": "2.28"}, "C library", "error", ["2.28", "2.31"]),
    "a C library for CUDA 13": ({"libc_version": "2.31"}, "C library", "ok", ["2.31"]),
    "an old C library": ({"libc_version": "2.17"}, "C library", "error", ["2.17", "2.31"]),
    "musl": ({"libc_version": ""}, "C library", "error", ["not glibc"]),
    "the CPU environment": ({"versions": with_versions(vllm=None)}, "packages", "error", ["make ENV=gpu"]),
    "the CPU environment, driver 535": (
        driver("535.183.01") | {"versions": with_versions(vllm=None, nvidia_cuda_runtime=None)},
        "packages",
        "error",
        ["make ENV=gpu CUDA=12"],
    ),
    "the CPU environment, driver 580": (
        driver("580.65.06") | {"versions": with_versions(vllm=None, nvidia_cuda_runtime=None)},
        "packages",
        "error",
        ["make ENV=gpu CUDA=13"],
    ),
    "all packages, CUDA 12": (CUDA12, "packages", "ok", ["envs/gpu-cuda12/requirements.lock"]),
    "another vLLM, CUDA 12": (
        {"versions": locked("gpu-cuda12") | {"vllm": "0.20.0"}},
        "packages",
        "warning",
        ["vllm 0.20.0, not 0.19.1", "make ENV=gpu CUDA=12"],
    ),
    "another vLLM": (
        {"versions": with_versions(vllm="0.25.0")},
        "packages",
        "warning",
        ["1 of", "vllm 0.25.0, not 0.24.0"],
    ),
    "a local build of PyTorch": ({"versions": with_versions(torch="2.11.0+cu130")}, "packages", "ok", []),
    "a container's shared memory": ({"free": 0.064}, "shared memory", "error", ["0.06 GB", "--shm-size"]),
    "a full disk": ({"free": 20.0}, "disk", "error", ["20 GB", "13,000 GB"]),
    "a file system without locks": (
        {"folder_faults": ["it has no file locks (No locks available)"]},
        "file system",
        "error",
        ["no file locks", "mounted with locks"],
    ),
    "no git": ({"programs": {"gcc"}}, "git", "warning", ["commit"]),
    "no network": ({"hub": {HUB: "not in the cache, and the hub cannot be reached"}}, "models", "error", [HUB]),
    "a licence": ({"hub": {HUB: "its licence has to be accepted"}}, "models", "error", ["licence", HUB]),
    "data that are not fetched": ({"hub": {"cais/mmlu": "not in the cache"}}, "data", "error", ["cais/mmlu"]),
    "an empty REDRAFT_DATA": (
        {"environ": {"REDRAFT_DATA": "/d"}, "missing": {"/d/cais/mmlu", "/d/mmlu"}},
        "data",
        "error",
        ["REDRAFT_DATA", "cais/mmlu"],
    ),
    "a silent controller": (missing("sinfo") | {"programs": SLURM}, "Slurm", "error", ["does not answer"]),
    "small nodes": (
        {"programs": SLURM, "answers": with_answers(sinfo="gpu|4|16|64000|gpu:h100:2")},
        "Slurm",
        "error",
        ["never start", "site.yaml", "8 GPUs"],
    ),
    "a short time limit": (
        {"programs": SLURM, "answers": FakeNode().answers | {"scontrol --all": PARTITIONS.replace("7-", "1-")}},
        "Slurm",
        "error",
        ["4 days", "runtime"],
    ),
    "a forgetful controller": (
        {"programs": SLURM, "answers": FakeNode().answers | {"scontrol show": "MinJobAge = 5 sec"}},
        "Slurm",
        "warning",
        ["5 s", "MinJobAge=300"],
    ),
}


@pytest.mark.parametrize(("changes", "check", "state", "words"), NODES.values(), ids=NODES)
def test_each_faulty_node_gets_one_line_that_names_the_fault(changes, check, state, words):
    node = FakeNode(**changes)
    (finding,) = [found for found in of(node, check) if found.state == state]
    assert all(word in f"{finding.text} {finding.hint}" for word in words), finding
    others = [found for found in findings(node) if found.state == "error" and found is not finding]
    if state == "error" and "free" not in changes:
        assert [found.check for found in others] == [check], "no other error, whatever follows from this one"
    assert bool(finding.hint) or state == "ok"


def test_a_good_node_has_no_fault():
    found = findings(FakeNode(programs=SLURM))
    assert {finding.state for finding in found if finding.check != "data"} == {"ok"}
    assert [finding.state for finding in found if finding.check == "data"] == ["ok", "warning"]
    names = {finding.check for finding in found}
    assert names >= {"Python", "C library", "packages", "driver", "GPUs", "compiler", "flash-attn", "Slurm", "models"}


def test_a_preset_for_cpus_needs_no_gpu():
    found = findings(FakeNode(answers={}), preset="tiny", storage=None)
    assert not {finding.check for finding in found} & {"driver", "GPUs", "compiler", "flash-attn", "models"}


def test_a_python_of_no_lock_is_an_error(monkeypatch):
    monkeypatch.setattr(checks.sys, "version_info", (3, 13, 1))
    assert of(FakeNode(), "Python")[0].state == "error"


def test_a_real_folder_has_what_leases_need_and_a_read_only_one_is_named(tmp_path):
    assert Node().file_faults(tmp_path / "results/none/yet") == []
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    assert Node().file_faults(file) == ["it is not writable (Not a directory)"]


@pytest.mark.parametrize(("call", "fault"), [("link", "hard links"), ("flock", "file locks")])
def test_a_file_system_without_a_feature_is_recognised(tmp_path, monkeypatch, call, fault):
    def fails(*_, **__):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(f"redraft.ops.doctor.node.{'os' if call == 'link' else 'fcntl'}.{call}", fails)
    (found,) = Node().file_faults(tmp_path)
    assert fault in found


def test_a_file_system_that_replaces_no_files_is_recognised(tmp_path, monkeypatch):
    """Not by a rename onto a hard link of the same file, which never fails."""
    rename = os.replace

    def replace(source, target):
        if os.path.exists(target) and not os.path.samefile(source, target):
            raise OSError(95, "Operation not supported")
        rename(source, target)

    monkeypatch.setattr("os.replace", replace)
    (found,) = Node().file_faults(tmp_path)
    assert "replaced" in found


@pytest.mark.parametrize("name", ["./model", "models/my model", "Qwen/"])
def test_a_folder_that_is_missing_and_can_be_no_hub_id_is_named(name):
    assert Node().hub_fault("model", name, None, ["config.json"]) == "neither an existing folder nor a hub id"


def test_a_partial_cache_is_not_a_model(tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    node = Node()
    node.environ = {"HF_HUB_OFFLINE": "1"}
    needed = ["*.safetensors", "config.json"]
    assert "not in the cache" in node.hub_fault("model", "a/b", None, needed)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert node.hub_fault("model", "a/b", None, needed) == ""


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code or 0, capsys.readouterr()


def test_the_command_ends_with_1_after_an_error_and_0_without(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, shown = run(capsys, "--preset", "smoke")
    assert code == 0, shown.out
    assert shown.out.splitlines()[0].startswith("ok       Python: 3.")
    monkeypatch.setattr("redraft.ops.doctor.node.Node.file_faults", lambda *_: ["it is not writable"])
    code, shown = run(capsys, "--preset", "smoke", "--json")
    assert code == 1
    rows = json.loads(shown.out)["rows"]
    assert [row["check"] for row in rows if row["state"] == "error"] == ["file system"]


SRUN = """#!/bin/sh
echo "$@" > "$SRUN_CALLS"
while [ "$1" != -m ]; do shift; done
exec "$SRUN_PYTHON" "$@"
"""


def test_a_compute_node_is_checked_in_a_job_with_the_site_s_options(capsys, monkeypatch, tmp_path):
    import os
    import sys

    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    site = tmp_path / "site.yaml"
    site.write_text("partition: small\naccount: mine\noptions: [--exclusive]\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("REDRAFT_SLURM_SITE", str(site))
    monkeypatch.setenv("SRUN_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("SRUN_PYTHON", sys.executable)
    monkeypatch.chdir(ROOT)
    code, shown = run(capsys, "--preset", "smoke", "--submit")
    assert code == 0, shown.out
    assert "\ncompute node:\nok       Python" in shown.out
    call = (tmp_path / "calls").read_text()
    assert all(option in call for option in ("--partition=small", "--account=mine", "--exclusive", "--preset smoke"))
    assert "--gres" not in call


def test_a_compute_node_is_checked_with_one_gpu_also_of_a_type_with_a_hyphen(monkeypatch):
    calls = []

    def srun(command, **_):
        calls.append(command)
        return SimpleNamespace(stdout='{"rows": []}', returncode=0)

    monkeypatch.setattr("redraft.cli.doctor.subprocess.run", srun)
    paper = Experiments(ROOT).preset("paper")
    sites = [
        Site(gpu_model="a100-sxm4-80gb"),
        Site(gpu_model="a100"),
        Site(options=["--gpus-per-node=8", "--exclusive"]),
    ]
    for site in sites:
        _submitted("paper", site.resources("train", paper))
    assert "--gpus-per-node=a100-sxm4-80gb:1" in calls[0]
    assert "--gres=gpu:a100:1" in calls[1]
    assert {"--gpus-per-node=1", "--exclusive"} <= set(calls[2]), "an option of the site without a type"
    assert not any(option.endswith(("=8", ":8")) or option.startswith(":") for call in calls for option in call)


def test_a_job_without_a_report_is_one_error(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("redraft.ops.doctor.node.Node.program", lambda *_: "srun")
    monkeypatch.setattr("redraft.cli.doctor.subprocess.run", lambda *_, **__: SimpleNamespace(stdout="", returncode=1))
    code, shown = run(capsys, "--preset", "smoke", "--submit")
    assert code == 2
    assert "gave no report (exit code 1)" in shown.err
