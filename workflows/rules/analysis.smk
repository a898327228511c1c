# From finished runs to the report. Light, so these stay on the machine that runs Snakemake.

LOGS = LAYOUT.folder / "logs"
COLLECTED = {
    name: str(LAYOUT.collected("{paper}") / f"{name}.parquet")
    for name in ("runs", "steps", "scores")
}
MEASURED = {
    name: str(LAYOUT.collected("{paper}") / file)
    for name, file in {
        "measured": "measured.parquet",
        "family": "family.parquet",
        "record": "measured.json",
    }.items()
}


localrules:
    collect,
    measure,
    tables,
    figures,
    choose_cases,
    cases,
    claims,
    report,
    track,


rule collect:
    input:
        scores=lambda wildcards: [
            run / "scores.json" for run in wanted_runs(wildcards.paper)
        ],
        diversity=lambda wildcards: [
            run / "diversity.parquet" for run in wanted_runs(wildcards.paper)
        ],
        initial=lambda wildcards: [
            folder / "scores.json" for folder in wanted_initial(wildcards.paper)
        ],
        timing=lambda wildcards: timing_files(wildcards.paper),
    output:
        **COLLECTED,
    log:
        LOGS / "{paper}/collect.log",
    params:
        preset=PRESET.name,
    shell:
        "redraft stage collect {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


# Tables, figures, claims and `redraft compare` read what is measured here, and measure nothing themselves.
rule measure:
    input:
        **COLLECTED,
        spec=lambda wildcards: files_of(
            wildcards.paper, measured_names(wildcards.paper)
        ),
        reported=lambda wildcards: files_of(
            wildcards.paper, reported_names(wildcards.paper)
        ),
        probed=lambda wildcards: probed(wildcards.paper),
    output:
        **MEASURED,
    log:
        LOGS / "{paper}/measure.log",
    params:
        preset=PRESET.name,
        content=lambda wildcards: content_of(
            wildcards.paper, measured_names(wildcards.paper)
        ),
    shell:
        "redraft stage measure {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


# One job makes all tables of a paper, and one all figures: to start a process takes longer than a table.
rule tables:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: files_of(wildcards.paper, family_names(wildcards.paper)),
        reported=lambda wildcards: files_of(
            wildcards.paper, reported_names(wildcards.paper)
        ),
        published=lambda wildcards: published_files(wildcards.paper),
    output:
        directory(LAYOUT.tables("{paper}")),
    log:
        LOGS / "{paper}/tables.log",
    params:
        preset=PRESET.name,
        content=lambda wildcards: content_of(
            wildcards.paper,
            family_names(wildcards.paper) + reported_names(wildcards.paper),
        ),
        version=2,  # increase when the tables' files are made otherwise
    shell:
        "redraft stage tables {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule figures:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: files_of(wildcards.paper, figure_names(wildcards.paper)),
        probed=lambda wildcards: probed(wildcards.paper),
        published=lambda wildcards: published_points(wildcards.paper),
    output:
        directory(LAYOUT.figures("{paper}")),
    log:
        LOGS / "{paper}/figures.log",
    params:
        preset=PRESET.name,
        content=lambda wildcards: content_of(
            wildcards.paper, figure_names(wildcards.paper)
        ),
        version=4,  # increase when the data or the drawings change
    shell:
        "redraft stage figures {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule choose_cases:
    input:
        manifest=lambda wildcards: case_run(wildcards.paper) / "manifest.json",
    output:
        str(LAYOUT.cases("{paper}")) + ".json",
    log:
        LOGS / "{paper}/choose_cases.log",
    params:
        folder=subpath(input.manifest, parent=True),
    shell:
        "redraft stage choose-cases {params.folder:q} {output:q} > {log:q} 2>&1"


rule cases:
    input:
        chosen=str(LAYOUT.cases("{paper}")) + ".json",
        spec=lambda wildcards: files_of(
            wildcards.paper, declarations(wildcards.paper, "figures")
        ),
    output:
        multiext(str(LAYOUT.cases("{paper}")), ".html", ".md"),
    log:
        LOGS / "{paper}/cases.log",
    params:
        preset=PRESET.name,
        content=lambda wildcards: content_of(
            wildcards.paper, declarations(wildcards.paper, "figures")
        ),
    shell:
        "redraft stage cases {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule claims:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: files_of(wildcards.paper, family_names(wildcards.paper)),
        reported=lambda wildcards: files_of(
            wildcards.paper, reported_names(wildcards.paper)
        ),
    output:
        LAYOUT.claims("{paper}"),
    log:
        LOGS / "{paper}/claims.log",
    params:
        preset=PRESET.name,
        content=lambda wildcards: content_of(
            wildcards.paper,
            family_names(wildcards.paper) + reported_names(wildcards.paper),
        ),
        version=2,  # increase when a judged claim has other fields
    shell:
        "redraft stage claims {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule report:
    input:
        lambda wildcards: list(report_parts()),
    output:
        LAYOUT.report,
        directory(LAYOUT.pages),
    log:
        LOGS / "report.log",
    params:
        preset=PRESET.name,
        papers=lambda wildcards: papers(),
    shell:
        "redraft stage report {params.preset:q} {params.papers:q} > {log:q} 2>&1"


rule track:
    input:
        COLLECTED["runs"],
    output:
        LAYOUT.collected("{paper}") / "tracked.json",
    log:
        LOGS / "{paper}/track.log",
    params:
        preset=PRESET.name,
        version=2,  # increase when other things are imported
    shell:
        "redraft stage track {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"
