# Evaluation of policies: generations are saved, then graded. The diversity of a run's rollouts is measured.


localrules:  # compute nodes may have no network
    lighteval_environment,


rule generate:
    input:
        manifest=f"{RUN}/manifest.json",
        problems=problem_files(*(b.data for b in PRESET.benchmarks.values())),
    output:
        generations=f"{RUN}/generations.parquet",
        record=f"{RUN}/generations.json",
    log:
        f"{RUN}/generate.log",
    threads: 1
    resources:
        **SITE.resources("evaluate", IN_USE),
        gpus=GPUS["generate"],
    params:
        preset=PRESET.name,
        policies=lambda wildcards, input: input.manifest,
        benchmarks=lambda wildcards: sampled(int(wildcards.seed) % PRESET.blocks),
    shell:
        "redraft stage generate {params.preset:q} {wildcards.seed} {output.generations:q} {params.policies:q} > {log:q} 2>&1"


use rule generate as generate_initial with:
    input:
        manifest=LAYOUT.model("{role}") / "model.safetensors",
        problems=problem_files(*(b.data for b in PRESET.benchmarks.values())),
    output:
        generations=f"{INITIAL}/generations.parquet",
        record=f"{INITIAL}/generations.json",
    log:
        f"{INITIAL}/generate.log",
    params:
        preset=PRESET.name,
        policies=lambda wildcards: [str(LAYOUT.model(wildcards.role))],
        benchmarks=lambda wildcards: sampled(int(wildcards.seed) % PRESET.blocks),


rule grade:
    input:
        "{evaluated}/generations.parquet",
    output:
        scores="{evaluated}/scores.json",
        grades="{evaluated}/grades.parquet",
        hashes="{evaluated}/grades.json",
    log:
        "{evaluated}/grade.log",
    threads: 1
    resources:
        **SITE.resources("grade", IN_USE),
    params:
        preset=PRESET.name,
        benchmarks=benchmarks_fingerprint(PRESET.benchmarks, graded=True),
        version=3,  # increase when the grader or the scores change
    shell:
        "redraft stage grade {params.preset:q} {input:q} {output.scores:q} --processes {threads} > {log:q} 2>&1"


rule lighteval_environment:
    input:
        "envs/lighteval/requirements.lock",
    output:
        ".venv-lighteval/.ready",
    log:
        LAYOUT.folder / "logs/lighteval_environment.log",
    shell:
        "sh envs/install.sh .venv-lighteval lighteval > {log:q} 2>&1"


rule lighteval:
    input:
        environment=ancient(rules.lighteval_environment.output),
        generations="{evaluated}/generations.parquet",
        grades="{evaluated}/grades.parquet",
        scripts=multiext("workflows/lighteval/", "grade.py", "tasks.py"),
    output:
        comparison="{evaluated}/ifeval.json",
        verdicts="{evaluated}/lighteval.parquet",
        summary="{evaluated}/lighteval.json",
    log:
        "{evaluated}/lighteval.log",
    threads: 1
    resources:
        **SITE.resources("grade", IN_USE),
    shell:
        "redraft stage lighteval {input.generations:q} {input.grades:q} {output.comparison:q} > {log:q} 2>&1"


rule diversity:
    input:
        manifest=f"{RUN}/manifest.json",
    output:
        measured=f"{RUN}/diversity.parquet",
        hashes=f"{RUN}/diversity.json",
    log:
        f"{RUN}/diversity.log",
    threads: 1
    resources:
        **SITE.resources("grade", IN_USE),
    params:
        folder=subpath(input.manifest, parent=True),
        version=3,  # increase when the measures change
    shell:
        "redraft stage diversity {params.folder:q} {wildcards.seed} {output.measured:q} > {log:q} 2>&1"
