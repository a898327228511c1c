"""The steps of envs/containers' two recipes, and a rehearsal of them in a bare Debian without an engine for containers.

`python tests/container_recipes.py FOLDER [COMMAND ...]` makes a minimal Debian in FOLDER and executes the Dockerfile's
steps there by chroot, with ENVIRONMENT=cpu. Then it executes the commands in this image. It prints the minutes of each
step; FOLDER.log has what they print. It needs root and Debian's package debootstrap.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "envs/containers"
SUITE = "bookworm"
"""The base's Debian; the image debian:12.12-slim is a `debootstrap --variant=minbase` without manuals."""
ARGUMENTS = {"ENVIRONMENT": "cpu", "CUDA": ""}
NETWORK_FILES = ("etc/resolv.conf", "etc/hosts")
INHERITED = re.compile(r"PIP_\w+|https?_proxy|no_proxy", re.IGNORECASE)
"""Environment variables of a package index or a proxy, which builders of images pass on too."""


@dataclass
class Recipe:
    """Steps of an image: `copies` have source and target, `environment` are variables of its processes."""

    base: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    copies: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def pair(text):
    """Name and value of `name=value`."""
    name, _, value = text.partition("=")
    return name, value


def dockerfile(text):
    """Steps of a Dockerfile; a ValueError for an instruction that the rehearsal does not know."""
    recipe = Recipe()
    for line in (line for line in text.splitlines() if line and not line.startswith("#")):
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                recipe.base = rest
            case "ARG":
                recipe.arguments |= [pair(rest)]
            case "ENV":
                recipe.environment |= [pair(rest)]
            case "WORKDIR":
                recipe.folder = rest
            case "COPY":
                *sources, target = rest.split()
                recipe.copies += [(source, target) for source in sources]
            case "RUN":
                recipe.commands.append(rest)
            case _:
                raise ValueError(f"unknown instruction: {line}")
    return recipe


def definition(text):
    """Steps of a definition of Apptainer; its arguments are variables at the beginning of %post, whose folder is /."""
    header, *parts = re.split(r"^%(\w+)\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    sections = {
        name: [line.strip() for line in body.splitlines() if line.strip()]
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
    if unknown := set(sections) - {"arguments", "files", "post", "environment"}:
        raise ValueError(f"unknown sections: {unknown}")
    recipe = Recipe(base=dict(re.findall(r"^(\w+): (.*)$", header, flags=re.MULTILINE))["From"])
    recipe.arguments = dict(map(pair, sections["arguments"]))
    recipe.copies = [(source, target) for source, target in map(str.split, sections["files"])]
    recipe.environment = dict(pair(line.removeprefix("export ")) for line in sections["environment"])
    for line in sections["post"]:
        if line.startswith("cd "):
            recipe.folder = line.removeprefix("cd ")
        elif line not in {f"{name}={{{{ {name} }}}}" for name in recipe.arguments}:
            recipe.commands.append(line)
    return recipe


@contextmanager
def timed(step):
    """Print the minutes of a step."""
    began = time.monotonic()
    yield
    print(f"{(time.monotonic() - began) / 60:5.1f} min  {step}", flush=True)


def copy(root, source, target):
    """COPY of a Dockerfile, without what no commit has."""
    into = Path(f"{root}{target}", Path(source).name if target.endswith("/") else "")
    into.parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / source).is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / source, into, symlinks=True, ignore=ignored)
    else:
        shutil.copy(ROOT / source, into)


def host_access(root):
    """Give a root the host's network names; variables and folders for its pip, as the host's variables set them."""
    for file in NETWORK_FILES:
        shutil.copy(Path("/", file), root / file)
    variables = {name: value for name, value in os.environ.items() if INHERITED.fullmatch(name)}
    if certificates := variables.get("PIP_CERT"):
        variables["PIP_CERT"] = "/etc/pip-certificates.crt"
        shutil.copy(certificates, f"{root}/etc/pip-certificates.crt")
    folders = [folder for folder in variables.get("PIP_FIND_LINKS", "").split() if Path(folder).is_dir()]
    return variables, folders


def in_root(root, folder, command, variables, shared=()):
    """Execute a shell command with `root` as its file system. Its mounts end with it."""
    mounts = [f"mkdir -p {root}{path} && mount --bind {path} {root}{path}" for path in ("/dev", *shared)]
    inside = shlex.quote(f"mkdir -p {folder} && cd {folder} && {command}")
    assigned = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
    script = "\n".join([*mounts, f"exec env -i {assigned} chroot {root} sh -c {inside}"])
    unshared = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "sh", "-e", "-c", script]
    with open(f"{root}.log", "ab") as log:
        subprocess.run(unshared, check=True, stdout=log, stderr=log)


def rehearse(root, *further):
    """Execute the Dockerfile's steps in a new Debian in the folder `root`, and then further commands in its image."""
    recipe = dockerfile((RECIPES / "Dockerfile").read_text(encoding="utf-8"))
    with timed(f"debootstrap {SUITE}"):
        command = ["debootstrap", "--variant=minbase", SUITE, root]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    variables, folders = host_access(root)
    variables |= {"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for source, target in recipe.copies:
        copy(root, source, target)
    for command in recipe.commands:
        with timed(f"RUN {command}"):
            in_root(root, recipe.folder, command, variables | recipe.arguments | ARGUMENTS, folders)
    for command in further:
        with timed(command):
            in_root(root, recipe.folder, command, variables | recipe.environment)


if __name__ == "__main__":
    rehearse(Path(sys.argv[1]).resolve(), *sys.argv[2:])
