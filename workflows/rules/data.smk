# Training problems for verl: one file of problems, and a record of their sources with hashes.


localrules:  # compute nodes may have no network
    prepare_data,


rule prepare_data:
    input:
        lambda wildcards: problem_files(PRESET.data[parted(wildcards.role)[0]]),
    output:
        problems=LAYOUT.data("{role}") / "problems.parquet",
        record=LAYOUT.data("{role}") / "data.json",
    log:
        LAYOUT.folder / "logs/data/{role}.log",
    benchmark:
        LAYOUT.folder / "logs/data/{role}.resources.tsv"
    params:
        preset=PRESET.name,
        folder=subpath(output.problems, parent=True),
        data=lambda wildcards: INPUTS.part_fingerprint("data", wildcards.role),
    shell:
        "redraft stage redraft.train.verl.problem_files:prepare_data {params.preset:q} {wildcards.role:q} {params.folder:q} > {log:q} 2>&1"
