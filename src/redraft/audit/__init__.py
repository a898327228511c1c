"""Audit of samplers: does what a rule or an engine draws have the policy's law? Exactly where laws are small, else by
G-tests of a stated power (docs/exact-reuse.md)."""
