"""BibTeX of the papers, with the authors where `CITATION.cff` knows them."""

from collections.abc import Iterable
from pathlib import Path

from redraft.analysis.pages.paper import Paper
from redraft.config.read import read_yaml


def citations(root: Path, papers: Iterable[Paper]) -> str:
    """An entry for each paper on arXiv; without authors if `CITATION.cff` under the root has none for it."""
    file = root / "CITATION.cff"
    references = read_yaml(file).get("references", []) if file.exists() else []
    authors = {
        str(identifier["value"]): " and ".join(f"{a['family-names']}, {a['given-names']}" for a in reference["authors"])
        for reference in references
        for identifier in reference.get("identifiers", [])
    }
    entries = []
    for paper in papers:
        if paper.source.startswith("arXiv "):
            number = paper.source.removeprefix("arXiv ")
            fields = {"title": f"{{{paper.title}}}", "author": authors.get(paper.source.replace(" ", ":", 1)),
                      "year": f"20{number[:2]}", "eprint": number, "archivePrefix": "arXiv"}  # fmt: skip
            lines = [f"  {key} = {{{value}}}" for key, value in fields.items() if value]
            entries.append(f"@misc{{{paper.name},\n" + ",\n".join(lines) + "\n}")
    return "\n\n".join(entries)
