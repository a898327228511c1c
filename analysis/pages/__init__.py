"""Pages of the report: what was found first, then claims, tables, figures and runs, each page complete in itself."""
