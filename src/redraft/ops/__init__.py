"""Operation of campaigns: leases, status, recovery, frozen code, GPUs, Slurm, provenance, tracking."""
