"""Slurm: states of jobs, partitions, a check of requests before submission, and a watch on waiting jobs."""
