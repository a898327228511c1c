"""From finished runs to tables, figures, claims and a report. Reads files only; never runs a model."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Folder of this package, with `templates` and `vendor`."""
