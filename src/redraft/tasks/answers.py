"""Extraction of the final answer from a response, outcomes of grading, and grading of multiple choice.

The comparison of mathematical answers is in `redraft.tasks.grading`, whose import of sympy takes a second.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from redraft.tasks.characters import plain

SECONDS = 5
"""Time limit in seconds for each of the grader's three steps: parse the answer, parse the box, compare the two."""

LETTERS = "ABCDEFGHIJ"
"""Letters of options; MMLU has four, ARC up to five, MMLU-Pro ten."""
_BOX = re.compile(
    r"\\boxed\s*(?:\{|(?P<number>[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?)"
    r"(?=\s*(?:[$;:!?)]|[.,](?!\d)|\\[)\]]|\n|\Z)))"
)
"""A box that opens with a brace, or one around a number without braces that ends its formula, clause, line or text."""
_BRACE = re.compile(r"\\.|[{}]", re.S)
"""A brace that groups, or an escaped character: `\\{` and `\\}` print braces and group nothing."""
_FONT = re.compile(r"\\(?:text|textbf|textrm|textsf|textit|mathbf|mathrm|mathsf|mathit|boldsymbol)\{")
_FONTS = 4
"""Largest number of nested commands of fonts around a letter."""
_BLANK = re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|~")
_DELIMITERS = re.compile(r"\\[()\[\]]")
"""LaTeX's delimiters of a formula."""
_CHOICE = re.compile(rf"\(([{LETTERS}])\)[.:]?(?:\s.*)?|([{LETTERS}])(?:[.):](?:\s.*)?)?", re.S)
_JOIN = r"(?:[,;/&]|(?:[,;]\s*)?\b(?i:or|and|nor)\b)"
"""What joins the labels of several options."""
_LABELS = re.compile(rf"(?:\s*{_JOIN}\s*\(?[{LETTERS}]\)?)+\.?")
"""Nothing but further labels, such as `, B or C`. A bare letter is no label in other texts: `(C) points A and B`."""
_NEXT_LABELS = re.compile(rf"(?:\s*\([{LETTERS}]\))+\.?\s*")
"""Labels that follow without a join, as in `(A) (B)`; not the text of `(D) (A), (B), and (C)`."""
_LABEL = re.compile(rf"(?:\d\s|{_JOIN})\s*\(([{LETTERS}])\)(?![-\w(])")
"""A further label after a number or after a join; not the `(E)` of `(C) energy (E)` or of `(C) (E)-but-2-ene`."""
_STARTS_WITH_LABEL = re.compile(rf"\s*\([{LETTERS}]\)")
_ABOUT_OPTIONS = re.compile(r"\s*(?i:both|all|either|neither|none|only|options?|statements?)\b")
"""Start of an option's text that is about other options: `(D) Both (A) and (B)`."""
_OPTIONS = re.compile(rf"(?:\s+of)?\s+(?:\([{LETTERS}]\)\s*(?:,|and\b|n?or\b)|[{LETTERS}]\b(?![.):]))")
"""The options after that start; a label that opens an option is none."""


class Outcome(StrEnum):
    """The result of grading a response."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    """The response has no closed box, or the last one is empty."""
    EMPTY = "empty"
    """The response has no text."""
    TIMEOUT = "time-out"
    ERROR = "error"
    """The grader failed, or cannot parse the answer."""


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """The outcome of grading, and the text that was compared with the answer (empty if none was)."""

    outcome: Outcome
    extracted: str = ""


def box(content: object) -> str:
    """A final answer as `\\boxed{...}`."""
    return f"\\boxed{{{content}}}"


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` with balanced braces or the number in `\\boxed 2`, or None.

    Of nested boxes the one that opens last counts.
    """
    start = text.rfind("\\boxed")
    # Only a command that opens no box is passed over: if the last box is not closed, no earlier one counts.
    while start >= 0:
        if match := _BOX.match(text, start):
            return match["number"] or _group(text, match.end() - 1)
        start = text.rfind("\\boxed", 0, start)
    return None


def _group(text: str, start: int) -> str | None:
    """The content of the group whose opening brace is at `start`, or None if it is not closed."""
    depth = 0
    for token in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return text[start + 1 : token.start()]
    return None


