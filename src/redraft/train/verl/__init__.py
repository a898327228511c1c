"""Training under verl 0.9.1 with vLLM: its configuration, its data, and this project's parts in its processes."""
