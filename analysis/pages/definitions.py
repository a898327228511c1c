"""What every number means, for readers who have the report alone: `docs/metrics.md` as a page."""

import re
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

FILE = "docs/metrics.md"


def definitions(root: Path) -> Markup | None:
    """The file as HTML, its links to other files as plain text; None where the code has no documentation beside it."""
    file = root / FILE
    if not file.exists():
        return None
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(file.read_text(encoding="utf-8"))
    return Markup(re.sub(r'<a href="[^"]*">(.*?)</a>', r"\1", html, flags=re.DOTALL))
