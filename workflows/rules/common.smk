# What all rules share: the preset's cells and where their files lie.

import os
import subprocess
import sys
from functools import cache

from redraft.config import (
    benchmarks_fingerprint,
    fingerprint,
    own,
    sampling_fingerprint,
)
from redraft.config.preset import parted
from redraft.config.site import load_site, site_file
from redraft.errors import UserError
from redraft.layout import published_data
from redraft.ops.workflow import campaign, dry_run, usage
from redraft.ops.slurm.ends import know_all_ends
from redraft.ops.slurm.requests import check_requests
from redraft.ops.slurm.waiting import watch_queue
from redraft.ops.workflow.supply import count_devices, lift_rate_limit, limit_local_jobs
from redraft.published import check_published, curve_file, sweep_file


def checked(function):
    """Run something that reads experiment files; a mistake in them is one message, not a traceback."""
    try:
        return function()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def checked_config():
    for key in config:
        if key not in ("preset", "seeds", "papers", "cells"):
            raise UserError(
                "no such key",
                file="--config",
                key=key,
                allowed="preset, seeds, papers, cells",
            )
    if not isinstance(config["preset"], (str, int)):
        raise UserError(
            "a preset is one name",
            file="--config",
            key="preset",
            value=config["preset"],
        )
    if not isinstance(config.get("seeds", 1), int) or config.get("seeds", 1) < 1:
        raise UserError(
            "a number of seeds, which are counted from 0",
            file="--config",
            key="seeds",
            value=config["seeds"],
            allowed=">= 1",
        )


def take_cells():
    """Take a file of cells of one's own, which in a frozen copy lies among the papers."""
    file, code = Path(str(config["cells"])), Path(workflow.basedir)
    os.environ[own.VARIABLE] = str(
        code / own.place(file) if freeze.frozen(code) else file
    )
    own.cells_file()


checked(checked_config)
if "cells" in config:
    checked(take_cells)
if workflow.is_main_process:
    READ = checked(lambda: freeze.checkout_hash(Path(workflow.basedir)))
EXPERIMENTS = checked(Experiments)
PRESET = checked(lambda: EXPERIMENTS.preset(config["preset"]))
if "seeds" in config:
    PRESET = PRESET.model_copy(
        update={"seeds": list(range(config["seeds"])), "more_seeds": {}}
    )
LAYOUT = Layout(PRESET.name)
SITE = checked(load_site)
SITE_FILE = site_file()  # of the checkout; jobs read the frozen copy of it


@cache
def papers():
    """The papers that are asked for by name, or else by the target, which is known once rules are read.

    A job's own process has other targets. It finds in its environment what the process that started it had found.
    """
    if workflow.is_main_process or VARIABLE not in os.environ:
        every = {"reproduction", "extras"} & set(workflow.dag_settings.targets)
        first = PRESET.papers([] if every else PRESET.first)
        asked = NAMED or first + checked(finished_own)
        if "laboratory" in workflow.dag_settings.targets:
            asked = checked(lambda: with_laboratory(asked))
        for paper in asked:
            checked(lambda: check_paper(paper))
        os.environ[VARIABLE] = ",".join(asked)
    return os.environ[VARIABLE].split(",")


def with_laboratory(asked):
    """The papers that are asked for, with those that have a laboratory unless the call names papers."""
    known = dict.fromkeys([*PRESET.papers([]), *asked])
    there = [paper for paper in known if EXPERIMENTS.observed_cell(paper)]
    asked = asked if NAMED else list(dict.fromkeys([*asked, *there]))
    if not set(asked) & set(there):
        raise UserError(
            "none of these papers has a laboratory",
            file="--config",
            key="papers",
            value=",".join(asked),
            allowed=there,
        )
    return asked


def finished_own():
    """Papers of one's own with a finished run, which a call that names no paper takes in."""
    runs = LAYOUT.folder / "runs"
    there = [paper for paper in EXPERIMENTS.own_papers if (runs / paper).is_dir()]
    return [paper for paper in there if finished_runs(paper)]


def named_papers():
    """The papers that the call names; a file of cells names itself."""
    named = EXPERIMENTS.named and own.paper_of(EXPERIMENTS.named)
    asked = str(config["papers"]).split(",") if "papers" in config else [named]
    mine = [paper for paper in EXPERIMENTS.own_papers if paper in asked]
    others = [paper for paper in asked if paper and paper not in mine]
    try:
        return (PRESET.papers(others) if others else []) + mine
    except ValueError as error:
        raise UserError(str(error), file="--config", key="papers") from None


