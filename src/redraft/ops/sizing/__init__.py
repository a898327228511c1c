"""GPU memory and the least time of a run under verl, from its configuration."""
