"""Pages of the report: headline numbers and claims, tables, figures and runs; each page is self-contained."""
