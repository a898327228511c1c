"""The laboratory: exactness of reuse rules, predicted savings of reuse and self-speculation, and theory.

No training run needs it; engines, methods, rollout and train do not import it.
"""
