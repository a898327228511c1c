"""Which cheap rollout to use: predicted seconds of a step's rollout under each method (docs/advise.md).

One epoch's rollouts and those of the epoch before say how much work each method would have had. A roofline turns work
into seconds.
"""