def extract(text: str) -> GradedAnswer | str:
    """The content of a response's last box, stripped, or the graded answer if there is no content."""
    if not text.strip():
        return GradedAnswer(Outcome.EMPTY)
    content = (boxed(text) or "").strip()
    return content if plain(content).strip() else GradedAnswer(Outcome.NO_ANSWER)


def letter(content: str) -> str | None:
    """The letter of an option in the content of a box, or None.

    Accepted are C, (C), C., C: and `C) some text`, also in bold or as LaTeX text. Not accepted are the first letter of
    a word, small letters, written-out options, and the labels of several options, with or without their texts.
    """
    content = _DELIMITERS.sub("", _BLANK.sub(" ", plain(content))).strip().strip("$").strip()
    for _ in range(_FONTS):
        # The command may end after the label, as in AMC's `\textbf{(C)}\ 12`.
        if not (font := _FONT.match(content)) or (inner := _group(content, font.end() - 1)) is None:
            break
        content = (inner + content[font.end() + len(inner) + 1 :]).strip().strip("$").strip()
    match = _CHOICE.fullmatch(content)
    if not match or not match.lastindex:
        return None
    found, rest = match[match.lastindex], content[match.end(match.lastindex) :]
    if _lists_options(found, rest, in_parentheses=match.lastindex == 1):
        return None
    others = _labels(rest.lstrip(".:)"), in_parentheses=match.lastindex == 1)
    return found if others <= {found} else None


def _lists_options(found: str, rest: str, *, in_parentheses: bool) -> bool:
    """Test for the options after `found` in the text after it, each with its label in the same style.

    Labels count on other lines, after commas except in the style of `C. elegans, D. melanogaster`, and from two on if
    all have texts or none has one. In `D. E. coli`, `(A) from (B) to (C)` and `(A) Both (B) and (C)` there is no list.
    """
    text = rest.lstrip(".:) ")
    about = _ABOUT_OPTIONS.match(text)
    if (about and _OPTIONS.match(text, about.end())) or not rest or rest[0] not in ".):":
        return False
    position, separated, with_text = 1, False, []
    for label in LETTERS[LETTERS.index(found) + 1 :]:
        text = f"({label})" if in_parentheses else label + rest[0]
        match = re.compile(rf"(?<=[\s,;]){re.escape(text)}(?=[\s,;]|\Z)").search(rest, position)
        if not match or re.match(r"\s+(?:is|are)\b", rest[match.end() :]):
            break
        before = rest[position : match.start()]
        if re.search(r"\b(?:and|n?or|from|to|than|of|point)\s+\Z", before):
            break
        if before.count("(") > before.count(")"):  # the label's parenthesis closes one of the text
            break
        end = before.rstrip()
        separated |= "\n" in before[len(end) :] or end.endswith("\\" if rest[0] == "." else (",", ";", "\\"))
        with_text.append(bool(before.strip(" ,;\n\\")))
        position = match.end()
    return separated or (len(with_text) > 1 and (all(with_text) or not (any(with_text) or rest[position:].strip())))


def _labels(text: str, *, in_parentheses: bool) -> set[str]:
    """Letters of options that are named in the text after a label; empty if it is the text of an option.

    Of the label `C.`, unlike `(C)`, a text that begins with a label is about other options.
    """
    # Fonts change nothing. The blank is in place of a command, so that `5\textbf{(B)}` is no product.
    text = re.sub("[{}$]", "", _FONT.sub(" ", text))
    if _LABELS.fullmatch(text) or (in_parentheses and _NEXT_LABELS.fullmatch(text)):
        return set(re.findall(rf"\b[{LETTERS}]\b", text))
    about_options = _STARTS_WITH_LABEL.match(text) or _ABOUT_OPTIONS.match(text)
    return set() if about_options else set(_LABEL.findall(text))


def grade_choice(text: str, answer: str) -> GradedAnswer:
    """Compare the letter in the last box of a response with the answer, A to J.

    A box without a letter is wrong. An answer that is not one letter gives the outcome "error".
    """
    content = extract(text)
    if isinstance(content, GradedAnswer):
        return content
    # `in` alone would also accept the empty text, and ABC.
    if len(answer) != 1 or answer not in LETTERS:
        return GradedAnswer(Outcome.ERROR, content)
    choice = letter(content)
    return GradedAnswer(Outcome.CORRECT if choice == answer else Outcome.WRONG, choice or content)
