"""Deliberate faults: what a careless person would do to the core, and the tests that must notice (`make mutants`).

Each package has a file of faults. docs/tests.md says why the list is our own.
"""