VARIABLE = "REDRAFT_PAPERS"
NAMED = checked(named_papers)
RUN = str(LAYOUT.run("{paper}/{cell}", "{seed}"))
INITIAL = str(LAYOUT.initial("{protocol}", "{role}", "{seed}"))
EVALUATED = str(LAYOUT.folder / "{kind}/{group}/{policy}")
ONE = min(PRESET.engine.gpus, 1)
STAGES = {
    **dict.fromkeys(["train", "time_runs", "calibrate"], "train"),
    **dict.fromkeys(["generate", "generate_initial", "observe"], "evaluate"),
    **dict.fromkeys(["grade", "lighteval", "diversity"], "grade"),
}
"""Stage of the site file, of each rule whose jobs go to Slurm."""
GPUS = {
    **dict.fromkeys(["train", "time_runs"], PRESET.engine.gpus),
    **dict.fromkeys(["generate", "generate_initial", "calibrate", "observe"], ONE),
}


def models_of(wildcards):
    """The papers' models of what a rule's wildcards name: a model, a run, or all runs of a paper."""
    if hasattr(wildcards, "role"):
        return [parted(wildcards.role)[0]]
    if hasattr(wildcards, "cell"):
        return [parted(run_of(wildcards).model_role)[0]]
    return sorted({cell.model for cell in wanted_cells(wildcards.paper)})


def finished_runs(paper):
    """Cells and seeds of the finished runs of a paper of one's own."""
    return [
        (cell, seed)
        for cell in EXPERIMENTS.cells(paper)
        for seed in sorted(LAYOUT.seeds(cell.id))
        if (LAYOUT.run(cell.id, seed) / "scores.json").exists()
        and not EXPERIMENTS.misfit(cell.id, PRESET.name)
    ]


@cache
def asked_of_slurm(stage, *models):
    """What a job of a stage with these models asks of Slurm."""
    return SITE.resources(stage, PRESET.of_models(*models))


def requested(stage):
    """A rule's resources, of which some follow from the model of the job."""

    def resource(name):
        return lambda wildcards: asked_of_slurm(stage, *models_of(wildcards))[name]

    return {name: resource(name) for name in SITE.resources(stage, PRESET)}


def asked_cells(paper):
    """The cells of the grids that are asked for.

    `snakemake reproduction` wants all that the paper reports, `snakemake extras` those beyond it and what they are
    compared with, both together everything, and anything else the preset's default grids. Going from one to the other changes the inputs of
    `collect`, so that it and what follows are made again. That takes seconds and loses nothing: `collect` gathers
    every finished run, asked for or not.
    """
    targets = workflow.dag_settings.targets
    grids = []
    if "reproduction" in targets:
        grids += EXPERIMENTS.grids(paper, beyond_paper=False)
    if "extras" in targets:
        grids += PRESET.default.get(paper, [])
        grids += EXPERIMENTS.grids(paper, beyond_paper=True)
    own_cells = EXPERIMENTS.cells(paper, grids or PRESET.default.get(paper))
    fitting = [c for c in own_cells if not EXPERIMENTS.misfit(c.id, PRESET.name)]
    bases = dict.fromkeys(cell.base for cell in fitting if cell.base)
    return own_cells + [EXPERIMENTS.cell(base) for base in bases]


@cache
def reason_to_leave_out(cell_id):
    """Why a cell cannot be trained at this preset and here, or nothing.

    Problems that a user has to make are no condition for all other cells of a paper. A default cell whose file is
    missing is no exception but a mistake, and Snakemake names the file.
    """
    if misfit := EXPERIMENTS.misfit(cell_id, PRESET.name):
        return misfit
    run = EXPERIMENTS.run(cell_id, PRESET.seeds[0], PRESET.name)
    default = EXPERIMENTS.cells(run.paper, PRESET.default.get(run.paper))
    missing = [file for file in problem_files(run.data) if not Path(file).exists()]
    if run.unsupported or cell_id in [cell.id for cell in default] or not missing:
        return run.unsupported
    return f"{missing[0]} is not there"


def wanted_cells(paper):
    """The cells that a paper's tables wait for: those asked for, but not what cannot be trained here."""
    return [cell for cell in asked_cells(paper) if not reason_to_leave_out(cell.id)]


