"""The first screen on a terminal: a campaign's end says what it found."""

from typing import Any

from redraft.cli.terminal import filled
from redraft.errors import UserError
from redraft.files import read_json
from redraft.layout import Layout


def outcome(layout: Layout) -> dict[str, Any]:
    """What the report's first screen says, as data.

    Raises:
        UserError: if there is no report.
    """
    file = layout.pages / "summary.json"
    if not file.exists():
        raise UserError(
            "there is no report yet", file=file, hint=f"`snakemake --config preset={layout.preset}` makes it"
        )
    content: dict[str, Any] = read_json(file)
    return content


def text(found: dict[str, Any], layout: Layout) -> str:
    """The same as lines: sentences and verdicts by paper, what is missing with its command, and the page to open."""
    lines = []
    for paper in found["papers"].values():
        lines.append(f"\n{paper['method']}")
        sentences = [headline["sentence"] for headline in paper["headlines"]]
        if paper["claims"]:
            counted = ", ".join(f"{count} {verdict}" for verdict, count in paper["claims"].items())
            sentences.append(f"{sum(paper['claims'].values())} claims: {counted}")
        lines += [filled(f"  {sentence}", "    ") for sentence in sentences]
    missing = found["missing"]
    if missing["runs"]:
        minutes = f", about {missing['minutes']:.0f} minutes of training on one core" if missing["minutes"] else ""
        lines.append(f"\n{missing['runs']} runs of the papers are missing{minutes}:\n  {missing['command']}")
    return "\n".join([*lines, f"\nopen {layout.report}"]).strip()
