"""Labels of cells in words: `GRPO + SPEC-RL, lenience e^0.5` for the cell `grpo-spec-l0.5`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from markupsafe import Markup, escape

from redraft.config import Cell, Speed, Staged
from redraft.config.base import format_lenience

REUSE = {
    "vanilla": "",
    "speculative": "SPEC-RL",
    "release": "SPEC-RL as released",
    "random": "random reuse",
    "delayed": "delayed reuse",
    "residual": "residual rule",
    "block": "block verification",
    "gumbel": "Gumbel coupling",
    "one_hot": "one-hot rule",
    "weighted": "importance-weighted reuse",
    "adaptive": "adaptive lenience",
    "staged": "AR3PO",
}
"""Kind of reuse to the method's name; a user-defined kind is written as it is."""


def cell_labels(cells: Iterable[Cell]) -> dict[str, str]:
    """Cell name to its label, which names the method, and the model and data if they are not the paper's usual ones.

    Labels are unique: cells that differ in something else, such as a trainer's setting, have their name in brackets.
    """
    known = list(cells)
    if not known:
        return {}
    usual = {key: Counter(getattr(cell, key) for cell in known).most_common(1)[0][0] for key in ("model", "data")}
    labels = {}
    for cell in known:
        unusual = [getattr(cell, key) for key, value in usual.items() if getattr(cell, key) != value]
        factors = [
            f"{key.replace('_', ' ')} × {factor}"
            for key, factor in cell.trainer_factors.items()
            if not key.startswith("evaluate")  # how often a policy is evaluated does not name a method
        ]
        labels[cell.name] = ", ".join([_method(cell), *unusual, *factors])
    shared = {label for label, count in Counter(labels.values()).items() if count > 1}
    return {name: f"{label} ({name})" if label in shared else label for name, label in labels.items()}


def _method(cell: Cell) -> str:
    """Algorithm, schedule, reuse and decoding, for example `DAPO + SPEC-RL, lenience e^0.15`."""
    reuse, parts = cell.reuse, [cell.algorithm.kind.upper()]
    if isinstance(cell.schedule, Speed):
        parts.append(f"SPEED, {cell.schedule.screening} responses screen a prompt")
    if name := REUSE.get(reuse.kind, reuse.kind):
        details = []
        if (lenience := getattr(reuse, "lenience", None)) is not None:
            details.append(f"lenience {format_lenience(lenience).replace('inf', '∞')}")
        if isinstance(reuse, Staged):
            details.append(f"{reuse.stage_size} responses per stage, replay {reuse.replay}")
        if every := getattr(reuse, "fresh_every", 0):
            details.append(f"fresh every {every} epoch passes")
        parts.append(", ".join([name, *details]))
    if cell.decoding.kind != "plain":
        parts.append(f"self-speculative decoding ({cell.decoding.when})")
    return " + ".join(parts)


def with_labels(text: str, labels: Mapping[str, str]) -> Markup:
    """A text as HTML in which each cell's name is replaced by its label; the name is the label's tooltip."""
    if not labels:
        return escape(text)
    names = "|".join(re.escape(name) for name in sorted(labels, key=len, reverse=True))
    parts = re.split(rf"(?<![\w/.-])({names})(?![\w/-]|\.\w)", text)  # odd parts are names
    return Markup("").join(
        Markup('<span class="cell-label" title="{}">{}</span>').format(part, labels[part]) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )
