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
SOURCE = ROOT / "src" / "redraft"
ENTRANCES = {f"redraft.cli.{file.stem}" for file in SOURCE.glob("cli/[a-z]*.py")} - {
    "redraft.cli.extras",
    "redraft.cli.process",
    "redraft.cli.terminal",
} | {"redraft.__main__"}
"""Modules that tie everything together; no other module imports them."""

# Each room, and the modules of this project that it may import besides itself.
BASE = {"redraft.errors", "redraft.files", "redraft.layout", "redraft.messages"}
ROOMS_OF_ANALYSIS = {f"redraft.analysis.{room}" for room in ("claims", "data", "figures", "tables")}
ALLOWED = {
    "redraft.messages": set(),
    "redraft.errors": {"redraft.messages"},
    "redraft.files": {"redraft.errors"},
    "redraft.layout": {"redraft.errors"},
    "redraft.data_dictionary": {"redraft.errors", "redraft.files"},
    "redraft.cli.process": set(),
    "redraft.cli.extras": {"redraft.errors"},
    "redraft.cli.terminal": {"redraft.errors", "redraft.messages"},
    "redraft.config": {*BASE, "redraft.methods"},
    "redraft.provenance": {*BASE, "redraft.config"},
    "redraft.result_files": {"redraft.errors", "redraft.files", "redraft.provenance"},
    "redraft.published": {*BASE, "redraft.config", "redraft.lab.selfspec.sweep"},
    "redraft.selfspec": {"redraft.errors", "redraft.files"},
    "redraft.rollout": {
        "redraft.config.capability",
        "redraft.config.retention",
        "redraft.errors",
        "redraft.files",
    },
    "redraft.methods": {"redraft.config", "redraft.errors", "redraft.rollout"},
    "redraft.ops.slurm": {"redraft.errors", "redraft.messages"},
    "redraft.ops.locking": {*BASE, "redraft.ops.slurm", "redraft.provenance"},
    "redraft.ops.workflow": {
        *BASE,
        "redraft.cli.terminal",
        "redraft.config",
        "redraft.ops.locking",
        "redraft.ops.sizing",
        "redraft.ops.slurm",
        "redraft.provenance",
        "redraft.result_files",
        "redraft.published",
    },
    "redraft.ops.doctor": {"redraft.config", "redraft.errors", "redraft.ops.slurm"},
    "redraft.ops.sizing": {"redraft.config", "redraft.errors", "redraft.selfspec.constants"},
    "redraft.ops": set(),
    "redraft.engines": {
        *BASE,
        "redraft.config",
        "redraft.ops.locking.termination",
        "redraft.rollout",
        "redraft.selfspec.controller",
    },
    "redraft.tasks": {"redraft.config", "redraft.errors", "redraft.files", "redraft.rollout.streams"},
    "redraft.train": {
        *BASE,
        "redraft.cli.process",
        "redraft.config",
        "redraft.data_dictionary",
        "redraft.engines",
        "redraft.methods",
        "redraft.ops.locking",
        "redraft.ops.sizing",
        "redraft.provenance",
        "redraft.result_files",
        "redraft.rollout",
        "redraft.selfspec",
        "redraft.tasks",
    },
    "redraft.verl_cpu": {"redraft.train.verl.critic"},
    "redraft.integrations": {
        "redraft.config",
        "redraft.engines.torch.engine",
        "redraft.engines.vllm.engine",
        "redraft.engines.vllm.in_process",
        "redraft.engines.vllm.stock",
        "redraft.errors",
        "redraft.files",
        "redraft.methods",
        "redraft.rollout",
    },
    "redraft.integrations.verl": {
        "redraft.config.base",
        "redraft.config.read",
        "redraft.config.reuse",
        "redraft.engines.vllm.engine",
        "redraft.engines.vllm.stock",
        "redraft.errors",
        "redraft.files",
        "redraft.messages",
        "redraft.methods",
        "redraft.rollout",
    },
    "redraft.evaluate": {
        *BASE,
        "redraft.config",
        "redraft.data_dictionary",
        "redraft.engines.torch.engine",
        "redraft.engines.vllm.local",
        "redraft.ops.locking.devices",
        "redraft.ops.locking.gpus",
        "redraft.ops.locking.lease",
        "redraft.provenance",
        "redraft.result_files",
        "redraft.rollout.engine",
        "redraft.rollout.streams",
        "redraft.rollout.types",
        "redraft.tasks",
        "redraft.train.models",
        "redraft.train.pretrained",
    },
    "redraft.certify": {
        "redraft.engines.torch.engine",
        "redraft.errors",
        "redraft.lab.audit.goodness",
        "redraft.rollout",
        "redraft.train.models",
    },
    "redraft.pytest_plugin": {"redraft.certify"},
    "redraft.lab.theory": set(),
    "redraft.lab.audit": {
        "redraft.result_files",
        "redraft.config.capability",
        "redraft.config.retention",
        "redraft.engines",
        "redraft.files",
        "redraft.methods",
        "redraft.rollout",
    },
    "redraft.lab.predict": {
        *BASE,
        "redraft.config",
        "redraft.engines",
        "redraft.methods",
        "redraft.ops.locking.devices",
        "redraft.provenance",
        "redraft.result_files",
        "redraft.rollout",
        "redraft.tasks",
        "redraft.train.models",
        "redraft.train.run_folder",
    },
    "redraft.lab.selfspec": {
        "redraft.config.base",
        "redraft.config.decoding",
        "redraft.engines.torch",
        "redraft.errors",
        "redraft.files",
        "redraft.result_files",
        "redraft.selfspec",
        "redraft.train.models",
    },
    "redraft.lab.advise": {
        "redraft.config.base",
        "redraft.config.decoding",
        "redraft.errors",
        "redraft.lab.predict",
        "redraft.lab.selfspec.simulate",
        "redraft.methods.reuse",
        "redraft.result_files",
        "redraft.rollout",
        "redraft.selfspec",
        "redraft.train.run_folder",
    },
    "redraft.lab": set(),
    "redraft.analysis.data": {
        *BASE,
        "redraft.config",
        "redraft.data_dictionary",
        "redraft.provenance",
        "redraft.result_files",
        "redraft.lab.selfspec.replay",
        "redraft.rollout.types",
        "redraft.selfspec",
        "redraft.tasks.answers",
    },
    "redraft.analysis.claims": {
        "redraft.result_files",
        "redraft.analysis.data",
        "redraft.config",
        "redraft.files",
        "redraft.layout",
        "redraft.messages",
    },
    "redraft.analysis.figures": {
        *BASE,
        "redraft.analysis.data",
        "redraft.config",
        "redraft.lab.selfspec",
        "redraft.published",
        "redraft.result_files",
        "redraft.selfspec",
    },
    "redraft.analysis.tables": {
        "redraft.result_files",
        *BASE,
        "redraft.analysis.data",
        "redraft.analysis.figures.view",
        "redraft.config",
        "redraft.lab.selfspec.token_time",
        "redraft.published",
        "redraft.selfspec.constants",
    },
    "redraft.analysis.cost": {
        "redraft.result_files",
        *BASE,
        "redraft.analysis.data",
        "redraft.cli.terminal",
        "redraft.config",
        "redraft.ops.sizing",
    },
    "redraft.analysis.measuring": {*ROOMS_OF_ANALYSIS, "redraft.config", "redraft.layout"},
    "redraft.analysis.decided": {*ROOMS_OF_ANALYSIS, "redraft.analysis.measuring", "redraft.config", "redraft.layout"},
    "redraft.analysis.reference": {
        "redraft.analysis.measuring",
        "redraft.analysis.pages",
        "redraft.result_files",
        *BASE,
        *ROOMS_OF_ANALYSIS,
        "redraft.config",
        "redraft.data_dictionary",
    },
    "redraft.analysis.pages": {
        "redraft.analysis.cost",
        "redraft.result_files",
        *BASE,
        *ROOMS_OF_ANALYSIS,
        "redraft.cli.terminal",
        "redraft.config",
        "redraft.data_dictionary",
    },
    "redraft.analysis": set(),
}
SAMPLERS = {
    "redraft.evaluate.evaluation_plan",
    "redraft.evaluate.backends",
    "redraft.evaluate.lm_eval.stock",
}
"""Modules of evaluation that run a model or choose its device; grading and measuring need neither torch nor a GPU."""

