# Initial policies, and their rooflines on this machine. A policy is trained here, or imported from the hub or a file.


localrules:  # compute nodes may have no network
    import_model,


rule make_model:
    output:
        weights=LAYOUT.model("{role}") / "model.safetensors",
    log:
        LAYOUT.folder / "logs/models/{role}.log",
    benchmark:
        LAYOUT.folder / "logs/models/{role}.resources.tsv"
    wildcard_constraints:
        role=INPUTS.roles(made=True),
    threads: 1
    resources:
        **INPUTS.resources("make_model"),
    params:
        preset=PRESET.name,
        folder=subpath(output.weights, parent=True),
        model=lambda wildcards: INPUTS.part_fingerprint("models", wildcards.role),
    shell:
        "redraft stage redraft.train.initial_policy:make_model {params.preset:q} {wildcards.role:q} {params.folder:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q})"


use rule make_model as import_model with:
    wildcard_constraints:
        role=INPUTS.roles(made=False),
    resources:
        in_turn=0,  # no group of Slurm jobs has it


# On a busy machine a sweep may fit no roofline and is rejected; the retries measure another one.
rule calibrate:
    input:
        weights=LAYOUT.model("{role}") / "model.safetensors",
    output:
        calibration=LAYOUT.calibration("{role}", "{bits}"),
        sweep=LAYOUT.calibration("{role}", "{bits}").with_suffix(".csv"),
        drawing=report(
            LAYOUT.calibration("{role}", "{bits}").with_suffix(".svg"),
            caption="../report/roofline.rst",
            category="Rooflines",
            labels={"model": "{role}", "bits": "{bits}"},
        ),
    log:
        LAYOUT.folder / "logs/calibrations/{role}-w{bits}.log",
    benchmark:
        LAYOUT.folder / "logs/calibrations/{role}-w{bits}.resources.tsv"
    retries: 2
    threads: PRESET.engine.threads
    resources:
        **INPUTS.resources("calibrate"),
    params:
        preset=PRESET.name,
        model=subpath(input.weights, parent=True),
        dtype=lambda wildcards: PRESET.engine_of(wildcards.role).dtype,
    shell:
        "redraft stage redraft.cli.selfspec:calibrate_preset {params.preset:q} {wildcards.role:q} {wildcards.bits} {params.model:q}"
        " {output.calibration:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q})"
