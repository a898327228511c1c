"""Labels of cells in words: algorithm, method, setting."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from markupsafe import Markup, escape

from redraft.config import Cell, Speed, Staged
from redraft.config.base import format_lenience

SHOWN = {"kind", "lenience", "stage_size", "replay", "fresh_every", "screening", "when"}
"""Fields that a label shows in words."""


def cell_labels(cells: Iterable[Cell]) -> dict[str, str]:
    """Cell name to its label, which names the method, and the model and data if they are not the paper's usual ones.

    Labels are unique: cells with the same label get their other settings, and then their name in brackets.
    """
    known = list(cells)
    if not known:
        return {}
    usual = usual_settings(known)
    unusual = {
        cell.name: ", ".join(getattr(cell, key) for key, value in usual.items() if getattr(cell, key) != value)
        for cell in known
    }
    labels = {cell.name: _method(cell) + f" on {unusual[cell.name]}" * bool(unusual[cell.name]) for cell in known}
    shared = _shared(labels)
    labels |= {cell.name: ", ".join([labels[cell.name], *_settings(cell)]) for cell in known if cell.name in shared}
    return labels | {name: f"{labels[name]} ({name})" for name in _shared(labels)}


def usual_settings(cells: Iterable[Cell]) -> dict[str, str]:
    """The most frequent model and data, which labels leave out; empty without cells."""
    known = list(cells)
    return {key: Counter(getattr(c, key) for c in known).most_common(1)[0][0] for key in ("model", "data") if known}


def _shared(labels: Mapping[str, str]) -> set[str]:
    """Names whose label another name has too."""
    counts = Counter(labels.values())
    return {name for name, label in labels.items() if counts[label] > 1}


def _settings(cell: Cell) -> Iterator[str]:
    """Settings that `_method` does not show: fields that differ from their default, and changes of the trainer."""
    for config in (cell.reuse, cell.schedule, cell.decoding):
        for name, field in type(config).model_fields.items() if config is not None else ():
            value = getattr(config, name)
            if name not in SHOWN and value != field.get_default(call_default_factory=True):
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                yield f"{name.replace('_', ' ')} {text}"
    # the evaluation schedule does not distinguish methods
    yield from (f"{k.replace('_', ' ')} {v}" for k, v in cell.trainer.items() if not k.startswith("evaluat"))
    yield from (f"{k.replace('_', ' ')} × {v}" for k, v in cell.trainer_factors.items() if not k.startswith("evaluat"))


def _method(cell: Cell) -> str:
    """Algorithm, schedule, reuse and decoding, for example `DAPO + block verification`."""
    reuse, parts = cell.reuse, [cell.algorithm.kind.upper()]
    if isinstance(cell.schedule, Speed):
        parts.append(f"SPEED, {cell.schedule.screening} responses screen a prompt")
    if name := "" if reuse.kind == "vanilla" else reuse.title or reuse.kind:
        details = []
        if (lenience := getattr(reuse, "lenience", None)) is not None:
            details.append(f"ℓ = {format_lenience(lenience).replace('inf', '∞')}")
        if isinstance(reuse, Staged):
            details.append(f"{reuse.stage_size} responses per stage, replay {reuse.replay}")
        if every := getattr(reuse, "fresh_every", 0):
            details.append(f"fresh every {every} epoch passes")
        parts.append(name + f" ({', '.join(details)})" * bool(details))
    if cell.decoding.kind != "plain":
        parts.append(f"self-speculative decoding ({cell.decoding.when})")
    return " + ".join(parts)


def with_labels(text: str, labels: Mapping[str, str]) -> Markup:
    """A text as HTML in which each cell's name is replaced by its label; the name is the label's tooltip."""
    if not labels:
        return escape(text)
    # Longest first, else a name would be replaced within a longer one that begins with it.
    names = "|".join(re.escape(name) for name in sorted(labels, key=len, reverse=True))
    # odd parts are names; after a number a word is none, as in "3 seeds in 1 block"
    parts = re.split(rf"(?<![\w/.-])(?<!\d )({names})(?![\w/-]|\.\w)", text)
    return Markup("").join(
        Markup('<span class="cell-label" title="{}">{}</span>').format(part, labels[part]) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )
