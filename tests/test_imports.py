"""Rules of imports between modules. A failure here breaks the build, which is the point."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from redraft.evaluate import grade

ROOT = Path(__file__).parents[1]
PACKAGES = {"redraft": ROOT / "src" / "redraft", "analysis": ROOT / "analysis"}
ENTRANCES = {
    "redraft.__main__", "redraft.cli", "redraft.stage_commands", "redraft.stages", "redraft.summary",
    *(f"redraft.commands.{file.stem}" for file in (PACKAGES["redraft"] / "commands").glob("*.py")),
} - {"redraft.commands.__init__"} | {"redraft.commands"}  # fmt: skip
"""Modules that tie everything together; no other module imports them."""

# Each part of the code, and the modules of this project that it may import besides itself.
ALLOWED = {
    "redraft.errors": set(),
    "redraft.files": {"redraft.errors"},
    "redraft.layout": {"redraft.errors"},
    "redraft.loading": set(),
    "redraft.ending": set(),
    "redraft.lazy": {"redraft.loading"},
    "redraft.terminal": {"redraft.errors"},
    "redraft.config": {"redraft.errors", "redraft.files", "redraft.layout"},
    "redraft.published": {"redraft.config", "redraft.errors", "redraft.layout", "redraft.selfspec.sweep"},
    "redraft.ops": {"redraft.config", "redraft.errors", "redraft.files", "redraft.layout", "redraft.terminal"},
    "redraft.rollout": {"redraft.config", "redraft.errors", "redraft.files"},
    "redraft.engines": {
        "redraft.config", "redraft.errors", "redraft.files", "redraft.ops.termination", "redraft.rollout",
    },
    "redraft.tasks": {"redraft.config", "redraft.errors", "redraft.files", "redraft.rollout.streams"},
    "redraft.train": {
        "redraft.config", "redraft.engines", "redraft.errors", "redraft.files", "redraft.ops", "redraft.rollout",
        "redraft.selfspec", "redraft.tasks",
    },
    "redraft.theory": set(),
    "redraft.audit": {
        "redraft.config.capability", "redraft.config.reuse", "redraft.engines", "redraft.errors", "redraft.rollout",
    },
    "redraft.predict": {
        "redraft.config", "redraft.engines", "redraft.errors", "redraft.files", "redraft.layout",
        "redraft.ops.provenance", "redraft.rollout", "redraft.tasks", "redraft.train.models",
        "redraft.train.run_folder",
    },
    "redraft.selfspec": {"redraft.errors", "redraft.files"},
    "redraft.verl_cpu": set(),
    "redraft.evaluate": {
        "redraft.config", "redraft.engines.torch_engine", "redraft.engines.vllm_local", "redraft.errors",
        "redraft.files", "redraft.layout", "redraft.ops.devices", "redraft.ops.gpus", "redraft.ops.lease",
        "redraft.ops.provenance",
        "redraft.rollout.engine", "redraft.rollout.streams", "redraft.rollout.types", "redraft.tasks",
        "redraft.train.models", "redraft.train.precision", "redraft.train.room",
    },
    "analysis": {
        "redraft.config", "redraft.errors", "redraft.files", "redraft.layout", "redraft.ops.provenance",
        "redraft.published", "redraft.rollout.streams", "redraft.rollout.types", "redraft.selfspec",
        "redraft.tasks.answers", "redraft.terminal",
    },
}  # fmt: skip
SAMPLERS = {
    "redraft.evaluate.asked", "redraft.evaluate.torch_backend", "redraft.evaluate.transformers_backend",
    "redraft.evaluate.lm_eval.stock",
}  # fmt: skip
"""Modules of evaluation that run a model or choose its device; grading and measuring need neither torch nor a GPU."""

# Each heavy package, and the parts that may import it.
ONLY_IN = {
    "verl": {"redraft.train", "redraft.verl_cpu"},
    "hydra": {"redraft.train"},
    "omegaconf": {"redraft.train"},
    "vllm": {"redraft.engines", "redraft.train", "redraft.verl_cpu"},
    "torch": {
        "redraft.audit",
        "redraft.engines",
        "redraft.ops.pace",
        "redraft.predict",
        "redraft.train",
        *SAMPLERS,
        "redraft.verl_cpu",
        *ENTRANCES,
    },
    "transformers": {
        "redraft.audit",
        "redraft.engines",
        "redraft.train",
        *SAMPLERS,
        "redraft.evaluate.cases",
        "redraft.tasks",
        "redraft.verl_cpu",
    },
    "math_verify": {"redraft.tasks"},
    "latex2sympy2_extended": {"redraft.tasks"},
    "nltk": {"redraft.tasks"},
    "pebble": {"redraft.tasks", "redraft.train.grading"},
    "lm_eval": {"redraft.tasks", "redraft.evaluate.lm_eval"},
}


def within(module, part):
    return module == part or module.startswith(part + ".")


@cache
def modules():
    """Every module of the project and its file."""
    found = {}
    for name, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join([name, *(part for part in parts if part != "__init__")])] = file
    return found


def imports_of(file):
    """Names of imported modules, also those imported in functions; `from a import b` gives a.b if that is a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module


def violations(rule):
    return [(module, name) for module, file in modules().items() for name in imports_of(file) if rule(module, name)]


def part_of(module):
    return next((part for part in ALLOWED if within(module, part)), None)


def test_every_module_belongs_to_a_part_with_a_rule():
    assert [m for m in modules() if not part_of(m) and m not in ENTRANCES | {"redraft"}] == []
    assert {part_of(m) for m in modules()} - {None} == set(ALLOWED), "a rule about nothing"


def test_import_directions():
    def forbidden(module, name):
        part = part_of(module)
        if part is None or not any(within(name, package) for package in PACKAGES):
            return False
        return not any(within(name, allowed) for allowed in {part} | ALLOWED[part])

    assert violations(forbidden) == []


def test_nothing_but_the_entrances_imports_analysis_or_an_entrance():
    def forbidden(module, name):
        if module in ENTRANCES:
            return False
        return name in ENTRANCES or (within(module, "redraft") and within(name, "analysis"))

    assert violations(forbidden) == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_heavy_packages_are_imported_in_their_place_only(package):
    def forbidden(module, name):
        return within(name, package) and not any(within(module, part) for part in ONLY_IN[package])

    assert violations(forbidden) == []


def test_no_import_cycle():
    graph = {
        module: {name for name in imports_of(file) if name in modules()} - {module}
        for module, file in modules().items()
    }  # fmt: skip
    assert sum(map(len, graph.values())) > 50
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


LIGHT = [
    "redraft.config", "redraft.files", "redraft.layout", "redraft.ops.provenance", "redraft.rollout.strategies",
    "redraft.ops.status", "redraft.ops.recover",
]  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_what_the_workflow_reads_loads_no_machine_learning(module):
    heavy = {"hydra", "torch", "transformers", "verl", "vllm"}
    code = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("function", ["compare_answers", "check_instructions"])
def test_what_a_grading_worker_runs_loads_no_tables(function):
    """A worker imports the module of its function: beside the grader, which it has, that is to cost nothing."""
    module = getattr(grade, function).__module__
    code = f"import sys, {module}; print(*sorted({{'pandas', 'pyarrow', 'pydantic'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
