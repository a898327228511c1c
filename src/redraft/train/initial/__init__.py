"""Initial policies of the tiny models."""
