# Generations are saved, then graded; rollouts of training are measured for diversity.

BENCHMARKS = fingerprint(
    {name: b.model_dump(mode="json") for name, b in PRESET.benchmarks.items()}
)


rule generate:
    input:
        weights=f"{RUN}/policy/model.safetensors",
    output:
        f"{RUN}/generations.parquet",
    log:
        f"{RUN}/generate.log",
    threads: 1
    params:
        preset=PRESET.name,
        policy=subpath(input.weights, parent=True),
        benchmarks=BENCHMARKS,
    shell:
        "redraft stage generate {params.preset:q} {params.policy:q} {wildcards.seed} {output:q} > {log:q} 2>&1"


rule grade:
    input:
        f"{RUN}/generations.parquet",
    output:
        f"{RUN}/scores.json",
    log:
        f"{RUN}/grade.log",
    threads: 1
    params:
        preset=PRESET.name,
        benchmarks=BENCHMARKS,
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
