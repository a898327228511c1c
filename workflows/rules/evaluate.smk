# Evaluation of policies: sample generations, save and grade them. Also: diversity of a run's rollouts.


localrules:  # compute nodes may have no network
    lighteval_environment,
    prepare_benchmarks,
    take_generations,  # copies of files


rule prepare_benchmarks:
    output:
        record=LAYOUT.benchmarks("{protocol}"),
    log:
        LAYOUT.folder / "logs/benchmarks/{protocol}.log",
    benchmark:
        LAYOUT.folder / "logs/benchmarks/{protocol}.resources.tsv"
    params:
        preset=PRESET.name,
        benchmarks=lambda wildcards: benchmarks_fingerprint(
            INPUTS.benchmarks(wildcards), graded=True
        ),
    shell:
        "redraft stage redraft.evaluate.generate:prepare_benchmarks {params.preset:q} {wildcards.protocol:q} {output.record:q} > {log:q} 2>&1"


rule generate:
    input:
        manifest=f"{RUN}/manifest.json",
        problems=benchmark_files,
    output:
        generations=f"{RUN}/generations.parquet",
        record=f"{RUN}/generations.json",
    log:
        f"{RUN}/generate.log",
    benchmark:
        f"{RUN}/generate.resources.tsv"
    wildcard_constraints:
        paper=papers_of("sampled"),
    threads: PRESET.evaluation_threads
    resources:
        **INPUTS.resources("generate"),
    params:
        preset=PRESET.name,
        protocol=protocol_of,
        policies=lambda wildcards, input: input.manifest,
        benchmarks=sampled,
    shell:
        "redraft stage redraft.evaluate.generate:generate_policies {params.preset:q} {params.protocol:q} {wildcards.seed} {output.generations:q} {params.policies:q} > {log:q} 2>&1"


use rule generate as generate_initial with:
    input:
        manifest=LAYOUT.model("{role}") / "model.safetensors",
        problems=benchmark_files,
    output:
        generations=f"{INITIAL}/generations.parquet",
        record=f"{INITIAL}/generations.json",
    log:
        f"{INITIAL}/generate.log",
    benchmark:
        f"{INITIAL}/generate.resources.tsv"
    params:
        preset=PRESET.name,
        protocol=protocol_of,
        policies=lambda wildcards: [str(LAYOUT.model(wildcards.role))],
        benchmarks=sampled,


rule take_generations:
    input:
        manifest=f"{RUN}/manifest.json",
        origin=lambda wildcards: INPUTS.origin(wildcards) / "manifest.json",
        generations=lambda wildcards: INPUTS.origin(wildcards) / "generations.parquet",
        record=lambda wildcards: INPUTS.origin(wildcards) / "generations.json",
    output:
        generations=f"{RUN}/generations.parquet",
        record=f"{RUN}/generations.json",
    log:
        f"{RUN}/generate.log",
    benchmark:
        f"{RUN}/generate.resources.tsv"
    wildcard_constraints:
        paper=papers_of("taken_generations"),
    params:
        preset=PRESET.name,
        protocol=protocol_of,
        benchmarks=sampled,
    shell:
        "redraft stage redraft.evaluate.taken_generations:take_generations {params.preset:q} {params.protocol:q} {wildcards.seed}"
        " {input.record:q} {output.generations:q} > {log:q} 2>&1"


rule grade:
    input:
        f"{EVALUATED}/generations.parquet",
    output:
        scores=f"{EVALUATED}/scores.json",
        grades=f"{EVALUATED}/grades.parquet",
        hashes=f"{EVALUATED}/grades.json",
    log:
        f"{EVALUATED}/grade.log",
    benchmark:
        f"{EVALUATED}/grade.resources.tsv"
    threads: 1
    resources:
        **INPUTS.resources("grade"),
    params:
        preset=PRESET.name,
        protocol=protocol_of,
        benchmarks=lambda wildcards: benchmarks_fingerprint(
            INPUTS.benchmarks(wildcards), graded=True
        ),
        code=lambda wildcards: code_of("redraft.evaluate.grade:grade_policies"),
    shell:
        "redraft stage redraft.evaluate.grade:grade_policies {params.preset:q} {params.protocol:q} {input:q} {output.scores:q} --processes {threads} > {log:q} 2>&1"


rule lighteval_environment:
    input:
        own_file("envs/lighteval/requirements.lock"),
    output:
        ".venv-lighteval/.ready",
    log:
        LAYOUT.folder / "logs/lighteval_environment.log",
    benchmark:
        LAYOUT.folder / "logs/lighteval_environment.resources.tsv"
    shell:
        '(cd "$(dirname {input:q})/../.." && sh envs/install.sh "$OLDPWD"/.venv-lighteval lighteval) > {log:q} 2>&1'


rule lighteval:
    input:
        environment=rules.lighteval_environment.output,
        generations=f"{EVALUATED}/generations.parquet",
        grades=f"{EVALUATED}/grades.parquet",
        scripts=[
            own_file(f"workflows/lighteval/{name}.py") for name in ("grade", "tasks")
        ],
    output:
        comparison=f"{EVALUATED}/ifeval.json",
        verdicts=f"{EVALUATED}/lighteval.parquet",
        summary=f"{EVALUATED}/lighteval.json",
    log:
        f"{EVALUATED}/lighteval.log",
    benchmark:
        f"{EVALUATED}/lighteval.resources.tsv"
    threads: 1
    resources:
        **INPUTS.resources("lighteval"),
    params:
        code=lambda wildcards: code_of("redraft.evaluate.lighteval:grade_again"),
    shell:
        "redraft stage redraft.evaluate.lighteval:grade_again {input.generations:q} {input.grades:q} {output.comparison:q} > {log:q} 2>&1"


rule diversity:
    input:
        manifest=f"{RUN}/manifest.json",
    output:
        measured=f"{RUN}/diversity.parquet",
        hashes=f"{RUN}/diversity.json",
    log:
        f"{RUN}/diversity.log",
    benchmark:
        f"{RUN}/diversity.resources.tsv"
    threads: 1
    resources:
        **INPUTS.resources("diversity"),
    params:
        folder=subpath(input.manifest, parent=True),
        code=lambda wildcards: code_of("redraft.evaluate.diversity:measure_run"),
    shell:
        "redraft stage redraft.evaluate.diversity:measure_run {params.folder:q} {wildcards.seed} {output.measured:q} > {log:q} 2>&1"
