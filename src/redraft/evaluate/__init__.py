"""Evaluation: generations are saved once, graded once, and measured for diversity."""
