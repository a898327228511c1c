"""Hash of the code that a rule runs, for the `params` of rules: when it changes, the rule runs again.

Rules that train or sample have no such hash: they take minutes to days, fingerprints identify their configuration, and
manifests and records name the code that made them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from redraft.config.identity import fingerprint
from redraft.files import sha256

LEFT_OUT = (
    "redraft.cli",
    "redraft.config",
    "redraft.data_dictionary",
    "redraft.errors",
    "redraft.files",
    "redraft.layout",
    "redraft.ops",
    "redraft.provenance",
)
"""Modules that read declarations, describe columns, find files and lock GPUs. What they read is in other params and in
fingerprints or changes no value, and nearly every stage imports them: with them in the hash, any edit would run all
rules again."""
ROOT = Path(__file__).parents[3]
TEMPLATES = "redraft.analysis.FOLDER"
"""What modules that fill templates import; their hash includes all templates, styles and scripts."""


@cache
def code_of(stage: str) -> str:
    """Hash of a function's module and of all modules of this package that it imports, directly or indirectly.

    Comments, docstrings and formatting do not count.

    Args:
        stage: the function as `module:function`, as in `redraft stage`.
    """
    module = stage.partition(":")[0]
    codes, pending = {}, {module}
    while pending:
        name = pending.pop()
        codes[name], imports = _read(name)
        if TEMPLATES in imports:
            codes[TEMPLATES] = _templates()
        modules = {other for other in imports if _within(other, ("redraft",)) and _file(other).is_file()}
        pending |= {other for other in modules - codes.keys() if not _within(other, LEFT_OUT)}
    return fingerprint(codes)


@cache
def _templates() -> str:
    folder = ROOT / "redraft" / "analysis"
    files = [file for part in ("templates", "vendor") for file in (folder / part).rglob("*") if file.is_file()]
    return fingerprint({file.relative_to(folder).as_posix(): sha256(file) for file in sorted(files)})


@cache
def _read(module: str) -> tuple[str, frozenset[str]]:
    """A module's code without docstrings, and names that it imports: modules, and values with their modules."""
    tree = ast.parse(_file(module).read_bytes())
    imports = frozenset(_imports(tree))  # as a side effect without docstrings
    return ast.dump(tree), imports


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names of imported modules, also in functions. As a side effect this removes docstrings, also of constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            # The name may be a module or a value; `code_of` follows those that have a file.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]


def _file(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _within(module: str, parts: tuple[str, ...]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)
