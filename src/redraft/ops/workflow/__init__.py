"""A call of Snakemake: its plan, rules' inputs, frozen code, expected times, dry run, status, recovery and tracking.

In the order of a call: `plan` (targets, papers, cells, runs), `rule_inputs` (inputs, params and resources of rules),
`code_hash`, `freeze` (the copy of the code that jobs run from), `supply` (limits of Snakemake's scheduler), `dry_run`,
`time_left` with `pace` and `job_times` (expected and recorded times), `tracking` (MLflow). `status` and `recover` are
called between campaigns.
"""
