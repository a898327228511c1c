# Generations are saved, then graded; rollouts of training are measured for diversity.


localrules:  # since only the machine that runs Snakemake may have a network
    lighteval_environment,


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
        benchmarks=sampled_as(),
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
        benchmarks=sampled_as(),


rule grade:
    input:
        "{folder}/generations.parquet",
    output:
        scores="{folder}/scores.json",
        grades="{folder}/grades.parquet",
    log:
        "{folder}/grade.log",
    threads: 1
    params:
        preset=PRESET.name,
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=True),
    shell:
        "redraft stage grade {params.preset:q} {input:q} {output.scores:q} --processes {threads} > {log:q} 2>&1"


rule lighteval_environment:
    output:
        ".venv-lighteval/.ready",
    log:
        LAYOUT.folder / "logs/lighteval_environment.log",
    shell:
        "sh envs/install.sh .venv-lighteval lighteval > {log:q} 2>&1"


rule lighteval:
    input:
        environment=ancient(rules.lighteval_environment.output),
        generations="{folder}/generations.parquet",
        grades="{folder}/grades.parquet",
    output:
        comparison="{folder}/ifeval.json",
        verdicts="{folder}/lighteval.parquet",
        summary="{folder}/lighteval.json",
    log:
        "{folder}/lighteval.log",
    threads: 1
    shell:
        "redraft stage lighteval {input.generations:q} {input.grades:q} {output.comparison:q} > {log:q} 2>&1"


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
        version=2,  # to be raised when something else is measured
    shell:
        "redraft stage diversity {params.folder:q} {wildcards.seed} {output:q} > {log:q} 2>&1"