@cache
def check_configurations():
    """Name the cells that are left out; have verl check every wanted run's configuration, before any job starts.

    verl's check takes seconds, so it is one for all papers. A job's own process reads these files again, but need not
    check again.
    """
    if not workflow.is_main_process:
        return
    for cell in (cell for paper in papers() for cell in asked_cells(paper)):
        if reason := reason_to_leave_out(cell.id):
            print(f"left out: {cell.id}: {reason}", file=sys.stderr)
    if PRESET.engine.kind != "verl":
        return
    cells = [cell.id for paper in papers() for cell in wanted_cells(paper)]
    command = ["redraft", "stage", "check", PRESET.name, *cells]
    if subprocess.run(command, check=False).returncode:
        sys.exit(2)


def is_taken_in(paper):
    """Whether only the finished runs of a paper are wanted: those of one's own, if the call does not name them."""
    return paper in EXPERIMENTS.own_papers and paper not in NAMED


def wanted(paper):
    """Cells and seeds of all runs that a paper's tables wait for.

    Where only finished runs are wanted, those of the cells that they start from are as well, of the same seeds, if
    they are finished or another paper wants them.
    """
    if not is_taken_in(paper):
        return [
            (cell, seed)
            for cell in wanted_cells(paper)
            for seed in EXPERIMENTS.seeds(cell, PRESET)
        ]
    done = finished_runs(paper)
    bases = {(cell.base, seed) for cell, seed in done}
    others = [
        (cell.id, seed)
        for other in papers()
        if not is_taken_in(other)
        for cell, seed in wanted(other)
    ]
    return done + [
        (EXPERIMENTS.cell(base), seed)
        for base, seed in sorted(bases)
        if (base, seed) in others or (LAYOUT.run(base, seed) / "scores.json").exists()
    ]


def wanted_runs(paper):
    """Folders of all runs that a paper's tables wait for."""
    check_configurations()
    return [LAYOUT.run(cell.id, seed) for cell, seed in wanted(paper)]


def wanted_initial(paper):
    """Folders of the evaluations of all initial policies that they start from."""
    policies = dict.fromkeys(
        (
            EXPERIMENTS.protocol_of(PRESET.name, cell.id),
            PRESET.role(cell.model, seed),
            seed,
        )
        for cell, seed in wanted(paper)
    )
    return [LAYOUT.initial(*policy) for policy in policies]


def laboratory_files():
    """Files of the bias laboratory of the papers that have one."""
    observed = [
        LAYOUT.observed(paper, seed)
        for paper in papers()
        if (cell := EXPERIMENTS.observed_cell(paper))
        and not reason_to_leave_out(cell.id)
        for seed in PRESET.seeds
    ]
    return [LAYOUT.laws, *observed] if observed else []


def observed_run(wildcards):
    """Folder of the run that the bias laboratory observes."""
    return LAYOUT.run(EXPERIMENTS.observed_cell(wildcards.paper).id, wildcards.seed)


def observed_role(wildcards):
    """Name of the initial policy of that run."""
    cell = EXPERIMENTS.observed_cell(wildcards.paper)
    return EXPERIMENTS.run(cell.id, int(wildcards.seed), PRESET.name).model_role


def timing_files(paper):
    """Seconds of repeated runs: of all seeds if they are asked for, else those that there are."""
    files = [LAYOUT.timing(paper, seed) for seed in PRESET.seeds]
    asked = "timing" in workflow.dag_settings.targets
    return [file for file in files if asked or file.exists()]


@cache
def check_paper(paper):
    """Read what rules need only later, so that a mistake in it is said at once."""
    for cell in EXPERIMENTS.cells(paper, PRESET.default.get(paper)):
        if not EXPERIMENTS.misfit(cell.id, PRESET.name):
            EXPERIMENTS.run(cell.id, PRESET.seeds[0], PRESET.name)
            EXPERIMENTS.seeds(cell, PRESET)
    EXPERIMENTS.tables(paper)
    EXPERIMENTS.figures(paper)
    EXPERIMENTS.claims(paper)
    EXPERIMENTS.reported(paper)
    EXPERIMENTS.observed_cell(paper)
    check_published(EXPERIMENTS, paper)


