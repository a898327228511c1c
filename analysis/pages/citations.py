"""BibTeX of the papers, from what `CITATION.cff` says of them."""

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
    def source(self) -> str:
        """Publication."""
        ...


def citations(root: Path, papers: Iterable[Cited]) -> str:
    """An entry for each paper that the file has by its arXiv number; empty if there is no file."""
    file = root / "CITATION.cff"
    if not file.exists():
        return ""
    references = {_arxiv(reference): reference for reference in read_yaml(file).get("references", [])}
    found = [(paper.name, number, references.get(number)) for paper in papers for number in paper.source.split()[-1:]]
    return "\n\n".join(_entry(name, number, reference) for name, number, reference in found if reference)


def _arxiv(reference: dict[str, Any]) -> str:
    values = [str(each["value"]) for each in reference.get("identifiers", [])]
    return next((value.removeprefix("arXiv:") for value in values if value.startswith("arXiv:")), "")


def _entry(name: str, number: str, reference: dict[str, Any]) -> str:
    authors = " and ".join(", ".join(filter(None, (a.get("family-names"), a.get("given-names")))) or a["name"]
                           for a in reference["authors"])  # fmt: skip
    fields = {"title": f"{{{reference['title']}}}", "author": authors, "year": f"20{number[:2]}", "eprint": number,
              "archivePrefix": "arXiv"}  # fmt: skip
    return f"@misc{{{name},\n" + ",\n".join(f"  {key} = {{{value}}}" for key, value in fields.items()) + "\n}"
