"""Compact SVG drawings: Matplotlib writes six decimals, a name for each group and a style for each dot.

Matplotlib has no setting for these, and Scour, the optimizer of SVG in Python, was last released in 2020: it makes a
figure of six panels no smaller (113 kB of 201 kB by either) and takes ten times as long (0.66 s).
"""

import re
from urllib.parse import quote

DECIMALS = 1
"""Decimals of coordinates in points: a tenth is less than a pixel of any screen."""
FONTS = "DejaVu Sans, Verdana, sans-serif"
"""The font of the layout and fallbacks of equal letter width."""
UNQUOTED = " <>=:/;,.()'!*+@?[]^_`{|}~-\\"
"""Characters that need no escape in a URL inside double quotes."""


def compact(svg: str) -> str:
    """The same picture as Matplotlib's SVG in fewer bytes.

    Coordinates have one decimal. Comments, metadata and unused names are removed. The dots of a line share one style,
    and all texts one font.
    """
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    text = re.sub(r' (?:d|x|y|points)="[^"]*"', _short, text)
    # Rotations by nothing, which Matplotlib writes for every text.
    text = re.sub(r' transform="rotate\(-?0 [^"]*"', "", text)
    text = re.sub(r"font-family: [^;\"]*(?:; )?", "", text)
    text = text.replace("</style>", f"text {{font-family: {FONTS}}}</style>")
    named = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in named else "", text)
    text = re.sub(r'<g>\s*((?:<use [^>]*? style="[^"]*"/>\s*)+)</g>', _styled_once, text)
    return re.sub(r">\s+<", "><", re.sub(r"[ \n]+", " ", text)).replace(" <svg", "\n<svg")


def _short(found: re.Match[str]) -> str:
    numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.{DECIMALS}f}", found[0])
    return re.sub(r"\.0(?!\d)", "", numbers)


def _styled_once(found: re.Match[str]) -> str:
    """Move a style that all parts of a group share to the group."""
    styles = set(re.findall(r' style="[^"]*"', found[1]))
    if len(styles) > 1:
        return found[0]
    (style,) = styles
    return f"<g{style}>{found[1].replace(style, '')}</g>"


def address(svg: str) -> str:
    """A drawing as a data URL for an image, so that names inside two drawings cannot clash.

    The URL must be written in double quotes. Base64 would be a third longer.
    """
    single = re.sub(r"<[^>]*>", lambda tag: tag[0].replace("'", "&apos;").replace('"', "'"), svg)
    return "data:image/svg+xml," + quote(single, safe=UNQUOTED)