def check_calibrations():
    """Refuse a preset that names a roofline's file which is not there, before any job starts."""
    for role, file in getattr(PRESET.engine, "calibrations", {}).items():
        if not Path(file).exists():
            raise UserError(
                "no such file; without the key the workflow measures the roofline",
                file=f"preset {PRESET.name}",
                key=f"engine.calibrations.{role}",
                value=file,
                allowed="a file of `redraft calibrate`",
            )


if workflow.is_main_process:
    checked(check_calibrations)
    for paper in NAMED or PRESET.first or PRESET.default:
        checked(lambda: check_paper(paper))


def cost_of_training(runs):
    """What training some runs costs by what the papers report; nothing where they report nothing."""
    from redraft.analysis.cost import campaign as cost

    return cost.training_line([cell for cell, _ in runs], EXPERIMENTS, PRESET, LAYOUT)


if workflow.is_main_process:
    dry_run.announce(workflow, PRESET, sys.argv, cost_of_training)


def run_of(wildcards):
    """The resolved run that a rule's wildcards name."""
    cell_id = f"{wildcards.paper}/{wildcards.cell}"
    return checked(lambda: EXPERIMENTS.run(cell_id, int(wildcards.seed), PRESET.name))


def protocol_of(wildcards):
    """The protocol by which what a rule's wildcards name is evaluated: a run by its paper's."""
    if hasattr(wildcards, "protocol"):
        return wildcards.protocol
    if getattr(wildcards, "kind", "runs") == "initial":
        return wildcards.group
    if hasattr(wildcards, "cell"):
        name = f"{wildcards.paper}/{wildcards.cell}"
    else:
        name = f"{wildcards.group}/{wildcards.policy.partition('/')[0]}"
    return checked(lambda: EXPERIMENTS.protocol_of(PRESET.name, name))


def benchmarks_of(wildcards):
    """The benchmarks of that protocol."""
    return EXPERIMENTS.preset(PRESET.name, protocol_of(wildcards)).benchmarks


@cache
def sampled(protocol, block):
    """Fingerprint of the generations of a block of seeds."""
    return sampling_fingerprint(
        EXPERIMENTS.preset(PRESET.name, protocol).of_block(block)
    )


def made(kind, name):
    """Fingerprint of a model, or of training data, by the name of its role and block."""
    role, block = parted(name)
    part = getattr(PRESET.of_block(block), kind)[role]
    return fingerprint(part.model_dump(mode="json", exclude_defaults=True))


def problem_files(*data):
    """Files that these problems are read from: inputs, since a fingerprint holds their paths and not their content."""
    return [part.path for part in data if part.kind == "file"]


def training_files(run):
    """Files that its training problems are read from; under verl, what was read from them."""
    prepared = LAYOUT.data(run.data_role) / "data.json"
    return [prepared] if run.engine.kind == "verl" else problem_files(run.data)


def declarations(paper, *parts):
    """Names of the files in which tables, figures or claims of a paper stand; its cells make what it does not state."""
    names = [EXPERIMENTS.declaration(paper, part) for part in parts]
    without = not any(names) and EXPERIMENTS.cell_file(paper).bases
    return list(dict.fromkeys(filter(None, [*names, own.CELLS if without else ""])))


def files_of(paper, names):
    """Files of a paper as inputs, by their names."""
    return [str(EXPERIMENTS.path(paper, name)) for name in names]


def content_of(paper, names):
    """Hash of these files, wherever they lie."""
    return freeze.content_of(*(f"experiments/{paper}/{name}" for name in names))


def family_names(paper):
    """Declarations of a paper's tables and claims, whose p-values are corrected together."""
    return declarations(paper, "tables", "claims")


def figure_names(paper):
    """Declarations of a paper's figures, and of the tables that say which model a published sweep is of."""
    panels = [p for f in EXPERIMENTS.figures(paper).figures for p in f.panels]
    return declarations(paper, "figures", *["tables"] * any(p.roofline for p in panels))


def measured_names(paper):
    """Declarations of all that is measured of a paper's runs."""
    return declarations(paper, "tables", "claims", "figures")


def reported_names(paper):
    """What all reported values of a paper are read from; nothing if none are transcribed."""
    vocabulary = EXPERIMENTS.reported(paper)
    if not vocabulary:
        return []
    numbers = {table.reported_number for table in EXPERIMENTS.tables(paper).tables}
    if vocabulary.times:
        numbers.add(vocabulary.times.table)
    tables = [f"reported/table{number:02d}.csv" for number in sorted(numbers - {None})]
    return ["reported.yaml", *tables]


