"""Evaluation: policies are sampled, generations are saved and graded once, rollouts are measured for diversity."""
