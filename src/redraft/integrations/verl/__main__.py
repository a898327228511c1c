"""`python -m redraft.integrations.verl`: the path of the file for verl's `agent_loop_config_path`."""

from redraft.integrations.verl import AGENT_LOOPS
from redraft.messages import echo

if __name__ == "__main__":
    echo(str(AGENT_LOOPS))
