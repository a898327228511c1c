"""Output for people: the one place where text is printed, and where control characters in it become escapes.

Texts contain values of files that others wrote: data sets, models, results, locks in shared folders. A terminal would
obey escape sequences in them, and bidirectional controls would show a text in another order than it has.
"""

import re
import sys

CONTROLS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that a terminal obeys or does not show: control characters, bidirectional and invisible ones, and other
separators of lines. Joiners are not among them, since scripts and emoji need them."""


def printable(text: str) -> str:
    """A text whose control characters are escapes such as `\\x1b`; line feeds and tabs stay."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def counted(number: int, thing: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text for people.

    Args:
        text: the text; its control characters become escapes.
        err: print to standard error.
        nl: end the text with a line feed.
    """
    # In one call, since `print` lets another thread write before the line's end.
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(text) + "\n" * nl)
    stream.flush()
