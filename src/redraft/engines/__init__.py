"""Engines: what runs the strategies' sessions. `torch` runs in the process of the trainer."""
