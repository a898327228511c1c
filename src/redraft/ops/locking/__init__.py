"""Leases of run folders, locks of GPUs, and an orderly exit on SIGTERM and SIGHUP."""
