"""What would reuse save? Acceptance of every rule on saved rollouts, as sums, before anything is rolled out with it.

A rule's distribution of kept tokens follows from a draft's log-probabilities under two policies, so nothing is drawn
(docs/predict.md).
"""
