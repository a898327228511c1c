# Initial policies, initialised and warm-started or downloaded from the hub, and their rooflines on this machine.


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
        model=lambda wildcards: INPUTS.part_fingerprint("models", wildcards.role),
    shell:
        "redraft stage redraft.train.initial_policy:make_model {params.preset:q} {wildcards.role:q} {params.folder:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q})"


# On a busy machine a sweep may fit no roofline and is rejected; the retries measure another one.
rule calibrate:
    input:
        weights=LAYOUT.model("{role}") / "model.safetensors",
    output:
        calibration=LAYOUT.calibration("{role}", "{bits}"),
        sweep=LAYOUT.calibration("{role}", "{bits}").with_suffix(".csv"),
        drawing=LAYOUT.calibration("{role}", "{bits}").with_suffix(".svg"),
    log:
        LAYOUT.folder / "logs/calibrations/{role}-w{bits}.log",
    retries: 2
    threads: PRESET.engine.threads
    resources:
        **INPUTS.resources("calibrate"),
    params:
        preset=PRESET.name,
        model=subpath(input.weights, parent=True),
    shell:
        "redraft stage redraft.cli.selfspec:calibrate_preset {params.preset:q} {wildcards.role:q} {wildcards.bits} {params.model:q}"
        " {output.calibration:q} 2>&1 | (trap '' HUP INT TERM; tee {log:q})"
