"""Evaluation: sample policies, save and grade the generations, measure the diversity of rollouts."""
