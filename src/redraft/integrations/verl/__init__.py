"""Reuse of drafts in an unmodified verl, by lines of its configuration (docs/use-in-verl.md).

`python -m redraft.integrations.verl` prints the path of the file for `agent_loop_config_path`.
"""

from pathlib import Path

AGENT_LOOPS = Path(__file__).with_name("agent_loops.yaml")
"""verl's file of agent loops: one for each rule, and one for tools."""
