"""Acceptance rules, as pure functions of arrays: one implementation each, for training, audit and prediction."""
