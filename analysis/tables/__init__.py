"""Regenerated tables: measured cells, comparisons, and their files."""
