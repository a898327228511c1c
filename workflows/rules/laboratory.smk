# Bias laboratory (docs/exact-reuse.md): enumerated distributions of rules, and the tokens that each rule would keep of
# a run's rollouts.


localrules:
    distributions,


rule distributions:
    output:
        LAYOUT.distributions,
    log:
        LAYOUT.folder / "logs/laboratory/distributions.log",
    benchmark:
        LAYOUT.folder / "logs/laboratory/distributions.resources.tsv"
    params:
        code=lambda wildcards: code_of(
            "redraft.lab.audit.bias_laboratory:write_distributions"
        ),
    shell:
        "redraft stage redraft.lab.audit.bias_laboratory:write_distributions {output:q} > {log:q} 2>&1"


rule observe:
    input:
        manifest=lambda wildcards: INPUTS.observed(wildcards)[0],
        weights=lambda wildcards: INPUTS.observed(wildcards)[1],
    output:
        LAYOUT.observed("{paper}", "{seed}"),
    log:
        LAYOUT.folder / "logs/laboratory/{paper}-seed{seed}.log",
    benchmark:
        LAYOUT.folder / "logs/laboratory/{paper}-seed{seed}.resources.tsv"
    threads: PRESET.engine.threads
    resources:
        **INPUTS.resources("observe"),
    params:
        run=subpath(input.manifest, parent=True),
        model=subpath(input.weights, parent=True),
        code=lambda wildcards: code_of("redraft.lab.predict.observations:observe_run"),
    shell:
        "redraft stage redraft.lab.predict.observations:observe_run {params.run:q} {params.model:q} {output:q} > {log:q} 2>&1"
