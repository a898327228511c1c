"""Predicted savings of reuse: acceptance of every rule on saved rollouts, before a run uses the rule (docs/predict.md).

A rule's distribution over kept lengths follows from a draft's log-probabilities under two policies. Expectations are
exact sums; nothing is sampled.
"""
