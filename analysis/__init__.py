"""From finished runs to tables, figures, claims and a report. Reads files only; never runs a model."""
