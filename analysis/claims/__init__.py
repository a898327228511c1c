"""Verdicts on what a paper asserts."""
