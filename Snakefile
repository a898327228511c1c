"""Workflow from models to the report. `snakemake` runs the preset tiny, `snakemake --config preset=NAME` another one."""

import os
import sys
from pathlib import Path

# Use the packages next to this file: those of the checkout or, in a campaign's job, those of its frozen copy.
sys.path.insert(0, f"{workflow.basedir}/src")
from redraft.ops.workflow.stop import Stop

STOP = Stop(workflow)
if workflow.is_main_process:
    STOP.install()  # before the slow imports

from redraft.ops.workflow import freeze
from redraft.config import Experiments, benchmarks_fingerprint, run_fingerprint
from redraft.config.preset import parted

if freeze.frozen(Path(workflow.basedir)):
    os.environ.update(freeze.environment(Path(workflow.basedir)))


configfile: f"{workflow.basedir}/workflows/config.yaml"


include: "workflows/rules/common.smk"


# Image of `--sdm apptainer --config container=IMAGE`; None without these options.
container: IMAGE


include: "workflows/rules/models.smk"
include: "workflows/rules/data.smk"
include: "workflows/rules/train.smk"
include: "workflows/rules/evaluate.smk"
include: "workflows/rules/timing.smk"
include: "workflows/rules/laboratory.smk"
include: "workflows/rules/analysis.smk"


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
