"""Regenerated figures: points, drawings, and their files."""