def published_files(paper):
    """Files that the authors published and tables replay, those that are there."""
    tables = [t for t in EXPERIMENTS.tables(paper).tables if t.kind == "published"]
    return [
        file
        for table in tables
        for row in table.rows
        if (file := curve_file(table.folder, row.file))
    ]


def published_points(paper):
    """Files that the authors published and figures show, those that are there."""
    panels = [p for f in EXPERIMENTS.figures(paper).figures for p in f.panels]
    files = [published_data() / p.published.file for p in panels if p.published]
    curves = [
        curve_file(panel.curves.folder, name)
        for panel in panels
        if panel.curves
        for name in panel.curves.files.values()
    ]
    sweeps = {sweep_file(panel.roofline) for panel in panels if panel.roofline}
    return [file for file in (*files, *curves, *sweeps) if file and file.exists()]


def probed(paper):
    """Verdicts of initial policies on training prompts, for the figures that show them, if the preset samples them."""
    panels = [p for f in EXPERIMENTS.figures(paper).figures for p in f.panels]
    shown = {cell for p in panels if p.epochs == "initial" for cell in p.cells}
    roles = {cell.model for cell in wanted_cells(paper) if cell.name in shown}
    return [
        LAYOUT.initial(PRESET.probe, PRESET.role(role, seed), seed) / "grades.parquet"
        for role in sorted(roles)
        for seed in PRESET.seeds
        if PRESET.probe
    ]


def case_run(paper):
    """Folder of the run that the case studies are drawn from."""
    cell = EXPERIMENTS.figures(paper).cases.cell
    return LAYOUT.run(f"{paper}/{cell}", PRESET.seeds[0])


def has_cases(paper):
    """Whether the paper has case studies, of a cell that is wanted."""
    cases = EXPERIMENTS.figures(paper).cases
    return cases and cases.cell in [cell.name for cell in wanted_cells(paper)]


def twice_graded(paper):
    """IFEval's verdicts by two graders, of all policies that are evaluated, if they are asked for."""
    kinds = [
        b.grading for b in EXPERIMENTS.preset_of(PRESET.name, paper).benchmarks.values()
    ]
    if not PRESET.evaluation.lighteval or "instructions" not in kinds:
        return []
    return [
        folder / "ifeval.json" for folder in wanted_runs(paper) + wanted_initial(paper)
    ]


def report_parts():
    """What the preset's papers have of tables, figures and claims, and what the report says of grading.

    The laboratory's files if they are asked for, else those that there are.
    """
    asked = "laboratory" in workflow.dag_settings.targets
    yield from (file for file in laboratory_files() if asked or file.exists())
    for paper in papers():
        yield LAYOUT.collected(paper) / "runs.parquet"
        yield from twice_graded(paper)
        reported = EXPERIMENTS.reported(paper)
        if EXPERIMENTS.tables(paper).tables or (reported and reported.times):
            yield LAYOUT.tables(paper)
        if EXPERIMENTS.figures(paper).figures:
            yield LAYOUT.figures(paper)
        if has_cases(paper):
            yield LAYOUT.cases(paper).with_suffix(".html")
        if EXPERIMENTS.claims(paper).claims:
            yield LAYOUT.claims(paper)


wildcard_constraints:
    paper=r"[a-z0-9_]+",
    cell=r"[A-Za-z0-9_.-]+",
    seed=r"\d+",
    role=r"[A-Za-z0-9_.-]+(@\d+)?",
    protocol=r"[A-Za-z0-9_-]+",
    bits=r"\d",
    kind="runs|initial",
    group=r"[A-Za-z0-9_-]+",
    policy=r".+",


onstart:
    checked(lambda: count_devices(workflow, GPUS))
    checked(lambda: check_requests(workflow, STAGES, SITE_FILE))
    limit_local_jobs(workflow)
    lift_rate_limit(workflow)
    checked(lambda: freeze.start(workflow, PRESET.name, READ))
    know_all_ends(workflow)
    watch_queue(workflow, STAGES, SITE_FILE)
    campaign.expect(workflow, PRESET)


onsuccess:
    usage.close(workflow, LAYOUT, finished=True)


onerror:
    usage.close(workflow, LAYOUT, finished=False)
