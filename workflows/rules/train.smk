# One training run. Checkpoints and policies are next to the manifest, which lists them and is written last. A repeated
# run resumes from its last checkpoint. `tee` ignores signals to the group, so that the log has the run's last lines.


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
