"""The front door: `redraft`, its commands by theme, and the stages that the workflow's rules run."""
