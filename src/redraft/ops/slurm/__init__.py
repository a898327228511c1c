"""Slurm: its queue and partitions, requests of jobs, waiting and ended jobs."""
