"""Machinery that methods share: one response from a draft, verification chunk by chunk, and groups."""
