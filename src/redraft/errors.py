"""The exception for mistakes in the user's input. The command shows it without a traceback."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redraft.messages import printable


class UserError(Exception):
    """Mistake in the user's input.

    Attributes:
        message: the mistake, in one sentence.
        file: file with the mistake, if it is in a file.
        key: key in the file, or argument.
        value: the wrong value.
        allowed: allowed values.
        hint: possible fix.
    """

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        key: str | None = None,
        value: object = None,
        allowed: str | Iterable[str] | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.file, self.key, self.value, self.hint = message, file, key, value, hint
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else ", ".join(sorted(allowed))
        super().__init__(str(self))

    def __str__(self) -> str:
        """The message for people; control characters in it are escapes, since Snakemake and workers print it too."""
        parts = [f"{self.file}: " if self.file else "", self.message]
        if self.key is not None:
            parts.append(f"\n  key:     {self.key}")
        # 0, false and empty texts are values too.
        if self.value is not None:
            parts.append(f"\n  value:   {self.value!r}")
        if self.allowed:
            parts.append(f"\n  allowed: {self.allowed}")
        if self.hint:
            parts.append(f"\n  hint:    {self.hint}")
        return printable("".join(parts))

    def replace(self, **changes: Any) -> "UserError":
        """A copy of the error with some attributes replaced."""
        return _rebuild(self._attributes | changes)

    @property
    def _attributes(self) -> dict[str, Any]:
        names = ("message", "file", "key", "value", "allowed", "hint")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple:
        # An exception with keyword arguments cannot be pickled without this; workers send errors to their parent.
        return (_rebuild, (self._attributes,))


def _rebuild(attributes: dict[str, Any]) -> UserError:
    return UserError(attributes.pop("message"), **attributes)
