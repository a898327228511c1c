"""The exception for mistakes of the user, which the command shows without a traceback."""

from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Mistake in the user's input.

    Attributes:
        message: the mistake, in one sentence.
        file: file of the mistake, if it stands in one.
        key: key or argument.
        value: value that was found.
        allowed: values that are allowed.
    """

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        key: str | None = None,
        value: object = None,
        allowed: str | Iterable[str] | None = None,
    ) -> None:
        self.message, self.file, self.key, self.value = message, file, key, value
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else ", ".join(sorted(allowed))
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [f"{self.file}: " if self.file else "", self.message]
        if self.key is not None:
            parts.append(f"\n  key:     {self.key}")
        if self.value is not None:
            parts.append(f"\n  value:   {self.value!r}")
        if self.allowed:
            parts.append(f"\n  allowed: {self.allowed}")
        return "".join(parts)

    def __reduce__(self) -> tuple:
        return (_rebuild, (self.message, self.file, self.key, self.value, self.allowed))


def _rebuild(message: str, file: Path | str | None, key: str | None, value: object, allowed: str | None) -> UserError:
    return UserError(message, file=file, key=key, value=value, allowed=allowed)
