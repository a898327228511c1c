"""Images: their two recipes, and jobs that run in one. There is no engine for containers here, so a script replaces
Apptainer; tests/container_recipes.py rehearses the Dockerfile's steps."""

import re
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from snakemake.settings.types import DeploymentMethod, DeploymentSettings

from redraft.config import Experiments
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.ops.workflow.containers import check_nodes, image_of
from tests.checkout import ROOT, copy_to, snakemake
from tests.container_recipes import ARGUMENTS, RECIPES, Recipe, definition, dockerfile

APPTAINER = """#!/bin/sh
# Apptainer as far as Snakemake calls it: the command is executed here, with a variable that names the image.
if [ "$1" = --version ]; then echo "apptainer version 1.3.4"; exit; fi
echo "$*" >> "$CALLS"
while [ "$1" != sh ] && [ "$1" != bash ]; do image=$1; shift; done
IMAGE=$image exec "$@"
"""
PAPER = Experiments(ROOT).preset("paper")
MODEL = str(Layout("smoke").model("qwen3-1.7b-base") / "model.safetensors")


@pytest.fixture(scope="module")
def recipe():
    return dockerfile((RECIPES / "Dockerfile").read_text())


def test_both_recipes_have_the_same_steps_from_a_base_that_a_digest_names(recipe):
    assert definition((RECIPES / "redraft.def").read_text()) == recipe
    assert re.fullmatch(r"debian@sha256:[0-9a-f]{64}", recipe.base)
    assert set(ARGUMENTS) == set(recipe.arguments), "the rehearsal sets all"


def test_an_instruction_that_the_rehearsal_does_not_know_is_an_error():
    with pytest.raises(ValueError, match="VOLUME"):
        dockerfile("FROM debian\nVOLUME /x\n")
    with pytest.raises(ValueError, match="setup"):
        definition("Bootstrap: docker\nFrom: debian\n\n%setup\n    true\n")
    assert dockerfile("# one\nFROM a\nCOPY b c /d/\nENV e=f=g\n") == Recipe(
        "a", copies=[("b", "/d/"), ("c", "/d/")], environment={"e": "f=g"}
    )


@pytest.mark.parametrize(
    ("kind", "cuda", "name"), [("gpu", "13", "gpu"), ("gpu", "12", "gpu-cuda12"), ("cpu", "", "cpu")]
)
def test_the_arguments_of_a_build_choose_the_environment_as_those_of_make_do(recipe, kind, cuda, name):
    (command,) = (command for command in recipe.commands if "install.sh" in command)
    script = f"ENVIRONMENT={kind}; CUDA={cuda}; {command.partition(' && ')[0]} && echo $name"
    shown = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{name}\n"


def test_a_recipe_copies_all_that_the_installation_and_a_frozen_copy_of_the_code_read(recipe):
    copied = {source for source, _ in recipe.copies}
    assert all((ROOT / source).exists() for source in copied)
    links = [path for path in (ROOT / "src").rglob("*") if path.is_symlink()]
    assert {path.resolve().relative_to(ROOT).parts[0] for path in links} <= copied
    assert {"src", "envs", "pyproject.toml", "README.md"} <= copied


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout and an Apptainer that notes its calls; the environment's variables name both."""
    program = tmp_path / "bin/apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/redraft.sif").touch()
    return copy_to(tmp_path / "checkout")


def calls(folder):
    file = folder.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


def run(folder, *arguments, image="container=redraft.sif", preset="smoke"):
    return snakemake(folder, *filter(None, [image]), *arguments, preset=preset)


def test_jobs_run_in_the_image_that_the_call_names(folder):
    result = run(folder, "--sdm", "apptainer", "--", MODEL)
    assert result.returncode == 0, result.stderr[-2000:]
    assert (folder / MODEL).exists()
    (call,) = calls(folder)
    assert f" {folder / 'redraft.sif'} bash -c " in call
    assert "redraft stage " in call
    assert "--nv" not in call, "the preset has no GPUs"


@pytest.mark.parametrize(
    ("arguments", "passed"), [("", "--nv"), ("--nv --bind /data", "--nv --bind /data"), ("--bind /x", "--bind /x --nv")]
)
def test_a_preset_with_gpus_gives_them_to_its_containers(arguments, passed):
    settings = DeploymentSettings(deployment_method={DeploymentMethod.APPTAINER}, apptainer_args=arguments)
    workflow = SimpleNamespace(deployment_settings=settings)
    assert image_of(workflow, "docker://somewhere/redraft", PAPER) == "docker://somewhere/redraft"
    assert settings.apptainer_args == passed


@pytest.mark.parametrize(("folder_name", "image"), [("a checkout", "x.sif"), ("checkout", "an x.sif")])
def test_blanks_in_the_whole_path_of_an_image_are_rejected(tmp_path, monkeypatch, folder_name, image):
    """Snakemake's error would be of a path that nobody wrote, since a relative file becomes an absolute one."""
    folder = tmp_path / folder_name
    folder.mkdir()
    (folder / image).touch()
    (tmp_path / "plain.sif").symlink_to(folder / image)
    monkeypatch.chdir(folder)
    settings = DeploymentSettings(deployment_method={DeploymentMethod.APPTAINER})
    for given in (image, str(tmp_path / "plain.sif")):
        with pytest.raises(UserError, match="no blanks") as error:
            image_of(SimpleNamespace(deployment_settings=settings), given, PAPER)
        assert str(folder / image) in str(error.value)


@pytest.mark.parametrize(("image", "nodes", "accepted"), [("x.sif", 2, False), ("x.sif", 1, True), (None, 2, True)])
def test_a_run_over_several_nodes_starts_in_no_container(image, nodes, accepted):
    job = SimpleNamespace(container_img_url=image, resources={"nodes": nodes}, wildcards=SimpleNamespace(cell="32b"))
    workflow = SimpleNamespace(dag=SimpleNamespace(needrun_jobs=lambda: [job]))
    with nullcontext() if accepted else pytest.raises(UserError, match="engine.nodes"):
        check_nodes(workflow)


@pytest.mark.parametrize(
    ("image", "option", "words"),
    [
        (None, True, ["needs an image", "container"]),
        ("container=redraft.sif", False, ["redraft.sif", "--sdm apptainer"]),
        ("container=another.sif", True, ["no such image", "another.sif"]),
    ],
)
def test_an_image_and_the_option_belong_together(folder, image, option, words):
    result = run(folder, "-n", *(["--sdm", "apptainer"] if option else []), image=image)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "file"), [([], "Dockerfile"), (["dockerfile"], "Dockerfile"), (["apptainer"], "redraft.def")]
)
def test_containerize_prints_the_recipe(folder, words, file):
    result = run(folder, "--containerize", *words, image=None)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == (RECIPES / file).read_text()
