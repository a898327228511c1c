# Timed repetitions (`snakemake timing`): the runs of a seed train again side by side, with repeated rollouts.


rule time_runs:
    input:
        manifests=lambda wildcards: [
            LAYOUT.run(cell.id, wildcards.seed) / "manifest.json"
            for cell in PLAN.wanted_cells(wildcards.paper)
            if cell.paper == wildcards.paper
        ],
    output:
        seconds=LAYOUT.timing("{paper}", "{seed}"),
        record=LAYOUT.timing("{paper}", "{seed}").with_suffix(".json"),
    log:
        LAYOUT.folder / "logs/{paper}/timing{seed}.log",
    benchmark:
        LAYOUT.folder / "logs/{paper}/timing{seed}.resources.tsv"
    # All cores, so that no other job disturbs the measurement.
    threads: max(PRESET.engine.threads, workflow.cores or 1)
    resources:
        **INPUTS.resources("time_runs"),
    params:
        preset=PRESET.name,
    shell:
        "redraft stage redraft.train.local.side_by_side:time_runs {params.preset:q} {wildcards.seed} {output.seconds:q} {input.manifests:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q})"
