"""Benchmarks of time and memory; alternatives run side by side and are compared by ratios. `make bench` runs all."""
