"""Engines: what runs the strategies' sessions, in this process (`torch`) or on vLLM (`vllm`)."""
