"""Rendered fragments of HTML as they are read back from results, which may be someone else's.

A fragment is parsed and written again. Only the elements and attributes that this suite's templates of fragments use
are accepted, so that a page runs no script of a results file and links to nothing outside of the results.
"""

import posixpath
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from redraft.errors import UserError
from redraft.files import errors_of_reading

VOID = frozenset({"input", "br"})
_WITH_CONTENT = (
    "a article b button circle code dd details div dl dt figcaption figure h4 label mark p polygon polyline pre s span "
    "summary svg table tbody td textarea th thead title tr"
)
ELEMENTS = VOID | frozenset(_WITH_CONTENT.split())
_ATTRIBUTES = (
    "aria-label border checked class colspan cx cy data-cells data-copy data-room height hidden href id open points "
    "popover popovertarget popovertargetaction r readonly role rowspan scope tabindex title type viewbox width"
)
ATTRIBUTES = frozenset(_ATTRIBUTES.split())
STYLES = frozenset({"text-align: right;"})
"""Values of `style`, which pandas writes."""
CASED = {"viewbox": "viewBox"}
"""Attributes that SVG writes with capitals, which the parser makes small."""


def checked_fragment(file: Path, folder: str) -> str:
    """The fragment in a file, with links relative to the pages' folder.

    Args:
        folder: the file's folder relative to the pages' folder, below `..`; empty for a fragment without links.

    Raises:
        UserError: if the file is missing, or has an element, attribute or link that no fragment of this suite has.
    """
    with errors_of_reading(file, UnicodeDecodeError):
        parser = _Fragment(file, folder, file.read_text(encoding="utf-8"))
    return "".join(parser.parts)


class _Fragment(HTMLParser):
    """Collects the accepted parts of a text, escaped again, in `parts`."""

    def __init__(self, file: Path, folder: str, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self._file, self._folder = file, folder
        self.parts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ELEMENTS:
            raise self._error(tag, "elements of tables and case studies")
        text = [f"<{tag}"]
        for name, value in attrs:
            if name not in ATTRIBUTES and not (name == "style" and value in STYLES):
                raise self._error(f"{tag} {name}", "attributes of tables and case studies")
            written = self._moved(value or "") if name == "href" else value
            text.append(f" {CASED.get(name, name)}" + ("" if written is None else f'="{escape(written)}"'))
        self.parts.append("".join(text) + ">")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ELEMENTS:
            raise self._error(tag, "elements of tables and case studies")
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.parts.append(escape(data, quote=False))

    def handle_comment(self, data: str) -> None:
        raise self._error("<!--", "no comments")

    def handle_decl(self, decl: str) -> None:
        raise self._error("<!", "no declarations")

    def unknown_decl(self, data: str) -> None:
        raise self._error("<![", "no sections of data")

    def handle_pi(self, data: str) -> None:
        raise self._error("<?", "no processing instructions")

    def _moved(self, link: str) -> str:
        """A link relative to the pages' folder; one within the page stays."""
        # Anchors of the fragment itself, which move with it.
        if link.startswith("#"):
            return link
        # The fragment's links are relative to its own folder, the page is in another one.
        moved = posixpath.normpath(posixpath.join(self._folder, link))
        if ":" in link or "\\" in link or moved.startswith(("/", "../../")) or not moved.startswith("../"):
            raise self._error(f"href={link}", "links to files of the same preset")
        return moved

    def _error(self, value: str, allowed: str) -> UserError:
        return UserError(
            "this file contains HTML that no table or case study has",
            file=self._file,
            key="HTML",
            value=value,
            allowed=allowed,
            hint="a results file of someone else may have been changed; remove it to make it again",
        )
