"""lm-eval's command, extended by the model `redraft`: `python -m redraft.evaluate.lm_eval run --model redraft …`."""

import sys

from lm_eval.__main__ import cli_evaluate

import redraft.evaluate.lm_eval.redraft_model  # noqa: F401 - registers the model
from redraft.errors import UserError
from redraft.evaluate.lm_eval.stock import cpu_build_named_vllm

with cpu_build_named_vllm():
    try:
        cli_evaluate()
    except UserError as error:
        sys.exit(f"error: {error}")
