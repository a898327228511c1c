# The bias laboratory (docs/exact-reuse.md): laws of rules, enumerated, and what they would keep of a run's rollouts.


localrules:
    laws,


rule laws:
    output:
        LAYOUT.laws,
    log:
        LAYOUT.folder / "logs/laboratory/laws.log",
    params:
        version=1,  # increase when the laws or their settings change
    shell:
        "redraft stage laws {output:q} > {log:q} 2>&1"


rule observe:
    input:
        manifest=lambda wildcards: observed_run(wildcards) / "manifest.json",
        weights=lambda wildcards: LAYOUT.model(observed_role(wildcards))
        / "model.safetensors",
    output:
        LAYOUT.observed("{paper}", "{seed}"),
    log:
        LAYOUT.folder / "logs/laboratory/{paper}-seed{seed}.log",
    threads: PRESET.engine.threads
    resources:
        **requested("evaluate"),
        gpus=GPUS["observe"],
    params:
        run=subpath(input.manifest, parent=True),
        model=subpath(input.weights, parent=True),
        version=1,  # increase when the measures change
    shell:
        "redraft stage observe {params.run:q} {params.model:q} {output:q} > {log:q} 2>&1"
