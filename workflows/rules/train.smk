# One training run. Checkpoints and policies are next to the manifest, which lists them and is written last. A repeated
# run resumes from its last checkpoint. `tee` ignores signals to the group, so that the log has the run's last lines.


localrules:  # links to files
    take_run,


rule train:
    input:
        weights=checked(INPUTS.weights),
        problems=checked(INPUTS.training_files),
        calibration=lambda wildcards: run_of(wildcards).calibration or [],
    output:
        manifest=f"{RUN}/manifest.json",
    log:
        f"{RUN}/attempt.txt",  # Snakemake removes it before each attempt; log.txt keeps all attempts
    benchmark:
        f"{RUN}/resources.tsv"
    wildcard_constraints:
        paper=papers_of("trained"),
    threads: PRESET.engine.threads
    resources:
        **INPUTS.resources("train"),
    params:
        preset=PRESET.name,
        model=subpath(input.weights, parent=True),
        folder=subpath(output.manifest, parent=True),
        run=lambda wildcards: INPUTS.run_content(wildcards),
    shell:
        "redraft stage redraft.train.job:train {params.preset:q} {wildcards.paper:q}/{wildcards.cell:q} {wildcards.seed} {params.model:q}"
        " {params.folder:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q} | tee -a {params.folder:q}/log.txt)"


# A run that another paper has trained, under the name of this paper's cell.


rule take_run:
    input:
        manifest=lambda wildcards: INPUTS.origin(wildcards) / "manifest.json",
    output:
        manifest=f"{RUN}/manifest.json",
    log:
        f"{RUN}/taken.log",
    benchmark:
        f"{RUN}/taken.resources.tsv"
    wildcard_constraints:
        paper=papers_of("taken"),
    params:
        preset=PRESET.name,
        run=lambda wildcards: INPUTS.run_content(wildcards),
    shell:
        "redraft stage redraft.train.taken_run:take_run {params.preset:q} {wildcards.paper:q}/{wildcards.cell:q} {wildcards.seed}"
        " {input.manifest:q} {output.manifest:q} > {log:q} 2>&1"
