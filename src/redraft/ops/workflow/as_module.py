"""This workflow as a module of another Snakefile, by the directive `module` (docs/snakemake.md).

Snakemake (9.27) reads a module's files with the other Snakefile's folder as `workflow.basedir`, once for each `use
rule`, and ignores a module's `onstart`, `onsuccess` and `onerror`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.layout import PACKAGED

Handler = Callable[[Any], None]
"""Handler of the start or the end of a call; its argument is Snakemake's log file."""


def root_of(basedir: str) -> Path:
    """Root of the files that belong to a Snakefile in a folder.

    If Snakemake has read the Snakefile from a Git host, this is the installed package, which has the same files.
    """
    return Path(basedir) if Path(basedir).is_dir() else PACKAGED


def is_first_use(workflow: Any) -> bool:
    """True at the first call for a workflow: what is registered with Snakemake is registered only once."""
    first = not hasattr(workflow, "redraft_is_used")
    workflow.redraft_is_used = True
    return first


def check_use(workflow: Any) -> None:
    """Reject a use that renames rules or moves files: commands and Slurm's requests depend on both names.

    Raises:
        UserError: for `use rule … as`, and for `prefix` or `replace_prefix` of the module.
    """
    modifier = workflow.modifier
    if modifier.modify_rulename("train") not in (None, "train"):
        raise UserError(
            "rules of this workflow keep their names",
            file=workflow.main_snakefile,
            key="use rule",
            value=f"as {modifier.modify_rulename('*')}",
            allowed="use rule * from the module, without `as`",
        )
    if modifier.path_modifier.prefix or modifier.path_modifier._prefix_replacements:
        raise UserError(
            "results of this workflow are in results/ of the working directory",
            file=workflow.main_snakefile,
            key="module",
            value=str(modifier.modify_path("results")),
            allowed="a module without prefix and replace_prefix",
            hint="`snakemake --directory FOLDER` selects another working directory",
        )


def run_handlers(workflow: Any) -> None:
    """Let Snakemake run the handlers of a module that has just been read, each before that of the main Snakefile."""
    if workflow.modifier.is_main_snakefile():
        return  # Snakemake runs them
    for name in ("onstart", "onsuccess", "onerror"):
        _run_before(workflow, name, workflow.globals[name].func)


def _run_before(workflow: Any, name: str, handler: Handler) -> None:
    register = getattr(workflow, name)

    def both(other: Handler) -> Handler:
        def run(log: Any) -> None:
            handler(log)
            other(log)

        return run

    def register_both(other: Handler) -> None:
        register(both(other) if workflow.modifier.is_main_snakefile() else other)

    # The handler that the main Snakefile has registered already, and one that it registers later.
    setattr(workflow, f"_{name}", both(getattr(workflow, f"_{name}")))
    setattr(workflow, name, register_both)
