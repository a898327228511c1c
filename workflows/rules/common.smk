# Objects that all rules share, such as the plan of this call, and the handlers of its start and end.

import os
import sys
from functools import cache, wraps

from redraft.cli.process import commands_on_path, repair_streams
from redraft.config.site import load_site, site_file
from redraft.errors import UserError
from redraft.layout import require_writable
from redraft.messages import echo
from redraft.ops.locking.termination import sigterm_on_hangup
from redraft.ops.sizing.run_size import RunSizes
from redraft.ops.slurm.jobs import cancel_whole_call, recognise_all_ends
from redraft.ops.slurm.feasibility import check_requests
from redraft.ops.slurm.waiting import watch_queue
from redraft.ops.workflow import containers, dry_run, job_times, pace
from redraft.ops.workflow.code_hash import code_of
from redraft.ops.workflow.other_owners import check_before_lock, check_no_other_owner
from redraft.ops.workflow.fit import Fit, cluster_of, record_left_out, submits
from redraft.ops.workflow.plan import Call, CampaignPlan, problem_files
from redraft.ops.workflow.rule_inputs import STAGES, Declarations, RuleInputs
from redraft.ops.workflow.scale import inspect_functions_once, list_examples
from redraft.ops.workflow.submissions import slurm_lines
from redraft.ops.workflow.supply import count_devices, lift_rate_limit, limit_local_jobs


def checked(function):
    """Wrap a function so that a mistake in experiment files ends the call with one message instead of a traceback."""

    @wraps(function)
    def call(*arguments, **options):
        try:
            return function(*arguments, **options)
        except UserError as error:
            echo(f"error: {error}", err=True)
            sys.exit(2)

    return call


def own_file(path):
    """Path of a file of this workflow, relative to the working directory, so that a moved checkout keeps its paths."""
    return os.path.relpath(ROOT / path)


repair_streams()
commands_on_path()
CALL = checked(Call.of)(config)
checked(as_module.check_use)(workflow)
checked(CALL.register_cells)(ROOT)
IS_FIRST_USE = as_module.is_first_use(workflow)
if workflow.is_main_process:
    CHECKOUT_HASH = checked(freeze.checkout_hash)(ROOT)
    if not dry_run.is_dry(sys.argv):
        checked(lambda: pace.take_precision(Experiments().preset(CALL.preset)))()
# After that, since a preset has the precision that was taken for it.
EXPERIMENTS = checked(Experiments)()


def check_transcriptions(experiments, paper):
    """Check the columns of reported tables that declarations name; jobs do not need it."""
    from redraft.analysis.data.reported_tables import check_reported

    check_reported(experiments, paper)


SITE = checked(load_site)()


def fault_of_run(run):
    """Reason why a run does not fit; the partitions are queried at the first call, in the main process only."""
    return fit().fault(run)


@cache
def fit():
    """Check of runs against the memory of GPUs and, if this call submits jobs, the cluster's nodes."""
    return Fit(PRESET, SITE, cluster_of(sys.argv[1:]))


PLAN = checked(CampaignPlan)(
    CALL,
    EXPERIMENTS,
    targets=lambda: workflow.dag_settings.targets,
    environment=os.environ,
    main=workflow.is_main_process,
    check=check_transcriptions,
    fault=fault_of_run,
)
PRESET, LAYOUT = PLAN.preset, PLAN.layout
IMAGE = checked(containers.image_of)(workflow, CALL.container, PRESET)
containers.print_recipe_instead(workflow, ROOT)
INPUTS = RuleInputs(PLAN, SITE)
DECLARED = Declarations(EXPERIMENTS)
SIZES = RunSizes(EXPERIMENTS, PRESET)
SITE_FILE = site_file()  # the checkout's file, for messages; jobs read its frozen copy
RUN = str(LAYOUT.run("{paper}/{cell}", "{seed}"))
INITIAL = str(LAYOUT.initial("{protocol}", "{role}", "{seed}"))
EVALUATED = str(LAYOUT.folder / "{kind}/{group}/{policy}")
papers = checked(lambda: PLAN.papers)
run_of, protocol_of = checked(INPUTS.run), checked(INPUTS.protocol)
benchmark_files, sampled = checked(INPUTS.benchmark_files), checked(INPUTS.sampled)
papers_of = checked(INPUTS.papers_of)


def cost_of_training(runs):
    """Training cost of runs as a line, from the papers' reported hours; empty if they report none."""
    from redraft.analysis.cost import campaign_cost as cost

    return cost.training_line([cell for cell, _ in runs], EXPERIMENTS, PRESET, LAYOUT)


def lines_about_slurm(jobs):
    """Lines of a dry run about what the call would submit to Slurm; none for other calls."""
    if not submits(sys.argv[1:]):
        return []
    return slurm_lines(workflow, jobs, lambda wildcards: run_of(wildcards).engine)


def paper_of_page(wildcards):
    """Paper of a run's page `runs/PAPER/RUN`; other pages are about all papers."""
    first, *paper_and_run = wildcards.page.split("/")
    return paper_and_run[0] if first == "runs" and paper_and_run else "all papers"


if workflow.is_main_process and IS_FIRST_USE:
    sigterm_on_hangup()
    checked(require_writable)(Path("results"))
    check_before_lock(workflow, checked(check_no_other_owner))
    inspect_functions_once()
    list_examples(workflow)
    dry_run.announce(
        workflow, PRESET, SIZES, sys.argv, cost_of_training, lines_about_slurm
    )


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
    STOP.install()
    checked(count_devices)(workflow, {rule: INPUTS.gpus(rule) for rule in STAGES})
    checked(check_requests)(workflow, STAGES, SITE_FILE)
    checked(containers.check_nodes)(workflow)
    limit_local_jobs(workflow)
    lift_rate_limit(workflow)
    checked(freeze.start)(workflow, ROOT, PRESET.name, CHECKOUT_HASH)
    record_left_out(LAYOUT, PLAN.unfitting)
    recognise_all_ends(workflow)
    cancel_whole_call(workflow)
    watch_queue(workflow, STAGES, SITE_FILE, INPUTS.steps)
    job_times.announce_jobs(workflow, PRESET, SIZES)


onsuccess:
    job_times.record_call(workflow, LAYOUT, finished=True)


onerror:
    job_times.record_call(workflow, LAYOUT, finished=False)


if IS_FIRST_USE:
    as_module.run_handlers(workflow)
