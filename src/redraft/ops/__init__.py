"""What surrounds runs: leases, status, recovery, frozen code, GPUs, ends of Slurm jobs, provenance, tracking."""
