# Generations are saved, then graded; rollouts of training are measured for diversity.


rule generate:
    input:
        weights=f"{RUN}/policy/model.safetensors",
        problems=problem_files(*(b.data for b in PRESET.benchmarks.values())),
    output:
        f"{RUN}/generations.parquet",
    log:
        f"{RUN}/generate.log",
    threads: 1
    params:
        preset=PRESET.name,
        policy=subpath(input.weights, parent=True),
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=False),
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
