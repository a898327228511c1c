# From finished runs to the report. These rules are light, so they run on the machine of Snakemake.

LOGS = LAYOUT.folder / "logs"
COLLECTED = {
    name: str(LAYOUT.collected("{paper}") / f"{name}.parquet")
    for name in ("runs", "steps", "scores")
} | {"collected": str(LAYOUT.collected("{paper}") / "collected.json")}
MEASURED = {
    name: str(LAYOUT.collected("{paper}") / file)
    for name, file in {
        "measured": "measured.parquet",
        "family": "family.parquet",
        "resolved": "resolved.json",
        "record": "measured.json",
    }.items()
}


# Description of `snakemake --report`; the captions of its items are in the same folder.
report: "../report/workflow.rst"


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
            run / "scores.json" for run in PLAN.run_folders(wildcards.paper)
        ],
        diversity=lambda wildcards: [
            run / "diversity.parquet" for run in PLAN.run_folders(wildcards.paper)
        ],
        initial=lambda wildcards: [
            folder / "scores.json" for folder in PLAN.initial_folders(wildcards.paper)
        ],
        timing=lambda wildcards: PLAN.timing_files(wildcards.paper),
        looks=lambda wildcards: [
            file for file in [LAYOUT.looks(wildcards.paper)] if file.exists()
        ],
    output:
        **COLLECTED,
    log:
        LOGS / "{paper}/collect.log",
    benchmark:
        LOGS / "{paper}/collect.resources.tsv"
    params:
        preset=PRESET.name,
        code=lambda wildcards: code_of("redraft.analysis.data.collect:collect_runs"),
    shell:
        "redraft stage redraft.analysis.data.collect:collect_runs {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


# Tables, figures, claims and `redraft compare` read these measurements and measure nothing themselves.
rule measure:
    input:
        **COLLECTED,
        spec=lambda wildcards: DECLARED.files(wildcards.paper, "measured"),
        reported=lambda wildcards: DECLARED.files(wildcards.paper, "reported"),
        probed=lambda wildcards: PLAN.probed_files(wildcards.paper),
    output:
        **MEASURED,
    log:
        LOGS / "{paper}/measure.log",
    benchmark:
        LOGS / "{paper}/measure.resources.tsv"
    params:
        preset=PRESET.name,
        content=lambda wildcards: DECLARED.content(
            wildcards.paper, "measured", "reported"
        ),
        code=lambda wildcards: code_of("redraft.analysis.measuring:measure"),
    shell:
        "redraft stage redraft.analysis.measuring:measure {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


# One job makes all tables of a paper and one job all figures, since a process takes longer to start than a table.
rule tables:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: DECLARED.files(wildcards.paper, "family"),
        reported=lambda wildcards: DECLARED.files(wildcards.paper, "reported"),
        published=lambda wildcards: DECLARED.published_curves(wildcards.paper),
    output:
        report(
            directory(LAYOUT.tables("{paper}")),
            patterns=["table{table}.html"],
            caption="../report/table.rst",
            category="Tables",
            subcategory="{paper}",
            labels={"table": "{table}"},
        ),
    log:
        LOGS / "{paper}/tables.log",
    benchmark:
        LOGS / "{paper}/tables.resources.tsv"
    params:
        preset=PRESET.name,
        content=lambda wildcards: DECLARED.content(
            wildcards.paper, "family", "reported"
        ),
        code=lambda wildcards: code_of("redraft.analysis.tables.files:write_tables"),
    shell:
        "redraft stage redraft.analysis.tables.files:write_tables {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule figures:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: DECLARED.files(wildcards.paper, "figures"),
        probed=lambda wildcards: PLAN.probed_files(wildcards.paper),
        published=lambda wildcards: DECLARED.published_points(wildcards.paper),
    output:
        report(
            directory(LAYOUT.figures("{paper}")),
            patterns=["figure{figure}.svg"],
            caption="../report/figure.rst",
            category="Figures",
            subcategory="{paper}",
            labels={"figure": "{figure}"},
        ),
    log:
        LOGS / "{paper}/figures.log",
    benchmark:
        LOGS / "{paper}/figures.resources.tsv"
    params:
        preset=PRESET.name,
        content=lambda wildcards: DECLARED.content(wildcards.paper, "figures"),
        code=lambda wildcards: code_of(
            "redraft.analysis.figures.figure_files:write_figures"
        ),
    shell:
        "redraft stage redraft.analysis.figures.figure_files:write_figures {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule choose_cases:
    input:
        manifest=lambda wildcards: PLAN.case_run(wildcards.paper) / "manifest.json",
    output:
        str(LAYOUT.cases("{paper}")) + ".json",
    log:
        LOGS / "{paper}/choose_cases.log",
    benchmark:
        LOGS / "{paper}/choose_cases.resources.tsv"
    params:
        folder=subpath(input.manifest, parent=True),
        code=lambda wildcards: code_of("redraft.evaluate.cases:cases"),
    shell:
        "redraft stage redraft.evaluate.cases:cases {params.folder:q} {output:q} > {log:q} 2>&1"


