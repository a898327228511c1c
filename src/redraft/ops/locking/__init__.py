"""Leases of folders and devices, their owners, and how a process that holds some ends."""
