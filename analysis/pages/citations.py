"""BibTeX of the papers, with the authors where `CITATION.cff` knows them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from redraft.config.read import read_yaml


class Cited(Protocol):
    """A paper with a name and its publication (`arXiv 2509.23232`)."""

    @property
    def name(self) -> str:
        """Key of the entry."""
        ...

    @property
    def title(self) -> str:
        """Title."""
        ...

    @property
    def source(self) -> str:
        """Publication."""
        ...


def citations(root: Path, papers: Iterable[Cited]) -> str:
    """An entry for each paper on arXiv; without authors if `CITATION.cff` under the root has none for it."""
    file = root / "CITATION.cff"
    references = read_yaml(file).get("references", []) if file.exists() else []
    authors = {_arxiv(reference): _authors(reference) for reference in references}
    found = [(paper, paper.source.removeprefix("arXiv ")) for paper in papers if paper.source.startswith("arXiv ")]
    return "\n\n".join(_entry(paper, number, authors.get(number, "")) for paper, number in found)


def _arxiv(reference: dict[str, Any]) -> str:
    values = [str(each["value"]) for each in reference.get("identifiers", [])]
    return next((value.removeprefix("arXiv:") for value in values if value.startswith("arXiv:")), "")


def _authors(reference: dict[str, Any]) -> str:
    return " and ".join(f"{author['family-names']}, {author['given-names']}" for author in reference["authors"])


def _entry(paper: Cited, number: str, authors: str) -> str:
    fields = {"title": f"{{{paper.title}}}", "author": authors, "year": f"20{number[:2]}", "eprint": number,
              "archivePrefix": "arXiv"}  # fmt: skip
    lines = [f"  {key} = {{{value}}}" for key, value in fields.items() if value]
    return f"@misc{{{paper.name},\n" + ",\n".join(lines) + "\n}"
