"""Timings, as ratios of things measured side by side in one run. `make bench` runs them all."""
