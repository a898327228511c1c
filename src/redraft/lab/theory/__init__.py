"""SPEED-RL's theorems as formulas, and as sums over all rewards that prove them (arXiv 2506.09016; docs/theory.md)."""
