"""Workflow from models to the report. `snakemake` runs the preset tiny, `snakemake --config preset=NAME` another one."""

import gc
import os
import sys
from pathlib import Path

# A planned job is many objects that live to the end. Python's collector would visit them again and again, for a fifth of
# the time of a large plan.
gc.set_threshold(1_000_000)

# Use the packages next to this file: those of the checkout or, in a campaign's job, those of its frozen copy.
OF_JOB = None if workflow.is_main_process else os.environ.get("REDRAFT_CODE")
HERE = OF_JOB or str(workflow.current_basedir)
sys.path.insert(0, f"{HERE}/src")
from redraft.ops.workflow.stop import Stop

STOP = Stop(workflow)
if workflow.is_main_process:
    STOP.install()  # before the slow imports

from redraft.ops.workflow import as_module, freeze
from redraft.config import Experiments, benchmarks_fingerprint, run_fingerprint
from redraft.config.preset import parted

ROOT = as_module.root_of(HERE)
if freeze.frozen(ROOT):
    os.environ.update(freeze.environment(ROOT))


configfile: ROOT / "config/config.yaml"


include: ROOT / "workflows/rules/common.smk"


# Image of `--sdm apptainer --config container=IMAGE`; None without these options.
container: IMAGE


include: ROOT / "workflows/rules/models.smk"
include: ROOT / "workflows/rules/data.smk"
include: ROOT / "workflows/rules/train.smk"
include: ROOT / "workflows/rules/evaluate.smk"
include: ROOT / "workflows/rules/timing.smk"
include: ROOT / "workflows/rules/laboratory.smk"
include: ROOT / "workflows/rules/analysis.smk"


localrules:
    all,
    reproduction,
    extras,
    timing,
    laboratory,


rule all:
    default_target: True
    input:
        LAYOUT.report,
        lambda wildcards: [LAYOUT.collected(p) / "tracked.json" for p in papers()],


rule reproduction:
    input:
        rules.all.input,


rule timing:
    input:
        rules.all.input,
        lambda wildcards: [
            LAYOUT.timing(paper, seed) for paper in papers() for seed in PRESET.seeds
        ],


rule laboratory:
    input:
        rules.all.input,
        lambda wildcards: PLAN.laboratory_files(),


rule extras:
    input:
        rules.all.input,
