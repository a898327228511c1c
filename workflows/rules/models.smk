# Initial policies: initialised and warm-started, or fetched from the hub.


localrules:  # compute nodes may have no network
    make_model,


rule make_model:
    output:
        weights=LAYOUT.model("{role}") / "model.safetensors",
    log:
        LAYOUT.folder / "logs/models/{role}.log",
    threads: 1
    params:
        preset=PRESET.name,
        folder=subpath(output.weights, parent=True),
        model=lambda wildcards: made("models", wildcards.role),
    shell:
        "redraft stage model {params.preset:q} {wildcards.role:q} {params.folder:q} 2>&1 | tee {log:q}"
