# What all rules share: the preset's cells and where their files lie.

import sys

from redraft.config import fingerprint
from redraft.errors import UserError


def checked(function):
    """Run something that reads experiment files; a mistake in them is one message, not a traceback."""
    try:
        return function()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def checked_config():
    for key in config:
        if key != "preset":
            raise UserError("no such key", file="--config", key=key, allowed="preset")


checked(checked_config)
EXPERIMENTS = Experiments()
PRESET = checked(lambda: EXPERIMENTS.preset(config["preset"]))
LAYOUT = Layout(PRESET.name)
PAPERS = list(PRESET.default)
RUN = str(LAYOUT.run("{paper}/{cell}", "{seed}"))


def default_runs(paper):
    """Folders of all runs that a bare `snakemake` wants of a paper."""
    cells = EXPERIMENTS.cells(paper, PRESET.default[paper])
    return [LAYOUT.run(cell.id, seed) for cell in cells for seed in PRESET.seeds]


DEFAULT_RUNS = checked(lambda: {paper: default_runs(paper) for paper in PAPERS})


def run_of(wildcards):
    """The resolved run that a rule's wildcards name."""
    cell_id = f"{wildcards.paper}/{wildcards.cell}"
    return checked(lambda: EXPERIMENTS.run(cell_id, int(wildcards.seed), PRESET.name))


wildcard_constraints:
    paper=r"[a-z0-9_]+",
    cell=r"[A-Za-z0-9_.-]+",
    seed=r"\d+",
    role=r"[A-Za-z0-9_.-]+",
    number=r"\d\d",
