"""The command line: `redraft`, its commands, and the stages that the workflow's rules run.

`app` is the entry point and imports a command when it is called. A module is named after the theme of its commands:
`cells` (list, show, schema), `runs` (run, compare, prompts), `campaign` (status, cost, recover), `evaluate` (evaluate,
agreement), `report` (results, claims, share), `selfspec` (calibrate, simulate, replay), `predict`, `advise`, `audit`,
`doctor`.
The others support them: `arguments` (shared options), `terminal` (tables, JSON and errors), `summary` (quantities of
finished runs), `extras` (missing packages) and `process` (fast start and exit).
"""
