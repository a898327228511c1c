"""Around a call of Snakemake: frozen code, dry runs, time left, status, recovery and tracking."""
