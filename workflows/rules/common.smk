# What all rules share: the plan of this call, and what begins and ends it. The plan says what is wanted and why not.

import os
import sys
from functools import wraps

from redraft.config.site import load_site, site_file
from redraft.errors import UserError
from redraft.ops.slurm.jobs import know_all_ends
from redraft.ops.slurm.requests import check_requests
from redraft.ops.slurm.waiting import watch_queue
from redraft.ops.workflow import campaign, dry_run, usage
from redraft.ops.workflow.code_hash import code_of
from redraft.ops.workflow.declarations import Declarations
from redraft.ops.workflow.plan import Call, CampaignPlan, problem_files
from redraft.ops.workflow.rule_inputs import STAGES, RuleInputs
from redraft.ops.workflow.supply import count_devices, lift_rate_limit, limit_local_jobs


def checked(function):
    """The function; a mistake in experiment files that it finds ends the call with one message, not a traceback."""

    @wraps(function)
    def call(*arguments, **options):
        try:
            return function(*arguments, **options)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)

    return call


CALL = checked(Call.of)(config)
checked(CALL.take_cells)(Path(workflow.basedir))
if workflow.is_main_process:
    READ = checked(freeze.checkout_hash)(Path(workflow.basedir))
EXPERIMENTS = checked(Experiments)()
PLAN = checked(CampaignPlan)(
    CALL,
    EXPERIMENTS,
    targets=lambda: workflow.dag_settings.targets,
    environment=os.environ,
    main=workflow.is_main_process,
)
PRESET, LAYOUT = PLAN.preset, PLAN.layout
INPUTS = RuleInputs(PLAN, checked(load_site)())
DECLARED = Declarations(EXPERIMENTS)
SITE_FILE = site_file()  # of the checkout; jobs read the frozen copy of it
RUN = str(LAYOUT.run("{paper}/{cell}", "{seed}"))
INITIAL = str(LAYOUT.initial("{protocol}", "{role}", "{seed}"))
EVALUATED = str(LAYOUT.folder / "{kind}/{group}/{policy}")
papers = checked(lambda: PLAN.papers)
run_of, protocol_of = checked(INPUTS.run), checked(INPUTS.protocol)
benchmark_files, sampled = checked(INPUTS.benchmark_files), checked(INPUTS.sampled)


def cost_of_training(runs):
    """What training some runs costs by what the papers report; nothing where they report nothing."""
    from redraft.analysis.cost import campaign_cost as cost

    return cost.training_line([cell for cell, _ in runs], EXPERIMENTS, PRESET, LAYOUT)


if workflow.is_main_process:
    dry_run.announce(workflow, PRESET, sys.argv, cost_of_training)


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
    checked(count_devices)(workflow, {rule: INPUTS.gpus(rule) for rule in STAGES})
    checked(check_requests)(workflow, STAGES, SITE_FILE)
    limit_local_jobs(workflow)
    lift_rate_limit(workflow)
    checked(freeze.start)(workflow, PRESET.name, READ)
    know_all_ends(workflow)
    watch_queue(workflow, STAGES, SITE_FILE)
    campaign.expect(workflow, PRESET)


onsuccess:
    usage.close(workflow, LAYOUT, finished=True)


onerror:
    usage.close(workflow, LAYOUT, finished=False)