# Each heavy package, and the parts that may import it.
ONLY_IN = {
    "verl": {"redraft.integrations.verl", "redraft.train", "redraft.verl_cpu"},
    "hydra": {"redraft.train"},
    "omegaconf": {"redraft.train"},
    "vllm": {"redraft.engines", "redraft.integrations.trl_vllm", "redraft.train", "redraft.verl_cpu"},
    "torch": {
        "redraft.certify.transformers_policy",
        "redraft.lab.audit",
        "redraft.engines",
        "redraft.integrations.trl",
        "redraft.ops.workflow.pace",
        "redraft.lab.predict",
        "redraft.lab.selfspec.machine",
        "redraft.train",
        *SAMPLERS,
        "redraft.verl_cpu",
        *ENTRANCES,
    },
    "transformers": {
        "redraft.certify.transformers_policy",
        "redraft.lab.audit",
        "redraft.engines",
        "redraft.integrations.verl.manager",
        "redraft.integrations.trl",
        "redraft.train",
        *SAMPLERS,
        "redraft.evaluate.cases",
        "redraft.tasks",
        "redraft.verl_cpu",
    },
    "math_verify": {"redraft.tasks"},
    "latex2sympy2_extended": {"redraft.tasks"},
    "nltk": {"redraft.tasks"},
    "pebble": {"redraft.tasks", "redraft.train.local.grading"},
    "lm_eval": {"redraft.tasks", "redraft.evaluate.lm_eval"},
    "reasoning_gym": {"redraft.config.gym"},
}


