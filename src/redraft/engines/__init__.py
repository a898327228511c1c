"""Engines: what runs the strategies' sessions, in this process (`torch_engine`) or on vLLM (`vllm_engine`)."""
