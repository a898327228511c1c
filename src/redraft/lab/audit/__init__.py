"""Audit of samplers: does what a rule or an engine draws have the policy's distribution? (docs/exact-reuse.md)

Small distributions are enumerated exactly; engines are sampled and held against them by G-tests of a stated power.
"""
