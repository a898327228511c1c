"""redraft: old rollouts reused as drafts, and the papers about it reproduced."""

__version__ = "0.1.0"
