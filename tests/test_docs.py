"""Documentation: links lead somewhere, commands and their options exist, and the site builds without a warning."""

import re
import shlex
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from scipy import stats

from redraft.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "config/README.md", "results/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MARKDOWN = MarkdownIt("commonmark").enable("table")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@cache
def tokens_of(page):
    """Block tokens of a page, and the inline tokens inside them."""
    blocks = MARKDOWN.parse(page.read_text(encoding="utf-8"))
    return blocks, [child for block in blocks for child in block.children or ()]


@cache
def anchors_of(page):
    """Anchors that the code host and the site give to a page's headings."""
    blocks, _ = tokens_of(page)
    titles = [
        "".join(child.content for child in text.children if child.type in {"text", "code_inline"})
        for opening, text in pairwise(blocks)
        if opening.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links_of(page):
    _, inline = tokens_of(page)
    for token in inline:
        if token.type in {"link_open", "image"}:
            yield token.attrGet("href") or token.attrGet("src")


def broken(page, site=ROOT / "docs"):
    """Links of a page to a missing file or heading, and from a page of the site to a page outside it."""
    for link in links_of(page):
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", file):
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield link
        elif target.suffix == ".md":
            outside = page.is_relative_to(site) and not target.is_relative_to(site)
            if outside or (anchor and anchor not in anchors_of(target)):
                yield link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    assert not list(broken(page))


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A title: *new*\n\n[a](#a-title-new) [b](#b) [c](page.md#a-title-new) [d](other.md) [e](https://x.y/z)\n"
    )
    assert list(broken(page)) == ["#b", "other.md"]


def test_a_link_out_of_the_site_to_another_page_is_found(tmp_path):
    """Sphinx refuses it; another file can be downloaded from the site."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Title\n")
    (tmp_path / "cells.yaml").touch()
    page = tmp_path / "docs/page.md"
    page.write_text("[a](../README.md) [b](../cells.yaml)\n")
    assert list(broken(page, site=tmp_path / "docs")) == ["../README.md"]
    assert not list(broken(page))


def commands_of(page):
    """Commands in shell blocks and in inline code, split into words."""
    blocks, inline = tokens_of(page)
    shells = [block.content for block in blocks if block.type == "fence" and block.info.strip() in {"sh", "bash"}]
    lines = [line.strip() for shell in shells for line in shell.replace("\\\n", " ").splitlines()]
    lines += [token.content for token in inline if token.type == "code_inline"]
    for line in lines:
        if re.match(r"(redraft|snakemake|make) [^=]", line) and not re.search(r"[…<>]|\bX\b|[A-Z]{4,}(?!=)", line):
            yield shlex.split(line, comments=True)


CONFIG = {"preset", "papers", "grids", "cells", "seeds", "without_unfitting", "container"}
PROGRAM = typer.main.get_command(app)


def options_of(words):
    """Options that a command of `redraft` takes; an error for a command that does not exist."""
    _, command, rest = PROGRAM.resolve_command(click.Context(PROGRAM), words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        _, command, rest = command.resolve_command(click.Context(command), rest)
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def wrong(words):
    """What does not exist in a command of a page."""
    program, *rest = words
    rest = rest[: next((i for i, word in enumerate(rest) if word in {"|", "&&", ";", ">", "2>&1"}), len(rest))]
    if program == "make":
        targets = {
            target
            for line in (ROOT / "Makefile").read_text().splitlines()
            for target in re.findall(r"^([a-z-]+):", line)
        }
        return [
            word
            for word in rest
            if "=" not in word and not word.startswith("-") and word not in targets and not word.startswith(".venv")
        ]
    if program == "redraft":
        if rest[0].startswith("-"):
            return [word for word in rest if word not in {"--version", "--help", "--install-completion"}]
        try:
            known = options_of(rest) | {"--help"}
        except click.UsageError:
            return [rest[0]]
        return [word for word in rest[1:] if word.startswith("--") and word.partition("=")[0] not in known]
    keys = [word.partition("=")[0] for word in rest if re.match(r"[a-z_]+=", word)]
    presets = {word.removeprefix("preset=") for word in rest if word.startswith("preset=")}
    project = ROOT / dict(pairwise(rest)).get("--directory", "")
    known = {file.stem for file in (project / "experiments/presets").glob("*.yaml")} | {"mine"}
    return [key for key in keys if key not in CONFIG] + sorted(presets - known)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page):
    assert not {" ".join(words): found for words in commands_of(page) if (found := wrong(words))}


def test_pages_have_commands():
    assert sum(len(list(commands_of(page))) for page in PAGES) > 100


@pytest.mark.parametrize(
    "line", ["redraft shwo x", "redraft show --jsn x", "make tset", "snakemake --config perset=tiny"]
)
def test_a_wrong_command_is_found(line):
    assert wrong(line.split())


CLAIMS = [
    pytest.param(claim, id=f"{file.parent.name}-{claim['id']}")
    for file in sorted((ROOT / "experiments").glob("*/claims.yaml"))
    for claim in yaml.safe_load(file.read_text(encoding="utf-8"))["claims"]
    if claim["section"].endswith(".md")
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_quotation_from_a_page_of_this_documentation_occurs_there(claim):
    """`…` is an omission."""
    page = " ".join((ROOT / claim["section"]).read_text(encoding="utf-8").split())
    assert all(part.strip() in page for part in claim["quotation"].split("…"))


@pytest.mark.servers
def test_the_site_builds_without_a_warning():
    """It installs Sphinx from the package index."""
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build/docs"
    assert all((site / page).exists() for page in ("index.html", "quickstart.html", "decisions/index.html"))
    assert list(site.glob("schemas/*.json")), "the schemas are published with the pages"


def test_the_tree_of_the_architecture_s_page_is_there():
    text = (ROOT / "docs/architecture.md").read_text()
    tree = text.partition("```\n")[2].partition("```")[0]
    folders, paths = {}, []
    for line in tree.splitlines():
        name = line.split()[0]
        depth = len(line) - len(line.lstrip())
        folders[depth] = name
        paths.append("".join(folders[above] for above in range(0, depth, 2)) + name)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists() and path != "experiments/own/"] == []
    packages = {str(file.parent.relative_to(ROOT)) + "/" for file in (ROOT / "src/redraft").glob("*/__init__.py")}
    assert packages - set(paths) == {"src/redraft/engines/", "src/redraft/ops/"}, "their parts have lines of their own"


LOSSES = ("x1", "x4", "x16", "x32", "lr0.25", "lr0.5", "lr2", "h64", "h128", "h192")
"""Cells of the table of losses in docs/tiny-preset.md, without the method, in its order."""


def test_the_losses_by_scale_are_those_of_the_published_runs():
    """Recomputed from the published scores: accuracy without reuse, difference, and ratio of errors."""
    folder = ROOT / "results/reference/tiny/collected/loss_by_scale"
    scores = pd.read_parquet(folder / "scores.parquet")
    last = scores[(scores["role"] == "in-distribution") & (scores["step"] == scores["step"].max())]
    accuracies = 100 * last.groupby(["cell", "seed"])["pass_at_1"].mean().unstack()
    text = (ROOT / "docs/tiny-preset.md").read_text(encoding="utf-8").partition("| ratio of errors |")[2]
    rows = [line.split("|")[2:5] for line in text.splitlines()[2 : 2 + len(LOSSES)]]
    for cell, row in zip(LOSSES, rows, strict=True):
        without, reuse = (accuracies.loc[f"{cell}-{method}"] for method in ("vanilla", "spec-l0.5"))
        difference, errors = reuse - without, np.log((100 - reuse) / (100 - without))
        expected = [
            f"{without.mean():.1f} %",
            "{:.1f} [{:.1f}, {:.1f}]".format(difference.mean(), *_student(difference)),
            "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp([errors.mean(), *_student(errors)])),
        ]
        assert [part.strip().replace("−", "-") for part in row] == [e.replace("-0.0", "0.0") for e in expected], cell


def _student(values):
    """Ends of the 95 % interval of a mean."""
    return stats.t.interval(0.95, len(values) - 1, values.mean(), values.sem())
