# Generations are saved, then graded; rollouts of training are measured for diversity.


rule generate:
    input:
        manifest=f"{RUN}/manifest.json",
        problems=problem_files(*(b.data for b in PRESET.benchmarks.values())),
    output:
        f"{RUN}/generations.parquet",
    log:
        f"{RUN}/generate.log",
    threads: 1
    resources:
        gpus=min(PRESET.engine.gpus, 1),
    params:
        preset=PRESET.name,
        policies=lambda wildcards: policies_of(run_of(wildcards)),
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=False),
    shell:
        "redraft stage generate {params.preset:q} {wildcards.seed} {output:q} {params.policies:q} > {log:q} 2>&1"


use rule generate as generate_initial with:
    input:
        manifest=LAYOUT.model("{role}") / "model.safetensors",
        problems=problem_files(*(b.data for b in PRESET.benchmarks.values())),
    output:
        f"{INITIAL}/generations.parquet",
    log:
        f"{INITIAL}/generate.log",
    params:
        preset=PRESET.name,
        policies=lambda wildcards: [str(LAYOUT.model(wildcards.role))],
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=False),


rule grade:
    input:
        "{folder}/generations.parquet",
    output:
        "{folder}/scores.json",
    log:
        "{folder}/grade.log",
    threads: 1
    params:
        preset=PRESET.name,
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=True),
    shell:
        "redraft stage grade {params.preset:q} {input:q} {output:q} > {log:q} 2>&1"


rule diversity:
    input:
        manifest=f"{RUN}/manifest.json",
    output:
        f"{RUN}/diversity.parquet",
    log:
        f"{RUN}/diversity.log",
    threads: 1
    params:
        folder=subpath(input.manifest, parent=True),
    shell:
        "redraft stage diversity {params.folder:q} {wildcards.seed} {output:q} > {log:q} 2>&1"
