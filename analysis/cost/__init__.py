"""Costs of a campaign before it is launched."""
