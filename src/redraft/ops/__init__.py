"""Operation of campaigns: locks of folders and GPUs, Slurm, and the plan, status and recovery of a workflow."""