def within(module, part):
    return module == part or module.startswith(part + ".")


@cache
def modules():
    """Every module of the project and its file."""
    found = {}
    for name, folder in {"redraft": SOURCE, "redraft.analysis": SOURCE / "analysis"}.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join([name, *(part for part in parts if part != "__init__")])] = file
    return found


@cache
def imports_of(file):
    """Names of imported modules, also those imported in functions; `from a import b` gives a.b if that is a module."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.append(full if full in modules() else node.module)
    return names


def violations(rule):
    return [(module, name) for module, file in modules().items() for name in imports_of(file) if rule(module, name)]


def part_of(module):
    return max((part for part in ALLOWED if within(module, part)), key=len, default=None)


def test_every_module_belongs_to_a_part_with_a_rule():
    assert [m for m in modules() if not part_of(m) and m not in ENTRANCES | {"redraft", "redraft.cli"}] == []
    assert {part_of(m) for m in modules()} - {None} == set(ALLOWED), "a rule about nothing"


def test_import_directions():
    def forbidden(module, name):
        part = part_of(module)
        if part is None or not within(name, "redraft") or name == "redraft.analysis":  # which holds a path alone
            return False
        return not any(within(name, allowed) for allowed in {part} | ALLOWED[part])

    assert violations(forbidden) == []


def test_nothing_but_the_entrances_imports_analysis_or_an_entrance():
    def forbidden(module, name):
        if module in ENTRANCES:
            return False
        return name in ENTRANCES or (not within(module, "redraft.analysis") and within(name, "redraft.analysis"))

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
    }
    assert sum(map(len, graph.values())) > 50
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


LEAVES = {f"redraft.config.{name}" for name in ("base", "capability", "retention", "trainer", "verl_keys")}
"""Modules of the configuration that methods import; the rest of it imports methods."""


def test_methods_and_the_leaves_of_the_configuration_import_leaves_alone():
    """Else it would depend on who is imported first whether all methods are in the unions."""

    def forbidden(module, name):
        below = module in LEAVES or within(module, "redraft.methods") or within(module, "redraft.rollout")
        if not below or module == "redraft.methods":
            return False
        return (within(name, "redraft.config") and name not in LEAVES) or (
            module in LEAVES and within(name, "redraft.methods")
        )

    assert violations(forbidden) == []


def test_the_configuration_imports_files_of_methods_and_not_what_they_compute_with():
    numeric = [module for module, file in modules().items() if module.count(".") > 2 and "numpy" in imports_of(file)]

    def forbidden(module, name):
        return within(module, "redraft.config") and name in numeric

    assert "redraft.methods.acceptance.rule" in numeric
    assert violations(forbidden) == []


@pytest.mark.parametrize("module", ["redraft.config", "redraft.methods.staged", "redraft.methods.registry"])
def test_configuration_and_methods_load_no_numpy_and_all_methods_whoever_is_imported_first(module):
    code = f"""import sys, {module}
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
print("numpy" in sys.modules, (str(Reuse) + str(Schedule)).count("redraft.methods."))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    written = sum(file.read_text().count("    kind: Literal[") for file in SOURCE.glob("methods/*.py"))
    assert result.stdout.split() == ["False", str(written)]


LIGHT = [
    "redraft.config",
    "redraft.files",
    "redraft.layout",
    "redraft.provenance",
    "redraft.result_files",
    "redraft.methods.speculative",
    "redraft.ops.workflow.status",
    "redraft.ops.workflow.recover",
    "redraft.ops.workflow.rule_inputs",
]


def test_what_the_workflow_reads_loads_no_machine_learning():
    """One process imports all, and says after each what it has loaded."""
    heavy = {"hydra", "torch", "transformers", "verl", "vllm"}
    code = f"""import sys
from importlib import import_module
for module in {LIGHT}:
    import_module(module)
    print(module, *sorted({heavy} & set(sys.modules)))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == LIGHT


def test_a_sampling_job_loads_no_library_that_only_other_models_need():
    """The switches of `redraft.engines.torch` come too late if another module has loaded transformers' models."""
    code = "import sys, redraft.evaluate.generate; print(*sorted({'scipy', 'sklearn'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("function", ["compare_answers", "check_instructions"])
def test_what_a_grading_worker_runs_loads_no_tables(function):
    """A worker imports the module of its function: beside the grader, which it has, that is to cost nothing."""
    module = getattr(grade, function).__module__
    code = f"import sys, {module}; print(*sorted({{'pandas', 'pyarrow', 'pydantic'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
