"""Benchmarks of time and memory; alternatives run in turn and are compared by ratios. `make bench` runs all."""