rule cases:
    input:
        chosen=str(LAYOUT.cases("{paper}")) + ".json",
        spec=lambda wildcards: DECLARED.files(wildcards.paper, "cases"),
    output:
        report(
            str(LAYOUT.cases("{paper}")) + ".html",
            caption="../report/cases.rst",
            category="Case studies",
            subcategory="{paper}",
            labels={"content": "case studies"},
        ),
        str(LAYOUT.cases("{paper}")) + ".md",
    log:
        LOGS / "{paper}/cases.log",
    benchmark:
        LOGS / "{paper}/cases.resources.tsv"
    params:
        preset=PRESET.name,
        content=lambda wildcards: DECLARED.content(wildcards.paper, "cases"),
        code=lambda wildcards: code_of(
            "redraft.analysis.pages.case_studies:write_cases"
        ),
    shell:
        "redraft stage redraft.analysis.pages.case_studies:write_cases {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule claims:
    input:
        **COLLECTED,
        **MEASURED,
        spec=lambda wildcards: DECLARED.files(wildcards.paper, "family"),
        reported=lambda wildcards: DECLARED.files(wildcards.paper, "reported"),
    output:
        report(
            LAYOUT.claims("{paper}"),
            caption="../report/claims.rst",
            category="Claims",
            subcategory="{paper}",
            labels={"content": "claims and verdicts"},
        ),
    log:
        LOGS / "{paper}/claims.log",
    benchmark:
        LOGS / "{paper}/claims.resources.tsv"
    params:
        preset=PRESET.name,
        content=lambda wildcards: DECLARED.content(
            wildcards.paper, "family", "reported"
        ),
        code=lambda wildcards: code_of("redraft.analysis.claims.files:write_claims"),
    shell:
        "redraft stage redraft.analysis.claims.files:write_claims {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"


rule report:
    input:
        lambda wildcards: list(PLAN.report_parts()),
    output:
        LAYOUT.report,
        report(
            directory(LAYOUT.pages),
            patterns=["{page}.html"],
            caption="../report/page.rst",
            category="Pages",
            subcategory=paper_of_page,
            labels={"page": "{page}"},
        ),
    log:
        LOGS / "report.log",
    benchmark:
        LOGS / "report.resources.tsv"
    params:
        preset=PRESET.name,
        papers=lambda wildcards: papers(),
        left_out=lambda wildcards: PLAN.unfitting,
        code=lambda wildcards: code_of("redraft.analysis.pages.report_pages:report"),
    shell:
        "redraft stage redraft.analysis.pages.report_pages:report {params.preset:q} {params.papers:q} > {log:q} 2>&1"


rule track:
    input:
        COLLECTED["runs"],
    output:
        LAYOUT.collected("{paper}") / "tracked.json",
    log:
        LOGS / "{paper}/track.log",
    benchmark:
        LOGS / "{paper}/track.resources.tsv"
    params:
        preset=PRESET.name,
        code=lambda wildcards: code_of("redraft.ops.workflow.tracking:track"),
    shell:
        "redraft stage redraft.ops.workflow.tracking:track {params.preset:q} {wildcards.paper:q} > {log:q} 2>&1"
