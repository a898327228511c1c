"""The laboratory: exactness of rules, what reuse and self-speculation would save, and theory.

The core (engines, methods, rollout, train) imports none of it.
"""
