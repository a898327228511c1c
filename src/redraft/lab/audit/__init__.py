"""Audit of samplers: do the responses of a reuse rule or an engine have the policy's distribution?
(docs/exact-reuse.md)

Rules are enumerated exactly over small response spaces. Engines are sampled and compared with the enumerated
distribution by G-tests of a stated power.
"""
