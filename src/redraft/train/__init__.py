"""Trainers. `local` trains in one process; the only package that imports verl."""
