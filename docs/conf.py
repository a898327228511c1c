"""Sphinx's settings: `make docs` builds the site in build/docs from the Markdown files in docs/."""

project = "redraft"
copyright = "the authors of redraft"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["schemas"]
html_theme = "furo"
html_extra_path = ["../build/extra"]  # written before by `redraft schema`
myst_heading_anchors = 4  # headings have the anchors that the code host gives them
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
