"""vLLM as an engine: in this process, or by verl's client."""
