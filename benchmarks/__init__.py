"""Benchmarks of time and memory; alternatives take turns and are compared by ratios. `make bench` runs all."""
