"""The list of faults: a file each package, `<file>: {tests, faults}`, where a fault replaces one text by another."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent


@dataclass(frozen=True)
class Fault:
    """A fault in one file.

    Attributes:
        package: part of the core that it is in.
        file: path from the root.
        what: what is wrong then.
        changes: texts, each of which stands once in the file, and what takes their places.
        tests: test files or tests, from the folder `tests`, of which one must fail.
    """

    package: str
    file: str
    what: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: if a text to be replaced does not stand there exactly once.
        """
        for old, new in self.changes:
            if (count := text.count(old)) != 1:
                raise ValueError(f"{self.file}: {self.what}: {old!r} stands there {count} times")
            text = text.replace(old, new)
        return text


def faults(chosen: Iterable[str] = ()) -> list[Fault]:
    """All faults, or those of some files, folders or packages.

    Raises:
        ValueError: if one of those has none.
    """
    every = [fault for file in sorted(FOLDER.glob("*.yaml")) for fault in _read(file)]
    names = [name.rstrip("/") for name in chosen]
    if empty := [name for name in names if not any(_within(fault, name) for fault in every)]:
        raise ValueError(f"no faults are listed for {', '.join(empty)}")
    return [fault for fault in every if not names or any(_within(fault, name) for name in names)]


def _read(file: Path) -> list[Fault]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [
        Fault(
            file.stem, path, each["fault"],
            tuple((change["old"], change["new"]) for change in (each, *each.get("and", []))),
            tuple(each.get("tests", of_file["tests"]).split()),
        )
        for path, of_file in content.items()
        for each in of_file["faults"]
    ]  # fmt: skip


def _within(fault: Fault, name: str) -> bool:
    return name in (fault.package, fault.file) or fault.file.startswith(f"{name}/")
