"""The local trainer: one process, one model."""
