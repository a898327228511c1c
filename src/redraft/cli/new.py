"""`redraft new`: the files of a small working paper or method, which are the examples of the documentation."""

import builtins
import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.errors import UserError
from redraft.files import errors_of_reading, write_atomically
from redraft.messages import echo

PAGES = {"paper": Path("docs/adding-a-paper.md"), "method": Path("docs/adding-a-method.md")}
"""Pages whose examples are written, so that the documentation and these files cannot differ."""
PAPER, METHOD = "second", "threshold"
"""Names in the examples."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
TEST = '''"""The method `{name}`: its draft is kept in part, and its audited rule is what the class declares."""

from redraft.lab.audit.enumeration import Policy
from redraft.lab.audit.rules import RULES, SPACE, enumerate_rule
from redraft.methods.{name} import {reuse}
from tests.groups import two_epochs


def test_a_part_of_the_drafts_is_kept():
    (_, _), (_, after) = two_epochs({reuse}())
    kept = [rollout.prefix_length for rollout in after]
    assert 0 < sum(kept) < sum(rollout.draft_length for rollout in after)


def test_the_rule_is_exact_only_if_declared():
    policies = [Policy(SPACE, 0, number, 0.3) for number in (1, 2)]
    assert enumerate_rule("{name}", RULES["{name}"], policies, 0.3).passes
'''


def new(
    kind: Annotated[Literal["paper", "method"], typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and underscores.")],
) -> None:
    """Write the seven files of a small paper that runs, or the file of a method and its test, to be edited."""
    page, methods = PAGES[kind], Path("src/redraft/methods")
    if not page.exists() or not methods.is_dir() or not Path("experiments/presets").is_dir():
        raise UserError("this writes into a checkout: call it in one", file=Path.cwd())
    with errors_of_reading(page):
        text = page.read_text(encoding="utf-8")
    files = _files(kind, text, name) if NAME.fullmatch(name) else {}
    for file in files:
        if file.exists() or (kind == "paper" and file.parent.exists() and file.name == "cells.yaml"):
            raise UserError("this exists already", file=file, key="name", value=name, hint="choose another name")
    # Words of Python, and those that the documented method uses itself.
    taken = {*keyword.kwlist, *map(str.lower, keyword.kwlist), *dir(builtins)}
    taken |= set(re.findall(r"\w+", text)) - {METHOD} if kind == "method" else set()
    if not files or name in taken or (kind == "method" and (methods / name).exists()):
        allowed = "lower-case letters, digits and underscores, a letter first, and no word of Python or of the example"
        raise UserError("this cannot be a name", key="name", value=name, allowed=allowed)
    for file, content in files.items():
        write_atomically(file, content)
        echo(f"wrote {file}")
    if kind == "paper":
        echo(
            f"add `{name}: [both]` to `default` in experiments/presets/smoke.yaml, then\n"
            f"  redraft validate {name} --preset smoke\n  snakemake --config preset=smoke papers={name}"
        )
    else:
        echo(f"now\n  pytest tests/test_{name}.py\n  redraft audit rules\nand give cells `reuse: {{kind: {name}}}`")
    echo(f"{page} explains each part")


def _files(kind: str, page: str, name: str) -> dict[Path, str]:
    return _paper(page, name) if kind == "paper" else _method(page, name)


def _paper(page: str, name: str) -> dict[Path, str]:
    """Files of the documented paper with another name."""
    found = re.findall(rf"`experiments/{PAPER}/(\S+)`:\n\n```\w+\n(.*?)```", page, flags=re.DOTALL)
    return {Path("experiments") / name / file: content for file, content in found}


def _method(page: str, name: str) -> dict[Path, str]:
    """File of the documented method with another name, and its test."""
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    camel = "".join(part.capitalize() for part in name.split("_"))
    for old, renamed in ((METHOD, name), (METHOD.capitalize(), camel)):
        code = re.sub(rf"{old}(?=Reuse\b|\b)", renamed, code)
    test = TEST.format(name=name, reuse=f"{camel}Reuse")
    return {Path(f"src/redraft/methods/{name}.py"): code, Path(f"tests/test_{name}.py"): test}
