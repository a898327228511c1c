"""A table in LaTeX, for `\\input`: booktabs, siunitx's numbers, verdicts as commands that a paper may redefine."""

import math

from pylatexenc.latexencode import unicode_to_latex

from redraft.analysis.tables.cell_verdicts import AGREES, DIFFERS, INCONCLUSIVE, MISSING, NO_DATA, UNEVEN
from redraft.analysis.tables.sheet import ABSENT, NEVER, NOTHING, Sheet, SheetRow, Slot, digits

COMMANDS = {
    AGREES: (r"\verdictagrees", "$=$"),
    "same direction": (r"\verdictsame", r"$\nearrow$"),
    DIFFERS: (r"\verdictdiffers", r"$\neq$"),
    "opposite direction": (r"\verdictopposite", r"$\searrow$"),
    INCONCLUSIVE: (r"\verdictinconclusive", "?"),
    UNEVEN: (r"\verdictundecided", "---"),
    MISSING: (r"\verdictmissing", r"$\circ$"),
    NO_DATA: (r"\verdictnodata", r"$\bullet$"),
}
"""Verdict to its command and that command's symbol."""

WORDS = {MISSING: "not run"}
"""Words of verdicts in the legend, where they are others."""

HEAD = r"""% Needs \usepackage{booktabs,graphicx,siunitx}. Verdicts are commands, which may be defined before.
"""

BODY = r"""\begin{table}[ht]
\centering
\sisetup{separate-uncertainty}
\caption{%(caption)s}
\label{tab:%(number)s}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%%
\begin{tabular}{%(format)s}
\toprule
%(header)s \\
\midrule
%(rows)s
\bottomrule
\end{tabular}%%
}
\end{table}
"""


def latex(sheet: Sheet) -> str:
    """The table as a float that is scaled down where it is wider than the text."""
    slots = [slot for line in sheet.lines for slot in line.slots]
    found = {slot.verdict for slot in slots} | {slot.marked.verdict for slot in slots if slot.marked}
    # In the order of COMMANDS, and only what the legend in the caption has to explain.
    shown = [verdict for verdict in COMMANDS if verdict in found]
    commands = "".join(rf"\providecommand{{{COMMANDS[v][0]}}}{{{COMMANDS[v][1]}}}" + "\n" for v in shown)
    columns = sum(1 + paper for paper in sheet.papers)
    titles = [  # broken into lines of a column's width
        rf"\parbox[b]{{6em}}{{\raggedleft {escaped(title)}}}" if len(title) > 9 else escaped(title)
        for title in sheet.headers
    ]
    sentences = [escaped(sheet.title)]
    if any(slot.spread for line in sheet.lines for slot in line.cells):
        sentences.append(r"Means over seeds $\pm$ half the width of their 95\,\% Student intervals")
    if any(sheet.papers):
        sentences.append(r"Columns \emph{paper} hold reported values")
    if shown:
        sentences.append(", ".join(rf"{COMMANDS[verdict][0]}~{WORDS.get(verdict, verdict)}" for verdict in shown))
    filled = {
        "caption": ". ".join(sentences) + ".",
        "number": sheet.table.number,
        "format": "l" + "r" * columns,
        "header": " & ".join(["", *sheet.beside(titles, [r"\emph{paper}"] * len(titles))]).strip(),
        "rows": "\n".join(_row(line, sheet, first=i == 0) for i, line in enumerate(sheet.lines)),
    }
    return HEAD + commands + BODY % filled


def _row(line: SheetRow, sheet: Sheet, first: bool) -> str:
    """A line, below its group's heading if one begins there."""
    printed = [
        _number(slot.cell["reported"], slot.column.decimals)
        if math.isfinite(slot.cell["reported"]) and not slot.bracketed
        else escaped(slot.paper)
        for slot in line.slots
    ]
    cells = [escaped(line.label), *sheet.beside(map(_value, line.slots), printed)]
    row = " & ".join(cells) + r" \\"
    if not line.heading:
        return row
    heading = rf"\multicolumn{{{len(cells)}}}{{l}}{{\emph{{{escaped(line.heading)}}}}} \\"
    return ("" if first else "\\midrule\n") + heading + "\n" + row


def _value(slot: Slot) -> str:
    if slot.verdict in ABSENT:
        return COMMANDS[slot.verdict][0]
    decimals, half = slot.column.decimals, slot.half_width
    text = _number(slot.cell["reproduced"], decimals, half)
    if slot.has_interval and math.isnan(half):
        text += f" [{_number(slot.cell['low'], decimals)}, {_number(slot.cell['high'], decimals)}]"
    text += "".join(f" ({escaped(note)})" for note in (slot.fewer_seeds, *slot.brackets) if note)
    return text + (rf"~{COMMANDS[slot.marked.verdict][0]}" if slot.marked else "")


def _number(value: float, decimals: int, half: float = math.nan) -> str:
    text = digits(value, decimals)
    if text in (NEVER, NOTHING):
        return escaped(text)
    return rf"\num{{{text}}}" if math.isnan(half) else rf"\num{{{text} +- {digits(half, decimals)}}}"


def escaped(text: str) -> str:
    """Text as LaTeX writes it, in ASCII."""
    return str(unicode_to_latex(text))
